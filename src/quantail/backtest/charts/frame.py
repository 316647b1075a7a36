"""The parts of a chart: panels with their axes, a title and a legend, as HTML with SVG inside.

Curves lie in an inner SVG that is stretched to whatever width there is, with strokes that keep theirs; texts stay outside of
it, at percentages, in the page's own letters. So one file serves a phone and a wide screen, without a script. Colours are
variables of `STYLE`, which a page holds once: they follow the reader's choice of light or dark, and print as light.
"""

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from quantail.backtest.charts.axis import Tick
from quantail.backtest.series import Floats

WIDTH, HEIGHT = 4000, 2000  # the inner coordinates: whole numbers are fine enough and short
BUCKETS = 500  # of a long curve
COLOURS = 7

STYLE = """
:root{--paper:#fff;--ink:#1a1d21;--soft:#5b6470;--grid:#e3e6ea;--rule:#9aa3ad;--good:#0b7a5c;--bad:#b3261e;
--s1:#1f5fd0;--s2:#b4530a;--s3:#0b7a5c;--s4:#7b3fb5;--s5:#a82a5a;--s6:#6b6000;--s7:#5b6470;
color-scheme:light dark}
@media screen and (prefers-color-scheme:dark){:root{--paper:#14171c;--ink:#e8eaed;--soft:#a3adba;--grid:#2a2f37;--rule:#6b7480;
--good:#4fc9a4;--bad:#ff8a80;--s1:#6ea8ff;--s2:#f0a35e;--s3:#4fc9a4;--s4:#c59bf2;--s5:#f07fa8;--s6:#d6c64a;--s7:#a3adba}}
.chart{margin:0 0 1.6em;color:var(--ink);font:13px/1.35 system-ui,sans-serif}
.chart{container-type:inline-size;break-inside:avoid;print-color-adjust:exact}
.chart figcaption{font-weight:600;font-size:15px;margin-bottom:.3em}
.chart .note{display:block;font-weight:400;font-size:13px;color:var(--soft)}
.chart ul{list-style:none;display:flex;flex-wrap:wrap;gap:.1em 1.1em;margin:0 0 .5em;padding:0;color:var(--soft)}
.chart li::before{content:"";display:inline-block;width:1.3em;border-top:3px solid var(--c);margin-right:.4em;
vertical-align:.28em}
.chart li.dash::before{border-top-style:dashed}
.chart li.band::before{border-top-width:9px;opacity:.25;vertical-align:0}
.chart .plot{padding:.9em 1.3em 1.9em 3.9em}
.chart .plot.bare{padding-bottom:.9em}
.chart svg{display:block;width:100%;height:100%;overflow:visible}
.chart svg svg{overflow:hidden}
.chart text{fill:var(--soft);font-size:12px;font-variant-numeric:tabular-nums}
.chart .y{text-anchor:end}.chart .x{text-anchor:middle}
.chart .grid{stroke:var(--grid)}.chart .rule{stroke:var(--rule)}
.chart .border{stroke:var(--rule);stroke-dasharray:3 3}
.chart path{fill:none;stroke:var(--c);stroke-width:1.3px;vector-effect:non-scaling-stroke;stroke-linejoin:round}
.chart path.first{stroke-width:2.2px}.chart path.dash{stroke-dasharray:5 4}
.chart path.area{stroke:none;fill:var(--c);fill-opacity:.2}.chart path.faint{stroke-width:1px;stroke-opacity:.45}
.chart path.dots{stroke-width:5px;stroke-linecap:round;stroke-opacity:.75}
.chart rect{fill:var(--c)}.chart rect.thin{fill-opacity:.55}
.chart .mark{stroke:var(--c);stroke-width:2px}.chart .whisker{stroke:var(--ink);stroke-width:1.5px}
.chart table{border-collapse:collapse;width:100%;font-size:12px;font-variant-numeric:tabular-nums;table-layout:fixed}
.chart .rows{display:grid;grid-template-columns:fit-content(40%) 1fr max-content;align-items:center;gap:0 .5em}
.chart .rows span{text-align:right;font-variant-numeric:tabular-nums}.chart .rows svg{height:27px}
.chart th{font-weight:400;color:var(--soft);padding:2px 0;text-align:center}
.chart td{padding:3px 0;text-align:center;border:1px solid var(--paper)}.chart td:last-child{font-weight:600}
.s1{--c:var(--s1)}.s2{--c:var(--s2)}.s3{--c:var(--s3)}.s4{--c:var(--s4)}.s5{--c:var(--s5)}.s6{--c:var(--s6)}.s7{--c:var(--s7)}
.good{--c:var(--good)}.bad{--c:var(--bad)}.ink{--c:var(--ink)}.soft{--c:var(--soft)}
.chart .narrow{display:none}
@container (max-width:520px){.chart .odd,.chart .roomy{display:none}.chart .narrow{display:inline}
.chart .plot{padding-left:3.5em}.chart table{font-size:11.5px}}
"""


class Panel(NamedTuple):
    """One plot: what is stretched, what is not, and the ticks of its axes."""

    stretched: str  # SVG in inner coordinates
    fixed: str = ""  # SVG in percentages
    x: Sequence[Tick] = ()
    y: Sequence[Tick] = ()
    height: int = 240
    bare: bool = False  # no labels below


