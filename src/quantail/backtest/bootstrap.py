"""Intervals for any figure of dependent returns: the stationary block bootstrap, with blocks as long as the data ask for.

Blocks of random length keep what follows what; the same blocks are drawn from agent and baseline, so that what both went
through together cancels in the difference.
"""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantail.backtest.series import Floats, as_numbers, as_pair, check_number, check_whole
from quantail.errors import InputError

Statistic = Callable[[Floats], float]  # returns [T] -> one figure
Method = Literal["bca", "percentile"]

LEAST = 10  # returns, below which no block length can be seen
GROUPS = 1000  # of the jackknife: one return each, or runs of neighbours where there are more


class Drawing(NamedTuple):
    """How resamples are drawn and read."""

    seed: int
    resamples: int
    method: Method
    block: float  # mean length of the blocks


def bootstrap_interval(
    returns: ArrayLike,
    statistic: Statistic,
    level: float = 0.95,
    seed: int = 0,
    *,
    resamples: int = 2000,
    method: Method = "bca",
    block: float | None = None,
) -> tuple[float, float]:
    """Interval of a figure: quantiles of θ(r*), r* a stationary bootstrap   (Politis & Romano 1994; BCa: Efron 1987).

    returns [T] with T ≥ 10, statistic [T] -> scalar, e.g. `metrics.sharpe` -> low, high. The same seed draws the same.
    NaN, NaN if the figure has no value for the returns or for some resample of them. `block` is the mean length, `block_length`
    if none.
    """
    r = as_numbers("returns", returns, least=LEAST)
    drawing = Drawing(seed, resamples, method, block_length(r) if block is None else block)
    return _interval(lambda rows: float(statistic(r[rows])), len(r), level, drawing)


def bootstrap_difference(
    returns: ArrayLike,
    baseline: ArrayLike,
    statistic: Statistic,
    level: float = 0.95,
    seed: int = 0,
    *,
    resamples: int = 2000,
    method: Method = "bca",
    block: float | None = None,
) -> tuple[float, float]:
    """Interval of a difference of figures: quantiles of θ(r*) − θ(b*), r* and b* from the same rows   (Ledoit & Wolf 2008).

    returns, baseline [T] with T ≥ 10, statistic [T] -> scalar -> low, high; blocks as long as the longer of both asks for.
    """
    r, b = as_pair(returns, baseline, "baseline", least=LEAST)
    mean_length = max(block_length(r), block_length(b)) if block is None else block

    def figure(rows: NDArray[np.int64]) -> float:
        return float(statistic(r[rows])) - float(statistic(b[rows]))

    return _interval(figure, len(r), level, Drawing(seed, resamples, method, mean_length))


def block_length(returns: ArrayLike) -> float:
    """Mean length of blocks: max(b(r), b(r²), 1), b by `politis_white`   (Politis & White 2004; Patton et al. 2009).

    returns [T] with T ≥ 10 -> scalar. Returns alone show little memory; it is their size that comes in clusters.
    """
    r = as_numbers("returns", returns, least=LEAST)
    return max(politis_white(r), politis_white(np.square(r)), 1.0)


def politis_white(x: ArrayLike) -> float:
    """The block length with the least error of the variance: b = (2g²/d·T)^{1/3}   (Politis & White 2004; Patton et al. 2009).

    g = Σ λ(k/m)|k|γ_k, d = 2(Σ λ(k/m)γ_k)² over |k| ≤ m, λ(u) = min(1, 2(1 − |u|)); m is twice the lag behind which
    max(5, ⌊log₁₀ T⌋) autocorrelations in a row stay below 2√(log₁₀ T/T). At most ⌈min(3√T, T/3)⌉.

    x [T] with T ≥ 10 -> scalar; 0 where x never changes.
    """
    deviation = as_numbers("x", x, least=LEAST)
    deviation = deviation - deviation.mean()
    n = len(deviation)
    if np.ptp(deviation) <= 64 * np.finfo(np.float64).eps * np.abs(np.asarray(x)).max():
        return 0.0
    run = max(5, int(math.log10(n)))
    longest = min(math.ceil(math.sqrt(n)) + run, n - 2)
    covariance, correlation = _autocovariances(deviation, longest)
    quiet = np.lib.stride_tricks.sliding_window_view(correlation[:-1] < 2 * math.sqrt(math.log10(n) / n), run).all(axis=1)
    first = int(quiet.argmax()) if quiet.any() else None
    m = longest if first is None else min(2 * max(first, 1), longest)
    k = np.arange(1, m + 1)
    weight = np.minimum(1, 2 * (1 - k / m)) * covariance[1 : m + 1]
    g, spectrum = 2 * (weight * k).sum(), covariance[0] + 2 * weight.sum()
    limit = math.ceil(min(3 * math.sqrt(n), n / 3))
    return float(min((g * g / (spectrum * spectrum) * n) ** (1 / 3), limit)) if spectrum else float(limit)


