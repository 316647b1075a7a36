"""The tree is the architecture: imports point down only, and only the edges know packages beyond torch and numpy."""

import json
import os
import subprocess
import sys

import pytest

from architecture import rules

# The house from the roof down (DESIGN §1). A module may import from its own floor and from every floor below.
FLOORS = (
    ("__main__", "cli"),
    ("algorithm", "face", "population", "export"),
    ("run", "audit", "bench", "live"),
    ("backtest", "monitor", "checkpoint", "adversary", "loop"),
    ("engine",),
    ("compiling", "graphs"),
    ("figures",),
    ("reading",),
    ("control", "statistics", "behaviour", "calibration", "normaliser", "evaluation", "registry"),
    ("update", "stepper", "stops", "losses", "estimate", "rollout", "risk", "intake"),
    ("nets", "optim", "market"),
    ("envs",),
    ("kernels",),
    ("functional",),
    ("presets",),
    ("types", "config", "settings", "errors", "streams", "trees", "ranks", "version"),
)

# The modules that may import more than the standard library, torch, numpy and safetensors.
EDGES = (
    *("quantail.__main__", "quantail.algorithm"),
    *(name for name in rules.modules("quantail.cli")),
    *(name for name in rules.modules("quantail.run")),
    *(name for name in rules.modules("quantail.market.bars")),
    *(name for name in rules.modules("quantail.audit")),
    *(name for name in rules.modules("quantail.kernels.gpu")),  # imported where Triton is
    *(
        "quantail.market.fetch.vendors",
        "quantail.market.ids",
        "quantail.market.single",
        "quantail.envs.gymnasium",
        "quantail.monitor.sinks",
        "quantail.monitor.console",
    ),
    "quantail.population.tune",
    *(name for name in rules.modules("quantail.export")),
    *("quantail.face.answers", "quantail.face.callbacks", "quantail.face.facades", "quantail.face.files", "quantail.face.log"),
    *("quantail.face.mapping", "quantail.face.session", "quantail.face.sources", "quantail.face.vec", "quantail.face.watch"),
)
BLOCKED = (
    *("gymnasium", "pandas", "pyarrow", "polars", "scipy", "yaml", "jinja2", "matplotlib", "rich", "tyro"),
    *("tensorboard", "tensorboardX", "wandb", "mlflow", "ray", "onnx", "onnxruntime", "ccxt", "yfinance"),
    *("stable_baselines3", "sb3_contrib"),
)
HEAVY = ("torch", "numpy", "safetensors", *BLOCKED)

PACKAGE = rules.modules()
PACKAGES = rules.packages()
CORE = {name: source for name, source in PACKAGE.items() if name not in EDGES}


def test_the_package_was_found():
    assert {"quantail", "quantail.cli", "quantail.errors", "quantail.monitor.install"} <= set(PACKAGE)
    assert "quantail.functional" in {name.rpartition(".")[0] for name in PACKAGE}
    assert len(list(rules.edges(PACKAGE, PACKAGES))) >= 5


def test_imports_point_down():
    assert rules.upward(PACKAGE, FLOORS, PACKAGES) == []


def test_imports_do_not_go_in_circles():
    assert rules.cycles(PACKAGE, PACKAGES) == []


def test_imports_name_what_they_import():
    assert rules.opaque_imports(PACKAGE, allowed=("quantail", "quantail.cli")) == []


def test_light_core_names_only_the_light_packages():
    allowed = {*sys.stdlib_module_names, "quantail", "torch", "numpy", "safetensors", "triton"}
    assert len(CORE) >= 5
    assert rules.foreign(CORE, allowed) == []


def test_light_core_runs_without_the_edge_packages():
    program = f"""
import importlib, json, sys
blocked = {BLOCKED!r}
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Block())
for name in {sorted(CORE)!r}:
    importlib.import_module(name)
try:
    import yaml
except ImportError:
    print(json.dumps(sorted(sys.modules)))
"""
    loaded = run_python(program)  # prints nothing, and so fails here, if the blocker did not block
    assert set(CORE) <= loaded


