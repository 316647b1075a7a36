"""What a limit on CVaR costs in bull and bear markets, and whether it holds on paths that no training has seen.

`python benchmarks/market_learning.py risk` runs it: `presets.risk_averse` with each of `LIMITS` and without one, judged on the
same held-out paths. An outcome is the log return of twenty bars, α = 5 %. Draws docs/frontier.svg.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from market_runs import growth, held_out, pooled, seeded, trained
from quantail import presets
from quantail.backtest import baselines, known
from quantail.backtest.course import Course
from quantail.backtest.differences import difference, log_returns
from quantail.backtest.inference import judged, shortfall_influence
from quantail.backtest.series import Floats
from quantail.backtest.track import as_orders, play
from quantail.backtest.verdict import BROKEN, KEPT, WITHIN, outcomes
from quantail.config import RiskConfig
from quantail.market import policies

LIMITS = (-0.04, -0.035, -0.03, -0.025, -0.02)
TEN_YEARS = {"paths": 256, "bars": 60 + 2520 + 1, "seed": 20}  # not the paths on which the preset's gains were chosen
VOL_TARGET = "vol-target 15 %"
FREE = "no limit"
FIGURE = Path(__file__).parents[1] / "docs" / "frontier.svg"


def frontier(seeds: int) -> dict[str, Any]:
    """The table, and the figure."""
    start = presets.risk_averse()
    test = held_out(start, **TEN_YEARS)
    year = test.periods_per_year
    others = {name: [one.net] * seeds for name, one in few(test).items()}
    vol = others[VOL_TARGET]
    print(f"{test.paths} held-out paths of {test.periods / year:.1f} years, {seeds} seeds; tail: the worst 5 % of 20 bars\n")
    print("| Policy | Growth a year | Sharpe | less vol-target's | Mean of the tail | Limit |")
    print("| --- | --- | --- | --- | --- | --- |")
    found = {}
    for name, nets in others.items():
        found[name] = shown(name, nets, None, start.risk, vol, year)
    for limit in (None, *LIMITS):
        config = replace(start, risk=replace(start.risk, limit=limit))
        there = test if limit is not None else held_out(config, **TEN_YEARS)
        nets = [play(there, trained(seeded(config, seed)).player._replace(scale=None)).net for seed in range(seeds)]
        name = FREE if limit is None else f"{limit:.1%}"
        found[name] = shown(name, nets, limit, start.risk, vol, year)
    draw(found)
    return found


def shown(
    name: str, nets: Sequence[Floats], limit: float | None, risk: RiskConfig, vol: Sequence[Floats], year: float
) -> dict[str, Any]:
    """A row: the mean of the seeds, with 95 % intervals over the paths, and what the verdict says of the limit."""
    each = [outcomes(log_returns(net), risk, 0) for net in nets]
    bad = judged(np.mean([shortfall_influence(one, risk.alpha) for one in each], axis=0))
    low, high = bad.interval()
    lead = difference(VOL_TARGET, "Sharpe ratio", nets, vol, year)
    row = {
        "growth": float(np.mean([growth(net, year) for net in nets])),
        "sharpe": float(np.mean([pooled(net, year) for net in nets])),
        "lead": lead.value,
        "lead_interval": lead.interval,
        "cvar": bad.value,
        "cvar_interval": (low, high),
        "limit": limit,
        "answer": "" if limit is None else KEPT if low >= limit else BROKEN if high < limit else WITHIN,
    }
    ahead = f"{lead.value:+.2f} [{lead.interval[0]:+.2f}, {lead.interval[1]:+.2f}]"
    fell = f"{bad.value:.2%} [{low:.2%}, {high:.2%}]"
    print(f"| {name} | {row['growth']:.3f} | {row['sharpe']:.2f} | {ahead} | {fell} | {row['answer']} |", flush=True)
    return row


def few(test: Course) -> dict[str, baselines.Rival]:
    """Holding, the volatility target, and the filter that knows the market."""
    return baselines.walked(
        test,
        {
            baselines.HOLD: baselines.held(test),
            VOL_TARGET: as_orders(test, volatility(test)),
            **{one.name: as_orders(test, one.weights) for one in known.strongest(test)},
        },
    )


def volatility(test: Course) -> torch.Tensor:
    """Long, 15 % a year, within the same leverage."""
    return policies.vol_target(torch.from_numpy(test.closes[..., 0]), test.periods_per_year)


def draw(found: Mapping[str, Mapping[str, Any]]) -> None:
    """Growth against the mean of the tail, with intervals of the latter."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    with mpl.rc_context({"svg.hashsalt": "frontier", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 10}):
        figure, axes = plt.subplots(figsize=(5.4, 3.9), layout="constrained")
        limited = sorted((row for row in found.values() if row["limit"] is not None), key=lambda row: row["limit"])
        across, up = ([100 * row[name] for row in limited] for name in ("cvar", "growth"))
        reach = 100 * np.abs(np.array([row["cvar_interval"] for row in limited]).T - [row["cvar"] for row in limited])
        axes.errorbar(across, up, xerr=reach, fmt="o-", markersize=4, label="with a limit: dotted")
        for row in limited:
            axes.plot([100 * row["limit"]] * 2, [100 * row["growth"] - 0.8, 100 * row["growth"] + 0.8], ":", color="C0")
        for i, (name, row) in enumerate((name, row) for name, row in found.items() if row["limit"] is None):
            axes.plot(100 * row["cvar"], 100 * row["growth"], "s", color=f"C{i + 1}", label=name)
        axes.set(xlabel="mean of the worst 5 % of 20-bar returns, %", ylabel="log growth a year, %")
        axes.set_title("What a tail limit costs, on paths never seen", fontsize=10)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        figure.savefig(FIGURE, metadata={"Date": None})
