"""Bars from CSV, Parquet, pandas, polars: columns guessed and echoed, times in UTC, every row judged before it is believed.

bars = load_bars("BTCUSDT_1h.parquet")      # refuses a file with a bad row, and says which
print(bars.card)                            # what was read, how, and what was found
"""

import hashlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from quantail.errors import InputError
from quantail.market.bars.cells import numbers, stamps
from quantail.market.bars.files import Part, files_below, hash_of, of_table, parts_of
from quantail.market.card import Touch
from quantail.market.columns import guess, plain
from quantail.market.rows import Floats, Ints, Rows
from quantail.market.series import Bars
from quantail.market.settle import check_choices, settle

Source = Any  # a path, a frame of pandas, polars or arrow, a list of paths, or symbol -> one of these


class Asked(NamedTuple):
    """How the caller wants the columns to be read."""

    columns: Mapping[str, str] | None
    timezone: str
    adjusted: bool


def tell(line: str) -> None:
    """One line for whoever watches, apart from what a program prints."""
    sys.stderr.write(f"{line}\n")


def load_bars(
    source: Source,
    *,
    columns: Mapping[str, str] | None = None,
    symbol: str | None = None,
    timezone: str = "UTC",
    mode: str = "strict",
    allow: Sequence[str] = (),
    adjusted: bool = False,
    bar_seconds: float | None = None,
    now: float | None = None,
    echo: Callable[[str], None] = tell,
) -> Bars:
    """Read, judge and align bars of one or many assets.

    Args:
        source: A path (CSV, Parquet, a folder of them), a pandas, polars or Arrow frame, a list of paths, or a mapping of
            symbols to any of these.
        columns: What we call a column -> what the file calls it, where the guess is wrong: {"time": "when"}.
        symbol: The name of the asset where no column says so; the file's name if none.
        timezone: Of times that carry no zone.
        mode: "strict" refuses what breaks a rule; "repair" drops, sorts or masks such rows and tells each of them.
        allow: Rules about neighbouring bars that the caller vouches for: split_like, uneven.
        adjusted: Scale open, high and low by adjusted close / close, and take the adjusted close.
        bar_seconds: The length of a bar; the middle step between stamps if none.
        now: Seconds since 1970; a bar that ends later is not over yet. The clock's if none.
        echo: Is told what was understood; `bars.card` has the same and more.
    """
    check_choices(mode, allow)
    parts, name, digest = collected(source, symbol)
    if mode == "strict":
        check_ragged(parts)
    found = gathered(parts, Asked(columns, timezone, adjusted))
    now_ns = int((time.time() if now is None else now) * 1e9)
    bars = settle(name, merged(found.assets), found.place, mode, allow, bar_seconds, now_ns)
    assert bars.card is not None  # settle gives one
    card = replace(
        bars.card,
        sha256=digest,
        columns=tuple(found.named.items()),
        notes=tuple(dict.fromkeys(found.notes)),
        touched=(*(Touch(line, "ragged", "dropped") for part in parts for line in part.ragged), *bars.card.touched),
    )
    for line in card.summary():
        echo(line)
    return replace(bars, card=card)


class Gathered(NamedTuple):
    """The rows of all parts, and how they were read."""

    assets: list[Rows]
    notes: list[str]  # how times were understood
    named: dict[str, str]  # what we call a column -> what the file calls it
    place: Callable[[int], str]  # a row of all rows -> where it stands


def gathered(parts: Sequence[Part], asked: Asked) -> Gathered:
    """Read every part."""
    assets: list[Rows] = []
    notes: list[str] = []
    named: dict[str, str] = {}
    offsets = [0]
    for part in parts:
        chosen = guess(part.source, part.names, asked.columns)
        rows, note = read(part, chosen, asked, offsets[-1])
        assets += rows
        notes += [note]
        named |= chosen
        offsets.append(offsets[-1] + sum(len(one.time) for one in rows))
    return Gathered(assets, notes, named, placed([part.place for part in parts], offsets))


def check_ragged(parts: Sequence[Part]) -> None:
    """Refuse lines with too many or too few cells."""
    lines = [line for part in parts for line in part.ragged]
    if lines:
        more = f" ({len(lines)} lines)" if len(lines) > 1 else ""
        raise InputError(f"{lines[0]} has too many or too few cells{more}; correct it, or pass mode='repair' to drop it")


# --- the many forms of a source ---------------------------------------------------------------------------------------


def collected(source: Source, symbol: str | None) -> tuple[list[Part], str, str]:
    """All parts, what errors call them together, and the hash of what they were read from."""
    if isinstance(source, Mapping):
        if not source:
            raise InputError("source is an empty mapping; needs symbol -> path or frame")
        every = [collected(one, str(name)) for name, one in source.items()]
        digest = hashlib.sha256("".join(digest for _, _, digest in every).encode()).hexdigest()
        return [part for parts, _, _ in every for part in parts], ", ".join(name for _, name, _ in every)[:200], digest
    if isinstance(source, str | Path) or (
        isinstance(source, list | tuple) and all(isinstance(one, str | Path) for one in source)
    ):
        named = [Path(source)] if isinstance(source, str | Path) else [Path(one) for one in source]
        paths = [path for one in named for path in files_below(one)]
        if not paths:
            raise InputError("source is an empty list; needs at least one path")
        return [part for path in paths for part in parts_of(path, symbol)], ", ".join(map(str, named))[:200], hash_of(paths)
    frame = framed(source)
    kind = f"{type(source).__module__.split('.')[0]} frame"
    parts = list(frame_parts(frame, kind, symbol or "asset"))
    return parts, kind, frame_hash(parts)


