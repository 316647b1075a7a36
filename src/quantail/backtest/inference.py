"""Is a mean above zero? The test by which a verdict claims something, or does not.

Returns are dependent, change their size, and have fat tails; a test that trusts 2500 days as 2500 facts claims too often. So
they are cut into few groups - each path by itself, or stretches of time - and the groups' means are taken as the facts: their
t-statistic keeps its level for any variances of the groups, however different, at levels up to 8 % (Bakirov & Székely 2005;
Ibragimov & Müller 2010). It costs a little power, and needs no choice of a lag, a kernel or a random number.

Every figure is a mean of something: a Sharpe ratio is the mean of its influence values, so that differences of ratios, growth
and shortfalls are all judged by one rule.
"""

import math
from typing import NamedTuple

import numpy as np

from quantail.backtest.series import Floats, as_numbers, check_number
from quantail.backtest.significance import probabilistic_sharpe
from quantail.errors import InputError

GROUPS = 16  # stretches of time; more would follow each other too closely, fewer would see too little
LEAST = 4  # periods in a group
STILL = 1e-12  # of the largest value: a spread below it is rounding


class Estimate(NamedTuple):
    """A figure, how sure it is, and the chance of as much where the truth is 0."""

    value: float
    error: float  # standard error of the value
    groups: int  # independent facts it rests on
    p_above: float  # of at least this value, were the truth 0 or below: small says "above 0"
    p_below: float  # of at most this value, were the truth 0 or above: small says "below 0"

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The values that the data do not speak against."""
        if not math.isfinite(self.error):
            return math.nan, math.nan
        reach = student_quantile(0.5 + level / 2, self.groups - 1) * self.error
        return self.value - reach, self.value + reach


def judged(x: Floats, value: float | None = None) -> Estimate:
    """A mean and the chance of it by luck, the larger one of two tests'.

    x [T, P] -> `Estimate`. The t-test of group means, t = m̄/√(Σ(m_g − m̄)²/(G(G − 1))) with G − 1 degrees of freedom
    (Ibragimov & Müller 2010), minds dependence; Φ(SR/SE(SR)) of all x (Mertens 2002) minds skewness: many small gains before
    the first large loss look surer than they are. `value`, of which the x are influence values, takes the place of their mean.
    Values that are 0 everywhere are no evidence.
    """
    array = as_numbers("x", x, ("T", "P"))
    means = group_means(array)
    found = float(array.mean()) if value is None else value
    error = float(means.std(ddof=1)) / math.sqrt(len(means))
    if error <= STILL * float(np.abs(array).max()):
        sign = 0.0 if abs(found) <= STILL else math.copysign(1.0, found)
        return Estimate(found, 0.0, len(means), 0.5 * (1 - sign), 0.5 * (1 + sign))
    sure = student_cdf(found / error, len(means) - 1)
    all_at_once = probabilistic_sharpe(array.ravel())
    if math.isnan(all_at_once):
        return Estimate(found, error, len(means), 1.0, 1.0)
    return Estimate(found, error, len(means), 1 - min(sure, all_at_once), max(sure, all_at_once))


def group_means(x: Floats) -> Floats:
    """[T, P] -> [G]: means of the paths, if there are at least 16; else each is cut into equal stretches of time, so that there
    are 16 in all, fewer where a stretch would have less than 4 periods.
    """
    periods, paths = x.shape
    each = 1 if paths >= GROUPS else min(math.ceil(GROUPS / paths), periods // LEAST)
    if paths * each < 2 or periods * paths < 2 * LEAST:
        raise InputError(f"{periods} periods of {paths} path make no two groups of {LEAST}; needs more bars to be judged")
    return np.stack([part.mean(axis=0) for part in np.array_split(x, each)]).ravel()


# --- figures as means -------------------------------------------------------------------------------------------------


def sharpe_influence(returns: Floats) -> Floats:
    """SR + z − ½·SR·(z² − mean z²), z = (r − r̄)/s: values whose mean is the Sharpe ratio   (Mertens 2002; delta method).

    returns [T, P] -> [T, P] around the one ratio of all of them, per period; NaN where they never change.
    """
    s = returns.std(ddof=1)
    if s <= STILL * float(np.abs(returns).max()):
        return np.full_like(returns, np.nan)
    z = (returns - returns.mean()) / s
    ratio, square = returns.mean() / s, z * z
    values: Floats = ratio + z - 0.5 * ratio * (square - square.mean())
    return values


def shortfall_influence(outcomes: Floats, alpha: float) -> Floats:
    """ν − (ν − x)⁺/α, ν the α-quantile: values whose mean is the CVaR   (Rockafellar & Uryasev 2000).

    outcomes [T, P] -> [T, P].
    """
    check_number("alpha", alpha, 0, 1, "a share between 0 and 1")
    nu = float(np.quantile(outcomes, alpha, method="inverted_cdf"))
    values: Floats = nu - np.maximum(nu - outcomes, 0) / alpha
    return values


def ratio_interval(ours: Floats, theirs: Floats, level: float = 0.95) -> tuple[float, float]:
    """What ratios of two means the data do not speak against: {ρ : |mean(a − ρ·b)| ≤ t·error}   (Fieller 1954, on groups).

    ours, theirs [T, P] -> low, high; NaN where the mean below the line may be 0.
    """
    a, b = group_means(ours), group_means(theirs)
    groups = len(a)
    t = student_quantile(0.5 + level / 2, groups - 1)
    covariance = np.cov(a, b) / groups * t * t
    square = b.mean() ** 2 - covariance[1, 1]
    cross = a.mean() * b.mean() - covariance[0, 1]
    inside = cross**2 - square * (a.mean() ** 2 - covariance[0, 0])
    if square <= 0 or inside < 0:
        return math.nan, math.nan
    return (cross - math.sqrt(inside)) / square, (cross + math.sqrt(inside)) / square


# --- Student's law ----------------------------------------------------------------------------------------------------


def student_cdf(t: float, freedom: int) -> float:
    """P(T ≤ t) for whole degrees of freedom, by its finite series   (Abramowitz & Stegun 1964, 26.7.3 and 26.7.4).

    With θ = atan(t/√ν): odd ν  A = 2/π·(θ + sin θ·(cos θ + 2/3·cos³ θ + …)), even ν  A = sin θ·(1 + ½cos² θ + …); ½(1 + A).
    """
    if freedom < 1:
        raise InputError(f"freedom={freedom}; needs at least 1 degree")
    theta = math.atan(t / math.sqrt(freedom))
    cosine, sine = math.cos(theta), math.sin(theta)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(2 + odd, freedom, 2):
        term *= cosine * cosine * (k - 1) / k
        total += term
    inside = 2 / math.pi * (theta + sine * total) if odd else sine * total
    return 0.5 * (1 + inside)


def student_quantile(p: float, freedom: int) -> float:
    """t with P(T ≤ t) = p, by halving. Source: definition."""
    check_number("p", p, 0, 1, "a probability between 0 and 1")
    low, high = -1.0, 1.0
    while student_cdf(low, freedom) > p:
        low *= 2
    while student_cdf(high, freedom) < p:
        high *= 2
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if student_cdf(middle, freedom) < p else (low, middle)
    return 0.5 * (low + high)
