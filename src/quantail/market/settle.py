"""From the rows of a file to bars: refuse them, or repair the documented minimum and say of every row what was done."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
import torch

from quantail.errors import InputError
from quantail.market.card import Card, Finding, Touch
from quantail.market.rows import Floats, Ints, Mask, Rows, length_of
from quantail.market.rules import EARLY, RULES, finding, moment, row_rules, series_rules
from quantail.market.series import NANOSECONDS, Bars

MODES = ("strict", "repair")
SHOWN = 12  # findings in one error
DENSEST = 100  # cells of the table of stamps and assets for each row that was read

Place = Callable[[int], str]  # a row's index in the source -> where that is, in words


class Settled(NamedTuple):
    """One asset after its rows were judged."""

    rows: Rows  # in order of time, one for each stamp
    valid: Mask  # [n] which of them can be believed
    findings: list[Finding]
    touched: list[Touch]


def settle(source: str, assets: list[Rows], place: Place, mode: str, allow: Sequence[str], bar: float | None, now: int) -> Bars:
    """Bars of all assets, or one error that lists what was found. The card has yet to learn of columns and hash."""
    check_choices(mode, allow)
    bar_seconds = length_of(source, assets, bar)
    done = [judged(rows, round(bar_seconds * NANOSECONDS), now, place, mode) for rows in assets]
    clock = done[0].rows.time if len(done) == 1 else np.unique(np.concatenate([each.rows.time for each in done]))
    told = [one for each in done for one in each.findings]
    findings = [vouched(one, allow) for one in told]
    if not any(one.rule == "uneven" for one in told):  # within an asset; between two it says nothing more
        findings += [vouched(one, allow) for one in overlapping(done, clock, round(bar_seconds * NANOSECONDS), place)]
    refused = [one for one in findings if one.refused and not (mode == "repair" and RULES[one.rule].repair)]
    if refused:
        raise InputError(refusal(source, refused, mode))
    for each in done:
        if not each.valid.any():
            raise InputError(f"{source} has no bar of {each.rows.symbol} that can be believed; needs at least one")
    check_density(source, done)
    bars = joined(done, clock, bar_seconds)
    card = Card(
        source=source,
        sha256="",
        symbols=bars.symbols,
        rows_read=sum(len(rows.time) for rows in assets),
        bars=len(bars),
        start=iso(int(bars.time[0])),
        end=iso(int(bars.end[-1])),
        bar_seconds=bar_seconds,
        gaps=sum(one.count for one in findings if one.rule == "gap"),
        columns=(),
        findings=tuple(findings),
        touched=tuple(touch for each in done for touch in each.touched),
    )
    return Bars(**{**vars(bars), "card": card})


def check_choices(mode: str, allow: Sequence[str]) -> None:
    """The caller's words must be known ones."""
    if mode not in MODES:
        raise InputError(f"mode={mode!r}; needs one of {', '.join(MODES)}")
    free = [name for name, rule in RULES.items() if rule.allowed]
    for name in allow:
        if name not in free:
            raise InputError(
                f"allow names {name!r}; only {', '.join(free)} are a matter of judgement: correct the data instead"
            )


def judged(rows: Rows, bar_ns: int, now_ns: int, place: Place, mode: str) -> Settled:
    """Findings of one asset, and its rows in order; what a row rule refuses is left out or masked, whatever the mode."""

    def told(masks: dict[str, Mask], of: Rows) -> list[Finding]:
        return [finding(name, mask, of, place(int(of.origin[mask.argmax()]))) for name, mask in masks.items() if mask.any()]

    broken = row_rules(rows, bar_ns, now_ns)
    kept, valid, touched = repaired(rows, broken, place if mode == "repair" else None)
    findings = told(broken, rows)
    if len(kept.time):
        findings += told(series_rules(kept, valid, bar_ns), kept)
    return Settled(kept, valid, findings, touched)


def repaired(rows: Rows, broken: dict[str, Mask], place: Place | None) -> tuple[Rows, Mask, list[Touch]]:
    """Drop, sort and mask by `RULES`; no number is ever replaced by another. Each row touched, if its place can be told."""
    dropped, masked = np.zeros(len(rows.time), dtype=bool), np.zeros(len(rows.time), dtype=bool)
    for name, mask in broken.items():
        dropped |= mask if RULES[name].repair == "dropped" else False
        masked |= mask if RULES[name].repair == "masked" else False
    order = np.argsort(rows.time, kind="stable") if broken["unsorted"].any() else np.arange(len(rows.time))
    order = order[~dropped[order]]
    again = np.zeros(len(order), dtype=bool)
    again[1:] = rows.time[order[1:]] == rows.time[order[:-1]]  # a stamp told in two ways: one masked row stays for all
    order = order[~again]
    touched = [
        Touch(place(int(rows.origin[at])), name, RULES[name].repair)
        for name, mask in broken.items()
        if place is not None and RULES[name].repair
        for at in np.flatnonzero(mask)
    ]
    valid = ~masked[order]
    kept = rows.at(order)
    return hidden(kept, valid) if masked.any() else kept, valid, touched


