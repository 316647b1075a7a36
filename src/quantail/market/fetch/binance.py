"""Binance's public dumps: a zip of CSV for each month, for each day where the month is not over, each with a checksum."""

import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from quantail.errors import InputError, SourceError
from quantail.market.fetch.download import PATIENCE, Missing, Patience, download, hash_of, text_at

HOST = "https://data.binance.vision"
MARKETS = {"spot": "spot", "um": "futures/um", "cm": "futures/cm"}  # spot, perpetuals in USD, perpetuals in coins
INTERVALS = ("1s", "1m", "3m", "5m", "15m", "30m", "1h", "2h", "4h", "6h", "8h", "12h", "1d")


class Dump(NamedTuple):
    """What is wanted."""

    symbol: str
    interval: str = "1h"
    start: date = date(2017, 8, 1)  # the first month that Binance published
    end: date | None = None  # the last day; yesterday if none
    market: str = "spot"
    host: str = HOST


class Fetched(NamedTuple):
    """What came of it."""

    new: int
    kept: int  # were here already, and whole
    missing: tuple[str, ...]  # are not at the source: before the listing, or not published yet
    folder: Path


def fetch(
    dump: Dump,
    folder: Path,
    patience: Patience = PATIENCE,
    tell: Callable[[str], None] = lambda line: None,
    watch: Callable[[list[str]], Iterable[str]] = iter,
) -> Fetched:
    """Bring all files of a dump into a folder; call again to go on, or to add what was published since.

    `tell` gets a line for each file, `watch` the list of all, to show how far it is.
    """
    check(dump)
    today = datetime.now(UTC).date()
    new, kept, missing = 0, 0, []
    for url in watch(list(urls(dump, today))):
        name = url.rpartition("/")[2]
        try:
            came = one_file(url, folder / name, patience)
        except Missing:
            missing.append(name)
            continue
        new, kept = new + came, kept + (not came)
        tell(f"{name}: {'fetched' if came else 'here already'}")
    if not new + kept:
        raise SourceError(
            f"{dump.host} has no bars of {dump.symbol} at {dump.interval} from {dump.start} to {dump.end or today} "
            f"({len(missing)} files asked for); check symbol, market and dates"
        )
    for old in replaced_days(folder):
        old.unlink()
        old.with_name(old.name + ".CHECKSUM").unlink(missing_ok=True)
        tell(f"{old.name}: removed, its month is here")
    return Fetched(new, kept, tuple(missing), folder)


def check(dump: Dump) -> None:
    """Refuse what the source cannot have."""
    if not re.fullmatch(r"[A-Z0-9]{2,30}(_\w+)?", dump.symbol):
        raise InputError(f"symbol={dump.symbol!r}; needs one in Binance's spelling, such as BTCUSDT")
    if dump.interval not in INTERVALS:
        raise InputError(f"interval={dump.interval!r}; needs one of {', '.join(INTERVALS)}")
    if dump.market not in MARKETS:
        raise InputError(f"market={dump.market!r}; needs one of {', '.join(MARKETS)}")
    if dump.end is not None and dump.end < dump.start:
        raise InputError(f"end={dump.end} lies before start={dump.start}; give them the other way round")


def urls(dump: Dump, today: date) -> Iterator[str]:
    """The files in order of time: whole months while they are over, then days."""
    base = f"{dump.host}/data/{MARKETS[dump.market]}"
    stem = f"{dump.symbol}-{dump.interval}"
    last = min(dump.end or today, today - timedelta(days=1))
    month = dump.start.replace(day=1)
    while month <= last:
        following = (month + timedelta(days=32)).replace(day=1)
        if following <= today:
            yield f"{base}/monthly/klines/{dump.symbol}/{dump.interval}/{stem}-{month:%Y-%m}.zip"
        else:
            day = month
            while day <= last:
                yield f"{base}/daily/klines/{dump.symbol}/{dump.interval}/{stem}-{day:%Y-%m-%d}.zip"
                day += timedelta(days=1)
        month = following


def one_file(url: str, path: Path, patience: Patience) -> bool:
    """A file and its checksum beside it; False if both were here and agree."""
    beside = path.with_name(path.name + ".CHECKSUM")
    if path.exists() and beside.exists() and hash_of(path) == checksum(beside.read_text(encoding="utf-8"), str(beside)):
        return False
    said = text_at(url + ".CHECKSUM", patience)
    download(url, path, checksum(said, url + ".CHECKSUM"), patience)
    beside.write_text(said, encoding="utf-8")
    return True


def checksum(text: str, where: str) -> str:
    """`<sha256>  <name>` as `sha256sum` writes it."""
    found = re.match(r"[0-9a-fA-F]{64}\b", text)
    if not found:
        raise SourceError(f"{where} holds {text[:40]!r}; needs a SHA-256: call again later")
    return found.group().lower()


def replaced_days(folder: Path) -> list[Path]:
    """Files of single days whose month has come since: together they would say everything twice."""
    months = {path.stem for path in folder.glob("*-[0-9][0-9][0-9][0-9]-[0-9][0-9].zip")}
    days = folder.glob("*-[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9].zip")
    return sorted(path for path in days if path.stem.rpartition("-")[0] in months)
