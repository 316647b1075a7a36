"""Every look at the last rows is written down, and each raises the bar."""

import json
import math

import numpy as np
import pytest

from backtest.returns import SERIES
from quantail.backtest import metrics, significance
from quantail.backtest.holdout import HoldOut
from quantail.errors import InputError


@pytest.fixture
def test(tmp_path):
    return HoldOut(tmp_path / "of" / "looks.jsonl", rows=100, size=30, data="abc")


def test_rows_to_search_on_and_rows_to_look_at_never_meet(test):
    assert test.search_rows().tolist() == list(range(70))
    assert test.search_rows(purge=8).tolist() == list(range(62))
    number, rows = test.look("first")
    assert (number, rows.tolist()) == (1, list(range(70, 100)))


def test_nothing_is_written_before_the_first_look(test, tmp_path):
    assert (test.count, test.sharpes) == (0, ())
    test.search_rows()
    assert list(tmp_path.iterdir()) == []


def test_looks_are_counted_across_processes_and_whatever_comes_of_them(test):
    """The second look is never followed by a result, as if the evaluation had failed: it counts all the same."""
    test.result(test.look("seed 0")[0], 0.05)
    test.look("seed 1")
    again = HoldOut(test.file, 100, 30, "abc")
    assert again.look("seed 2")[0] == 3
    again.result(3, -0.01)
    assert (test.count, test.sharpes) == (3, (0.05, -0.01))
    lines = [json.loads(line) for line in test.file.read_text(encoding="utf-8").splitlines()]
    assert [line["label"] for line in lines if "look" in line] == ["seed 0", "seed 1", "seed 2"]
    assert all(line["time"].endswith("+00:00") for line in lines if "look" in line)


def test_each_look_raises_the_bar(test):
    returns = SERIES["up"][:300]
    ratio = metrics.sharpe(returns, 1)
    test.result(test.look("a")[0], ratio)
    assert test.deflated_sharpe(returns) == significance.probabilistic_sharpe(returns)  # the first and only one
    searched = [0.01, -0.03]
    once = test.deflated_sharpe(returns, searched)
    assert once == significance.deflated_sharpe(returns, [*searched, ratio], 3)
    test.look("b")
    twice = test.deflated_sharpe(returns, searched)
    assert twice == significance.deflated_sharpe(returns, [*searched, ratio], 4)
    assert twice < once
    test.result(2, 0.07)
    assert test.deflated_sharpe(returns, np.array(searched)) == significance.deflated_sharpe(returns, [*searched, ratio, 0.07])


def test_a_file_belongs_to_its_rows(test):
    test.look("a")
    for other in ((101, 30, "abc"), (100, 31, "abc"), (100, 30, "abd")):
        with pytest.raises(InputError, match=r"counts looks at .*'data': 'abc'.*, not at .*; keep one file for each hold-out"):
            HoldOut(test.file, *other)


@pytest.mark.parametrize("broken", ["{", "7", "[1]", ""])
def test_a_file_that_cannot_be_read_is_no_fresh_start(test, broken):
    test.look("a")
    with open(test.file, "a", encoding="utf-8") as file:
        file.write(broken + "\n")
    with pytest.raises(InputError, match="line 3 is no record, so looks cannot be counted; restore the file"):
        _ = test.count


def test_an_emptied_file_is_no_fresh_start(test):
    test.look("a")
    test.file.write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="counts looks at nothing, not at"):
        test.look("b")


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda test: HoldOut(test.file, 30, 30, "abc"), "size=30 of 30 rows; needs fewer"),
        (lambda test: HoldOut(test.file, 30, 0, "abc"), "size=0; needs a whole number of at least 1"),
        (lambda test: test.search_rows(70), "purge=70 leaves none of the 70 rows before the hold-out"),
        (lambda test: test.search_rows(-1), "purge=-1; needs a whole number"),
        (lambda test: test.result(1, 0.5), r"look 1 is not in .*, which counts 0; give the number that look\(\) gave"),
        (lambda test: test.result(test.look("a")[0], math.nan), "sharpe has 1 entries that are not finite"),
        (lambda test: test.deflated_sharpe(SERIES["up"]), "holds no result yet; take the rows from"),
    ],
)
def test_refusals_say_what_was_seen_and_what_is_needed(test, call, says):
    with pytest.raises(InputError, match=says):
        call(test)
