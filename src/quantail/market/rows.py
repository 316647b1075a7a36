"""The rows of one asset as a file gives them, before anybody has looked at them."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantail.errors import InputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

NO_TIME = np.iinfo(np.int64).min  # a stamp that could not be read


class Rows(NamedTuple):
    """n rows of one asset in the order of the file."""

    symbol: str
    origin: Ints  # [n] which row of the source it was
    time: Ints  # [n] nanoseconds UTC, or NO_TIME
    open: Floats  # [n] NaN where there was no number
    high: Floats  # [n]
    low: Floats  # [n]
    close: Floats  # [n]
    volume: Floats | None  # [n]
    funding: Floats | None  # [n]

    def at(self, which: Mask | Ints) -> "Rows":
        """Some of the rows, in the order asked for."""
        return Rows(self.symbol, *(None if part is None else part[which] for part in self[1:]))  # type: ignore[arg-type]


def step_of(source: str, rows: Rows) -> float:
    """Length of a bar in seconds: the middle one of the steps between stamps that were read, whatever their order."""
    stamps = rows.time[rows.time != NO_TIME]
    steps = np.diff(stamps)
    if (steps < 0).any():  # many sources put the newest row first
        steps = np.diff(np.sort(stamps))
    steps = steps[steps > 0]
    if not len(steps):
        raise InputError(
            f"{source}: {rows.symbol} has {len(rows.time)} rows and no two stamps that differ; needs two, or the length of a "
            "bar: pass bar_seconds=3600 for hours"
        )
    middle = (len(steps) - 1) // 2  # the lower of the two middle ones: a step that did occur
    return float(np.partition(steps, middle)[middle]) / 1e9


def length_of(source: str, assets: list[Rows], given: float | None) -> float:
    """The length that all assets share, as given or as seen."""
    if given is not None:
        if not 0 < given < float("inf"):
            raise InputError(f"bar_seconds={given}; needs the length of a bar in seconds, above 0")
        return float(given)
    lengths = {rows.symbol: step_of(source, rows) for rows in assets}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name} {seconds:g} s" for name, seconds in list(lengths.items())[:8])
        raise InputError(f"{source}: assets have bars of different length ({listed}); needs one: load them one by one")
    return next(iter(lengths.values()))
