"""How sure a figure is: the error of a Sharpe ratio, what a search for the best one is worth, and intervals.

Sharpe ratios are per period here, as their theory has them: a year's figure over √A. Mixing the two inflates every
probability below.
"""

import math
from collections.abc import Iterator
from itertools import combinations, islice
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from quantail.backtest.bootstrap import block_length, bootstrap_difference, bootstrap_interval, politis_white
from quantail.backtest.metrics import excess_kurtosis, sharpe, skewness
from quantail.backtest.seeds import interquartile_mean, seed_interval
from quantail.backtest.series import Floats, as_numbers, check_number, check_whole
from quantail.errors import InputError

__all__ = [
    "block_length",
    "bootstrap_difference",
    "bootstrap_interval",
    "deflated_sharpe",
    "expected_maximum_sharpe",
    "interquartile_mean",
    "minimum_track_record",
    "politis_white",
    "probabilistic_sharpe",
    "probability_of_overfitting",
    "seed_interval",
    "sharpe_standard_error",
]

EULER = 0.5772156649015329  # Euler and Mascheroni's constant
STILL = 64 * np.finfo(np.float64).eps  # a variance below this part of the mean square is rounding
AT_ONCE = 512  # halves of `probability_of_overfitting` computed together


def sharpe_standard_error(returns: ArrayLike) -> float:
    """Error of the Sharpe ratio per period: √((1 − γ₃·SR + (γ₄ − 1)/4·SR²)/(T − 1))   (Mertens 2002; Lo 2002).

    returns [T] with T ≥ 4 -> scalar; γ₃ skewness, γ₄ kurtosis (3 for a Gaussian), both corrected for bias. It knows of fat
    tails, not of dependence: `bootstrap_interval` does. NaN if the returns never change.
    """
    r = as_numbers("returns", returns, least=4)
    return math.sqrt(_variance_factor(r) / (len(r) - 1))


def probabilistic_sharpe(returns: ArrayLike, benchmark: float = 0.0) -> float:
    """Probability that the true Sharpe ratio exceeds another: Φ((SR − SR*)/SE)   (Bailey & López de Prado 2012).

    returns [T] with T ≥ 4, benchmark SR* per period -> scalar in [0, 1]; NaN if the returns never change.
    """
    check_number("benchmark", benchmark, -math.inf, math.inf, "a Sharpe ratio per period")
    return _normal_cdf((sharpe(returns, 1) - benchmark) / sharpe_standard_error(returns))


def expected_maximum_sharpe(deviation: float, trials: int) -> float:
    """The best of N worthless trials: σ·((1 − γ)·Φ⁻¹(1 − 1/N) + γ·Φ⁻¹(1 − 1/(N·e)))   (Bailey & López de Prado 2014).

    deviation σ of the trials' Sharpe ratios, N ≥ 1 -> scalar; γ = 0.5772…; 0 for a single trial, which nobody chose.
    """
    check_whole("trials", trials, 1)
    if trials == 1:
        return 0.0
    return deviation * ((1 - EULER) * _probit(1 - 1 / trials) + EULER * _probit(1 - 1 / (trials * math.e)))


def deflated_sharpe(returns: ArrayLike, trial_sharpes: ArrayLike, trials: int | None = None) -> float:
    """Probability of a true Sharpe ratio above 0 in the best of N: DSR = PSR(E[max])   (Bailey & López de Prado 2014).

    returns [T] of the one that was taken, trial_sharpes [n] per period of everything that was tried -> scalar. `trials` N where
    more was tried than n ratios were kept of: seeds × settings × rewards × looks at the test all count.
    """
    sharpes = as_numbers("trial_sharpes", trial_sharpes)
    count = len(sharpes) if trials is None else trials
    check_whole("trials", count, len(sharpes))
    if count > 1 and len(sharpes) < 2:
        raise InputError(f"trial_sharpes has 1 entry of {count} trials; needs at least 2, for their spread sets the bar")
    spread = float(sharpes.std(ddof=1)) if count > 1 else 0.0
    return probabilistic_sharpe(returns, expected_maximum_sharpe(spread, count))


