"""What the agent does, what it does where nothing is to be known, how it was trained, and on what."""

import json
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from quantail.backtest import charts, metrics
from quantail.backtest.baselines import HOLD
from quantail.backtest.differences import ratio
from quantail.backtest.evidence import Evidence
from quantail.backtest.inference import judged
from quantail.backtest.report.about import About
from quantail.backtest.report.page import between, heading, pairs, rows, two, words
from quantail.backtest.series import Floats
from quantail.backtest.track import Track
from quantail.backtest.words import decimal, percent

SHOWN = 500  # bars of weights: more cannot be told apart
BACK = 20  # bars by which the state of the market is told

# Title -> names of the log, in the order drawn.
CURVES: Mapping[str, tuple[str, ...]] = {
    "Return of an episode": ("rollout/ep_rew_mean", "eval/mean_reward"),
    "Tail of the outcomes": ("risk/cvar", "risk/limit"),
    "Price of the tail limit": ("risk/multiplier",),
    "Critics: calibration error and explained variance": ("critic/calibration_error", "train/explained_variance"),
    "Policy: divergence of an update": ("train/approx_kl",),
    "Policy: entropy": ("policy/entropy_mean",),
}


def section(evidence: Evidence) -> str:
    """Weights, turnover, states of the market, and the market in which nothing can be known."""
    track = evidence.tracks[0]
    return weights(track) + held(track) + regimes(evidence) + nothing(evidence)


def weights(track: Track) -> str:
    """With the price, one chart for each asset, of the latest bars."""
    times = track.times.astype("datetime64[ns]")[-SHOWN:]
    note = f"the last {len(times)} of {len(track.times):,} bars" if len(track.times) > SHOWN else ""
    note += ("; " if note else "") + f"the first of {track.paths} paths" if track.paths > 1 else ""
    assets = track.weights.shape[-1]
    figures = [
        charts.weights_with_price(
            "Weight and price" + (f", asset {a + 1} of {assets}" if assets > 1 else ""),
            times,
            track.prices[1:][-SHOWN:, 0, a],
            track.weights[-SHOWN:, 0, a],
            note=note,
        )
        for a in range(min(assets, 4))
    ]
    return two(*figures) if len(figures) > 1 else figures[0]


def held(track: Track) -> str:
    """How long, and how much is traded when anything is."""
    flat = track.weights.reshape(len(track.weights), -1)
    lengths = metrics.holding_times(np.where(np.abs(flat) < 1e-6, 0.0, flat))
    traded = track.turnover[track.turnover > 1e-6]
    busy = traded.size / track.turnover.size
    figures = []
    if lengths.size:
        note = f"{len(lengths):,} positions, half of them {np.median(lengths):,.0f} bars or longer"
        figures.append(charts.histogram("Bars that a position is held", lengths, unit="", note=note))
    if traded.size:
        note = f"share of equity that is traded, in the {percent(busy)} of bars with a trade"
        figures.append(charts.histogram("Size of trades", traded, note=note))
    return two(*figures) if figures else words("It never traded.", "none")


def regimes(evidence: Evidence) -> str:
    """By what the market had done before: calm, usual or wild; falling or rising."""
    track, year = evidence.tracks[0], evidence.tracks[0].periods_per_year
    market, hold = track.market, evidence.rivals[HOLD].net
    if len(market) < 4 * BACK:
        return ""
    before = np.lib.stride_tricks.sliding_window_view(market, BACK, axis=0)[:-1]  # [T - BACK, P, BACK], all before the bar
    size, trend = before.std(axis=-1), before.sum(axis=-1)
    edges = np.quantile(size, [1 / 3, 2 / 3])
    state = np.digitize(size, edges)
    net, theirs, weight = track.net[BACK:], hold[BACK:], track.weights[BACK - 1 : -1].sum(axis=-1)
    found = []
    for i, name in enumerate(("calm", "usual", "wild")):
        for rising, way in ((False, "falling"), (True, "rising")):
            there = (state == i) & ((trend > 0) == rising)
            if there.sum() > BACK:
                found.append((f"{name}, {way}", *in_state(there, net, theirs, weight, year)))
    note = f"By the {BACK} bars before each bar: their volatility in thirds, and whether they rose; nothing of the bar itself."
    head = (
        "market before",
        "share of bars",
        "agent, bp a bar",
        "Sharpe ratio",
        "buy & hold, bp a bar",
        "Sharpe ratio",
        "mean weight",
    )
    return heading("States of the market") + rows(head, found) + words(note, "none")


