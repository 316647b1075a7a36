"""What trading took: from the gross return to the net one, and what would be left at other costs."""

import math

import numpy as np

from quantail.backtest import charts
from quantail.backtest.differences import ratio, values_of
from quantail.backtest.evidence import Evidence
from quantail.backtest.inference import judged
from quantail.backtest.report.page import two
from quantail.backtest.track import Track
from quantail.backtest.words import told_over


def section(evidence: Evidence) -> str:
    """Both charts."""
    track = evidence.tracks[0]
    start, steps = waterfall(track)
    year = track.periods_per_year
    curve = {f"{factor:g} ×": ratio(net, year) for factor, net in evidence.at_costs.items()}
    spans = {}
    for factor, net in evidence.at_costs.items():
        values = values_of("Sharpe ratio", net)
        if np.isfinite(values).all():
            low, high = judged(values).interval()
            spans[f"{factor:g} ×"] = (low * math.sqrt(year), high * math.sqrt(year))
    when = told_over(len(track.times) / year)[1]
    note = f"log return {when}, mean of all paths; trading costs are split by their parts"
    figures = [charts.waterfall("From gross to net", ("gross", start), steps, "net", note=note)]
    if np.isfinite(list(curve.values())).all():
        same = "the agent's orders at other trading costs, with 95 % intervals; they were chosen at 1 ×"
        figures.append(charts.bars("Sharpe ratio by cost", curve, spans, note=same))
    return two(*figures)


def waterfall(track: Track) -> tuple[float, dict[str, float]]:
    """Gross log return (`told_over`), and what each cost adds to it: together they are the net one."""
    year = track.periods_per_year
    told = year * told_over(len(track.times) / year)[0]
    logs = {name: safe_log(values).mean() * told for name, values in track.factors.items()}
    gross = float(logs.pop("gap") + logs.pop("intrabar"))
    trading = float(logs.pop("cost"))
    paid = {name: -float(values.mean()) for name, values in track.costs.items()}
    whole = sum(paid.values())
    steps = {name: trading * part / whole for name, part in paid.items() if part} if whole else {}
    return gross, steps | {name: float(value) for name, value in logs.items() if value}


def safe_log(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """ln, not below −10: what is lost in a ruin."""
    found: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = np.log(np.maximum(values, math.exp(-10.0)))
    return found
