"""What an agent may know of each asset at the end of a bar: the default set, functions of the user's, and the proof of both.

Every feature is causal: on the bars up to t it gives for t what it gives on all bars. `compute` does not take that on trust.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantail.errors import InputError
from quantail.market import indicators as ind
from quantail.market.series import NANOSECONDS, Bars, Features

Array = NDArray[np.float64]
Function = Callable[[Bars], Tensor | Array]  # [T, A], or [T] where it is the same for all assets; NaN where not known yet

DAY = 86400.0
CUTS = 8  # of the prefixes on which each feature is computed once more
CHECKED = 4096  # rows after the first that is known among which most prefixes end
TOLERANCE = 1e-9  # a sum in another order is no look ahead
FORGOTTEN = 500  # bars after which a default feature no longer knows what happened: from a window it can be told exactly


class Asset(NamedTuple):
    """The valid bars of one asset, one after the other, as if nothing were missing."""

    open: Array
    high: Array
    low: Array
    close: Array
    volume: Array | None
    time: NDArray[np.int64]
    bar_seconds: float


# Name -> what it makes of an asset. Every window ends with the bar itself.
DEFAULTS: Mapping[str, Callable[[Asset], Array]] = {
    "return_1": lambda x: ind.returns(x.close, 1),
    "return_5": lambda x: ind.returns(x.close, 5),
    "return_20": lambda x: ind.returns(x.close, 20),
    "return_60": lambda x: ind.returns(x.close, 60),
    "volatility_20": lambda x: ind.realised_volatility(x.close, 20),
    "parkinson_20": lambda x: ind.parkinson(x.high, x.low, 20),
    "yang_zhang_20": lambda x: ind.yang_zhang(x.open, x.high, x.low, x.close, 20),
    "rsi_14": lambda x: ind.relative_strength(x.close, 14),
    "macd": lambda x: ind.macd(x.close, 12, 26, 9)[0],
    "macd_histogram": lambda x: ind.macd(x.close, 12, 26, 9)[1],
    "bollinger_20": lambda x: ind.bollinger(x.close, 20),
    "atr_14": lambda x: ind.true_range(x.high, x.low, x.close, 14),
    "volume_60": lambda x: np.zeros(len(x.close)) if x.volume is None else ind.score(x.volume, 60),
    "since_gap": lambda x: since_gap(x),
}

# Name -> what it makes of all bars, missing ones included; calendars come from the clock, never from where bars are missing.
CLOCKS: Mapping[str, Function] = {
    "since_valid": lambda bars: since_valid(bars),
    "day_sin": lambda bars: cycle(bars, DAY, np.sin),
    "day_cos": lambda bars: cycle(bars, DAY, np.cos),
    "week_sin": lambda bars: cycle(bars, 7 * DAY, np.sin),
    "week_cos": lambda bars: cycle(bars, 7 * DAY, np.cos),
}

NAMES = (*DEFAULTS, *CLOCKS)


def compute(bars: Bars, names: Iterable[str] = NAMES, extra: Mapping[str, Function] | None = None) -> Features:
    """The named default features and the user's own, checked to be causal.

    bars -> values [T, A, F], the defaults in the order of `names`, then `extra`. A function of the user's takes Bars and gives
    [T] or [T, A]; NaN stands for "not known yet" at the beginning, and is allowed in rows without a bar.
    """
    functions = functions_of(names, extra)
    bars = bars.to("cpu")
    raw = {name: evaluated(name, function, bars) for name, function in functions.items()}
    check_causal(functions, raw, bars)
    return settled(raw, bars)


def functions_of(names: Iterable[str] = NAMES, extra: Mapping[str, Function] | None = None) -> dict[str, Function]:
    """The named default features and the user's own, in this order."""
    functions = {**chosen(names), **(extra or {})}
    if not functions:
        raise InputError("no feature is asked for; name at least one of the defaults, or hand over a function")
    if double := [name for name in extra or {} if name in NAMES]:
        raise InputError(f"a function is called {double[0]!r}, as a default feature is; give it another name")
    return functions


