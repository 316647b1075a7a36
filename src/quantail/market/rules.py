"""What can be wrong with bars: each rule a name, a mask of the rows that break it, a sentence, a remedy and a repair.

Row rules look at a row alone or at its neighbour in the file. Series rules look at the rows that are left, in order of time;
where a series rule is a matter of judgement the user may vouch for the data (`allow`).
"""

from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np

from quantail.market.card import Finding
from quantail.market.rows import NO_TIME, Mask, Rows

STALE_BARS = 10  # so many bars in a row that repeat all four prices
SPLIT_TOLERANCE = 0.03  # what the market itself may have moved while the split took place
SPLITS = (1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 100.0)
EARLY = 0.9  # of a bar: what begins sooner after another is no bar of the same length
MIXED_ROWS, MIXED_SHARE = 10, 0.02  # closes outside low–high: so many, and such a part of the rows, is no accident


class Rule(NamedTuple):
    """What a broken rule means."""

    remedy: str  # what to do
    repair: str = ""  # what mode="repair" does with the row; nothing if empty
    refused: bool = True  # strict loading refuses
    allowed: bool = False  # the user may vouch for it


RULES: dict[str, Rule] = {
    "bad_stamp": Rule("write times as ISO 8601 or epoch numbers, or name the column", "dropped"),
    "future": Rule("drop bars that are not over yet, or correct the clock or time zone", "dropped"),
    "unsorted": Rule("sort the rows by time", "moved"),
    "duplicate": Rule("keep one row for each stamp", "dropped"),
    "conflict": Rule("two rows say different things of one bar: find out which is right", "masked"),
    "not_a_number": Rule("correct the cell, or remove the row", "masked"),
    "not_positive": Rule("prices are above 0: correct the cell, or remove the row", "masked"),
    "high_below_low": Rule("correct the row", "masked"),
    "outside_range": Rule("open and close lie between low and high: correct the row", "masked"),
    "bad_volume": Rule("volume is 0 or more: correct the cell, or remove the row", "masked"),
    "mixed_adjustment": Rule("adjust all four prices or none: use the raw close, or pass adjusted=True"),
    "uneven": Rule("bars of one length are needed: split the file, or pass bar_seconds", allowed=True),
    "split_like": Rule("load split-adjusted prices, or vouch for the jump by allow=('split_like',)", allowed=True),
    "gap": Rule("nothing is filled in; see docs/data.md", refused=False),
    "stale": Rule("ask the source whether the market stood still", refused=False),
}


def row_rules(rows: Rows, bar_ns: int, now_ns: int) -> dict[str, Mask]:
    """Which rows break which rule, each row counted under the first rule it breaks of those about its prices: [n] bool each."""
    broken = stamp_rules(rows, bar_ns, now_ns)
    prices = np.stack([rows.open, rows.high, rows.low, rows.close])
    with np.errstate(invalid="ignore"):
        ordered = {
            "not_a_number": ~np.isfinite(prices).all(0),
            "not_positive": (prices <= 0).any(0),
            "high_below_low": rows.high < rows.low,
            "outside_range": (np.maximum(rows.open, rows.close) > rows.high) | (np.minimum(rows.open, rows.close) < rows.low),
        }
        if rows.volume is not None:
            ordered["bad_volume"] = ~((rows.volume >= 0) & np.isfinite(rows.volume))
    seen = np.zeros(len(rows.time), dtype=bool)
    for name, mask in ordered.items():
        broken[name] = mask & ~seen
        seen |= mask
    outside = broken["outside_range"] & ((rows.close > rows.high) | (rows.close < rows.low))
    mixed = outside.sum() >= max(MIXED_ROWS, MIXED_SHARE * len(outside))
    broken["mixed_adjustment"] = outside & mixed
    broken["outside_range"] &= ~broken["mixed_adjustment"]
    return broken


def stamp_rules(rows: Rows, bar_ns: int, now_ns: int) -> dict[str, Mask]:
    """Which stamps cannot be read, lie ahead, go back, or come twice."""
    unread = rows.time == NO_TIME
    usable = ~unread & (rows.time <= now_ns - bar_ns)
    latest = np.maximum.accumulate(rows.time)  # NO_TIME is the lowest number there is
    unsorted = np.zeros_like(unread)
    unsorted[1:] = usable[1:] & (rows.time[1:] < latest[:-1])
    duplicate, conflict = repeated(rows, usable, bool(unsorted.any()))
    return {
        "bad_stamp": unread,
        "future": ~unread & ~usable,
        "unsorted": unsorted,
        "duplicate": duplicate,
        "conflict": conflict,
    }


