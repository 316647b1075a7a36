"""The bars that a runner keeps: what comes is judged before it is believed, and what no feature needs any more is forgotten."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from quantail.errors import InputError
from quantail.market.card import Finding
from quantail.market.rows import Rows
from quantail.market.rules import RULES, finding, moment, row_rules
from quantail.market.series import NANOSECONDS, Bars

PRICES = ("open", "high", "low", "close")
REMEDIES = {
    "repeated": "the same bar once more; the weights stay",
    "conflict": "this bar came before with other numbers; the first is kept: find out which is right",
    "late": "a later bar was decided on already; it is left out",
    "gap": "nothing is filled in; see docs/data.md",
    "uneven": "bars of one length are needed; it is left out",
    "future": "this bar is not over yet; call again when it is",
}


class Candle(NamedTuple):
    """A bar that is over; one number for each asset where there are several, NaN for one that has no bar."""

    time: Any  # at which it opened: nanoseconds since 1970 UTC, a datetime with its zone, or ISO 8601
    open: Any
    high: Any
    low: Any
    close: Any
    volume: Any = None  # needed where the bars before had it
    funding: Any = None  # the rate that fell due during the bar; 0 if none


class Judged(NamedTuple):
    """A bar that came: one row of bars, or none if it cannot be used; and what was found."""

    row: Bars | None
    found: tuple[Finding, ...] = ()


Columns = dict[str, Any]  # tensors of `Bars`, one row, not yet believed


def judged(given: Candle | Mapping[str, Any] | Bars, kind: Bars, window: Bars | None, now: float) -> Judged:
    """What comes next after a window, by the rules of `load_bars`; `kind` has the same columns, `now` is in seconds."""
    row = columns_of(given, kind)
    stamp, step = int(row["time"]), round(kind.bar_seconds * NANOSECONDS)
    if stamp + step > round(now * NANOSECONDS):
        return Judged(None, (_found("future", stamp, f"it is over at {moment(stamp + step)}"),))
    found: tuple[Finding, ...] = ()
    if window is not None:
        last = int(window.time[-1])
        if stamp <= last:
            return Judged(None, (_behind(row, window),))
        if stamp - last < 0.9 * step:
            return Judged(None, (_found("uneven", stamp, f"it comes {(stamp - last) / NANOSECONDS:g} s after the one before"),))
        if stamp - last > 1.5 * step:
            found = (_found("gap", stamp, f"it comes after {moment(last)}"),)
    marks = torch.full_like(row["close"], torch.nan) if window is None else window.close[-1:]
    believed, broken = masked(row, kind, marks, now)
    return Judged(believed, (*found, *broken))


def columns_of(given: Candle | Mapping[str, Any] | Bars, kind: Bars) -> Columns:
    """One row of bars as numbers, [1, A] each."""
    if isinstance(given, Bars):
        if len(given) != 1 or given.symbols != kind.symbols:
            raise InputError(f"{len(given)} bars of {given.symbols} came; needs one bar of {kind.symbols}")
        told = {name: getattr(given, name)[0] for name in Candle._fields if getattr(given, name) is not None}
        given = Candle(**{**told, "close": told["close"].masked_fill(~given.valid[0], torch.nan)})
    if isinstance(given, Mapping):
        if missing := [name for name in ("time", *PRICES) if name not in given]:
            raise InputError(f"the bar has {sorted(map(str, given))} and no {', '.join(missing)}; needs time and four prices")
        given = Candle(**{name: given[name] for name in Candle._fields if name in given})
    columns = {name: _numbers(name, getattr(given, name), kind) for name in PRICES}
    if kind.volume is not None:
        columns["volume"] = _numbers("volume", given.volume, kind)
    if kind.funding is not None:
        columns["funding"] = (
            torch.zeros_like(columns["open"]) if given.funding is None else _numbers("funding", given.funding, kind)
        )
    return {"time": torch.tensor([_stamp(given.time)]), **columns}


def masked(row: Columns, kind: Bars, marks: Tensor, now: float) -> tuple[Bars, tuple[Finding, ...]]:
    """The row as bars, those assets masked that have none or one that breaks a rule; a finding for each rule."""
    valid = ~torch.stack([row[name].isnan() for name in PRICES]).all(0)  # what has no price at all has no bar
    valid |= len(kind.symbols) == 1  # but then nobody would have sent one
    found: list[Finding] = []
    for at in valid[0].nonzero()[:, 0].tolist():
        volume = row["volume"][:, at].numpy() if "volume" in row else None
        prices = {name: row[name][:, at].numpy() for name in PRICES}
        told = Rows(kind.symbols[at], np.zeros(1, np.int64), row["time"].numpy(), **prices, volume=volume, funding=None)
        rules = row_rules(told, round(kind.bar_seconds * NANOSECONDS), round(now * NANOSECONDS))
        broken = {name: mask for name, mask in rules.items() if mask.any()}
        valid[0, at] = not broken
        found += [replace(finding(name, mask, told, "the bar"), remedy=RULES[name].remedy) for name, mask in broken.items()]
    hidden: Columns = {name: x.masked_fill(~valid, torch.nan) for name, x in row.items() if name in (*PRICES, "volume")}
    hidden["close"] = torch.where(valid, row["close"], marks)
    return replace(kind, card=None, **{**row, **hidden}, valid=valid), tuple(found)


def joined(window: Bars | None, row: Bars, rows: int) -> Bars:
    """The window with one more row, and of the older ones as many as hold the last `rows` bars of every asset."""
    if window is None:
        return row
    longer: Columns = {name: torch.cat([x, getattr(row, name)]) for name, x in tensors(window).items()}
    return tail(replace(window, **longer), rows)


def tail(bars: Bars, rows: int) -> Bars:
    """The last rows, and before them those in which an asset has one of its last `rows` bars."""
    count = len(bars)
    later = bars.valid.flip(0).cumsum(0).flip(0)  # of each asset, how many bars from here on
    kept = (bars.valid & (later <= rows)).any(1) | (torch.arange(count) >= count - rows)
    fewer: Columns = {name: x[kept] for name, x in tensors(bars).items()}
    return bars if bool(kept.all()) else replace(bars, **fewer)


def tensors(bars: Bars) -> Columns:
    """The columns that there are."""
    return {name: x for name, x in vars(bars).items() if isinstance(x, Tensor)}


def counted(findings: Sequence[Finding], more: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings with some more, each rule once, with its first case and how often."""
    by_rule = {one.rule: one for one in findings}
    for one in more:
        known = by_rule.get(one.rule)
        by_rule[one.rule] = one if known is None else replace(known, count=known.count + one.count)
    return tuple(by_rule.values())


