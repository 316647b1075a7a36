"""One equity curve, many numbers: what the known libraries call Sharpe, VaR or kurtosis, measured on the same returns.

    python studies/definitions.py            the table
    python studies/definitions.py --docs     and into docs/evaluation.md

The returns are those of the S&P 500 from 1999 to 2018, which the package `arch` brings along. Packages of the dev extra.
"""

import argparse
import math
from pathlib import Path
from typing import NamedTuple

import arch.data.sp500
import empyrical
import ffn  # noqa: F401 - teaches pandas its figures
import numpy as np
import pandas as pd
import quantstats.stats as quantstats
import skfolio.measures

from quantail.backtest import metrics

DOCS = Path(__file__).parents[1] / "docs" / "evaluation.md"
BEGIN, END = "<!-- definitions: begin, written by studies/definitions.py --docs -->", "<!-- definitions: end -->"


class Row(NamedTuple):
    """One figure: ours, who says the same, who does not and why."""

    figure: str
    ours: float
    same: dict[str, float]
    other: dict[str, tuple[float, str]]


def closes() -> pd.Series:
    """Daily closes, adjusted."""
    return arch.data.sp500.load()["Adj Close"]


def rows(prices: pd.Series) -> list[Row]:
    """Every figure on which somebody disagrees."""
    r = prices.pct_change().dropna()
    x, year, stamped = r.to_numpy(), 252, metrics.periods_per_year(r.index)
    rated = {"rf": 0.02, "periods": year}
    geometric = metrics.cagr(x, year)
    log_normal = math.sqrt((x.var(ddof=1) + (1 + x.mean()) ** 2) ** year - (1 + x.mean()) ** (2 * year))
    with_zero = np.concatenate([[0.0], x])
    return [
        Row(
            "Sharpe, A = 252",
            metrics.sharpe(x, year),
            {"quantstats": quantstats.sharpe(r), "empyrical": empyrical.sharpe_ratio(x), "ffn": r.calc_sharpe(nperiods=year)},
            {
                "A from the stamps": (
                    metrics.sharpe(x, stamped),
                    f"{stamped:.1f} days a year were traded; this is ours, with its own A",
                ),
                "a year of 365 bars": (metrics.sharpe(with_zero, 365), "the default of vectorbt, with a zero return in front"),
                "growth over log-normal deviation": (geometric / log_normal, "the formula of backtesting.py"),
            },
        ),
        Row(
            "Sharpe, cash at 2 %",
            metrics.sharpe(x, year, 0.02),
            {"quantstats": quantstats.sharpe(r, **rated)},
            {"empyrical": (empyrical.sharpe_ratio(x, 0.02 / year), "given 2 %/252; its rate is per period")},
        ),
        Row(
            "Sortino",
            metrics.sortino(x, year),
            {"quantstats": quantstats.sortino(r), "empyrical": empyrical.sortino_ratio(x)},
            {
                "losses only": (
                    x.mean() / math.sqrt(np.square(x[x < 0]).mean()) * math.sqrt(year),
                    "divided by the number of losses, as some textbooks have it",
                )
            },
        ),
        Row(
            "CAGR",
            geometric,
            {"quantstats": quantstats.cagr(r, periods=year), "empyrical": empyrical.annual_return(x)},
            {"ffn": (prices.calc_cagr(), "by the calendar, 365.25 days a year")},
        ),
        Row(
            "VaR 5 %",
            metrics.value_at_risk(x),
            {"empyrical": empyrical.value_at_risk(x)},
            {"quantstats": (quantstats.value_at_risk(r), "the quantile of a Gaussian")},
        ),
        Row(
            "Expected shortfall 5 %",
            metrics.expected_shortfall(x),
            {"skfolio": -skfolio.measures.cvar(x, 0.95)},
            {
                "empyrical": (empyrical.conditional_value_at_risk(x), "mean of whole returns; no part of one"),
                "quantstats": (quantstats.cvar(r), "of a Gaussian by default"),
            },
        ),
        Row(
            "Excess kurtosis",
            metrics.excess_kurtosis(x),
            {"quantstats": quantstats.kurtosis(r)},
            {"skfolio": (skfolio.measures.kurtosis(x), "raw, so 3 more, and not corrected for bias")},
        ),
        Row(
            "Information ratio to cash",
            metrics.information_ratio(x, np.zeros_like(x), year),
            {},
            {"quantstats": (quantstats.information_ratio(r, pd.Series(0.0, r.index)), "per period, never annualised")},
        ),
    ]


def markdown(table: list[Row]) -> str:
    """The table, one line for each disagreement."""
    lines = ["| Figure | Ours | The same to 10 digits | Elsewhere | Off by | Why |", "| --- | --- | --- | --- | --- | --- |"]
    for row in table:
        for name, value in row.same.items():
            assert math.isclose(row.ours, value, rel_tol=1e-10), (row.figure, name, row.ours, value)
        head = [row.figure, f"{row.ours:.5f}", ", ".join(row.same) or "–"]
        for name, (value, why) in row.other.items():
            cells = [*head, f"{name}: {value:.5f}", f"{100 * (value / row.ours - 1):+.1f} %", why]
            lines.append(f"| {' | '.join(cells)} |")
            head = ["", "", ""]
    return "\n".join(lines)


def main() -> None:
    """Print the table; on demand write it into the docs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", action="store_true", help="write the table into docs/evaluation.md")
    options = parser.parse_args()
    table = markdown(rows(closes()))
    print(table)
    if options.docs:
        page = DOCS.read_text(encoding="utf-8")
        before, after = page.split(BEGIN)[0], page.split(END)[1]
        DOCS.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
