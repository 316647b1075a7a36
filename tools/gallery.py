"""Every chart of `quantail.backtest.charts` on one page, of made-up returns, to look at: python tools/gallery.py [FILE]

The page is runs/gallery.html unless another FILE is named. Look at it on a narrow and a wide screen, in light and dark.
"""

import argparse
from pathlib import Path

import numpy as np

from quantail.backtest import charts, metrics
from quantail.backtest.series import Floats

PAGE = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width,initial-scale=1">
<title>Charts</title><style>{style}
body{{background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif;max-width:1100px;margin:0 auto;padding:14px}}
</style><h1>Charts</h1>{body}</html>
"""


def main() -> None:
    """Write the page and say where it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "file", nargs="?", type=Path, default=Path("runs/gallery.html"), help="where to write (default %(default)s)"
    )
    file = parser.parse_args().file
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(page(), encoding="utf-8")
    print(f"wrote {file}, {file.stat().st_size / 1024:.0f} kB")


def page() -> str:
    """The whole page."""
    return PAGE.format(style=charts.STYLE, body="".join([*along_time(), *amounts(), *laws(), *corners()]))


def market(rows: int, seed: int, drift: float = 4e-4) -> Floats:
    """Daily returns with fat tails."""
    returns: Floats = drift + 0.009 * np.random.default_rng(seed).standard_t(4, rows) / np.sqrt(2)
    return returns


def along_time() -> list[str]:
    """Eight years of days."""
    days = np.arange("2016-01-04", "2024-01-01", dtype="datetime64[D]")
    rows = len(days)
    benchmark = market(rows, 1)
    weights = np.clip(np.round(np.cumsum(np.random.default_rng(2).choice([0, 0, 0, 0, 0.5, -0.5], rows)) % 2.5 - 1, 1), -1, 1)
    agent = weights * benchmark + market(rows, 3, 2e-4) / 2
    borders = days[[rows // 4, rows // 2, 3 * rows // 4]]
    named = {
        "agent": agent,
        "buy & hold": benchmark,
        "vol-target": benchmark * 0.7 + 1e-5,
        "momentum 120": market(rows, 6, 2e-4),
    }
    equity = {name: metrics.equity_curve(r)[1:] for name, r in named.items()}
    falls = {name: metrics.drawdown_curve(named[name]) for name in ("agent", "buy & hold")}
    rolling = {"agent": metrics.rolling_sharpe(agent, 250), "buy & hold": metrics.rolling_sharpe(benchmark, 250)}
    price = 100 * metrics.equity_curve(benchmark)[1:]
    seeds = np.cumprod(1 + np.stack([market(rows, 20 + s, 3e-4) for s in range(10)]), axis=1)
    return [
        charts.line(
            "Equity after costs", days, equity, log=True, borders=borders, note="log scale; dashed: segments of the walk"
        ),
        charts.underwater("Below the peak", days, falls, borders=borders),
        charts.line("Sharpe ratio of the last 250 days", days, rolling),
        charts.weights_with_price("Weight and price", days[-260:], price[-260:], weights[-260:]),
        charts.fan("Ten seeds", days, seeds, log=True, note="equity after costs"),
        charts.monthly_table("Months", metrics.monthly_returns(days, agent)),
    ]


def amounts() -> list[str]:
    """Bars of several kinds."""
    sharpes = {"agent": 0.81, "buy & hold": 0.48, "vol-target": 0.57, "momentum 120": 0.56, "reversal 5": -0.49, "cash": np.nan}
    sure = {"agent": (0.21, 1.37), "buy & hold": (0.15, 0.78), "vol-target": (0.25, 0.96), "momentum 120": (0.23, 0.9)}
    costs = {"fee": -0.021, "spread": -0.008, "impact": -0.002, "financing": 0.0031}
    returns = market(2000, 5)
    marks = {"VaR 5 %": metrics.value_at_risk(returns), "CVaR 5 %": metrics.expected_shortfall(returns)}
    return [
        charts.bars("Sharpe ratio with 95 % interval", sharpes, sure),
        charts.waterfall("From gross to net, per year", ("gross", 0.124), costs, "net"),
        charts.bars("Net Sharpe ratio by cost", {"0 ×": 1.02, "1 ×": 0.81, "2 ×": 0.6, "4 ×": 0.18}),
        charts.histogram("Daily returns", returns, marks, tail=marks["VaR 5 %"]),
        charts.histogram("Bars held", np.random.default_rng(7).geometric(0.05, 400), unit=""),
    ]


def laws() -> list[str]:
    """Does one law fit another?"""
    levels = np.linspace(0.02, 0.98, 25)
    limits = np.stack([-np.array([0.9, 1.2, 1.5, 1.9, 2.4]) / 100, np.array([3.1, 4.4, 5.6, 6.3, 6.6]) / 100], axis=1)
    others = {"buy & hold": [-0.026, 0.055], "vol-target": [-0.017, 0.049]}
    return [
        charts.frontier("What risk buys", {"limits": limits, **others}, across="CVaR 5 % of a day", up="mean of a year"),
        charts.qq("Daily returns against a Gaussian", market(2000, 5)),
        charts.calibration("Calibration of the critic", levels, np.clip(levels**1.15, 0, 1), samples=400),
    ]


def corners() -> list[str]:
    """Little, missing, equal, tiny and huge."""
    hours = np.arange("2024-03-01T00", "2024-03-03T12", dtype="datetime64[h]")
    gaps = np.where(np.arange(60) % 17 == 5, np.nan, np.cumsum(np.random.default_rng(8).standard_normal(60)) * 1e6)
    minutes = np.arange("2021-01-01", "2021-03-01", dtype="datetime64[m]")
    dense = 20_000 + np.cumsum(np.random.default_rng(9).standard_normal(len(minutes)))
    many = {f"series {i}": np.linspace(0, i + 1, 50) for i in range(9)}
    return [
        charts.line("Hours, gaps, millions", hours, {"profit": gaps}),
        charts.line("85,000 minutes", minutes, {"price": dense}),
        charts.line("Nine series over steps", np.arange(50) * 40_000, many),
        charts.line("Nothing moves", hours, {"cash": np.ones(60)}),
        charts.bars(
            'Tiny <b>numbers</b> & "names"', {"a very long name of a baseline": 1e-4, "b": -2e-4}, unit="%", decimals=3
        ),
    ]


if __name__ == "__main__":
    main()