def repeated(rows: Rows, usable: Mask, unsorted: bool) -> tuple[Mask, Mask]:
    """Rows whose stamp an earlier row has: those that repeat it, and all of those that say something else."""
    none = np.zeros_like(usable)
    order = np.argsort(rows.time, kind="stable") if unsorted else np.arange(len(rows.time))
    order = order[usable[order]]
    again = np.zeros(len(order), dtype=bool)
    again[1:] = rows.time[order[1:]] == rows.time[order[:-1]]
    if not again.any():
        return none, none
    group = np.cumsum(~again) - 1
    first = order[~again][group]
    told = [rows.open, rows.high, rows.low, rows.close, *(x for x in (rows.volume, rows.funding) if x is not None)]
    other = ~np.logical_and.reduce([(x[order] == x[first]) | (np.isnan(x[order]) & np.isnan(x[first])) for x in told])
    torn = np.isin(group, group[other])  # all rows of a stamp that is told in two ways
    duplicate, conflict = none.copy(), none.copy()
    duplicate[order] = again & ~torn
    conflict[order] = torn
    return duplicate, conflict


def series_rules(rows: Rows, valid: Mask, bar_ns: int) -> dict[str, Mask]:
    """The rules about neighbours in time, of rows in order: [n] bool each, at the later of the two rows."""
    steps = np.diff(rows.time, prepend=rows.time[:1] - bar_ns)
    return {
        "uneven": steps < EARLY * bar_ns,  # a day may have 23 hours and a month 28 days, but an hour has no half
        "gap": steps > 1.5 * bar_ns,
        "split_like": split_like(rows, valid),
        "stale": stale(rows, valid),
    }


def split_like(rows: Rows, valid: Mask) -> Mask:
    """Opens that lie a round factor away from the close before, while within both bars next to nothing happened."""
    found = np.zeros(len(valid), dtype=bool)
    real = np.flatnonzero(valid)
    if len(real) < 2:
        return found
    before, after = real[:-1], real[1:]
    jump = np.abs(np.log(rows.open[after] / rows.close[before]))
    wide = np.flatnonzero(jump > np.log(SPLITS[0]) - SPLIT_TOLERANCE)
    calm = np.log(rows.high / np.maximum(rows.low, np.finfo(float).tiny), where=valid, out=np.zeros_like(rows.high))
    for i in wide:  # few
        factor = min(SPLITS, key=lambda ratio: abs(jump[i] - np.log(ratio)))
        near = abs(jump[i] - np.log(factor)) <= SPLIT_TOLERANCE
        found[after[i]] = near and max(calm[before[i]], calm[after[i]]) < jump[i] / 2
    return found


def stale(rows: Rows, valid: Mask) -> Mask:
    """The bars that repeat all four prices of the one before, where at least `STALE_BARS` in a row do."""
    same = np.zeros(len(valid), dtype=bool)
    same[1:] = valid[1:] & valid[:-1]
    for part in (rows.open, rows.high, rows.low, rows.close):
        same[1:] &= part[1:] == part[:-1]
    edges = np.flatnonzero(np.diff(np.concatenate([[0], same.astype(np.int8), [0]])))
    kept = np.zeros_like(same)
    for start, stop in edges.reshape(-1, 2)[np.diff(edges.reshape(-1, 2))[:, 0] >= STALE_BARS - 1]:
        kept[start:stop] = True
    return kept


# --- in words ---------------------------------------------------------------------------------------------------------


def finding(rule: str, mask: Mask, rows: Rows, place: str) -> Finding:
    """A finding about the rows of a mask that has at least one."""
    at = int(np.flatnonzero(mask)[0])
    told = RULES[rule]
    first = f"{place} ({rows.symbol}, {moment(rows.time[at])}): {seen(rule, rows, at)}"
    return Finding(rule, int(mask.sum()), first, told.remedy, told.refused)


def seen(rule: str, rows: Rows, at: int) -> str:
    """What the row shows, in the words of its rule."""
    o, h, low, c = (float(part[at]) for part in (rows.open, rows.high, rows.low, rows.close))
    prices = f"open {o:g}, high {h:g}, low {low:g}, close {c:g}"
    before = moment(rows.time[at - 1]) if at else "nothing"
    match rule:
        case "bad_stamp":
            return "its time cannot be read as one moment"
        case "future":
            return "this bar is not over yet"
        case "unsorted" | "uneven" | "gap":
            return f"it comes after {before}"
        case "duplicate":
            return "the same row once more"
        case "conflict":
            return f"{prices}, and another row with this stamp differs"
        case "bad_volume":
            return f"volume {float(rows.volume[at]):g}" if rows.volume is not None else "no volume"
        case "split_like":
            closes = rows.close[:at]
            return f"opens at {o:g} after a close of {float(closes[np.isfinite(closes)][-1]):g}"
        case "stale":
            return f"{prices}, as in the bar before, and so on for at least {STALE_BARS} bars"
    return prices


def moment(stamp: int | np.int64) -> str:
    """A stamp as ISO 8601 in UTC, down to the second."""
    if stamp == NO_TIME:
        return "no time"
    seconds = int(stamp) // 1_000_000_000
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
