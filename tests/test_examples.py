"""Every example runs, with few steps, and prints one number."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
STEPS = {"06_resume": 7000, "07_bar_by_bar": 1024}  # of the others so many as one rollout needs
MUST_BE_NOUGHT = ("06_resume", "07_bar_by_bar")


SLOW = ("03_your_costs", "05_tail_limit")
NAMES = sorted(path.stem for path in EXAMPLES.glob("0*.py"))


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in NAMES])
def test_an_example_prints_one_number(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, str(STEPS.get(name, 1))])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    (line,) = capsys.readouterr().out.splitlines()
    assert -1e3 < float(line) < 1e3
    if name in MUST_BE_NOUGHT:
        assert float(line) == 0


def test_there_is_one_idea_each():
    assert [name[:2] for name in NAMES] == [f"{i:02}" for i in range(1, len(NAMES) + 1)]
    assert len(NAMES) >= 7
