"""Equity, and how far it lay below its peak. The start counts as a peak: what is lost on the first day is a drawdown."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from quantail.backtest.series import Floats, as_growth, check_whole


class Drawdown(NamedTuple):
    """One way down from a peak and back; places are rows of the equity curve, whose row 0 is the start."""

    depth: float  # a return: −0.2 is a fifth below the peak
    peak: int
    trough: int
    recovery: int | None  # the row that reached the peak again; none yet


def equity_curve(returns: ArrayLike) -> Floats:
    """Equity that started at 1: E_t = Π_{s≤t}(1 + r_s), E_0 = 1. Source: definition.

    returns [T] -> [T + 1].
    """
    return np.concatenate([[1.0], np.cumprod(1 + as_growth(returns))])


def drawdown_curve(returns: ArrayLike) -> Floats:
    """Equity over its highest so far: D_t = E_t/max_{s≤t} E_s − 1 ≤ 0, E_0 = 1 included. Source: definition.

    returns [T] -> [T], at the end of each period; −1 from ruin on.
    """
    equity = equity_curve(returns)
    return (equity / np.maximum.accumulate(equity) - 1)[1:]


def max_drawdown(returns: ArrayLike) -> float:
    """The deepest fall from a peak: min_t D_t ≤ 0   (`drawdown_curve`). Source: definition.

    returns [T] -> scalar; 0 if nothing fell, −1 after ruin.
    """
    return float(drawdown_curve(returns).min())


def ulcer_index(returns: ArrayLike) -> float:
    """Depth and length of the falls in one figure: √(Σ D²/(T − 1)), D the `drawdown_curve`   (Martin & McCann 1989).

    returns [T] with T ≥ 2 -> scalar ≥ 0. The divisor is T − 1, as quantstats has it.
    """
    drawdown = drawdown_curve(as_growth(returns, least=2))
    return float(np.sqrt(np.square(drawdown).sum() / (len(drawdown) - 1)))


def worst_drawdowns(returns: ArrayLike, count: int = 5) -> tuple[Drawdown, ...]:
    """The deepest falls, each from its peak to the row that was as high again: min D_t ≤ 0 between. Source: definition.

    returns [T] -> at most `count` records, the deepest first.
    """
    check_whole("count", count, 1)
    below = np.concatenate([[0.0], drawdown_curve(returns)])  # [T + 1], row 0 is the start
    edges = np.diff((below < 0).astype(np.int8), append=0)
    falls = []
    for peak in np.flatnonzero(edges == 1):  # the last row before the fall
        ends = np.flatnonzero(below[peak + 1 :] == 0)
        recovery = int(peak + 1 + ends[0]) if ends.size else None
        trough = int(peak + 1 + below[peak + 1 : recovery].argmin())
        falls.append(Drawdown(float(below[trough]), int(peak), trough, recovery))
    return tuple(sorted(falls)[:count])
