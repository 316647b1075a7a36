"""What several runs say together. One seed is an anecdote; the mean of ten is at the mercy of one that failed."""

import numpy as np
from numpy.typing import ArrayLike

from quantail.backtest.series import Floats, as_numbers, check_number, check_whole


def interquartile_mean(scores: ArrayLike) -> float:
    """Mean of the middle half: Σ_{k < i ≤ n−k} x_(i)/(n − 2k), k = ⌊n/4⌋ of all n scores   (Agarwal et al. 2021).

    scores [S] of S seeds, or [S, K] of S seeds on K markets -> scalar.
    """
    order = np.sort(_scores(scores), axis=None)
    cut = len(order) // 4
    return float(order[cut : len(order) - cut].mean())


def seed_interval(scores: ArrayLike, level: float = 0.95, seed: int = 0, resamples: int = 2000) -> tuple[float, float]:
    """Interval of `interquartile_mean`: quantiles of IQM(x*), seeds drawn for each market by itself   (Agarwal et al. 2021).

    scores [S] or [S, K] with S ≥ 2 -> low, high. Markets are the strata: each keeps its S scores, whichever seeds they are of.
    """
    check_number("level", level, 0, 1, "a probability between 0 and 1, e.g. 0.95")
    check_whole("resamples", resamples, 2)
    x = _scores(scores, least=2)
    noise = np.random.default_rng(seed)
    drawn = [interquartile_mean(np.take_along_axis(x, noise.integers(len(x), size=x.shape), axis=0)) for _ in range(resamples)]
    low, high = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _scores(scores: ArrayLike, least: int = 1) -> Floats:
    """[S, K], whether of one market or of several."""
    array = np.asarray(scores)
    return as_numbers("scores", array[:, None] if array.ndim == 1 else array, ("S", "K"), least)
