"""The table of figures: the agent, draws from it, and everything that it is compared with."""

import math
from typing import NamedTuple

import numpy as np

from quantail.backtest import metrics
from quantail.backtest.baselines import Rival
from quantail.backtest.differences import ratio, values_of
from quantail.backtest.evidence import Evidence
from quantail.backtest.inference import judged
from quantail.backtest.report.page import between, rows, words
from quantail.backtest.series import Floats
from quantail.backtest.track import Track
from quantail.backtest.words import decimal, percent, told_over

RANDOM = "random, seed "


class Line(NamedTuple):
    """A policy in figures, per year where nothing else is said."""

    name: str
    sharpe: float
    sharpe_interval: tuple[float, float]  # 95 %
    growth: float  # compounded; as turnover and cost of a year, or of the whole stretch where that is shorter
    volatility: float
    drawdown: float  # the deepest, mean over paths
    shortfall: float  # mean of the worst 5 % of periods
    exposure: float  # mean Σ|w|
    turnover: float  # one way
    cost: float


HEAD = ("", "Sharpe ratio", "95 %", "growth", "volatility", "drawdown", "worst 5 % of bars", "exposure", "turnover", "cost")


def lines(evidence: Evidence) -> list[Line]:
    """The agent first (each seed), draws from it, then the rest, the best first; the random ones as one."""
    year = evidence.tracks[0].periods_per_year
    own = [*evidence.tracks, evidence.sampled]
    found = [of_track(one, year) for one in own]
    others = [of_rival(one, year) for name, one in evidence.rivals.items() if not name.startswith(RANDOM)]
    luck = [of_rival(one, year) for name, one in evidence.rivals.items() if name.startswith(RANDOM)]
    if luck:
        others.append(mean_of(luck, f"random, mean of {len(luck)} seeds"))
    late = evidence.tracks[0]
    found.append(
        of("agent, one bar late", evidence.late, np.abs(late.weights).sum(axis=-1), late.turnover, cost_of(late), year)
    )
    others.sort(key=lambda one: -math.inf if math.isnan(one.sharpe) else one.sharpe, reverse=True)
    return found + others


def section(evidence: Evidence, every: list[Line] | None = None) -> str:
    """The table as HTML."""
    every = every or lines(evidence)
    own = len(evidence.tracks) + 2
    track = evidence.tracks[0]
    when = told_over(len(track.times) / track.periods_per_year)[1]
    note = (
        f"After all costs, through the same market. Growth, turnover (one way, as a multiple of equity) and cost: {when}; "
        "Sharpe ratio and volatility: a year; worst 5 % of bars is the mean simple return of these. Drawn: actions are drawn "
        "from the policy instead of taking its mode. One bar late: the same orders, each a bar later; what is gone then was "
        "speed, or a leak."
    )
    note += f" Drawdowns are means over {track.paths} paths." if track.paths > 1 else ""
    return rows(HEAD, (cells(one) for one in every), own) + words(note, "none")


def cells(one: Line) -> tuple[str, ...]:
    """A line in words."""
    figures = (percent(value) for value in (one.growth, one.volatility, one.drawdown))
    rest = (percent(one.shortfall, 2), percent(one.exposure, 0), f"{one.turnover:.1f}", percent(one.cost, 2))
    return (one.name, decimal(one.sharpe), between(*one.sharpe_interval), *figures, *rest)


def of_track(track: Track, year: float) -> Line:
    """An agent's."""
    return of(track.name, track.net, np.abs(track.weights).sum(axis=-1), track.turnover, cost_of(track), year)


def of_rival(rival: Rival, year: float) -> Line:
    """A baseline's."""
    return of(rival.name, rival.net, rival.exposure, rival.turnover, rival.cost, year)


def cost_of(track: Track) -> Floats:
    """What trading took, as a share of equity: [T, P]."""
    taken: Floats = 1 - track.factors["cost"]
    return taken


def of(name: str, net: Floats, exposure: Floats, turnover: Floats, cost: Floats, year: float) -> Line:
    """Figures of [T, P] each."""
    values = values_of("Sharpe ratio", net)
    told = year * told_over(len(net) / year)[0]
    low, high = judged(values).interval() if np.isfinite(values).all() else (math.nan, math.nan)
    return Line(
        name,
        ratio(net, year),
        (low * math.sqrt(year), high * math.sqrt(year)),
        math.expm1(float(values_of("growth", net).mean()) * told),
        float(net.std(ddof=1)) * math.sqrt(year),
        float(np.mean([metrics.max_drawdown(path) for path in net.T])),
        metrics.expected_shortfall(net.ravel(), 0.05),
        float(exposure.mean()),
        0.5 * float(turnover.mean()) * told,
        float(cost.mean()) * told,
    )


def mean_of(every: list[Line], name: str) -> Line:
    """Of several lines their mean; its interval is left out."""
    figures = [float(np.mean([one[i] for one in every])) for i in (1, 3, 4, 5, 6, 7, 8, 9)]
    return Line(name, figures[0], (math.nan, math.nan), *figures[1:])