def framed(source: Source) -> "pd.DataFrame | pa.Table":
    """A frame of pandas with its index as a column, or an Arrow table."""
    if isinstance(source, pd.DataFrame):
        return source if isinstance(source.index, pd.RangeIndex) else source.reset_index()
    if isinstance(source, pa.Table):
        return source
    if type(source).__module__.split(".")[0] == "polars" and hasattr(source, "to_arrow"):
        return source.to_arrow()
    raise InputError(
        f"source is a {type(source).__name__}; needs a path, a pandas, polars or Arrow frame, or symbol -> one of these"
    )


def frame_parts(frame: "pd.DataFrame | pa.Table", kind: str, symbol: str) -> Iterator[Part]:
    """The columns of a frame; a frame with two levels of columns, as yfinance gives it, is one part for each asset."""
    if isinstance(frame, pa.Table):
        yield of_table(frame, kind, symbol)
        return
    if isinstance(frame.columns, pd.MultiIndex):
        levels = [{plain(one) for one in frame.columns.get_level_values(level)} for level in range(frame.columns.nlevels)]
        price = next((at for at, names in enumerate(levels) if {"open", "close"} <= names), None)
        if price is None or frame.columns.nlevels != 2:
            raise InputError(f"{kind} has {frame.columns.nlevels} levels of columns; needs one, or two: prices and symbols")
        keys = [key for key in frame.columns if "" not in key]
        times = [key for key in frame.columns if "" in key]  # what was the index
        for name in dict.fromkeys(key[1 - price] for key in keys):
            own = frame[[*times, *(key for key in keys if key[1 - price] == name)]]
            own = own.set_axis([key[price] or key[1 - price] for key in own.columns], axis=1)
            yield from frame_parts(own[~own.drop(columns=own.columns[: len(times)]).isna().all(axis=1)], kind, str(name))
        return
    names = tuple(map(str, frame.columns))
    columns = {name: (lambda at=at: frame.iloc[:, at]) for at, name in enumerate(names)}
    yield Part(kind, symbol, columns, names, lambda row: f"{kind} row {row}")


def frame_hash(parts: Sequence[Part]) -> str:
    """SHA-256 over the values of all columns."""
    total = hashlib.sha256()
    for part in parts:
        for name in part.names:
            total.update(name.encode())
            series = part.columns[name]()
            plainly = series if series.dtype != object else series.astype(str)
            total.update(pd.util.hash_pandas_object(plainly, index=False).to_numpy().tobytes())
    return total.hexdigest()


# --- a part as rows ---------------------------------------------------------------------------------------------------


def read(part: Part, chosen: Mapping[str, str], asked: Asked, offset: int) -> tuple[list[Rows], str]:
    """The rows of each asset in a part, and how their times were understood."""

    def column(role: str) -> Floats:
        return numbers(part.source, chosen[role], part.columns[chosen[role]]())

    clock = part.columns[chosen["clock"]]() if "clock" in chosen else None
    time, note = stamps(part.source, chosen["time"], part.columns[chosen["time"]](), clock, asked.timezone)
    if not len(time):
        raise InputError(f"{part.source} has no rows; needs at least two bars")
    prices = {role: column(role) for role in ("open", "high", "low", "close")}
    if "adjusted_close" in chosen:
        if asked.adjusted:
            scale = column("adjusted_close") / prices["close"]
            prices = {role: values * scale for role, values in prices.items()}
        note += f"; {chosen['adjusted_close']!r} " + (
            "scales all prices" if asked.adjusted else "not used: pass adjusted=True to"
        )
    elif asked.adjusted:
        raise InputError(f"adjusted=True needs a column of adjusted closes and {part.source} has none; leave it out")
    volume = column("volume") if "volume" in chosen else None
    funding = np.nan_to_num(column("funding")) if "funding" in chosen else None
    rows = Rows(part.symbol, offset + np.arange(len(time)), time, **prices, volume=volume, funding=funding)
    return (by_symbol(rows, part, chosen["symbol"]) if "symbol" in chosen else [rows]), note


def by_symbol(rows: Rows, part: Part, name: str) -> list[Rows]:
    """One asset's rows each, in the order in which the symbols appear."""
    codes, symbols = pd.factorize(part.columns[name]())
    if (codes < 0).any():
        raise InputError(f"{part.place(int((codes < 0).argmax()))} has no symbol in column {name!r}; needs one in each row")
    if len(symbols) == 1:
        return [rows._replace(symbol=str(symbols[0]))]
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes))
    return [
        rows.at(order[start:stop])._replace(symbol=str(one))
        for one, start, stop in zip(symbols, [0, *ends[:-1]], ends, strict=True)
    ]


def merged(assets: Sequence[Rows]) -> list[Rows]:
    """Rows of the same symbol from several files, one after the other."""
    groups: dict[str, list[Rows]] = {}
    for rows in assets:
        groups.setdefault(rows.symbol, []).append(rows)
    return [several[0] if len(several) == 1 else appended(several) for several in groups.values()]


def appended(several: Sequence[Rows]) -> Rows:
    """The rows of all; a column must be in all of them or in none."""
    for name in ("volume", "funding"):
        if len({getattr(one, name) is None for one in several}) > 1:
            raise InputError(f"{several[0].symbol} has {name} in some of its files only; needs it in all, or in none")
    parts: list[Any] = [
        None if getattr(several[0], name) is None else np.concatenate([getattr(one, name) for one in several])
        for name in Rows._fields[1:]
    ]
    return Rows(several[0].symbol, *parts)


def placed(places: Sequence[Callable[[int], str]], offsets: Sequence[int]) -> Callable[[int], str]:
    """Where a row stands, of all rows of all parts."""
    starts: Ints = np.asarray(offsets[:-1])

    def place(row: int) -> str:
        part = int(np.searchsorted(starts, row, side="right")) - 1
        return places[part](row - int(starts[part]))

    return place