def hidden(rows: Rows, valid: Mask) -> Rows:
    """NaN in the prices and volumes that cannot be believed."""
    o, h, low, c = (np.where(valid, part, np.nan) for part in (rows.open, rows.high, rows.low, rows.close))
    volume = None if rows.volume is None else np.where(valid, rows.volume, np.nan)
    return rows._replace(open=o, high=h, low=low, close=c, volume=volume)


def vouched(one: Finding, allow: Sequence[str]) -> Finding:
    """A finding that the caller allows is still told, but refuses nothing."""
    return Finding(one.rule, one.count, one.first, f"allowed by allow=({one.rule!r},)", False) if one.rule in allow else one


def refusal(source: str, refused: Sequence[Finding], mode: str) -> str:
    """One sentence for one finding, a list for several."""
    lines = [f"{one.first} [{one.rule}, {one.count} {'row' if one.count == 1 else 'rows'}]; {one.remedy}" for one in refused]
    if mode == "strict" and all(RULES[one.rule].repair for one in refused):
        actions = sorted({RULES[one.rule].repair for one in refused})
        lines.append(f"or pass mode='repair': such rows are {' or '.join(actions)}, and each is told")
    if len(lines) <= 2:
        return ", ".join(lines)
    more = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return f"{source} breaks {len(refused)} rules:\n  " + "\n  ".join([*lines[:SHOWN], *more])


# --- many assets on one clock -----------------------------------------------------------------------------------------


def check_density(source: str, done: Sequence[Settled]) -> None:
    """Assets whose stamps have next to nothing in common would fill the memory with nothing."""
    rows = sum(len(each.rows.time) for each in done)
    if len(done) > 1 and len(done) * max(len(each.rows.time) for each in done) > max(DENSEST * rows, 10**8):
        raise InputError(
            f"{source} has {len(done)} assets in {rows} rows; is the column of symbols the right one? Say by columns="
        )


def overlapping(done: Sequence[Settled], clock: Ints, bar_ns: int, place: Place) -> list[Finding]:
    """Where a bar of one asset begins before another's is over: who trades at its open would know the other's close."""
    early = np.flatnonzero(np.diff(clock) < EARLY * bar_ns) + 1
    if not len(early) or len(done) == 1:
        return []
    before, after = (next(each for each in done if (each.rows.time == clock[at]).any()) for at in (early[0] - 1, early[0]))
    row = int(after.rows.origin[np.flatnonzero(after.rows.time == clock[early[0]])[0]])
    first = f"{place(row)} ({after.rows.symbol}, {moment(clock[early[0]])}): it begins before the bar of {before.rows.symbol} "
    first += f"that began {moment(clock[early[0] - 1])} is over"
    remedy = "bars of all assets begin at the same times: write days as dates, in one time zone, or load them one by one"
    return [Finding("uneven", len(early), first, remedy, True)]


def joined(done: Sequence[Settled], time: Ints, bar_seconds: float) -> Bars:
    """All assets on the union of their stamps; where an asset has no bar, `valid` is False."""
    at = [slice(None) if len(each.rows.time) == len(time) else np.searchsorted(time, each.rows.time) for each in done]
    has = {name: any(getattr(each.rows, name) is not None for each in done) for name in ("volume", "funding")}

    def column(name: str, void: float = np.nan) -> torch.Tensor:
        wide = np.full((len(time), len(done)), void)
        for asset, each in enumerate(done):
            part = getattr(each.rows, name)
            wide[at[asset], asset] = void if part is None else np.where(np.isfinite(part), part, void)
        return torch.from_numpy(wide)

    valid = np.zeros((len(time), len(done)), dtype=bool)
    for asset, each in enumerate(done):
        valid[at[asset], asset] = each.valid
        if has["volume"] and each.rows.volume is None:
            raise InputError(f"{each.rows.symbol} has no volume and other assets have; give all of them one, or none")
    return Bars(
        time=torch.from_numpy(np.ascontiguousarray(time)),
        open=column("open"),
        high=column("high"),
        low=column("low"),
        close=torch.from_numpy(marks(column("close").numpy(), valid)),
        valid=torch.from_numpy(valid),
        symbols=tuple(each.rows.symbol for each in done),
        bar_seconds=bar_seconds,
        volume=column("volume") if has["volume"] else None,
        funding=column("funding", 0.0) if has["funding"] else None,
    )


def marks(close: Floats, valid: Mask) -> Floats:
    """The last valid close of each asset, NaN before its first: close [T, A], valid [T, A] -> [T, A]."""
    if valid.all():
        return close
    last: Ints = np.maximum.accumulate(np.where(valid, np.arange(len(close))[:, None], -1), axis=0)
    return np.where(last >= 0, np.take_along_axis(close, np.maximum(last, 0), axis=0), np.nan)


def iso(stamp: int) -> str:
    """A stamp as ISO 8601 in UTC."""
    return datetime.fromtimestamp(stamp // NANOSECONDS, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