def in_state(there: Any, net: Floats, theirs: Floats, weight: Floats, year: float) -> tuple[str, ...]:
    """Figures of some bars."""
    own, other = net[there], theirs[there]
    return (
        percent(float(there.mean()), 0),
        decimal(1e4 * float(own.mean()), 1),
        sharpe(own, year),
        decimal(1e4 * float(other.mean()), 1),
        sharpe(other, year),
        decimal(float(weight[there].mean()), sign="+"),
    )


def sharpe(net: Floats, year: float) -> str:
    """Of a run of returns, or none."""
    return decimal(ratio(net[:, None], year))


def nothing(evidence: Evidence) -> str:
    """What it earns where nothing can be known, and one bar late."""
    track, null = evidence.tracks[0], evidence.null
    year = track.periods_per_year
    own, late = ratio(track.net, year), ratio(evidence.late, year)
    found = [
        ("One bar late", f"Sharpe ratio {decimal(late)} instead of {decimal(own)}; what is gone then was speed, or a leak.")
    ]
    if null is not None:
        gross = judged(null.gross)
        low, high = (end * year for end in gross.interval())
        net, paid = float(null.net.mean()) * year, percent(float((1 - null.factors["cost"]).mean()) * year, 2)
        says = "as it must be" if low <= 0 <= high else "it should be 0: chance (5\N{NO-BREAK SPACE}%), or a leak"
        found.append(
            (
                f"Nothing to be known, {null.paths} paths",
                f"{percent(gross.value * year)} a year before costs {between(100 * low, 100 * high, decimals=1)}, {says}; "
                f"{percent(net)} after costs of {paid}.",
            )
        )
    return heading("Where nothing is to be earned") + pairs(found)


# --- where it comes from ----------------------------------------------------------------------------------------------


def training(about: About) -> str:
    """Curves of the log, and what the doctor says."""
    figures = [curve for title, names in CURVES.items() if (curve := curves(title, names, about.log))]
    said = "".join(f"<li>{escape(one)}</li>" for one in about.findings)
    health = f'<ul class="said">{said}</ul>' if said else words("The doctor found nothing wrong with the training.", "none")
    return two(*figures) + heading("Health") + health if about.log else ""


def curves(title: str, names: Sequence[str], log: Sequence[Mapping[str, Any]]) -> str:
    """Some figures of the log against the steps; nothing where they are not there."""
    seen: dict[int, Mapping[str, Any]] = {int(row["env_steps"]): row for row in log if "env_steps" in row}
    steps = sorted(seen)
    series = {}
    for name in names:
        values = np.array([number(seen[step].get(name)) for step in steps])
        if np.isfinite(values).sum() > 1:
            known = np.flatnonzero(np.isfinite(values))
            series[name] = np.interp(np.arange(len(steps)), known, values[known], left=math.nan, right=math.nan)
    return charts.line(title, np.array(steps), series, note="by environment steps") if series else ""


def number(value: Any) -> float:
    """A figure of the log, or none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def origin(about: About) -> str:
    """Data card, settings and versions."""
    parts = [heading("Data") + pairs(about.card)] if about.card else []
    if about.config:
        text = escape(json.dumps(about.config, indent=2, ensure_ascii=False, default=str))
        parts.append(f"<details><summary>All settings</summary><pre>{text}</pre></details>")
    if about.versions:
        text = escape(json.dumps(about.versions, indent=2, ensure_ascii=False, default=str))
        parts.append(f"<details><summary>Versions and machine</summary><pre>{text}</pre></details>")
    return "".join(parts)
