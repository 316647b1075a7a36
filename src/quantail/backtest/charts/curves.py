"""Charts along time, or along anything else that moves on: equity, drawdown, weights, many seeds."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantail.backtest.charts.axis import Axis, Tick, around, ticks, time_ticks
from quantail.backtest.charts.frame import Panel, across, area, colour, curve, figure, upright
from quantail.backtest.series import Floats
from quantail.errors import InputError


def line(
    title: str,
    x: ArrayLike,
    series: Mapping[str, ArrayLike],
    *,
    log: bool = False,
    unit: str = "",
    borders: ArrayLike = (),
    fill: bool = False,
    note: str = "",
) -> str:
    """Curves over common x; the first one is the one that matters. A line stands at 0 if the axis holds it.

    x [T] datetime64 or numbers, series name -> [T], NaN (or ≤ 0 if `log`) is a gap; `borders` are places on x where segments
    meet; `fill` colours the way to 0; the unit "%" writes 0.1 as 10 %.
    """
    if fill and log:
        raise InputError("fill colours the way to 0, which a logarithmic axis does not have; give one of fill and log")
    places, below = _along(x)
    curves = {name: _series(name, values, len(places)) for name, values in series.items()}
    axis = around(*curves.values(), log=log, include=(0.0,) if fill else ())
    zero = np.full(len(places), float(axis.place(0.0)) if fill else 0.0)
    drawn = []
    for i, values in reversed(list(enumerate(curves.values()))):  # the first comes to lie on top
        drawn.append(curve(places, axis.place(values), colour(i) + (" first" if i == 0 else "")))
        drawn += [area(places, zero, axis.place(values), colour(i))] if fill else []
    legend = [(colour(i), name) for i, name in enumerate(curves)] if len(curves) > 1 else []
    panel = Panel("".join(drawn), _zero(axis) + _borders(x, borders), below, ticks(axis, unit))
    return figure(title, [panel], legend, note)


def underwater(title: str, x: ArrayLike, series: Mapping[str, ArrayLike], *, borders: ArrayLike = (), note: str = "") -> str:
    """How far each curve lay below its peak, filled down from 0.

    x [T], series name -> [T] as `metrics.drawdown_curve` gives it.
    """
    return line(title, x, series, unit="%", borders=borders, fill=True, note=note)


def weights_with_price(
    title: str,
    x: ArrayLike,
    price: ArrayLike,
    weights: ArrayLike,
    *,
    log: bool = False,
    borders: ArrayLike = (),
    note: str = "",
) -> str:
    """What was held, below what it cost: long and short in two colours, in steps, for a weight stands until it changes.

    x [T], price [T], weights [T].
    """
    places, below = _along(x)
    cost, held = _series("price", price, len(places)), _series("weights", weights, len(places))
    above = around(cost, log=log)
    upper = Panel(curve(places, above.place(cost), "ink"), _borders(x, borders), (), ticks(above), 170, True)
    axis = around(held, include=(0.0,))
    steps, stairs = np.repeat(places, 2)[1:], np.repeat(held, 2)[:-1]
    zero = np.full(len(steps), float(axis.place(0.0)))
    sides = [("good", np.maximum(stairs, 0)), ("bad", np.minimum(stairs, 0))]
    drawn = [
        area(steps, zero, axis.place(side), kind) + curve(steps, axis.place(side), kind) for kind, side in sides if side.any()
    ]
    lower = Panel("".join(drawn), _zero(axis) + _borders(x, borders), below, ticks(axis, "%", 4), 110)
    return figure(title, [upper, lower], [("ink", "price"), ("good", "long"), ("bad", "short")], note)


def fan(title: str, x: ArrayLike, curves: ArrayLike, *, log: bool = False, unit: str = "", note: str = "") -> str:
    """Every seed by itself, the middle half of them as a band, and their median.

    x [T], curves [S, T].
    """
    places, below = _along(x)
    every = np.asarray(curves, dtype=np.float64)
    if every.ndim != 2 or every.shape[1] != len(places):
        raise InputError(f"curves has shape {list(every.shape)}; needs [S, {len(places)}], a row for each seed")
    axis = around(every, log=log)
    low, middle, high = (axis.place(q) for q in np.quantile(every, [0.25, 0.5, 0.75], axis=0))
    drawn = [area(places, low, high, "s1"), *(curve(places, axis.place(one), "s1 faint") for one in every)]
    drawn.append(curve(places, middle, "s1 first"))
    legend = [("s1", f"median of {len(every)} seeds"), ("s1 band", "the middle half of them")]
    return figure(title, [Panel("".join(drawn), _zero(axis), below, ticks(axis, unit))], legend, note)


def _along(x: ArrayLike) -> tuple[Floats, tuple[Tick, ...]]:
    """Places [T] in [0, 1] along the horizontal axis, and its ticks: of the clock for datetime64, of numbers else."""
    values = np.asarray(x)
    if values.ndim != 1 or len(values) < 2 or not (values[1:] > values[:-1]).all():
        raise InputError(f"x has shape {list(values.shape)}; needs at least two values that increase strictly")
    if values.dtype.kind == "M":
        return _shares(values, values), time_ticks(values[0], values[-1])
    return _shares(values, values), ticks(Axis(float(values[0]), float(values[-1])), most=10)


def _shares(values: NDArray[Any], ends: NDArray[Any]) -> Floats:
    """How far each value lies along the way from the first end to the last."""
    shares: Floats = (values - ends[0]) / (ends[-1] - ends[0])
    return shares.astype(np.float64)


def _series(name: str, values: ArrayLike, rows: int) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (rows,):
        raise InputError(f"{name!r} has shape {list(array.shape)}; needs [{rows}], one value for each place on x")
    return array


def _zero(axis: Axis) -> str:
    return across(float(axis.place(0.0)), "rule") if not axis.log and axis.low <= 0 <= axis.high else ""


def _borders(x: ArrayLike, borders: ArrayLike) -> str:
    at, ends = np.asarray(borders), np.asarray(x)
    return "".join(upright(float(share), "border") for share in _shares(at, ends)) if at.size else ""
