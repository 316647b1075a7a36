"""What was held, how often it changed, and what that cost: figures of weights and costs rather than of returns.

Weights [T] of one asset or [T, A] of several are fractions of equity during each period, negative when short; before the
first row everything was cash.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantail.backtest.series import Floats, as_numbers, check_number


def exposure(weights: ArrayLike) -> float:
    """What was in the market on average: mean_t Σ_a |w_{t,a}|. Source: definition.

    weights [T] or [T, A] -> scalar; 1 is all of the equity, 2 twice of it.
    """
    return float(np.abs(_weights(weights)).sum(axis=1).mean())


def time_in_market(weights: ArrayLike) -> float:
    """Share of the periods with a position: #{t : Σ_a |w_{t,a}| > 0}/T. Source: definition.

    weights [T] or [T, A] -> scalar.
    """
    return float((np.abs(_weights(weights)).sum(axis=1) > 0).mean())


def turnover(weights: ArrayLike, periods_per_year: float = 252) -> float:
    """Equity that changed hands per year, one way: A·mean_t ½ Σ_a |w_{t,a} − w_{t−1,a}|, w before the first row 0.

    weights [T] or [T, A] -> scalar: 1 means that half of it was sold and bought anew. A swap counts once, not as a sale and
    a purchase: hence the ½. What prices alone did to the weights between two rows is not known here and counts as no trade.
    Source: definition.
    """
    check_number("periods_per_year", periods_per_year, 0, math.inf, "a number above 0")
    steps = np.abs(np.diff(_weights(weights), axis=0, prepend=0.0)).sum(axis=1)
    return float(0.5 * steps.mean() * periods_per_year)


def cost_drag(costs: ArrayLike, periods_per_year: float = 252) -> float:
    """What costs took per year: A·mean(κ), κ ≥ 0 a fraction of equity in each period. Source: definition.

    costs [T] -> scalar.
    """
    check_number("periods_per_year", periods_per_year, 0, math.inf, "a number above 0")
    return float(as_numbers("costs", costs).mean() * periods_per_year)


def holding_times(weights: ArrayLike) -> NDArray[np.int64]:
    """How many periods each position was held: lengths of the runs with sign(w) = ±1, per asset. Source: definition.

    weights [T] or [T, A] -> [positions], in order of assets, then of time. A position that only changes its size goes on; one
    that was still open at the end counts with what it has.
    """
    lengths: list[int] = []
    for signs in np.sign(_weights(weights)).T:
        runs = np.split(signs, np.flatnonzero(np.diff(signs)) + 1)
        lengths += [len(run) for run in runs if run[0] != 0]
    return np.asarray(lengths, dtype=np.int64)


def _weights(weights: ArrayLike) -> Floats:
    """[T, A], whether one asset came or several."""
    array = np.asarray(weights)
    return as_numbers("weights", array[:, None] if array.ndim == 1 else array, ("T", "A"))