@pytest.mark.parametrize(
    "call",
    [
        pytest.param("import quantail", id="import quantail"),
        pytest.param("import quantail; quantail.__version__; dir(quantail)", id="version and dir"),
        pytest.param("import quantail; quantail.Config(seed=1).to_dict()", id="config"),
        pytest.param("from quantail.cli import main; main(['--help'])", id="--help"),
        pytest.param("from quantail.cli import main; main(['--version'])", id="--version"),
        pytest.param("from quantail.cli import main; main([])", id="no verb"),
        pytest.param("from quantail.cli import main; main(['no-such-verb'])", id="unknown verb"),
    ],
)
def test_start_is_light(call):
    loaded = run_python(f"import json, sys\n{call}\nprint(json.dumps(sorted(sys.modules)))")
    assert "quantail" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_the_probe_of_a_light_start_sees_torch_when_it_is_there():
    loaded = run_python("import json, sys\nfrom quantail.functional import risk\nprint(json.dumps(sorted(sys.modules)))")
    assert "torch" in loaded


def test_the_command_itself_starts_light():
    """The whole road from `python -m`, watched from outside by the interpreter's own import log."""
    command = [sys.executable, "-X", "importtime", "-m", "quantail", "--help"]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip() for line in answer.stderr.splitlines() if line.startswith("import time:")}
    assert "quantail.cli" in loaded
    assert loaded.isdisjoint(HEAVY)
    assert "doctor" in answer.stdout


def test_help_is_there_within_half_a_second():
    """Processor time, best of three: what the command costs, whatever else the machine does meanwhile."""

    def cost():
        before = os.times()
        subprocess.run([sys.executable, "-m", "quantail", "--help"], stdout=subprocess.DEVNULL, check=True)
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    assert 0 < min(cost() for _ in range(3)) <= 0.5


def run_python(program):
    """Names of the loaded modules, as the last line that the program prints in an interpreter of its own."""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return set(json.loads(answer.stdout.splitlines()[-1]))


# --- each rule sees its violation ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "from quantail.cli import main",
        "import quantail.cli",
        "from quantail import cli",
        "from ..cli import main",
        "from .. import cli",
        "def later():\n    from quantail import cli",
        "from importlib import import_module\nimport_module('quantail.cli')",
        "import quantail",
        "from quantail import train",
        "import typing\nif typing.TYPE_CHECKING:\n    pass\nelse:\n    import quantail.cli",
    ],
)
def test_upward_import_is_seen(source):
    package = {"quantail": "", "quantail.cli": "", "quantail.functional": "", "quantail.functional.risk": source}
    bad = rules.upward(package, FLOORS, {"quantail", "quantail.functional"})
    assert len(bad) == 1
    assert "quantail.functional.risk:" in bad[0]


@pytest.mark.parametrize("source", ["from . import types", "from .types import Law"])
def test_relative_import_in_a_package_starts_at_the_package(source):
    package = {"quantail": "", "quantail.types": "", "quantail.nets": f"{source}", "quantail.nets.types": ""}
    assert list(rules.edges(package, {"quantail", "quantail.nets"})) == [("quantail.nets", 1, "quantail.nets.types")]


def test_downward_and_typing_only_imports_are_fine():
    source = "from quantail.types import Law\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import quantail.cli"
    package = {"quantail": "", "quantail.cli": "", "quantail.types": "", "quantail.functional": source}
    assert rules.upward(package, FLOORS) == []


def test_module_that_is_not_in_the_table_is_seen():
    bad = rules.upward({"quantail.attic": ""}, FLOORS)
    assert bad == ["quantail.attic is not in the table of floors; add 'attic' there, on the floor DESIGN gives it"]


def test_circles_are_seen():
    between = {"quantail.update": "import quantail.rollout", "quantail.rollout": "def f():\n    import quantail.update"}
    within = {"quantail.nets.heads": "from quantail.nets import agent", "quantail.nets.agent": "from .heads import x"}
    by_way_of_units = {
        "quantail.nets.heads": "import quantail.optim.a",
        "quantail.optim.a": "",
        "quantail.optim.b": "import quantail.nets.agent",
        "quantail.nets.agent": "",
    }
    assert "rollout -> update -> rollout" in rules.cycles(between)[0]
    assert len(rules.cycles(within)) == 1
    assert rules.cycles(by_way_of_units) == ["imports go in a circle: nets -> optim -> nets"]


def test_computed_import_is_seen():
    source = "from importlib import import_module\nname = 'quantail.cli'\nimport_module(name)"
    assert len(rules.opaque_imports({"quantail.nets": source}, allowed=())) == 1


@pytest.mark.parametrize("source", ["import scipy.stats", "from scipy import stats", "def f():\n    import scipy"])
def test_foreign_package_is_seen(source):
    assert len(rules.foreign({"quantail.nets": source}, {"torch"})) == 1
