"""Where a value lies between the ends of an axis, and which values are worth a label."""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantail.backtest.series import Floats
from quantail.errors import InputError

STEPS = (1.0, 2.0, 5.0, 10.0)
SHORT = ((1e9, 1e9, "B"), (1e6, 1e6, "M"), (1e5, 1e3, "k"))  # from which size on, in what, how it is written
SMALL = 1e-6  # below it numbers are written with an exponent
NARROW = "\u202f"  # a space at which no line breaks
HOUR, DAY = 3_600.0, 86_400.0  # seconds
# (length in seconds, numpy's unit, every so many, how a label reads) of the ticks of a time axis, finest first
CLOCK = (
    (HOUR, "h", 1, "%H:%M"),
    (3 * HOUR, "h", 3, "%H:%M"),
    (6 * HOUR, "h", 6, "%H:%M"),
    (12 * HOUR, "h", 12, "%H:%M"),
    (DAY, "D", 1, "%d %b"),
    (2 * DAY, "D", 2, "%d %b"),
    (7 * DAY, "D", 7, "%d %b"),
    (30.4 * DAY, "M", 1, "%b %Y"),
    (91.3 * DAY, "M", 3, "%b %Y"),
    (182.6 * DAY, "M", 6, "%b %Y"),
    (365.25 * DAY, "Y", 1, "%Y"),
    (730.5 * DAY, "Y", 2, "%Y"),
    (1826.25 * DAY, "Y", 5, "%Y"),
    (3652.5 * DAY, "Y", 10, "%Y"),
    (7305 * DAY, "Y", 20, "%Y"),
    (18262.5 * DAY, "Y", 50, "%Y"),
    (36525 * DAY, "Y", 100, "%Y"),
)


class Tick(NamedTuple):
    """A place along an axis, 0 to 1, and what is written there."""

    at: float
    label: str


class Axis(NamedTuple):
    """Ends of an axis; positions are shares of the way from low to high, in logarithms if asked."""

    low: float
    high: float
    log: bool = False

    def place(self, values: ArrayLike) -> Floats:
        """0 at the low end, 1 at the high end; NaN where there is nothing to show, as ≤ 0 on a logarithmic axis.

        values [...] -> [...].
        """
        x = np.asarray(values, dtype=np.float64)
        low, high = self.low, self.high
        if self.log:
            x, low, high = np.log(np.where(x > 0, x, np.nan)), math.log(low), math.log(high)
        share: Floats = (x - low) / (high - low)
        return share


def around(*values: ArrayLike, log: bool = False, include: tuple[float, ...] = (), margin: float = 0.04) -> Axis:
    """The axis that holds all values that can be shown, with a little air."""
    every = np.concatenate([np.ravel(np.asarray(v, dtype=np.float64)) for v in (*values, include)])
    shown = every[np.isfinite(every) & ((every > 0) | (not log))]
    if not shown.size:
        raise InputError(f"none of {every.size} values can be drawn; needs finite ones, above 0 on a logarithmic axis")
    low, high = float(shown.min()), float(shown.max())
    if log:
        ratio = max((high / low) ** margin, 1.01)
        return Axis(low / ratio, high * ratio, True)
    air = (high - low) * margin or abs(high) * 0.1 or 1.0
    return Axis(low if low in include else low - air, high if high in include and low < high else high + air)


def ticks(axis: Axis, unit: str = "", most: int = 6) -> tuple[Tick, ...]:
    """Round values along an axis: multiples of 1, 2 or 5 times a power of ten. The unit "%" multiplies by 100."""
    values = _log_values(axis, most) if axis.log else _round_values(axis.low, axis.high, most)
    labels = [written(values[[i]], unit)[0] for i in range(len(values))] if axis.log else written(values, unit)
    return tuple(Tick(float(at), label) for at, label in zip(axis.place(values), labels, strict=True))


def time_ticks(low: Any, high: Any, most: int = 10) -> tuple[Tick, ...]:
    """Whole hours, days, months or years between two moments, both datetime64."""
    second = np.timedelta64(1, "s")
    span = float((high - low) / second)
    _, unit, every, form = next((row for row in CLOCK if span / row[0] <= most), CLOCK[-1])
    whole = f"datetime64[{unit}]"
    first, last = (int(end.astype(whole).astype(np.int64)) for end in (low, high))
    origin = 1970 if unit == "Y" else 3 if every == 7 else 0  # steps count from 1970, a Thursday; weeks begin on Mondays
    steps = np.arange(first, last + 1)
    stamps = steps[(steps + origin) % every == 0].astype(whole)
    stamps = stamps[(stamps >= low) & (stamps <= high)]
    places = (stamps - low) / second / span
    days = stamps.astype("datetime64[D]") == stamps  # where a day begins, it is named instead of the hour
    names = [stamp.strftime("%d %b" if day and unit == "h" else form) for stamp, day in zip(stamps.tolist(), days, strict=True)]
    return tuple(Tick(float(at), name) for at, name in zip(places, names, strict=True))


def written(values: Floats, unit: str = "") -> list[str]:
    """Numbers with just as many decimals as tell them apart, thousands as k, M and B where they are many, and the unit."""
    scaled = values * 100 if unit == "%" else values
    size = float(np.abs(scaled).max(initial=0.0))
    power, short = next(((power, short) for least, power, short in SHORT if size >= least), (1.0, ""))
    if 0 < size < SMALL:
        return [f"{value:g}".replace("-", "−") + (NARROW + unit if unit else "") for value in scaled]
    decimals = max((len(f"{value:.10f}".rstrip("0").partition(".")[2]) for value in scaled / power), default=0)
    return [number(value, decimals if value else 0, unit, short if value else "") for value in scaled / power]


def number(value: float, decimals: int, unit: str = "", short: str = "") -> str:
    """One number, already in its unit: `−1,234.5 %`."""
    text = f"{value:,.{decimals}f}"
    text = text.lstrip("-") if float(text.replace(",", "")) == 0 else text.replace("-", "−")
    return text + short + (NARROW + unit if unit else "")


def _round_values(low: float, high: float, most: int) -> Floats:
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * s for s in STEPS if power * s >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return np.asarray(np.arange(first, last + 1) * step, dtype=np.float64)


def _log_values(axis: Axis, most: int) -> Floats:
    """Powers of ten, with as many round values between them as there is room for."""
    if axis.high / axis.low < 3:
        return _round_values(axis.low, axis.high, most)
    decades = range(math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high)) + 1)
    for factors in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        values: NDArray[np.float64] = np.array([f * 10.0**d for d in decades for f in factors])
        values = values[(values >= axis.low) & (values <= axis.high)]
        if len(values) <= most:
            return values
    return values[:: math.ceil(len(values) / most)]
