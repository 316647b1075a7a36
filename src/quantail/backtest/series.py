"""What the figures take: returns, weights and times as arrays of numpy, and what is asked of them.

A series is anything `numpy.asarray` understands: a list, a tensor on the CPU, a column of pandas. Nothing is filled,
dropped or clipped; what cannot be used is refused with its place.
"""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantail.errors import InputError

Floats: TypeAlias = NDArray[np.float64]
Times: TypeAlias = NDArray[np.int64]

NANOSECONDS = 1_000_000_000
YEAR_SECONDS = 365.25 * 86_400  # a Julian year


def as_numbers(name: str, values: ArrayLike, axes: tuple[str, ...] = ("T",), least: int = 1) -> Floats:
    """Finite float64 with these axes, the first at least so long. What cannot be compounded may still be averaged."""
    try:
        given = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists, tensors of a device or with a gradient
        raise InputError(f"{name} is no array: {error}; needs numbers, a tensor as {name}.detach().cpu()") from error
    if given.dtype.kind not in "fiub":
        raise InputError(f"{name} holds {given.dtype}; needs numbers")
    array: Floats = given.astype(np.float64)
    if array.ndim != len(axes) or (array.ndim > 1 and 0 in array.shape[1:]):
        raise InputError(f"{name} has shape {list(array.shape)}; needs [{', '.join(axes)}]")
    if len(array) < least:
        raise InputError(f"{name} has {len(array)} rows; needs at least {least}")
    if not np.isfinite(array).all():
        where = np.argwhere(~np.isfinite(array))
        place = where[0].tolist()
        raise InputError(
            f"{name} has {len(where)} entries that are not finite, the first is {array[tuple(place)]} at {place}; "
            "drop these rows, or give 0 where nothing was held"
        )
    return array


def as_growth(returns: ArrayLike, least: int = 1) -> Floats:
    """Returns that can be compounded: none below −1, which is ruin: equity is 0 from there on."""
    array = as_numbers("returns", returns, least=least)
    if array.min() < -1:
        raise InputError(
            f"returns falls to {array.min():g} at [{array.argmin()}]; simple returns end at -1, where everything is lost: "
            "turn log returns r into exp(r) - 1, per cent into fractions"
        )
    return array


def as_pair(returns: ArrayLike, other: ArrayLike, name: str, least: int = 1) -> tuple[Floats, Floats]:
    """Two series of returns of the same periods."""
    ours, theirs = as_numbers("returns", returns, least=least), as_numbers(name, other, least=least)
    if len(ours) != len(theirs):
        raise InputError(f"returns has {len(ours)} periods and {name} {len(theirs)}; needs the same periods in both")
    return ours, theirs


def as_times(times: ArrayLike, rows: int | None = None, least: int = 1) -> Times:
    """Strictly increasing nanoseconds since 1970 UTC, from datetime64 or from whole numbers that are just that."""
    given: NDArray[Any] = np.asarray(times)
    if given.dtype.kind == "O":  # stamps with a time zone come as objects
        given = np.asarray(times, dtype="datetime64[ns]")
    if given.dtype.kind not in "Mi" or given.ndim != 1:
        raise InputError(
            f"times is {given.dtype} of shape {list(given.shape)}; needs [T] datetime64, or int64 nanoseconds since 1970 UTC"
        )
    stamps: Times = given.astype("datetime64[ns]").astype(np.int64) if given.dtype.kind == "M" else given.astype(np.int64)
    if rows is not None and len(stamps) != rows:
        raise InputError(f"times has {len(stamps)} rows; needs {rows}, one for each return")
    if len(stamps) < least:
        raise InputError(f"times has {len(stamps)} rows; needs at least {least}")
    if (still := np.flatnonzero(np.diff(stamps) <= 0)).size:
        raise InputError(f"times does not move on after row {still[0]}; sort the rows and drop duplicates")
    return stamps


def check_number(name: str, value: float, low: float, high: float, needs: str) -> None:
    """A number strictly between two others."""
    if not low < value < high:
        raise InputError(f"{name}={value!r}; needs {needs}")


def check_whole(name: str, value: int, least: int) -> None:
    """A whole number of things, at least so many."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{name}={value!r}; needs a whole number of at least {least}")