def _behind(row: Columns, window: Bars) -> Finding:
    """A bar that is not later than the last one: the same again, another one in its place, or one that is late."""
    stamp = int(row["time"])
    at = int(torch.searchsorted(window.time, stamp))
    if int(window.time[at]) != stamp:
        return _found("late", stamp, f"it comes after {moment(int(window.time[-1]))}")
    there = window.valid[at]
    same = all(bool(((row[name][0] == getattr(window, name)[at]) | ~there).all()) for name in PRICES)
    return _found("repeated" if same else "conflict", stamp, "it was here before")


def _found(rule: str, stamp: int, what: str) -> Finding:
    return Finding(rule, 1, f"the bar of {moment(stamp)}: {what}", REMEDIES[rule], rule != "gap")


def _numbers(name: str, value: Any, kind: Bars) -> Tensor:
    """One number for each asset, [1, A]."""
    try:
        numbers = np.asarray(value, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} of the bar is {value!r}; needs a number for each of {', '.join(kind.symbols)}") from error
    if len(numbers) != len(kind.symbols):
        raise InputError(f"{name} of the bar has {len(numbers)} numbers; needs one for each of {', '.join(kind.symbols)}")
    return torch.from_numpy(numbers.copy())[None]


def _stamp(value: Any) -> int:
    """Nanoseconds since 1970."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError as error:
            raise InputError(f"time of the bar is {value!r}; write it as 2024-01-31T12:00:00+00:00") from error
    if isinstance(value, datetime):
        exact = getattr(value, "nanosecond", 0)  # a Timestamp of pandas knows more than microseconds
        whole = value if value.tzinfo else value.replace(tzinfo=UTC)
        since = whole - datetime(1970, 1, 1, tzinfo=UTC)
        return (since.days * 86400 + since.seconds) * NANOSECONDS + since.microseconds * 1000 + exact
    try:
        return int(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"time of the bar is {value!r}; needs nanoseconds since 1970, a datetime or ISO 8601") from error