def unproved(functions: Mapping[str, Function], bars: Bars) -> Features:
    """The features without the proof that they are causal: for an audit, which looks for what that proof would refuse."""
    bars = bars.to("cpu")
    return settled({name: evaluated(name, function, bars) for name, function in functions.items()}, bars)


def settled(raw: Mapping[str, Array], bars: Bars) -> Features:
    """All features side by side: name -> [T, A] -> values [T, A, F]."""
    parts = [settled_values(name, values, bars) for name, values in raw.items()]
    values = torch.from_numpy(np.stack([part for part, _ in parts], axis=-1, dtype=np.float32, casting="same_kind"))
    return Features(values, tuple(raw), max(rows for _, rows in parts))


def chosen(names: Iterable[str]) -> dict[str, Function]:
    """The default features by name, as functions of all bars."""
    functions: dict[str, Function] = {}
    for name in names:
        if name not in NAMES:
            raise InputError(f"{name!r} is no default feature; there are {', '.join(NAMES)}")
        functions[name] = CLOCKS[name] if name in CLOCKS else per_asset(DEFAULTS[name])
    return functions


def per_asset(function: Callable[[Asset], Array]) -> Function:
    """A function of one asset as one of all: each asset's bars closed up, so that a missing bar is no bar of its own."""

    def every(bars: Bars) -> Array:
        found = np.full(tuple(bars.valid.shape), np.nan)
        for at in range(found.shape[1]):
            valid = bars.valid[:, at].numpy()
            if valid.any():
                found[valid, at] = function(asset(bars, at, valid))
        return found

    return every


def asset(bars: Bars, at: int, valid: NDArray[np.bool_]) -> Asset:
    """The valid bars of one asset."""
    opened, high, low, close = (x[:, at].numpy()[valid] for x in (bars.open, bars.high, bars.low, bars.close))
    volume = None if bars.volume is None else bars.volume[:, at].numpy()[valid]
    return Asset(opened, high, low, close, volume, bars.time.numpy()[valid], bars.bar_seconds)


def since_gap(x: Asset) -> Array:
    """1/(1 + bars since the last gap), 0 before any and where it is forgotten: [n]."""
    gap = np.diff(x.time, prepend=x.time[:1]) > 1.5 * x.bar_seconds * NANOSECONDS
    rows = np.arange(len(gap))
    last = np.maximum.accumulate(np.where(gap, rows, -1 - FORGOTTEN))
    return np.where(rows - last < FORGOTTEN, 1 / (1.0 + rows - last), 0.0)


def since_valid(bars: Bars) -> Array:
    """ln(1 + rows since the asset had a bar), of many rows that of 500; 0 where it has one and before its first: [T, A]."""
    valid = bars.valid.numpy()
    rows = np.arange(len(valid))[:, None]
    last = np.maximum.accumulate(np.where(valid, rows, -1), axis=0)
    return np.where(last >= 0, np.log1p(np.minimum(rows - last, FORGOTTEN)), 0.0)


def cycle(bars: Bars, seconds: float, wave: Callable[[Array], Array]) -> Array:
    """Sine or cosine of the time at which a bar is over by the schedule, whatever comes next, in UTC: [T]."""
    stamps = bars.time.numpy() // (NANOSECONDS // 1000) / 1000 + bars.bar_seconds
    return wave(2 * np.pi * (stamps % seconds) / seconds)


# --- from what a function gives to what an agent may see --------------------------------------------------------------


def evaluated(name: str, function: Function, bars: Bars) -> Array:
    """The values of a feature: [T, A] float64, or an error that names it."""
    try:
        given = function(bars)
    except Exception as error:  # it is the user's code: whatever it raises, say in which feature
        said = f"{type(error).__name__}: {error}"
        raise InputError(f"feature {name!r} failed on {len(bars)} bars ({said}); give NaN where bars are too few") from error
    values = np.asarray(given.detach().cpu() if isinstance(given, Tensor) else given)
    shape = tuple(bars.valid.shape)
    if values.shape not in (shape, shape[:1]) or values.dtype.kind not in "fiub":
        raise InputError(
            f"feature {name!r} gave {values.dtype} {list(values.shape)}; needs numbers {list(shape)} or {[shape[0]]}"
        )
    return np.array(np.broadcast_to(values.astype(np.float64).reshape(shape[0], -1), shape))


