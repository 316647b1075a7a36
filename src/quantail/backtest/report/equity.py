"""What became of the money: equity beside the baselines, below the peak, through the months, seed by seed."""

import numpy as np
from numpy.typing import NDArray

from quantail.backtest import charts, metrics
from quantail.backtest.baselines import HOLD
from quantail.backtest.differences import log_returns, ratio
from quantail.backtest.evidence import Evidence
from quantail.backtest.report.page import two
from quantail.backtest.series import Floats

BESIDE = 3  # baselines drawn beside buy & hold: the strongest ones
FAN_ROWS, FAN_CURVES = 250, 24


def section(evidence: Evidence) -> str:
    """All charts of it."""
    first = evidence.tracks[0]
    times = moments(evidence)
    borders = evidence.borders.astype("datetime64[ns]")
    paths = first.paths
    shown = {name: typical(net) for name, net in drawn(evidence).items()}
    what = "log scale" + (f"; the geometric mean of {paths} paths" if paths > 1 else "")
    what += "; dashed: where stretches meet" if len(borders) else ""
    found = charts.line("Equity after costs", times, shown, log=True, borders=borders, note=what)
    one = f"the first of {paths} paths" if paths > 1 else ""
    window = max(2, min(round(first.periods_per_year), len(times) // 4))
    own, hold = first.net[:, 0], evidence.rivals[HOLD].net[:, 0]
    falls = {name: metrics.drawdown_curve(net) for name, net in (("agent", own), (HOLD, hold))}
    rolling = {
        name: metrics.rolling_sharpe(net, window, first.periods_per_year) for name, net in (("agent", own), (HOLD, hold))
    }
    figures = [charts.underwater("Below the peak", times, falls, borders=borders, note=one)]
    if any(np.isfinite(values).any() for values in rolling.values()):
        figures.append(charts.line(f"Sharpe ratio of the last {window} bars", times, rolling, borders=borders, note=one))
    return found + two(*fans(evidence), *figures) + months(evidence)


def moments(evidence: Evidence) -> NDArray[np.datetime64]:
    """When each period ended."""
    return evidence.tracks[0].times.astype("datetime64[ns]")


def drawn(evidence: Evidence) -> dict[str, Floats]:
    """The agent, buy & hold, and the strongest of the others."""
    year = evidence.tracks[0].periods_per_year
    others = {name: ratio(one.net, year) for name, one in evidence.rivals.items() if name != HOLD}
    best = sorted((name for name in others if np.isfinite(others[name])), key=lambda name: others[name], reverse=True)[:BESIDE]
    named = {"agent": evidence.tracks[0].net, HOLD: evidence.rivals[HOLD].net}
    return named | {name: evidence.rivals[name].net for name in best}


def typical(net: Floats) -> Floats:
    """Equity that grows as the mean path does: exp of the mean log return, [T, P] -> [T]."""
    curve: Floats = np.exp(log_returns(net).mean(axis=1).cumsum())
    return curve


def fans(evidence: Evidence) -> list[str]:
    """Every seed, and some paths, where there are several."""
    times = moments(evidence)
    at = np.unique(np.linspace(0, len(times) - 1, min(FAN_ROWS, len(times))).astype(int))
    figures = []
    if len(evidence.tracks) > 1:
        curves = np.stack([typical(one.net) for one in evidence.tracks])[:, at]
        figures.append(charts.fan(f"Its {len(curves)} seeds", times[at], curves, log=True, note="equity after costs"))
    net = evidence.tracks[0].net
    if net.shape[1] > 1:
        curves = np.exp(log_returns(net[:, :FAN_CURVES]).cumsum(axis=0)).T[:, at]
        figures.append(
            charts.fan("Path by path", times[at], curves, log=True, note=f"equity of the agent on {len(curves)} paths").replace(
                " seeds</li>", " paths</li>"
            )
        )
    return figures


def months(evidence: Evidence) -> str:
    """The table of months, where there are some."""
    first = evidence.tracks[0]
    found = metrics.monthly_returns(first.times, first.net[:, 0])
    note = "after costs, in per cent; a month that was not traded is empty"
    return charts.monthly_table("Months", found, note=note + (f"; the first of {first.paths} paths" if first.paths > 1 else ""))
