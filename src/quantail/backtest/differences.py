"""One policy less another: in mean return, in growth, in Sharpe ratio, each with its interval and its chance of luck.

Both walked the same course, so what both went through cancels. Of several seeds the values are averaged bar by bar.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantail.backtest.inference import Estimate, judged, sharpe_influence
from quantail.backtest.series import Floats
from quantail.market.terms import REWARD_FLOOR

BETTER, WORSE, UNSURE = "better", "worse", "cannot tell"
SHUFFLED = "its own weights in another order"


@dataclass(frozen=True)
class Difference:
    """The agent less something else, per year."""

    against: str
    what: str  # "return" (simple, mean), "growth" (log) or "Sharpe ratio"
    ours: float
    theirs: float
    value: float
    interval: tuple[float, float]  # 95 %
    p_better: float  # the chance of at least this, were the truth no difference
    p_worse: float

    def answer(self, level: float) -> str:
        """In one word."""
        if self.p_better <= level:
            return BETTER
        return WORSE if self.p_worse <= level else UNSURE


def difference(against: str, what: str, ours: Sequence[Floats], theirs: Sequence[Floats], year: float) -> Difference:
    """Ours less theirs, the mean over seeds: [T, P] each."""
    left, right = (np.mean([values_of(what, one) for one in side], axis=0) for side in (ours, theirs))
    return compared(against, what, left, right, math.sqrt(year) if what == "Sharpe ratio" else year)


def timing(nets: Sequence[Floats], shuffles: Sequence[Floats], year: float) -> Difference:
    """The Sharpe ratio less the mean one of the agent's weights in another order: nets [T, P], shuffles [T, P, S] of each."""
    left = np.mean([sharpe_influence(net) for net in nets], axis=0)
    right = np.mean([np.mean([sharpe_influence(one) for one in np.moveaxis(each, 2, 0)], axis=0) for each in shuffles], axis=0)
    return compared(SHUFFLED, "Sharpe ratio", left, right, math.sqrt(year))


def compared(against: str, what: str, left: Floats, right: Floats, scale: float) -> Difference:
    """From values [T, P] per period, of which one side may not exist, to the record."""
    ours, theirs = float(left.mean()) * scale, float(right.mean()) * scale
    if not math.isfinite(ours) or not math.isfinite(theirs):
        return Difference(against, what, ours, theirs, math.nan, (math.nan, math.nan), 1.0, 1.0)
    found = judged(left - right)
    return Difference(against, what, ours, theirs, *scaled(found, scale), found.p_above, found.p_below)


def values_of(what: str, net: Floats) -> Floats:
    """[T, P] values whose mean is the figure, per period."""
    if what == "Sharpe ratio":
        return sharpe_influence(net)
    return log_returns(net) if what == "growth" else net


def log_returns(net: Floats) -> Floats:
    """ln(1 + r), not below −10, which is what a ruin counts: as `Step.pnl`."""
    logs: Floats = np.log(np.maximum(1 + net, math.exp(REWARD_FLOOR)))
    return logs


def scaled(found: Estimate, scale: float) -> tuple[float, tuple[float, float]]:
    """Value and 95 % interval per year."""
    low, high = found.interval()
    return found.value * scale, (low * scale, high * scale)


def ratio(net: Floats, year: float) -> float:
    """Sharpe ratio per year of all paths together; NaN where nothing moves."""
    return float(sharpe_influence(net).mean()) * math.sqrt(year)


def own_figures(nets: Sequence[Floats], year: float) -> dict[str, Any]:
    """Sharpe ratio and growth with their intervals."""
    found: dict[str, Any] = {}
    for name, what in (("sharpe", "Sharpe ratio"), ("growth", "growth")):
        values = np.mean([values_of(what, net) for net in nets], axis=0)
        scale = math.sqrt(year) if name == "sharpe" else year
        known = np.isfinite(values).all()
        found[name], found[f"{name}_interval"] = scaled(judged(values), scale) if known else (math.nan, (math.nan, math.nan))
    return found
