"""Columns as numbers: prices as float64, stamps as nanoseconds UTC. What cannot be read is NaN or NO_TIME, never a guess."""

from typing import Any

import numpy as np
import pandas as pd

from quantail.errors import InputError
from quantail.market.rows import NO_TIME, Floats, Ints, Mask

# Epoch numbers by their size: the unit, the lowest number, nanoseconds in it. Anything from 1973 to the year 2262.
EPOCHS = (("s", 10**8, 10**9), ("ms", 10**11, 10**6), ("us", 10**14, 10**3), ("ns", 10**17, 1))
DAYS = (17_000_000, 22_621_231)  # 20210104 as a number
ZONED = r"(?:Z|UTC|GMT|[+-]\d\d:?\d\d)$"
STYLES = (
    *("ISO8601", "%Y.%m.%d %H:%M:%S", "%Y.%m.%d %H:%M", "%Y.%m.%d", "%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M", "%Y/%m/%d"),
    *("%d.%m.%Y %H:%M:%S.%f", "%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M", "%d.%m.%Y", "%Y%m%d %H:%M:%S", "%Y%m%d %H%M%S"),
)
CLOCKS = ("", " %H:%M:%S", " %H:%M")


def numbers(source: str, name: str, series: "pd.Series[Any]") -> Floats:
    """A column of prices: [n] float64, NaN where a cell is no number."""
    kind = series.dtype
    if pd.api.types.is_bool_dtype(kind) or pd.api.types.is_datetime64_any_dtype(kind) or pd.api.types.is_complex_dtype(kind):
        raise InputError(f"{source}: column {name!r} holds {kind}; needs numbers: say which column is meant by columns=")
    if not pd.api.types.is_numeric_dtype(kind):
        series = pd.to_numeric(text_of(source, name, series), errors="coerce")
    values: Floats = series.to_numpy(dtype=np.float64, na_value=np.nan)
    if len(values) and np.isnan(values).all():
        raise InputError(f"{source}: column {name!r} holds not one number; say which column is meant by columns=")
    return values


def text_of(source: str, name: str, series: "pd.Series[Any]") -> "pd.Series[Any]":
    """Cells as text; what holds lists or records is refused."""
    for cell in series.head(100):
        if isinstance(cell, list | dict | tuple | set | np.ndarray):
            raise InputError(f"{source}: column {name!r} holds a {type(cell).__name__} in each cell; needs one value in each")
    missing = series.isna()
    return series.map(lambda cell: cell.decode("latin-1") if isinstance(cell, bytes) else str(cell)).mask(missing).str.strip()


def stamps(source: str, name: str, series: "pd.Series[Any]", clock: "pd.Series[Any] | None", zone: str) -> tuple[Ints, str]:
    """A column of times, with that of clock times beside dates if there is one: [n] nanoseconds UTC, and how they were read."""
    check_zone(zone)
    if clock is not None:
        days = text_of(source, name, series).str.replace(r" 00:00:00$", "", regex=True)
        times = text_of(source, "clock", clock).str.replace(r"^\d{5}$", r"0\g<0>", regex=True)  # 93000 is half past nine
        series = days + " " + times
    elif pd.api.types.is_numeric_dtype(series.dtype):
        return from_numbers(source, name, series, zone)
    if pd.api.types.is_datetime64_any_dtype(series.dtype):
        return localised(series, zone)
    text = text_of(source, name, series)
    numeric = pd.to_numeric(text, errors="coerce")
    if len(text) and clock is None and numeric.notna().mean() > 0.5:
        return from_numbers(source, name, numeric, zone)
    return from_text(source, name, text, zone)


def check_zone(zone: str) -> None:
    """A time zone that exists."""
    try:
        pd.Timestamp(0).tz_localize(zone)
    except Exception as error:  # each kind of wrong name has its own error in the packages below
        raise InputError(f"timezone={zone!r} is no time zone; needs a name such as 'UTC' or 'America/New_York'") from error


