"""Charts of amounts: bars with intervals, what became of the gross return, how returns were spread."""

import math
from collections.abc import Mapping
from html import escape
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from quantail.backtest.charts.axis import Axis, around, number, ticks
from quantail.backtest.charts.frame import Panel, bare_figure, box, figure, upright
from quantail.backtest.series import Floats
from quantail.errors import InputError


def bars(
    title: str,
    values: Mapping[str, float],
    intervals: Mapping[str, tuple[float, float]] | None = None,
    *,
    unit: str = "",
    decimals: int = 2,
    note: str = "",
) -> str:
    """A bar for each name, the first in colour, each with its interval if it has one. What is NaN has no bar.

    values name -> scalar, intervals name -> (low, high).
    """
    spans = intervals or {}
    if stray := sorted(set(spans) - set(values)):
        raise InputError(f"intervals names {', '.join(stray)}, which has no value; needs some of {', '.join(values)}")
    axis = around(list(values.values()), *spans.values(), include=(0.0,))
    rows = []
    for i, (name, value) in enumerate(values.items()):
        low, high = spans.get(name, (math.nan, math.nan))
        says = f"{name}: {_told(value, unit, decimals)}"
        if np.isfinite(low) and np.isfinite(high):
            says += f" [{_told(low, unit, decimals)}, {_told(high, unit, decimals)}]"
        drawn = _bar(axis, (0.0, value), "s1" if i == 0 else "soft thin", says) + _whisker(axis, low, high)
        rows.append(_row(axis, name, _told(value, unit, decimals), drawn))
    return bare_figure(title, f'<div class="rows">{"".join(rows)}</div>', note)


def waterfall(
    title: str, start: tuple[str, float], steps: Mapping[str, float], end: str, *, unit: str = "%", note: str = ""
) -> str:
    """From a first amount to what is left of it: each step begins where the one before it ended.

    start (name, scalar), steps name -> what is added (costs are negative), end the name of the sum.
    """
    name, amount = start
    levels = np.concatenate([[amount], amount + np.cumsum(list(steps.values()))])
    if not np.isfinite(levels).all():
        raise InputError(f"start and steps hold {amount} and {list(steps.values())}; needs finite amounts")
    axis = around(levels, include=(0.0,))
    spread = float(np.ptp([*levels, 0.0])) * (100 if unit == "%" else 1)
    decimals = max(0, 2 - math.floor(math.log10(spread))) if spread else 0
    spans = [(0.0, amount), *pairwise(levels), (0.0, float(levels[-1]))]
    shown = [amount, *steps.values(), float(levels[-1])]
    rows = []
    for i, (what, value, span) in enumerate(zip([name, *steps, end], shown, spans, strict=True)):
        kind = "s1" if i in (0, len(spans) - 1) else "good" if value >= 0 else "bad"
        told = _told(value, unit, decimals)
        rows.append(_row(axis, what, told, _bar(axis, span, kind, f"{what}: {told}")))
    return bare_figure(title, f'<div class="rows">{"".join(rows)}</div>', note)


def histogram(
    title: str,
    values: ArrayLike,
    marks: Mapping[str, float] | None = None,
    *,
    tail: float | None = None,
    unit: str = "%",
    note: str = "",
) -> str:
    """How values are spread, in at most 80 bins of Freedman & Diaconis; marks are upright lines, named in the legend.

    values [T], marks name -> scalar (VaR, CVaR), `tail` the value below which bins are coloured as losses.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or not x.size or not np.isfinite(x).all():
        raise InputError(f"values has shape {list(x.shape)}; needs [T] finite numbers, at least one")
    lines = marks or {}
    axis = around(x, list(lines.values()))
    edges = _edges(x)
    counts, edges = np.histogram(x, edges)
    ends = axis.place(edges)
    top = Axis(0.0, float(counts.max()) * 1.05)
    drawn = []
    for count, left, right, low, high in zip(counts, ends[:-1], ends[1:], edges[:-1], edges[1:], strict=True):
        share = float(top.place(count))
        kind = "bad" if tail is not None and high <= tail else "s1 thin"
        says = f"{_told(low, unit, 2)} to {_told(high, unit, 2)}: {count}"
        drawn.append(box(left, right, f"{100 * (1 - share):.2f}%", f"{100 * share:.2f}%", kind, says))
    kinds = ("bad", "s4", "s2", "ink")
    for i, (name, value) in enumerate(lines.items()):
        drawn.append(upright(float(axis.place(value)), f"mark {kinds[i % len(kinds)]}", f"{name}: {_told(value, unit, 2)}"))
    legend = [(kinds[i % len(kinds)], f"{name}: {_told(value, unit, 2)}") for i, (name, value) in enumerate(lines.items())]
    return figure(title, [Panel("", "".join(drawn), ticks(axis, unit, 9), ticks(top, most=4))], legend, note)


def _edges(x: Floats) -> Floats:
    """Bins of width 2·IQR/∛T over the whole range, at least one and at most 80."""
    low, high = float(x.min()), float(x.max())
    if low == high:
        return np.array([low - 0.5 * (abs(low) or 1.0), high + 0.5 * (abs(high) or 1.0)])
    width = 2 * float(np.subtract(*np.quantile(x, [0.75, 0.25]))) / len(x) ** (1 / 3)
    count = 80 if width <= 0 else min(80, math.ceil((high - low) / width))
    return np.linspace(low, high, count + 1)


def _row(axis: Axis, name: str, told: str, drawn: str) -> str:
    """A name, a strip with a line at 0, and the amount: three cells of a grid."""
    zero = upright(float(axis.place(0.0)), "rule")
    return f"<span>{escape(name)}</span><svg>{drawn}{zero}</svg><span>{escape(told)}</span>"


def _bar(axis: Axis, span: tuple[float, float], kind: str, says: str) -> str:
    if not np.isfinite(span).all():
        return ""
    left, right = axis.place(span)
    return box(float(left), float(right), "15%", "70%", kind, says)


def _whisker(axis: Axis, low: float, high: float) -> str:
    if not (np.isfinite(low) and np.isfinite(high)):
        return ""
    left, right = (f"{100 * float(at):.2f}%" for at in axis.place([low, high]))
    ends = "".join(f'<line class="whisker" x1="{at}" x2="{at}" y1="35%" y2="65%"/>' for at in (left, right))
    return f'<line class="whisker" x1="{left}" x2="{right}" y1="50%" y2="50%"/>{ends}'


def _told(value: float, unit: str, decimals: int) -> str:
    if not math.isfinite(value):
        return "–"
    return number(value * 100 if unit == "%" else value, decimals, unit)
