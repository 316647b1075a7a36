"""Rows to learn from and to be judged on, against skfolio and scikit-learn's rule, a slow loop, and what must never happen."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skfolio.model_selection import CombinatorialPurgedCV, WalkForward

from quantail.backtest import splits
from quantail.errors import InputError


@pytest.mark.parametrize("window", ["expanding", "sliding"])
@pytest.mark.parametrize("keep_rest", [True, False])
@pytest.mark.parametrize(
    ("rows", "train", "test", "purge"), [(100, 30, 10, 0), (103, 31, 17, 5), (50, 7, 3, 1), (20, 8, 11, 1)]
)
def test_walk_forward_is_that_of_skfolio(rows, train, test, purge, window, keep_rest):
    judge = WalkForward(test, train, expand_train=window == "expanding", reduce_test=keep_rest, purged_size=purge)
    expected = list(judge.split(np.zeros((rows, 1))))
    found = splits.walk_forward(rows, train, test, purge, window=window, keep_rest=keep_rest)
    assert len(found) == len(expected) > 0
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours.train, theirs[0])
        np.testing.assert_array_equal(ours.test, theirs[1])


@pytest.mark.parametrize(
    ("rows", "folds", "tests", "purge", "embargo"),
    [(2147, 6, 2, 5, 5), (100, 5, 2, 0, 0), (103, 7, 3, 2, 0), (250, 10, 8, 0, 4)],
)
def test_combinatorial_splits_are_those_of_skfolio(rows, folds, tests, purge, embargo):
    judge = CombinatorialPurgedCV(folds, tests, purge, embargo)
    expected = list(judge.split(np.zeros((rows, 1))))
    found = splits.combinatorial(rows, folds, tests, purge, embargo)
    assert len(found.trains) == len(found.tests) == len(expected) == math.comb(folds, tests)
    for train, chosen, theirs in zip(found.trains, found.tests, expected, strict=True):
        np.testing.assert_array_equal(train, theirs[0])
        for fold, rows_of_fold in zip(chosen, theirs[1], strict=True):
            np.testing.assert_array_equal(found.folds[fold], rows_of_fold)
    np.testing.assert_array_equal(found.paths.T, judge.recombined_paths)


@pytest.mark.property
@given(
    rows=st.integers(8, 60),
    folds=st.integers(2, 6),
    tests=st.integers(1, 5),
    purge=st.integers(0, 4),
    embargo=st.integers(0, 4),
)
def test_training_rows_by_a_slow_loop(rows, folds, tests, purge, embargo):
    """Row by row: a row teaches if no test row lies within the purge after it or within purge and embargo before it."""
    if tests >= folds:
        return
    fold_of = [min(t // (rows // folds), folds - 1) for t in range(rows)]
    expected = []
    for chosen in itertools.combinations(range(folds), tests):
        judged = {t for t in range(rows) if fold_of[t] in chosen}
        near = {t for u in judged for t in (*range(u - purge, u), *range(u + 1, u + purge + embargo + 1))}
        expected.append([t for t in range(rows) if t not in judged | near])
    if not all(expected):
        with pytest.raises(InputError, match="leave nothing to learn from"):
            splits.combinatorial(rows, folds, tests, purge, embargo)
        return
    found = splits.combinatorial(rows, folds, tests, purge, embargo)
    assert [train.tolist() for train in found.trains] == expected
    assert np.concatenate(found.folds).tolist() == list(range(rows))


def test_every_path_is_a_whole_history_and_every_test_is_used_once():
    found = splits.combinatorial(120, 6, 2)
    assert found.paths.shape == (5, 6)
    for path in found.paths:
        assert all(fold in found.tests[split] for fold, split in enumerate(path))
    used = [(int(split), fold) for path in found.paths for fold, split in enumerate(path)]
    assert sorted(used) == sorted((split, fold) for split, chosen in enumerate(found.tests) for fold in chosen)


def test_kfold_tests_each_row_once():
    found = splits.purged_kfold(103, 5, purge=3, embargo=2)
    assert np.concatenate([split.test for split in found]).tolist() == list(range(103))
    assert [len(split.test) for split in found] == [20, 20, 20, 20, 23]
    assert found[1].train.tolist() == [*range(17), *range(45, 103)]  # tests 20 … 39
    assert found[0].train.tolist() == list(range(25, 103))
    assert found[4].train.tolist() == list(range(77))


@pytest.mark.property
@given(
    rows=st.integers(2, 80),
    train=st.integers(1, 40),
    test=st.integers(1, 30),
    purge=st.integers(0, 9),
    window=st.sampled_from(["expanding", "sliding"]),
    keep_rest=st.booleans(),
)
def test_walking_forward_never_sees_the_future(rows, train, test, purge, window, keep_rest):
    try:
        found = splits.walk_forward(rows, train, test, purge, window=window, keep_rest=keep_rest)
    except InputError:
        assert rows < train + purge + (1 if keep_rest else test)
        return
    judged = np.concatenate([split.test for split in found])
    assert judged.tolist() == list(range(train + purge, train + purge + len(judged)))
    assert (rows - len(judged) - train - purge) in ((0,) if keep_rest else range(test))
    for split in found:
        assert split.test[0] - split.train[-1] == purge + 1
        assert len(split.train) == (split.train[-1] + 1 if window == "expanding" else train)
        assert (np.diff(split.train) == 1).all()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: splits.walk_forward(100, 90, 10, 10), "100 rows; train=90, purge=10 and a test of 10 need 110"),
        (lambda: splits.walk_forward(99, 80, 10, 10, keep_rest=False), "99 rows; train=80, purge=10 and a test of 10 need 100"),
        (lambda: splits.walk_forward(100, 0, 10), "train=0; needs a whole number of at least 1"),
        (lambda: splits.walk_forward(100, 5, 2.5), "test=2.5; needs a whole number"),
        (lambda: splits.walk_forward(100, 5, 5, -1), "purge=-1; needs a whole number of at least 0"),
        (lambda: splits.walk_forward(100, 5, 5, window="rolling"), "window='rolling'; needs 'expanding' or 'sliding'"),
        (lambda: splits.combinatorial(100, 5, 5), "folds=5, tests=5 of 100 rows; needs tests < folds <= rows"),
        (lambda: splits.combinatorial(5, 6, 2), "folds=6, tests=2 of 5 rows"),
        (lambda: splits.combinatorial(100, 5, 2, embargo=-1), "embargo=-1; needs a whole number"),
        (
            lambda: splits.purged_kfold(40, 2, 5, 20),
            "purge=5 and embargo=20 leave nothing to learn from beside folds of 20 rows",
        ),
        (lambda: splits.purged_kfold(40, 1), "folds=1; needs a whole number of at least 2"),
    ],
)
def test_refusals_say_what_was_seen_and_what_is_needed(call, says):
    with pytest.raises(InputError, match=says):
        call()
