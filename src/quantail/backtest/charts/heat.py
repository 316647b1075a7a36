"""The table of months: a row for each year, a colour for each return."""

from html import escape

import numpy as np

from quantail.backtest.calendar import Months
from quantail.backtest.charts.axis import number
from quantail.backtest.charts.frame import bare_figure

NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
STRONGEST = 70  # per cent of colour, so that the figures stay readable


def monthly_table(title: str, months: Months, *, note: str = "in per cent; a month that was not traded is empty") -> str:
    """What each month brought, coloured by sign and size; full colour at the 90th percentile of their sizes.

    months as `metrics.monthly_returns` gives them.
    """
    sizes = np.abs(months.returns[np.isfinite(months.returns)])
    full = float(np.quantile(sizes, 0.9)) if sizes.size else 0.0
    names = "".join(f'<th><span class="roomy">{name}</span><span class="narrow">{name[0]}</span></th>' for name in NAMES)
    rows = [f"<tr><th></th>{names}<th>Year</th></tr>"]
    for year, returns, total in zip(months.years, months.returns, months.totals, strict=True):
        cells = "".join(_cell(value, full, f"{name} {year}") for name, value in zip(NAMES, returns, strict=True))
        rows.append(f"<tr><th>{_year(year)}</th>{cells}<td>{_brief(total)}</td></tr>")
    return bare_figure(title, f"<table>{''.join(rows)}</table>", note)


def _cell(value: float, full: float, name: str) -> str:
    if not np.isfinite(value):
        return "<td></td>"
    share = round(STRONGEST * min(abs(value) / full, 1.0)) if full else 0
    side = "good" if value >= 0 else "bad"
    says = escape(f"{name}: {number(100 * value, 2, '%')}")
    return f'<td style="background:color-mix(in srgb,var(--{side}) {share}%,transparent)" title="{says}">{_brief(value)}</td>'


def _brief(value: float) -> str:
    """In per cent; whole ones on a phone, which shows fourteen columns."""
    if not np.isfinite(value):
        return ""
    return f'<span class="roomy">{number(100 * value, 1)}</span><span class="narrow">{number(100 * value, 0)}</span>'


def _year(year: int) -> str:
    return f'<span class="roomy">{year}</span><span class="narrow">’{year % 100:02d}</span>'
