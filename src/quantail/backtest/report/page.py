"""The page: its style, the verdict box, sections, tables. Everything that comes from outside is escaped here."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import NamedTuple

from quantail.backtest import charts
from quantail.backtest.evidence import Evidence
from quantail.backtest.report.about import About
from quantail.backtest.words import chance, decimal, percent, told_over

STYLE = """
body{background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif;max-width:1180px;margin:0 auto}
body{padding:14px 16px 40px}
h1{font-size:24px;line-height:1.25;margin:.3em 0 0}h3{font-size:15px;margin:1.2em 0 .4em}
h2{font-size:19px;margin:1.8em 0 .6em;padding-top:.5em;border-top:1px solid var(--grid)}
p{margin:.5em 0;max-width:75ch}.sub{color:var(--soft);margin:.2em 0 1em}a{color:var(--s1)}
nav{font-size:14px;margin:.8em 0;display:flex;flex-wrap:wrap;gap:.3em 1.1em}
.verdict{border:1px solid var(--grid);border-left:6px solid var(--c);border-radius:6px;padding:.4em 1.1em .8em;margin:1em 0}
.verdict .head{font-size:20px;font-weight:600;line-height:1.3;margin:.5em 0;max-width:none}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(150px,44%),1fr));gap:.7em 1.4em;margin:1em 0 .6em}
.tiles div{border-top:2px solid var(--grid);padding-top:.3em}
.tiles b{display:block;font-size:19px;font-variant-numeric:tabular-nums}
.tiles span{display:block;font-size:13px;color:var(--soft)}
.said{padding-left:1.2em;margin:.6em 0}.said li{margin:.35em 0;max-width:85ch}
.wide{overflow-x:auto;margin:.6em 0 1.4em}
.wide table{border-collapse:collapse;font-size:13.5px;font-variant-numeric:tabular-nums}
.wide th,.wide td{padding:.28em .8em;text-align:right;white-space:nowrap;border-bottom:1px solid var(--grid)}
.wide th{font-weight:600;color:var(--soft);vertical-align:bottom}
.wide th:first-child,.wide td:first-child{text-align:left;padding-left:0;white-space:normal;min-width:9.5em}
.wide tr.own td{font-weight:600}
.wide td.text{text-align:left;white-space:normal;overflow-wrap:anywhere;min-width:11em}
.two{display:grid;grid-template-columns:minmax(0,1fr);gap:0 2.4em}.two>*{min-width:0}
@media (min-width:900px){.two{grid-template-columns:minmax(0,1fr) minmax(0,1fr)}}
details{margin:.6em 0}summary{cursor:pointer;font-weight:600}
pre{font-size:12.5px;line-height:1.45;overflow-x:auto;border:1px solid var(--grid);border-radius:4px;padding:.8em}
.none{color:var(--soft)}
@media print{body{max-width:none;padding:0;font-size:11pt}nav{display:none}h2{break-after:avoid}.verdict,tr{break-inside:avoid}
.wide{overflow:visible}.wide th,.wide td{padding:.2em .45em;font-size:8.5pt}pre{white-space:pre-wrap;border:0;padding:0}}
"""

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<meta name="generator" content="Quantail"><title>{title}</title><style>{style}</style></head>
<body>{body}</body></html>
"""


class Section(NamedTuple):
    """A part of the page; one without content is left out."""

    title: str
    body: str


def whole(title: str, top: str, sections: Iterable[Section]) -> str:
    """The page from its parts."""
    kept = [one for one in sections if one.body]
    links = "".join(f'<a href="#{anchor(one.title)}">{escape(one.title)}</a>' for one in kept)
    parts = "".join(f'<section id="{anchor(one.title)}"><h2>{escape(one.title)}</h2>{one.body}</section>' for one in kept)
    return PAGE.format(title=escape(title), style=charts.STYLE + STYLE, body=f"{top}<nav>{links}</nav><main>{parts}</main>")


def anchor(title: str) -> str:
    """Its place."""
    return title.lower().replace(" ", "-")


def verdict_box(evidence: Evidence, about: About) -> str:
    """What everybody reads: one line, six figures, the sentences."""
    found = evidence.verdict
    kind = "good" if found.skill else "bad" if found.cash.p_worse <= found.each else "soft"
    low, high = found.hold.interval
    years, when = told_over(found.years)
    least, most = (100 * math.expm1(end * years) for end in found.growth_interval)
    tiles = (
        (decimal(found.sharpe), f"Sharpe ratio after costs {between(*found.sharpe_interval)}"),
        (decimal(found.hold.value, sign="+"), f"against buy & hold {between(low, high, '+')}"),
        (percent(math.expm1(found.growth * years)), f"growth {when} {between(least, most, decimals=1)}"),
        (chance(max(found.cash.p_better, found.hold.p_better, found.timing.p_better)), "chance of luck, the largest of three"),
        (decimal(found.deflated_sharpe, 3), f"deflated Sharpe ratio, {found.trials} tried"),
        (f"{found.seeds_better} of {found.seeds}", "seeds beat buy & hold"),
    )
    boxes = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for value, name in tiles)
    said = "".join(f"<li>{escape(sentence)}</li>" for sentence in (*found.sentences, *about.notes))
    subtitle = f'<p class="sub">{escape(about.subtitle)}</p>' if about.subtitle else ""
    return (
        f"<header><h1>{escape(about.title)}</h1>{subtitle}</header>"
        f'<section class="verdict {kind}" aria-label="verdict"><p class="head">{escape(found.headline)}</p>'
        f'<div class="tiles">{boxes}</div><ul class="said">{said}</ul></section>'
    )


def between(low: float, high: float, sign: str = "", decimals: int = 2) -> str:
    """[0.61, 1.22]."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"[{decimal(low, decimals, sign)}, {decimal(high, decimals, sign)}]"


def rows(head: Sequence[str], body: Iterable[Sequence[str]], own: int = 0) -> str:
    """A table; the first `own` rows are the agent's. It scrolls by itself where a screen is narrow."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join(
        f"<tr{' class=own' if i < own else ''}>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>"
        for i, line in enumerate(body)
    )
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table></div>'


def pairs(items: Mapping[str, str] | Iterable[tuple[str, str]]) -> str:
    """Names and values."""
    every = items.items() if isinstance(items, Mapping) else items
    lines = "".join(f'<tr><td>{escape(name)}</td><td class="text">{escape(value)}</td></tr>' for name, value in every)
    return f'<div class="wide"><table><tbody>{lines}</tbody></table></div>'


def two(*figures: str) -> str:
    """Side by side where there is room."""
    kept = "".join(f"<div>{one}</div>" for one in figures if one)
    return f'<div class="two">{kept}</div>' if kept else ""


def words(text: str, kind: str = "") -> str:
    """A paragraph."""
    return f"<p{f' class={kind}' if kind else ''}>{escape(text)}</p>"


def heading(text: str) -> str:
    """Above a table."""
    return f"<h3>{escape(text)}</h3>"