def stationary_rows(starts: NDArray[np.int64], coins: Floats, block: float) -> NDArray[np.int64]:
    """The rows of one resample: a new start with probability 1/b, else i_t = i_{t−1} + 1 (mod T)   (Politis & Romano 1994).

    starts [T] in [0, T), coins [T] in [0, 1) -> rows [T].
    """
    n = np.arange(len(starts))
    begins = np.where(coins < 1 / block, n, 0)  # the first row always begins a block
    began = np.maximum.accumulate(begins)
    rows: NDArray[np.int64] = (starts[began] + n - began) % len(starts)
    return rows


def bca_levels(levels: Floats, drawn: Floats, found: float, left_out: Floats) -> Floats:
    """Where to read the drawn figures: Φ(z₀ + (z₀ + z)/(1 − a(z₀ + z)))   (Efron 1987).

    levels [K], drawn [R], found scalar, left_out [n] -> [K]. z₀ is the probit of the share drawn below the figure
    (ties count by half, and at least half a resample lies on either side), a = Σd³/(6(Σd²)^{3/2}) with d the
    jackknife's mean − left_out.
    """
    share = ((drawn < found).sum() + 0.5 * (drawn == found).sum()) / len(drawn)
    bias = NormalDist().inv_cdf(min(max(share, 0.5 / len(drawn)), 1 - 0.5 / len(drawn)))
    d = left_out.mean() - left_out
    spread = float(np.square(d).sum())
    acceleration = float((d**3).sum()) / (6 * spread**1.5) if spread else 0.0
    z = np.array([bias + NormalDist().inv_cdf(u) for u in levels])
    return np.array([NormalDist().cdf(bias + v / (1 - acceleration * v)) for v in z])


def _interval(figure: Callable[[NDArray[np.int64]], float], n: int, level: float, how: Drawing) -> tuple[float, float]:
    """Low and high of a figure of rows."""
    check_number("level", level, 0, 1, "a probability between 0 and 1, e.g. 0.95")
    check_whole("resamples", how.resamples, 2)
    if not 1 <= how.block <= n:
        raise InputError(f"block={how.block!r}; needs a mean length between 1 and the {n} returns")
    if how.method not in ("bca", "percentile"):
        raise InputError(f"method={how.method!r}; needs 'bca' or 'percentile'")
    noise = np.random.default_rng(how.seed)
    everything = np.arange(n)
    drawn = np.empty(how.resamples)
    for i in range(how.resamples):
        drawn[i] = figure(stationary_rows(noise.integers(n, size=n), noise.random(n), how.block))
    found = figure(everything)
    if not (math.isfinite(found) and np.isfinite(drawn).all()):
        return math.nan, math.nan
    levels = np.array([(1 - level) / 2, (1 + level) / 2])
    if how.method == "bca":
        left_out = [figure(np.delete(everything, part)) for part in np.array_split(everything, min(n, GROUPS))]
        levels = bca_levels(levels, drawn, found, np.array(left_out))
    low, high = np.quantile(drawn, levels)
    return float(low), float(high)


def _autocovariances(x: Floats, longest: int) -> tuple[Floats, Floats]:
    """γ_k = Σ x_t·x_{t−k}/T for k = 0 … longest, and |correlations| as the rule of choice has them."""
    n = len(x)
    products = np.array([x[k:] @ x[: n - k] for k in range(longest + 1)])
    after = np.array([x[k + 1 :] @ x[k + 1 :] for k in range(longest + 1)])
    before = np.array([x[: n - k - 1] @ x[: n - k - 1] for k in range(longest + 1)])
    return products / n, np.abs(products) / np.sqrt(np.maximum(after * before, np.finfo(np.float64).tiny))
