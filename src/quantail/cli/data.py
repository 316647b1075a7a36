"""quantail data: fetch, samples, card."""

import json as jsons
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Literal

import tyro

from quantail.errors import InputError


@dataclass(frozen=True)
class Fetch:
    """Bring bars here, from Binance's public dumps, or by ccxt or yfinance (pip install 'quantail[data]').

    Call it again after a failure: it goes on where it stopped. Call it again later: it adds what is new.
    """

    source: Annotated[Literal["binance", "ccxt", "yahoo"], tyro.conf.Positional]
    symbol: Annotated[str, tyro.conf.Positional]
    """As the source spells it: BTCUSDT, BTC/USDT, AAPL."""
    interval: str = "1h"
    """Length of a bar: 1m, 1h, 1d."""
    start: str = "2017-08-01"
    """First day."""
    end: str = ""
    """Last day; yesterday, or as late as there is, if none is given."""
    to: Path = Path("data")
    """Folder; a folder or file for the symbol is made in it."""
    market: Literal["spot", "um", "cm"] = "spot"
    """Of Binance: spot, perpetuals in USD, perpetuals in coins."""
    exchange: str = "binance"
    """Of ccxt: its name there."""
    host: str = ""
    """Another server with the same files as Binance's."""


@dataclass(frozen=True)
class Samples:
    """List real series that lie in packages which are installed."""

    json: bool = False
    """Print JSON instead of a table."""


@dataclass(frozen=True)
class Card:
    """Read and judge a file or folder of bars, and say what was found."""

    path: Annotated[Path, tyro.conf.Positional]
    repair: bool = False
    """Drop, sort or mask rows that break a rule, and tell each; without it they are refused."""
    timezone: str = "UTC"
    """Of times that carry no zone."""
    json: bool = False
    """Print JSON instead of text."""


What = (
    Annotated[Fetch, tyro.conf.subcommand("fetch")]
    | Annotated[Samples, tyro.conf.subcommand("samples")]
    | Annotated[Card, tyro.conf.subcommand("card")]
)


def data(what: Annotated[What, tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes]) -> int:
    """Get bars and look at them."""
    if isinstance(what, Fetch):
        return fetch(what)
    return samples(what.json) if isinstance(what, Samples) else card(what)


def fetch(asked: Fetch) -> int:
    """Files that `load_bars` reads as they are."""
    start, end = day("start", asked.start), day("end", asked.end) if asked.end else None
    name = asked.symbol.replace("/", "").replace(":", "-")
    if asked.source == "binance":
        from quantail.market.fetch import binance
        from quantail.monitor.progress import track, watched

        dump = binance.Dump(asked.symbol, asked.interval, start, end, asked.market, asked.host or binance.HOST)
        folder = asked.to / f"{name}-{asked.interval}"
        got = binance.fetch(
            dump, folder, tell=silent if watched() and watched(sys.stdout) else print, watch=lambda files: track(files, "files")
        )
        missing = f", {len(got.missing)} not at the source ({got.missing[0]} first)" if got.missing else ""
        print(f"{got.new} files fetched, {got.kept} were here{missing}; load_bars({str(folder)!r}) reads them")
        return 0
    from quantail.market.fetch import vendors

    path = asked.to / f"{name}-{asked.interval}.csv"
    if asked.source == "yahoo":
        rows = vendors.from_yahoo(asked.symbol, asked.interval, asked.start, asked.end or None, path)
    else:
        first, last = (
            int(datetime(one.year, one.month, one.day, tzinfo=UTC).timestamp() * 1000) for one in (start, end or date.max)
        )
        rows = vendors.from_ccxt(vendors.exchange(asked.exchange), asked.symbol, asked.interval, first, last, path)
    print(f"{rows:,} new rows; load_bars({str(path)!r}) reads them")
    return 0


def silent(line: str) -> None:
    """Says nothing: a progress line is there instead."""


def day(name: str, text: str) -> date:
    """A day as it is written in the options."""
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise InputError(f"--{name} {text}: no such day; write it as 2024-01-31") from error


def samples(json: bool) -> int:
    """What is here, and how to read it."""
    from quantail.market.samples import SAMPLES, found

    here = found()
    if json:
        print(jsons.dumps([{**one.sample._asdict(), "file": str(one.file), "rows": one.rows} for one in here], indent=2))
        return 0
    for one in here:
        options = f", {one.sample.options}" if one.sample.options else ""
        how = f"load_bars({str(one.file)!r}{options})" if one.sample.bars else f"closes alone: {one.file}"
        print(f"{one.sample.what:<44}  {one.rows:>6,} rows  {how}")
    absent = sorted({sample.package for sample in SAMPLES} - {one.sample.package for one in here})
    if absent:
        print(f"not installed: {', '.join(absent)}; pip install them for more")
    return 0


def card(asked: Card) -> int:
    """The data card."""
    from quantail.market.bars import load_bars

    mode = "repair" if asked.repair else "strict"
    found = load_bars(asked.path, timezone=asked.timezone, mode=mode, echo=lambda line: None).card
    assert found is not None  # load_bars gives one
    print(found.to_json() if asked.json else found)
    return 0
