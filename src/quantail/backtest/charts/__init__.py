"""Charts as text: HTML with SVG inside, from arrays, without any other package and without a script.

Each function returns a `<figure>`; a page holds `STYLE` once and any number of figures, in light or dark, on a phone or paper.
"""

from quantail.backtest.charts.amounts import bars, histogram, waterfall
from quantail.backtest.charts.curves import fan, line, underwater, weights_with_price
from quantail.backtest.charts.frame import STYLE
from quantail.backtest.charts.heat import monthly_table
from quantail.backtest.charts.points import calibration, frontier, qq

__all__ = [
    "STYLE",
    "bars",
    "calibration",
    "fan",
    "frontier",
    "histogram",
    "line",
    "monthly_table",
    "qq",
    "underwater",
    "waterfall",
    "weights_with_price",
]
