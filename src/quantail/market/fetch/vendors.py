"""Bars through ccxt and yfinance, packages of the extra `data`: written as CSV, gone on where the file ends."""

import csv
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from quantail.errors import InputError, SourceError
from quantail.market.fetch.download import PATIENCE, Patience

PAGE = 1000  # rows asked for at once
HEADER = ("timestamp", "open", "high", "low", "close", "volume")


def exchange(name: str) -> Any:
    """An exchange of ccxt by name."""
    try:
        import ccxt
    except ImportError as error:
        raise InputError("ccxt is not installed; pip install 'quantail[data]'") from error
    if name not in ccxt.exchanges:
        raise InputError(f"exchange={name!r} is none that ccxt knows; see `python -c 'import ccxt; print(ccxt.exchanges)'`")
    return getattr(ccxt, name)({"enableRateLimit": True})


def from_ccxt(
    source: Any, symbol: str, interval: str, start_ms: int, end_ms: int, path: Path, patience: Patience = PATIENCE
) -> int:
    """Append bars from start (or from where the file ends) to end, those that are over; the number of new rows.

    `source` is an exchange of ccxt. Every page is on disk before the next is asked for.
    """
    if not getattr(source, "has", {}).get("fetchOHLCV"):
        raise InputError(f"{getattr(source, 'id', source)} gives no bars; take another exchange")
    intervals = getattr(source, "timeframes", None) or {}
    if interval not in intervals:
        raise InputError(f"interval={interval!r}; {source.id} has {', '.join(intervals)}")
    length_ms = int(source.parse_timeframe(interval) * 1000)
    done = last_stamp(path)
    since = start_ms if done is None else max(start_ms, done + length_ms)
    end_ms = min(end_ms, int(time.time() * 1000) - length_ms)  # a bar that is not over is no bar yet
    count = 0
    for rows in pages(source, symbol, interval, (since, end_ms, length_ms), patience):
        count += append(path, rows)
    if not path.exists():
        raise SourceError(f"{source.id} has no bars of {symbol} at {interval} in that time; check symbol and dates")
    return count


def pages(
    source: Any, symbol: str, interval: str, span: tuple[int, int, int], patience: Patience
) -> Iterator[list[Sequence[float]]]:
    """Rows in order of time, a page at a time; a page that brings nothing new ends it."""
    since, end_ms, length_ms = span
    while since <= end_ms:
        given = patiently(lambda at=since: source.fetch_ohlcv(symbol, interval, at, PAGE), source.id, patience)  # type: ignore[misc]
        rows = sorted(row for row in given if since <= row[0] <= end_ms)
        if not rows:
            return
        yield rows
        since = int(rows[-1][0]) + length_ms


def patiently(call: Callable[[], Any], name: str, patience: Patience) -> Any:
    """A call over the network, again while the network is to blame; what the exchange refuses is refused at once."""
    import ccxt

    fault = ""
    for failed in range(patience.tries):
        if failed:
            time.sleep(patience.pause_seconds * 2 ** (failed - 1))
        try:
            return call()
        except ccxt.NetworkError as error:
            fault = first_line(error)
        except ccxt.BaseError as error:
            raise SourceError(f"{name} refused ({first_line(error)}); check symbol, interval and dates") from error
    raise SourceError(f"{name} failed {patience.tries} times in a row ({fault}); call again, and it goes on from there")


def first_line(error: Exception) -> str:
    """What an error says, without the page that a server sent along."""
    return (str(error).splitlines() or [type(error).__name__])[0][:160]


def append(path: Path, rows: Sequence[Sequence[float]]) -> int:
    """Add rows to a file, on disk before this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if not file.tell():
            writer.writerow(HEADER)
        writer.writerows(row[: len(HEADER)] for row in rows)
        file.flush()
        os.fsync(file.fileno())
    return len(rows)


def last_stamp(path: Path) -> int | None:
    """The stamp of the last whole row of a file; a row that was cut off by a crash is taken away."""
    if not path.exists():
        return None
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        path.write_bytes(whole)
    lines = whole.splitlines()
    if len(lines) < 2:
        return None
    try:
        return int(float(lines[-1].split(b",")[0]))
    except ValueError as error:
        raise InputError(f"{path} does not end with a row of bars; name another file, or move it away") from error


def from_yahoo(symbol: str, interval: str, start: str, end: str | None, path: Path, session: Any = None) -> int:
    """Bars of one ticker through yfinance, raw closes and adjusted ones side by side; the number of rows."""
    try:
        import yfinance
    except ImportError as error:
        raise InputError("yfinance is not installed; pip install 'quantail[data]'") from error
    ticker = yfinance.Ticker(symbol, session=session) if session is not None else yfinance.Ticker(symbol)
    asked = {"interval": interval, "start": start, "end": end, "auto_adjust": False, "actions": False}
    try:
        frame = ticker.history(**asked)
    except Exception as error:  # yfinance lets through whatever its own packages raise
        raise SourceError(f"Yahoo gave no bars of {symbol} ({first_line(error)}); check symbol, interval and dates") from error
    if not len(frame):
        raise SourceError(
            f"Yahoo gave no bars of {symbol} at {interval} from {start} to {end or 'now'}; check symbol and dates"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    frame.tz_convert("UTC").to_csv(part)
    part.replace(path)
    return len(frame)
