"""Charts of dots: what is bought at which price, and whether two laws are the same."""

from collections.abc import Mapping
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantail.backtest.charts.axis import Axis, around, ticks
from quantail.backtest.charts.frame import Panel, area, colour, curve, dots, figure
from quantail.errors import InputError

MOST = 400  # dots; of more returns, those at evenly spread ranks, and all of the outermost


def frontier(title: str, groups: Mapping[str, ArrayLike], *, across: str, up: str, unit: str = "%", note: str = "") -> str:
    """Two figures of each candidate against each other; those of one group are joined in the order given.

    groups name -> [n, 2], across and up in that order, e.g. shortfall and mean for each limit; one that is alone is a dot.
    """
    places = {name: np.atleast_2d(np.asarray(points, dtype=np.float64)) for name, points in groups.items()}
    for name, points in places.items():
        if points.ndim != 2 or points.shape[1] != 2 or not np.isfinite(points).all():
            raise InputError(f"{name!r} has shape {list(points.shape)}; needs [n, 2] finite numbers, across and up")
    every = np.concatenate(list(places.values()))
    x, y = around(every[:, 0]), around(every[:, 1])
    drawn = []
    for i, points in enumerate(places.values()):
        a, b = x.place(points[:, 0]), y.place(points[:, 1])
        drawn.append((curve(a, b, colour(i)) if len(points) > 1 else "") + dots(a, b, colour(i)))
    panel = Panel("".join(drawn), "", ticks(x, unit, 9), ticks(y, unit), 300)
    says = f"across: {across}; up: {up}" + (f"; {note}" if note else "")
    return figure(title, [panel], [(colour(i), name) for i, name in enumerate(places)], says)


def qq(title: str, values: ArrayLike, *, note: str = "") -> str:
    """Sorted values against those of a Gaussian of the same mean and deviation: r_(i) over x̄ + s·Φ⁻¹((i − ½)/T), both in s.

    values [T]. Heavy tails fall below the line on the left and rise above it on the right.
    """
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or len(x) < 3 or not np.isfinite(x).all() or np.ptp(x) == 0:
        raise InputError(f"values has shape {list(x.shape)}; needs [T] at least three finite numbers that differ")
    order = (np.sort(x) - x.mean()) / x.std(ddof=1)
    expected = np.array([NormalDist().inv_cdf((i + 0.5) / len(x)) for i in range(len(x))])
    rows = _some(len(x))
    across, up = around(expected), around(order, expected)
    ends = np.array([across.low, across.high])
    drawn = curve(across.place(ends), up.place(ends), "soft dash")
    drawn += dots(across.place(expected[rows]), up.place(order[rows]), "s1")
    panel = Panel(drawn, "", ticks(across, most=9), ticks(up), 300)
    return figure(title, [panel], [("soft dash", "a Gaussian"), ("s1", "the returns, in deviations")], note)


def calibration(title: str, levels: ArrayLike, coverage: ArrayLike, *, samples: int | None = None, note: str = "") -> str:
    """How often outcomes lay below the predicted quantiles, against how often they should have.

    levels τ [N] in (0, 1), coverage [N] shares below; `samples` n draws the band τ ± 1.96·√(τ(1 − τ)/n)
    that holds 95 % of the dots of a perfect forecast of independent outcomes. Dots above the line: the
    forecast was too high, the risk understated.
    """
    tau, below = np.asarray(levels, dtype=np.float64), np.asarray(coverage, dtype=np.float64)
    if (
        tau.ndim != 1
        or tau.shape != below.shape
        or not len(tau)
        or not ((tau > 0) & (tau < 1) & (below >= 0) & (below <= 1)).all()
    ):
        raise InputError(
            f"levels has shape {list(tau.shape)} and coverage {list(below.shape)}; "
            "needs [N] each, levels in (0, 1) and shares in [0, 1]"
        )
    axis = Axis(0.0, 1.0)
    ends = np.array([0.0, 1.0])
    drawn, legend = curve(ends, ends, "soft dash"), [("soft dash", "perfect"), ("s1", "observed")]
    if samples is not None:
        u = np.linspace(0, 1, 101)
        spread = 1.96 * np.sqrt(u * (1 - u) / samples)
        drawn += area(u, np.maximum(u - spread, 0), np.minimum(u + spread, 1), "s1")
        legend.append(("s1 band", f"band: luck of {samples:,} independent outcomes"))
    drawn += dots(tau, below, "s1")
    return figure(title, [Panel(drawn, "", ticks(axis, "%"), ticks(axis, "%"), 300)], legend, note)


def _some(count: int) -> NDArray[np.int64]:
    """Ranks to draw: all of few; of many the outermost 50 on either side and an even choice between."""
    if count <= MOST:
        return np.arange(count)
    inner = np.linspace(50, count - 51, MOST - 100)
    return np.unique(np.concatenate([np.arange(50), np.rint(inner).astype(int), np.arange(count - 50, count)]))
