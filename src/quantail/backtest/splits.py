"""Which rows an agent may learn from and on which it is judged. By time, and with a gap where what is known overlaps.

A split is two arrays of row numbers. The purge p leaves out the rows next to a test: the longest look-back of a feature plus
the rows over which rewards are credited, about 1/(1 − γλ). The embargo leaves out more behind a test, for what the test's
own shocks left in the market. Rows before a test may still warm an agent's memory: they lie in its past.
"""

from itertools import combinations
from math import comb
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from quantail.backtest.series import check_whole
from quantail.errors import InputError

Rows: TypeAlias = NDArray[np.int64]


class Split(NamedTuple):
    """Rows to learn from and rows to be judged on, both in order of time."""

    train: Rows
    test: Rows


class Combinations(NamedTuple):
    """Every choice of k of N folds as the test. Episodes are cut where rows or folds do not follow each other."""

    folds: tuple[Rows, ...]  # N runs of rows
    trains: tuple[Rows, ...]  # C(N, k), what split i learns from
    tests: tuple[tuple[int, ...], ...]  # the k folds on which split i is judged
    paths: NDArray[np.int64]  # [φ, N] the split that judges each fold on each path; φ = C(N, k)·k/N


def walk_forward(
    rows: int,
    train: int,
    test: int,
    purge: int = 0,
    *,
    window: Literal["expanding", "sliding"] = "expanding",
    keep_rest: bool = True,
) -> tuple[Split, ...]:
    """Learn, leave a gap, be judged, move on by the test: train t < b, test b + p ≤ t < b + p + m. Source: definition.

    rows T, train and test in rows -> (train [n], test [≤ m]) of each, whose tests follow each other without a gap or an
    overlap, so that their returns make one curve. `expanding` learns from everything before, `sliding` from the last `train`
    rows. `keep_rest` keeps a last test that is shorter.
    """
    for name, value, least in (("rows", rows, 1), ("train", train, 1), ("test", test, 1), ("purge", purge, 0)):
        check_whole(name, value, least)
    if window not in ("expanding", "sliding"):
        raise InputError(f"window={window!r}; needs 'expanding' or 'sliding'")
    first = train + purge
    if rows < first + (1 if keep_rest else test):
        raise InputError(
            f"{rows} rows; train={train}, purge={purge} and a test of {test} need {first + test}: shorten one of them"
        )
    last = rows if keep_rest else rows - test + 1
    return tuple(
        Split(
            np.arange(0 if window == "expanding" else begin - purge - train, begin - purge),
            np.arange(begin, min(begin + test, rows)),
        )
        for begin in range(first, last, test)
    )


def purged_kfold(rows: int, folds: int = 5, purge: int = 0, embargo: int = 0) -> tuple[Split, ...]:
    """Each of K runs of rows is the test once; training leaves out p rows before it and p + e behind   (López de Prado 2018).

    rows T, folds K ≥ 2 -> K of (train [n], test [m]). The runs are ⌊T/K⌋ long, the last takes the rest. Training rows lie on
    both sides of the test: the future is used to judge the past, so this compares settings; it is no backtest.
    """
    every = combinatorial(rows, folds, 1, purge, embargo)
    return tuple(Split(train, every.folds[test]) for train, (test,) in zip(every.trains, every.tests, strict=True))


def combinatorial(rows: int, folds: int = 6, tests: int = 2, purge: int = 0, embargo: int = 0) -> Combinations:
    """Every choice of k test folds out of N, and the φ = C(N, k)·k/N whole histories they make up   (López de Prado 2018).

    rows T, folds N ≥ 2, tests 1 ≤ k < N -> C(N, k) trainings, paths [φ, N]. Purge and embargo as in `purged_kfold`.
    """
    for name, value, least in (
        ("rows", rows, 1),
        ("folds", folds, 2),
        ("tests", tests, 1),
        ("purge", purge, 0),
        ("embargo", embargo, 0),
    ):
        check_whole(name, value, least)
    if tests >= folds or rows < folds:
        raise InputError(f"folds={folds}, tests={tests} of {rows} rows; needs tests < folds <= rows")
    length = rows // folds
    fold_of = np.minimum(np.arange(rows) // length, folds - 1)
    chosen = tuple(combinations(range(folds), tests))
    trains = tuple(_train_rows(np.isin(fold_of, choice), purge, embargo) for choice in chosen)
    if any(len(train) == 0 for train in trains):
        raise InputError(
            f"purge={purge} and embargo={embargo} leave nothing to learn from beside folds of {length} rows; "
            "shorten them, or take fewer folds"
        )
    judged_by = [[i for i, choice in enumerate(chosen) if fold in choice] for fold in range(folds)]
    paths = np.array(judged_by, dtype=np.int64).T
    assert len(paths) == comb(folds, tests) * tests // folds
    return Combinations(tuple(np.flatnonzero(fold_of == fold) for fold in range(folds)), trains, chosen, paths)


def _train_rows(test: NDArray[np.bool_], purge: int, embargo: int) -> Rows:
    """Rows that are no test and lie neither within the purge before one nor within purge and embargo behind one."""
    near = test.copy()
    for distance in range(1, min(max(purge, purge + embargo), len(test) - 1) + 1):
        if distance <= purge:
            near[:-distance] |= test[distance:]
        near[distance:] |= test[:-distance]
    return np.flatnonzero(~near)