def minimum_track_record(returns: ArrayLike, benchmark: float = 0.0, level: float = 0.95) -> float:
    """How many periods it takes to be sure   (Bailey & López de Prado 2012).

        1 + (1 − γ₃·SR + (γ₄ − 1)/4·SR²)·(Φ⁻¹(level)/(SR − SR*))²

    returns [T] with T ≥ 4, benchmark SR* per period -> scalar; inf if the Sharpe ratio does not exceed SR*, NaN if the returns
    never change.
    """
    check_number("level", level, 0.5, 1, "a probability between 0.5 and 1")
    r = as_numbers("returns", returns, least=4)
    lead = sharpe(r, 1) - benchmark
    if lead <= 0:
        return math.inf
    return 1 + _variance_factor(r) * (_probit(level) / lead) ** 2


def probability_of_overfitting(returns_TN: ArrayLike, blocks: int = 16) -> float:
    """How often the best of one half is below the median in the other: PBO = P(ln ω/(1 − ω) ≤ 0)   (Bailey et al. 2017).

    returns_TN [T, N] of every trial, N ≥ 2 -> scalar. T is cut into S `blocks` (rows beyond a multiple of S fall away), and
    each of the C(S, S/2) choices of half of them picks its best trial by Sharpe ratio; ω is that trial's rank in the other
    half, ties averaged, over N + 1. Near 0.5 the choice carries no information. NaN if a trial never moves in some half.
    """
    check_whole("blocks", blocks, 2)
    r = as_numbers("returns_TN", returns_TN, ("T", "N"))
    length = len(r) // blocks
    if blocks % 2 or length * blocks // 2 < 2 or r.shape[1] < 2:
        raise InputError(
            f"returns_TN is {list(r.shape)} with blocks={blocks}; needs at least 2 trials, an even number of blocks "
            "and 2 rows in each half"
        )
    cut = r[: length * blocks].reshape(blocks, length, -1)
    centre: Floats = cut.mean(axis=(0, 1))  # around it, sums of squares lose no digits
    sums, squares = (cut - centre).sum(axis=1), np.square(cut - centre).sum(axis=1)  # [S, N]
    lost, halves = 0.0, 0
    for chosen in _halves(blocks):
        inside, outside = (_half_sharpes(part, sums, squares, length, centre) for part in (chosen, 1 - chosen))  # [C, N]
        if not np.isfinite(inside).all():  # every half is once the inner one
            return math.nan
        winner = np.take_along_axis(outside, inside.argmax(axis=1)[:, None], axis=1)  # what it did in the other half
        rank = (outside < winner).sum(axis=1) + ((outside == winner).sum(axis=1) + 1) / 2
        lost += float((rank / (r.shape[1] + 1) <= 0.5).sum())
        halves += len(chosen)
    return lost / halves


# --- parts -----------------------------------------------------------------------------------------------------------


def _halves(blocks: int) -> Iterator[Floats]:
    """Every choice of half of the blocks as rows of 0 and 1: [C, S], some at a time."""
    every = combinations(range(blocks), blocks // 2)
    while some := tuple(islice(every, AT_ONCE)):
        chosen = np.zeros((len(some), blocks))
        np.put_along_axis(chosen, np.asarray(some), 1.0, axis=1)
        yield chosen


def _half_sharpes(chosen: Floats, sums: Floats, squares: Floats, length: int, centre: Floats) -> Floats:
    """Sharpe ratios of all trials over chosen blocks, from the blocks' sums: [C, N]; NaN where a trial never moved."""
    rows = length * chosen.sum(axis=1, keepdims=True)
    total, square = chosen @ sums, chosen @ squares
    variance = (square - np.square(total) / rows) / (rows - 1)
    still = variance <= STILL * square
    ratio: Floats = (total / rows + centre) / np.sqrt(np.where(still, np.nan, variance))
    return ratio


def _variance_factor(r: Floats) -> float:
    """(T − 1)·SE²; below 0 it cannot be, and for a few wild returns the corrected moments say so all the same: NaN."""
    ratio = sharpe(r, 1)
    factor = 1 - skewness(r) * ratio + (excess_kurtosis(r) + 2) / 4 * ratio**2
    return factor if factor > 0 else math.nan


def _normal_cdf(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))


def _probit(p: float) -> float:
    return NormalDist().inv_cdf(p)
