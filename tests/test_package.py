"""The public face: names load when they are first used, and wrong ones get a hint."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import quantail

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", quantail.__all__)
def test_every_public_name_is_there_and_listed(name):
    assert getattr(quantail, name) is not None
    assert name in dir(quantail)


def test_public_names_are_the_objects_of_their_modules():
    from quantail.errors import ConfigError, InputError, QuantailError

    assert quantail.ConfigError is ConfigError
    assert quantail.InputError is InputError
    assert quantail.QuantailError is QuantailError
    assert (quantail.Config, quantail.train) == (sys.modules["quantail.config"].Config, sys.modules["quantail.loop"].train)
    assert quantail.functional is sys.modules["quantail.functional"]
    assert quantail.errors is sys.modules["quantail.errors"]


def test_mathematics_is_within_reach_of_one_import():
    names = ["returns", "quantile", "categorical", "risk", "policy", "actions", "moments"]
    program = f"import quantail as qt; print(*(getattr(qt.functional, name).__name__ for name in {names}))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == [f"quantail.functional.{name}" for name in names]


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(quantail.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.asname or alias.name for node in ast.walk(block) if isinstance(node, ast.ImportFrom) for alias in node.names}
    seen |= {node.target.id for node in block.body if isinstance(node, ast.AnnAssign)}
    assert seen == set(quantail.__all__) == {*quantail._HOME, "__version__"}


def test_unknown_name_gets_a_hint():
    with pytest.raises(AttributeError, match="no attribute 'functionl'; did you mean 'functional'"):
        _ = quantail.functionl
    with pytest.raises(AttributeError, match="no attribute 'zzz'; it has Config, "):
        _ = quantail.zzz


def test_version_is_the_one_of_pyproject():
    assert quantail.__version__.removesuffix("+source") == PYPROJECT["project"]["version"]


def test_version_without_installation_comes_from_the_source_tree(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    assert quantail.__version__ == f"{PYPROJECT['project']['version']}+source"
    monkeypatch.setattr("quantail.version.__file__", str(ROOT / "no" / "such" / "place" / "quantail" / "version.py"))
    assert quantail.__version__ == "0+unknown"


def test_types_are_shipped():
    assert (Path(quantail.__file__).parent / "py.typed").is_file()


def test_a_source_archive_holds_what_its_makefile_runs():
    included = {path.strip("/") for path in PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]}
    scripts = re.findall(r"\$\(BIN\)/python ([a-z]+)/", (ROOT / "Makefile").read_text(encoding="utf-8"))
    assert {"benchmarks", "tools"} <= set(scripts)
    assert {*scripts, "src", "tests", "docs", "Makefile", "constraints.txt", "README.md"} <= included
    assert all((ROOT / path).exists() for path in included)


def test_tests_import_only_what_the_dev_extra_brings():
    """Of packages that others happen to bring along one day none may be left."""
    ours = {"quantail", *(path.stem for part in ("tests", "benchmarks") for path in (ROOT / part).iterdir())}
    needed = [*PYPROJECT["project"]["dependencies"], *PYPROJECT["project"]["optional-dependencies"]["dev"]]
    by_another_name = {"yaml", "empyrical", "talib"}  # pyyaml, empyrical-reloaded, TA-Lib
    declared = {re.split(r"[>=\[]", name)[0].replace("-", "_") for name in needed} | by_another_name
    peers = {"stable_baselines3", "sb3_contrib"}  # imported where present
    named = set()
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                named |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                named.add(node.module.split(".")[0])
    assert named - ours - set(sys.stdlib_module_names) - peers <= declared


def test_constraints_pin_torch_and_everything_that_pyproject_names():
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert pins == sorted(pins)
    assert "torch==2.13.0" in pins
    extras = PYPROJECT["project"]["optional-dependencies"]
    needed = [*PYPROJECT["project"]["dependencies"], *(name for extra in extras.values() for name in extra)]
    names = {requirement.partition(">=")[0].partition("[")[0].lower() for requirement in needed}
    assert len(names) > 20
    assert names <= {pin.partition("==")[0] for pin in pins}
