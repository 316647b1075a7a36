"""The records that pass from data to environment: bars of one or many assets, and the features seen in them.

T bars, A assets, F features. A bar is stamped with its open and known at its end; nothing of it is known before.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from quantail.errors import InputError

if TYPE_CHECKING:
    from quantail.market.card import Card

NANOSECONDS = 1_000_000_000
YEAR_SECONDS = 365.25 * 86400.0


@dataclass(frozen=True, eq=False)
class Bars:
    """Prices of A assets over T bars of equal length; rows are stamps at which at least one asset may have a bar.

    Where `valid` is False there is no bar that can be believed: open, high, low and volume are NaN, and `close` is the last
    valid close, a mark to value a holding with (NaN before the first). Nothing may be filled there.
    """

    time: Tensor  # [T] int64 nanoseconds since 1970 UTC at which the bar opens; strictly increasing
    open: Tensor  # [T, A] float64
    high: Tensor  # [T, A] float64
    low: Tensor  # [T, A] float64
    close: Tensor  # [T, A] float64
    valid: Tensor  # [T, A] bool
    symbols: tuple[str, ...]  # A names, all different
    bar_seconds: float  # length of a bar
    volume: Tensor | None = None  # [T, A] float64, >= 0; not known if none
    funding: Tensor | None = None  # [T, A] float64 rate that falls due during the bar; > 0: longs pay; 0 where none does
    card: "Card | None" = None  # where it came from and what was found in it

    def __post_init__(self) -> None:
        check_form(self)
        check_content(self)

    def __len__(self) -> int:
        return len(self.time)

    @property
    def end(self) -> Tensor:
        """When each bar is known: [T] int64 nanoseconds; never after the next one opens (a day may have 23 hours)."""
        ends = self.time + round(self.bar_seconds * NANOSECONDS)
        return torch.cat([torch.minimum(ends[:-1], self.time[1:]), ends[-1:]])

    @property
    def elapsed_seconds(self) -> Tensor:
        """From the end of the bar before to the end of this one, [T] float64; the first is a bar's length."""
        steps = self.end.diff().double() / NANOSECONDS
        return torch.cat([steps.new_tensor([self.bar_seconds]), steps])

    @property
    def bars_per_year(self) -> float:
        """How many rows a year has, from the stamps: (T − 1) / elapsed years. Source: definition."""
        years = float(self.time[-1] - self.time[0]) / NANOSECONDS / YEAR_SECONDS if len(self) > 1 else 0.0
        return (len(self) - 1) / years if years else YEAR_SECONDS / self.bar_seconds

    def rows(self, start: int, stop: int) -> "Bars":
        """Bars start ≤ t < stop, as a view."""
        if not 0 <= start < stop <= len(self):
            raise InputError(f"rows {start} to {stop} are asked of {len(self)} bars; needs 0 <= start < stop <= {len(self)}")
        return self._each(lambda x: x[start:stop])

    def to(self, device: torch.device | str) -> "Bars":
        """The same bars on another device."""
        return self._each(lambda x: x.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Bars":
        changed: dict[str, Any] = {name: change(value) for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **changed)


@dataclass(frozen=True, eq=False)
class Features:
    """What can be known of each asset at the end of each bar: row t uses bars ≤ t alone.

    Values are finite everywhere. 0 stands where an asset has not had enough bars yet; in a row without a bar of the asset
    its last values stand.
    """

    values: Tensor  # [T, A, F] float32
    names: tuple[str, ...]  # F, all different
    warmup: int  # rows at the beginning that no episode may start in

    def __post_init__(self) -> None:
        check_features(self)

    def rows(self, start: int, stop: int) -> "Features":
        """Features of the bars start ≤ t < stop; what has warmed up before stays warm."""
        if not 0 <= start < stop <= len(self.values):
            raise InputError(f"rows {start} to {stop} are asked of {len(self.values)}; needs 0 <= start < stop")
        return Features(self.values[start:stop], self.names, min(max(self.warmup - start, 0), stop - start))


# --- what makes no sense is refused at construction -------------------------------------------------------------------


def check_form(bars: Bars) -> None:
    """Shapes and types, known without looking into a tensor."""
    shape = (len(bars.time), len(bars.symbols))
    if not all(shape):
        raise InputError(f"bars of {shape[1]} assets over {shape[0]} rows; needs at least one of each")
    if len(set(bars.symbols)) < shape[1]:
        raise InputError(f"symbols are {bars.symbols}; needs each name once")
    if not (bars.bar_seconds > 0 and math.isfinite(bars.bar_seconds)):
        raise InputError(f"bar_seconds={bars.bar_seconds}; needs the length of a bar in seconds, above 0")
    needed: dict[str, tuple[tuple[int, ...], torch.dtype]] = {"time": (shape[:1], torch.int64), "valid": (shape, torch.bool)}
    for one in fields(bars):
        value = getattr(bars, one.name)
        if isinstance(value, Tensor):
            form, dtype = needed.get(one.name, (shape, torch.float64))
            if tuple(value.shape) != form or value.dtype != dtype:
                raise InputError(f"{one.name} is {value.dtype} {list(value.shape)}; needs {dtype} {list(form)}: [T] or [T, A]")


def check_content(bars: Bars) -> None:
    """What holds of every bar, in one pass: time moves on, prices are positive, open and close lie within low and high."""
    inside = (bars.low <= torch.minimum(bars.open, bars.close)) & (bars.high >= torch.maximum(bars.open, bars.close))
    good = inside & (bars.low > 0) & (bars.high < math.inf)
    if bars.volume is not None:
        good &= bars.volume >= 0
    for name, bad in (("time", bars.time.diff() <= 0), ("bar", (bars.valid & ~good).any(-1))):
        if bool(bad.any()):
            row = int(bad.nonzero()[0])
            seen, rule = (
                (f"time does not move on after row {row}", "stamps that increase strictly: sort the rows, drop duplicates")
                if name == "time"
                else (
                    f"row {row} holds an impossible bar",
                    "0 < low <= open, close <= high < inf and volume >= 0: correct it, or set valid to False there",
                )
            )
            raise InputError(f"{seen}; needs {rule}")
    if bars.funding is not None and not bool(bars.funding.isfinite().all()):
        raise InputError("funding has entries that are not finite; needs 0 where none falls due")


def check_features(features: Features) -> None:
    """Shape, type, names and that all is finite."""
    values, count = features.values, len(features.names)
    if values.ndim != 3 or values.shape[-1] != count or values.dtype != torch.float32:
        raise InputError(
            f"values are {values.dtype} {list(values.shape)}; needs torch.float32 [T, A, {count}], a name for each"
        )
    if len(set(features.names)) < count:
        raise InputError(f"feature names are {features.names}; needs each name once")
    if not 0 <= features.warmup <= len(values):
        raise InputError(f"warmup={features.warmup} of {len(values)} rows; needs 0 <= warmup <= {len(values)}")
    bad = ~values.isfinite()
    if bool(bad.any()):
        row, asset, which = bad.nonzero()[0].tolist()
        raise InputError(f"feature {features.names[which]!r} is not finite at row {row}, asset {asset}; needs a number there")