def check_causal(functions: Mapping[str, Function], raw: Mapping[str, Array], bars: Bars) -> None:
    """Prefix invariance: on the bars up to t a feature gives for all rows ≤ t what it gives on all bars.

    Prefixes end at several places, so that a feature that looks ahead only at times (to the end of the day, say) is seen too.
    """
    parts: dict[int, Bars] = {}
    for name, function in functions.items():
        for end in prefixes(name, bars.valid.numpy() & ~np.isnan(raw[name])):
            if end not in parts:
                parts[end] = bars.rows(0, end)
            seen, later = evaluated(name, function, parts[end]), raw[name][:end]
            both = np.isnan(seen) & np.isnan(later)
            with np.errstate(invalid="ignore"):
                same = both | (seen == later) | (np.abs(seen - later) <= TOLERANCE * (1 + np.abs(later)))
            if not same.all():
                row, which = np.argwhere(~same)[0]
                raise InputError(
                    f"feature {name!r} looks ahead: for bar {row} of {bars.symbols[which]} it gives {seen[row, which]:g} when "
                    f"only the first {end} bars are known, and {later[row, which]:g} when all are; use bars up to {row} alone"
                )


def prefixes(name: str, known: NDArray[np.bool_]) -> list[int]:
    """Where to cut, from where an asset has a bar and a value: known [T, A] -> lengths of prefixes.

    Among the rows after the first that is known, one bar before the end, and within the life of every asset: of an asset whose
    bars all lie before a cut, or all after it, that cut proves nothing.
    """
    rows = len(known)
    there = known.any(0)
    first, last = known.argmax(0)[there], rows - 1 - known[::-1].argmax(0)[there]  # of each asset that is ever known
    begin = int(first.min(initial=rows))
    if max(begin, 1) >= rows - 1:
        seen = "any" if begin == rows else "enough"
        raise InputError(
            f"feature {name!r} is not known at {seen} of {rows} bars, so nothing shows whether it looks ahead; "
            "needs a shorter window or more history"
        )
    near = min(CHECKED, rows - begin)
    ends = {begin + 1, begin + near, rows - 1} | {
        begin + round(near * (0.25 + 0.75 * (i * 0.6180339887 % 1))) for i in range(1, CUTS + 1)
    }
    cut = rows
    for start, stop in sorted(zip(first.tolist(), last.tolist(), strict=True), reverse=True):
        if stop < cut:  # the fewest rows that lie within every life: each the latest beginning that is not yet met
            cut = start
            ends |= {cut + 1, cut + 1 + min(CHECKED, stop - cut) // 2}
    return sorted({max(2, end) for end in ends if end < rows})


def settled_values(name: str, values: Array, bars: Bars) -> tuple[Array, int]:
    """Finite values, and the rows until every asset that is there from the start has them: [T, A] -> ([T, A], rows)."""
    valid = bars.valid.numpy()
    rows = np.arange(len(valid))[:, None]
    known = np.isfinite(values)
    since = np.where(known.any(0), known.argmax(0), len(valid))  # [A] the first row that is known
    broken = valid & ~known & ((rows > since) | np.isinf(values))
    if broken.any():
        row, which = np.argwhere(broken)[0]
        raise InputError(
            f"feature {name!r} is {values[row, which]} at bar {row} of {bars.symbols[which]}; needs a number there"
        )
    if (since == len(valid)).all():
        raise InputError(f"feature {name!r} is not known at any of {len(valid)} bars; needs a shorter window or more history")
    listed = valid.argmax(0)  # [A] the first bar of each asset
    last = np.maximum.accumulate(np.where(known, rows, -1), axis=0)
    filled = np.where(last >= 0, np.take_along_axis(values, np.maximum(last, 0), axis=0), 0.0)
    return filled, int(since[listed == listed.min()].max())
