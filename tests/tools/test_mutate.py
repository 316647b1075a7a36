"""The judge of the tests is judged: it must never call a fault caught that no test failed on."""

import ast
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MATHS = "src/quantail/functional"


@pytest.fixture(scope="module")
def mutate():
    spec = importlib.util.spec_from_file_location("mutate_tool", ROOT / "tools" / "mutate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def project(tmp_path):
    """A package of one function, with a test that notices its sign but not its constant."""
    maths = tmp_path / MATHS
    maths.mkdir(parents=True)
    (maths.parent / "__init__.py").touch()
    (maths / "__init__.py").touch()
    (maths / "sums.py").write_text("def add(x, y):\n    return x + y + 0\n", encoding="utf-8")
    tests = tmp_path / "tests" / "functional"
    tests.mkdir(parents=True)
    (tests / "test_sums.py").write_text(
        "from quantail.functional.sums import add\n\n\ndef test_add():\n    assert add(2, 3) >= 5\n", encoding="utf-8"
    )
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n", encoding="utf-8")
    return tmp_path


def test_every_entry_of_the_table_still_matches_the_source(mutate):
    assert len(mutate.TABLE) >= 20
    assert mutate.mismatches(ROOT, mutate.TABLE) == []


def test_every_entry_changes_running_code_and_names_existing_tests(mutate):
    for mutant in mutate.TABLE:
        source = mutate.source_of(ROOT, mutant)
        broken = source.replace(mutant.original, mutant.fault)
        assert ast.dump(ast.parse(source)) != ast.dump(ast.parse(broken)), mutant.says
        assert all((ROOT / path).exists() for path in mutate.tests_of(mutant.module)), mutant.says


def test_every_module_of_the_mathematics_is_attacked(mutate):
    modules = {path.stem for path in (ROOT / MATHS).glob("*.py")} - {"__init__", "checks"}
    assert modules <= {mutant.module for mutant in mutate.TABLE}


def test_caught_survived_and_broken_are_told_apart(mutate, project):
    table = [
        mutate.Mutant("sums", "x + y", "x - y", "sign"),
        mutate.Mutant("sums", "+ 0", "+ 1", "constant"),
        mutate.Mutant("sums", "def add", "def adds", "name"),
    ]
    assert [mutate.try_mutant(project, mutant).verdict for mutant in table] == ["caught", "survived", "broken"]


def test_table_passes_only_if_all_are_caught(mutate, project, capsys):
    caught, survivor = mutate.Mutant("sums", "x + y", "x - y", "sign"), mutate.Mutant("sums", "+ 0", "+ 1", "constant")
    assert mutate.run_table(project, [caught]) == 0
    assert "caught 1 of 1" in capsys.readouterr().out
    assert mutate.run_table(project, [caught, survivor]) == 1
    assert "caught 1 of 2" in capsys.readouterr().out


def test_table_that_does_not_match_fails(mutate, project, capsys):
    assert mutate.run_table(project, [mutate.Mutant("sums", "x * y", "x", "gone")]) == 1
    assert "holds 'x * y' 0 times" in capsys.readouterr().out


def test_red_baseline_fails(mutate, project, capsys):
    path = project / "tests" / "functional" / "test_sums.py"
    path.write_text(path.read_text(encoding="utf-8").replace(">= 5", "== 6"), encoding="utf-8")
    assert mutate.run_table(project, [mutate.Mutant("sums", "x + y", "x - y", "sign")]) == 1
    assert "not green without any fault" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("code", "output", "expected"),
    [
        (1, "FAILED tests/a.py::test_b - assert 1 == 2\n1 failed", "caught"),
        (1, "ERROR tests/a.py::test_b - fixture\n1 error", "broken"),
        (0, "3 passed", "survived"),
        (2, "ERROR tests/a.py - ImportError\n1 error during collection", "broken"),
        (4, "", "broken"),
        (5, "no tests ran", "broken"),
    ],
)
def test_verdict(code, output, expected, mutate):
    assert mutate.verdict(code, output).verdict == expected


def test_tests_without_end_are_broken(mutate, project, monkeypatch):
    monkeypatch.setattr(mutate, "TIMEOUT_SECONDS", 0.5)
    path = project / "tests" / "functional" / "test_sums.py"
    path.write_text("import time\n\n\ndef test_add():\n    time.sleep(60)\n", encoding="utf-8")
    assert mutate.trial(project, None, ["tests/functional"]).verdict == "broken"


def test_trial_refuses_to_judge_another_copy(mutate, project, monkeypatch):
    import_elsewhere = {"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin"}
    assert mutate.judge(project, import_elsewhere, ["tests/functional"]).verdict == "broken"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("λ = a < b", ["λ = a <= b"]),
        ("x = a + b * c", ["x = a - b * c", "x = a + b / c"]),
        ("x = 0 < a <= 1", ["x = 1 < a <= 1", "x = 0 <= a <= 1", "x = 0 < a < 1", "x = 0 < a <= 0"]),
        ("x = -a", ["x = a"]),
        ("x = ~(a == b)", ["x = (a == b)", "x = ~(a != b)"]),
        ("f(keepdim=True)", ["f(keepdim=False)"]),
        ("x = a.min(-1)", ["x = a.max(-1)", "x = a.min(1)", "x = a.min(-0)"]),
        ("x = 1.0", ["x = 0.0"]),
        ("x = (a\n     + b)", ["x = (a\n     - b)"]),
        ("def f(x: 'int' = 2) -> 0:\n    '''1 + 1'''\n    raise E(f'{x + 1}')", []),
    ],
)
def test_survey_makes_one_token_faults(source, expected, mutate):
    made = [mutate.apply(source.encode(), edit).decode() for edit in mutate.edits(source.encode())]
    assert sorted(text.replace("x =  ", "x = ") for text in made) == sorted(expected)


def test_every_fault_of_the_survey_is_python(mutate):
    faults = list(mutate.all_edits(ROOT))
    assert len(faults) > 300
    for path, edit in faults:
        ast.parse(mutate.apply((ROOT / path).read_bytes(), edit))


def test_survey_lists_survivors_with_their_place(mutate, project, capsys):
    assert mutate.survey(project, 10, seed=0) == 0
    out = capsys.readouterr().out
    assert f"survived  {MATHS}/sums.py:2  '0' -> '1'  in: return x + y + 0" in out
    assert "3 of 3 possible faults, seed 0" in out
    assert "1 caught" in out
