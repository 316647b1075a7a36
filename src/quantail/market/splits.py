"""Training, validation and test by time: what is learned from comes before what is judged by, with room between the two."""

from datetime import UTC, datetime
from typing import NamedTuple

import torch

from quantail.errors import InputError
from quantail.market.series import NANOSECONDS, Bars

Border = float | int | str  # a share of the rows, the number of a row, or a date


class Splits(NamedTuple):
    """Rows of bars: `bars.rows(part.start, part.stop)`, `features.rows(part.start, part.stop)`."""

    train: range
    validation: range
    test: range


def split_by_time(
    bars: Bars,
    validation: Border,
    test: Border,
    *,
    purge: int = 0,
    embargo: int = 0,
    begin: Border = 0.0,
    end: Border = 1.0,
) -> Splits:
    """Three blocks in order of time.

    Args:
        bars: What is split.
        validation: Where it begins: a share of the rows (0.7), the number of a row (700), or a date ("2021-10-01", UTC unless
            it says otherwise).
        test: Where that begins; where validation does, there is no validation.
        purge: Bars left out at the end of the earlier block: the returns that follow them reach into the later one. Not fewer
            than the horizon of rewards, 1/(1 − γλ) bars.
        embargo: Bars left out besides, at the beginning of the later block: what happened just before still shows in them.
        begin: Where training begins.
        end: Where the test ends.
    """
    for name, count in (("purge", purge), ("embargo", embargo)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise InputError(f"{name}={count!r}; needs a number of bars, 0 or more")
    middle, last = row_of(bars, "validation", validation), row_of(bars, "test", test)
    first = 0 if begin == 0.0 else row_of(bars, "begin", begin)
    stop = len(bars) if end == 1.0 else row_of(bars, "end", end)
    found = Splits(
        range(first, middle - purge),
        range(middle, middle) if middle == last else range(middle + embargo, last - purge),
        range(last + embargo, stop),
    )
    for name, part in found._asdict().items():
        if not len(part) and (name != "validation" or middle != last):
            raise InputError(
                f"{name} has no bar: of {len(bars)} bars training begins at {first}, validation at {middle}, test at {last}, "
                f"all ends at {stop}; purge={purge}, embargo={embargo}: move the borders apart, or leave out fewer"
            )
    return found


def row_of(bars: Bars, name: str, border: Border) -> int:
    """The first row at or after a border."""
    if isinstance(border, str):
        try:
            moment = datetime.fromisoformat(border)
        except ValueError as error:
            raise InputError(f"{name}={border!r} is no date; write it as 2021-10-01 or 2021-10-01T12:00:00+00:00") from error
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return int(torch.searchsorted(bars.time.contiguous(), round(moment.timestamp()) * NANOSECONDS))
    if isinstance(border, int) and not isinstance(border, bool) and 0 < border <= len(bars):
        return border
    if not isinstance(border, float) or not 0 < border < 1:
        raise InputError(
            f"{name}={border!r}; needs a share of the rows between 0 and 1, a row up to {len(bars)}, or a date in quotes"
        )
    return round(border * len(bars))
