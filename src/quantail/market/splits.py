"""Training, validation and test by time: what is learned from comes before what is judged by, with room between the two."""

from datetime import UTC, datetime
from typing import NamedTuple

import torch

from quantail.errors import InputError
from quantail.market.series import NANOSECONDS, Bars


class Splits(NamedTuple):
    """Rows of bars: `bars.rows(part.start, part.stop)`, `features.rows(part.start, part.stop)`."""

    train: range
    validation: range
    test: range


def split_by_time(bars: Bars, validation: float | str, test: float | str, *, purge: int = 0, embargo: int = 0) -> Splits:
    """Three blocks in order of time.

    Args:
        bars: What is split.
        validation: Where it begins: a share of the rows (0.7), or a date ("2021-10-01", UTC unless it says otherwise).
        test: Where that begins.
        purge: Bars left out at the end of the earlier block: the returns that follow them reach into the later one. Not fewer
            than the horizon of rewards, 1/(1 − γλ) bars.
        embargo: Bars left out besides, at the beginning of the later block: what happened just before still shows in them.
    """
    for name, count in (("purge", purge), ("embargo", embargo)):
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise InputError(f"{name}={count!r}; needs a number of bars, 0 or more")
    middle, last = row_of(bars, "validation", validation), row_of(bars, "test", test)
    found = Splits(
        range(middle - purge),
        range(middle + embargo, last - purge),
        range(last + embargo, len(bars)),
    )
    for name, part in found._asdict().items():
        if not len(part):
            raise InputError(
                f"{name} has no bar: of {len(bars)} bars validation begins at {middle} and test at {last}, purge={purge}, "
                f"embargo={embargo}; move the borders apart, or leave out fewer"
            )
    return found


def row_of(bars: Bars, name: str, border: float | str) -> int:
    """The first row at or after a border."""
    if isinstance(border, str):
        try:
            moment = datetime.fromisoformat(border)
        except ValueError as error:
            raise InputError(f"{name}={border!r} is no date; write it as 2021-10-01 or 2021-10-01T12:00:00+00:00") from error
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return int(torch.searchsorted(bars.time.contiguous(), round(moment.timestamp()) * NANOSECONDS))
    if isinstance(border, bool) or not isinstance(border, float | int) or not 0 < border < 1:
        raise InputError(f"{name}={border!r}; needs a share of the rows between 0 and 1, or a date in quotes")
    return round(border * len(bars))