def from_numbers(source: str, name: str, series: "pd.Series[Any]", zone: str) -> tuple[Ints, str]:
    """Epoch numbers in the unit that their size shows, row by row: Binance's dumps change from ms to us in 2025."""
    missing = series.isna().to_numpy()
    if pd.api.types.is_float_dtype(series.dtype):
        exact = series.to_numpy(dtype=np.float64, na_value=np.nan)
        missing = ~(np.abs(exact) < 2.0**63)
        exact = np.where(missing, 0.0, exact)
        whole, fraction = np.floor(exact).astype(np.int64), exact - np.floor(exact)
    else:
        known = series.mask(series > 2**63 - 1).fillna(0) if series.dtype.kind == "u" else series.fillna(0)
        whole, fraction = known.to_numpy().astype(np.int64), np.zeros(len(series))
    if len(whole) and np.mean((whole >= DAYS[0]) & (whole <= DAYS[1])) > 0.5:
        text = pd.Series(whole).astype(str).mask(missing)
        return localised(pd.to_datetime(text, format="%Y%m%d", errors="coerce"), zone)
    found = np.full(len(whole), NO_TIME)
    used = []
    for unit, lowest, scale in EPOCHS:
        inside: Mask = (whole >= lowest) & (whole < min(lowest * 1000, 2**63 - 1)) & ~missing
        if inside.any():
            used.append(unit)
            found[inside] = whole[inside] * scale + np.rint(fraction[inside] * scale).astype(np.int64)
    if not used:
        raise InputError(
            f"{source}: column {name!r} holds no times (first {series.iloc[0] if len(series) else 'none'}); needs "
            "epoch numbers or ISO 8601: say which column is meant by columns={'time': ...}"
        )
    return found, f"times are epoch numbers in {' and '.join(used)}, UTC"


def from_text(source: str, name: str, text: "pd.Series[Any]", zone: str) -> tuple[Ints, str]:
    """Written times in the one style that reads most of them; day and month are never guessed."""
    zoned = text.str.contains(ZONED, regex=True, na=False) & (text.str.len() > 10)
    said = text.notna()
    if zoned.any() and not zoned[said].all():
        at = int(np.flatnonzero((said & ~zoned).to_numpy())[0])
        raise InputError(f"{source}: the time {text.iloc[at]!r} in row {at} has no zone and others have one; write all alike")
    if zoned.any():
        text = text.str.replace(r"\s*(?:UTC|GMT)(?=[+-]|$)", "", regex=True)
        text = text if text.str.contains(r"(?:Z|[+-]\d\d:?\d\d)$", regex=True, na=False).any() else text + "Z"
    best = pd.Series(pd.NaT, index=text.index)
    for style in (*STYLES, *slashes(source, text)):
        full = style if style == "ISO8601" or not zoned.any() else f"{style}%z"
        try:
            read = pd.to_datetime(text, format=full, errors="coerce", utc=bool(zoned.any()))
        except (ValueError, OverflowError):  # out of the calendar
            continue
        if read.notna().sum() > best.notna().sum():
            best = read
        if best.notna().sum() == said.sum():
            break
    if not best.notna().any():
        first = next((cell for cell in text if isinstance(cell, str)), "nothing")
        raise InputError(
            f"{source}: column {name!r} holds no times (first {first[:40]!r}); needs epoch numbers or ISO 8601: say "
            "which column is meant by columns={'time': ...}"
        )
    return localised(best, zone)


def slashes(source: str, text: "pd.Series[Any]") -> tuple[str, ...]:
    """Styles with a slash between day and month, in the order that the numbers prove: 13/1/2021 can only be January."""
    cells = text.str.extract(r"^(\d{1,2})/(\d{1,2})/\d{4}")
    cells = cells.dropna().astype(int) if cells.notna().any(axis=None) else cells.dropna()
    if cells.empty:
        return ()
    first, second = bool((cells[0] > 12).any()), bool((cells[1] > 12).any())
    if first == second:
        at = text[cells.index[0]]
        raise InputError(f"{source}: whether {at!r} begins with the day or the month cannot be seen; write times as ISO 8601")
    return tuple(("%d/%m/%Y" if first else "%m/%d/%Y") + clock for clock in CLOCKS)


def localised(series: "pd.Series[Any]", zone: str) -> tuple[Ints, str]:
    """Nanoseconds UTC; times without a zone are those of `zone`, and an hour that the clock shows twice or never is no time."""
    note = f"times have a zone ({getattr(series.dtype, 'tz', None)}), read as UTC"
    if getattr(series.dtype, "tz", None) is None:
        note = f"times have no zone, read as {zone}" + ("; pass timezone= if that is wrong" if zone == "UTC" else "")
        series = series.dt.tz_localize(zone, ambiguous="NaT", nonexistent="NaT")
    utc = series.dt.tz_convert("UTC").dt.tz_localize(None)
    missing = utc.isna().to_numpy() | ((utc < pd.Timestamp.min) | (utc > pd.Timestamp.max)).to_numpy()
    found = utc.mask(missing, pd.Timestamp(0)).to_numpy().astype("datetime64[ns]").astype(np.int64)
    return np.where(missing, NO_TIME, found), note
