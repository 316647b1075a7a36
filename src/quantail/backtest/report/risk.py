"""What may go wrong: how returns are spread, the worst that happened, and whether the critics knew."""

import numpy as np
import torch

from quantail.backtest import charts, metrics
from quantail.backtest.evidence import Evidence
from quantail.backtest.report.page import heading, rows, two, words
from quantail.backtest.series import Floats
from quantail.backtest.track import Predicted, Track
from quantail.backtest.words import decimal, percent
from quantail.functional.laws import share_below

MOST = 200_000  # returns drawn in a histogram
WORST = 5
DEVIATIONS = 3.0


def section(evidence: Evidence) -> str:
    """All of it."""
    track = evidence.tracks[0]
    net = track.net.ravel()[:: max(1, track.net.size // MOST)]
    marks = {"VaR 5 %": metrics.value_at_risk(net), "CVaR 5 %": metrics.expected_shortfall(net)}
    figures = [charts.histogram("Returns of a bar", net, marks, tail=marks["VaR 5 %"])]
    if np.ptp(net):
        figures.append(charts.qq("Returns against a Gaussian", net, note="below the line on the left: losses are heavier"))
    return two(*figures) + calibration(evidence.sampled.predicted) + drawdowns(track) + days(track)


def calibration(said: Predicted | None) -> str:
    """Whether what followed lay below the predicted quantiles as often as it should, where actions are drawn as in training."""
    if said is None:
        return ""
    count = int(said.judged.sum())
    if not count:
        return words("The critics could not be judged: no discounted sum of rewards ends within these bars.", "none")
    thresholds = torch.from_numpy(said.quantiles[said.judged].astype(np.float64))
    shares = share_below(thresholds, torch.from_numpy(said.realised[said.judged])).numpy()
    worst = float(np.abs(shares - said.levels).max())
    apart = max(1, round(count * (1 - said.gamma)))
    note = (
        f"of {count:,} discounted sums of rewards, how many lay below each predicted quantile, with actions drawn from the "
        f"policy, as the critics know it; they overlap, so that about {apart:,} are independent; the worst is off by "
        f"{100 * worst:.1f} points"
    )
    figure = charts.calibration("Did the critics know?", said.levels, shares, samples=apart, note=note)
    table = rows(
        ("predicted quantile", *(percent(level, 0) for level in said.levels)),
        [("came true below it", *(percent(share) for share in shares))],
    )
    return two(figure) + table


def drawdowns(track: Track) -> str:
    """The deepest falls, of the path with the deepest."""
    depths = [metrics.max_drawdown(path) for path in track.net.T]
    path = int(np.argmin(depths))
    falls = metrics.worst_drawdowns(track.net[:, path], WORST)
    if not falls:
        return ""
    stamps = track.times.astype("datetime64[ns]")

    def day(row: int | None) -> str:
        return "not yet" if row is None else "the start" if row == 0 else str(stamps[row - 1].astype("datetime64[m]"))[:10]

    found = [
        (percent(one.depth), day(one.peak), day(one.trough), day(one.recovery), f"{(one.recovery or len(stamps)) - one.peak:,}")
        for one in falls
    ]
    title = "The deepest falls" + (f" of path {path + 1}, which has the deepest of all" if track.paths > 1 else "")
    return heading(title) + rows(("depth", "peak", "trough", "as high again", "bars"), found)


def days(track: Track) -> str:
    """What the agent made of the market's worst bars."""
    market, net = track.market, track.net
    far = market < market.mean() - DEVIATIONS * market.std()
    weights = np.concatenate([np.zeros_like(track.weights[:1]), track.weights[:-1]]).sum(axis=-1)
    worst = np.argsort(market, axis=None)[:WORST]
    places = [np.unravel_index(int(at), market.shape) for at in worst]
    stamps = track.times.astype("datetime64[ns]")
    found = [
        (
            str(stamps[t].astype("datetime64[m]"))[:10],
            percent(market[t, p]),
            percent(net[t, p]),
            decimal(float(weights[t, p]), sign="+"),
        )
        for t, p in places
    ]
    return (
        heading("The market's worst bars")
        + rows(("bar that ends", "market", "agent", "weight before"), found)
        + words(bad_bars(far, market, net), "none")
    )


def bad_bars(far: np.ndarray[tuple[int, ...], np.dtype[np.bool_]], market: Floats, net: Floats) -> str:
    """Of all bars that were very bad."""
    if not far.any():
        return f"No bar of the market lies {DEVIATIONS:g} deviations below its mean."
    theirs, ours = percent(float(market[far].mean())), percent(float(net[far].mean()))
    return (
        f"{int(far.sum()):,} of {far.size:,} bars lie {DEVIATIONS:g} deviations below the market's mean: {theirs} there on "
        f"average, {ours} for the agent."
    )