def figure(title: str, panels: Iterable[Panel], legend: Iterable[tuple[str, str]] = (), note: str = "") -> str:
    """The whole chart; the legend is (class, name)."""
    items = "".join(f'<li class="{kind}">{escape(name)}</li>' for kind, name in legend)
    return (
        f'<figure class="chart"><figcaption>{escape(title)}{_note(note)}</figcaption>'
        f"{f'<ul>{items}</ul>' if items else ''}{''.join(_plot(panel, title) for panel in panels)}</figure>\n"
    )


def bare_figure(title: str, body: str, note: str = "") -> str:
    """A title over something that needs no axes: a table, rows of bars."""
    return f'<figure class="chart"><figcaption>{escape(title)}{_note(note)}</figcaption>{body}</figure>\n'


def colour(index: int) -> str:
    """The class of the n-th series; what comes after the last colour is dashed."""
    return f"s{index % COLOURS + 1}" + (" dash" if index >= COLOURS else "")


def curve(x: Floats, y: Floats, kind: str) -> str:
    """A line through the places x, y in [0, 1], y upwards; NaN is a gap."""
    return f'<path class="{kind}" d="{"".join(_run(*run) for run in _runs(x, y))}"/>'


def area(x: Floats, low: Floats, high: Floats, kind: str) -> str:
    """What lies between two lines; NaN in either is a gap."""
    shown = np.where(np.isfinite(low), high, np.nan)
    rows = np.arange(len(x), dtype=np.float64)
    shapes = []
    for inside, _ in _runs(rows, shown):
        part = inside.astype(np.int64)
        there, back = _run(x[part], high[part]), _run(x[part][::-1], low[part][::-1])
        shapes.append(f"{there}L{back[1:]}Z")
    return f'<path class="area {kind}" d="{"".join(shapes)}"/>'


def dots(x: Floats, y: Floats, kind: str) -> str:
    """A round dot at each place: lines of no length, whose ends stay round however they are stretched."""
    seen = np.isfinite(x) & np.isfinite(y)
    return f'<path class="dots {kind}" d="{"".join(f"M{a} {b}h0" for a, b in _inner(x[seen], y[seen]))}"/>'


def across(at: float, kind: str) -> str:
    """A horizontal line at a height in [0, 1]."""
    return f'<line class="{kind}" x1="0" x2="100%" y1="{_percent(1 - at)}" y2="{_percent(1 - at)}"/>'


def upright(at: float, kind: str, name: str = "") -> str:
    """A vertical line at a place in [0, 1]."""
    title = f"<title>{escape(name)}</title>" if name else ""
    return f'<line class="{kind}" x1="{_percent(at)}" x2="{_percent(at)}" y1="0" y2="100%">{title}</line>'


def box(left: float, right: float, top: str, height: str, kind: str, name: str) -> str:
    """A rectangle between two places in [0, 1], with what it says when pointed at."""
    return (
        f'<rect class="{kind}" x="{_percent(min(left, right))}" width="{_percent(abs(right - left))}" '
        f'y="{top}" height="{height}"><title>{escape(name)}</title></rect>'
    )


def thinned(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """A long curve with the rows that shape it: of each bucket the first, last, least and greatest, and a gap."""
    if len(y) <= 4 * BUCKETS:
        return x, y
    keep: set[int] = set()
    for run in np.array_split(np.arange(len(y)), BUCKETS):
        part, gaps = y[run], np.isnan(y[run])
        low, high = np.where(gaps, np.inf, part).argmin(), np.where(gaps, -np.inf, part).argmax()
        keep.update(int(run[i]) for i in (0, -1, low, high, gaps.argmax()))
    rows = np.array(sorted(keep))
    return x[rows], y[rows]


def _plot(panel: Panel, title: str) -> str:
    grid = "".join(across(tick.at, "grid") for tick in panel.y)
    side = "".join(f'<text class="y" x="-7" y="{_percent(1 - t.at)}" dy=".32em">{escape(t.label)}</text>' for t in panel.y)
    below = "".join(
        f'<text class="x{" odd" if i % 2 else ""}" x="{_percent(t.at)}" y="100%" dy="1.5em">{escape(t.label)}</text>'
        for i, t in enumerate(panel.x)
    )
    inner = f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none">{panel.stretched}</svg>' if panel.stretched else ""
    return (
        f'<div class="plot{" bare" if panel.bare else ""}" style="height:{panel.height}px">'
        f'<svg role="img" aria-label="{escape(title)}">{grid}{inner}{panel.fixed}{side}{below}</svg></div>'
    )


def _note(text: str) -> str:
    return f'<span class="note">{escape(text)}</span>' if text else ""


def _runs(x: Floats, y: Floats) -> list[tuple[Floats, Floats]]:
    """The stretches between gaps, thinned."""
    x, y = thinned(x, y)
    seen = np.isfinite(y)
    edges = np.flatnonzero(np.diff(seen)) + 1
    parts = zip(np.split(x, edges), np.split(y, edges), strict=True)
    return [(a, b) for a, b in parts if len(b) and np.isfinite(b[0])]


def _run(x: Floats, y: Floats) -> str:
    places = " ".join(f"{a} {b}" for a, b in _inner(x, y))
    return f"M{places}h0" if len(x) == 1 else f"M{places}"


def _inner(x: Floats, y: Floats) -> list[tuple[int, int]]:
    across_, down = np.rint(x * WIDTH).astype(int), np.rint((1 - y) * HEIGHT).astype(int)
    return list(zip(across_.tolist(), down.tolist(), strict=True))


def _percent(share: float) -> str:
    return f"{100 * share:.2f}".rstrip("0").rstrip(".") + "%"
