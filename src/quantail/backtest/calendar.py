"""Figures that need the clock: how many periods a year has, and what each month brought.

Times are datetime64, or int64 nanoseconds since 1970 UTC as in `market.Bars`; months are those of UTC.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from quantail.backtest.series import NANOSECONDS, YEAR_SECONDS, Floats, as_growth, as_times


class Months(NamedTuple):
    """A table of months; what was not traded is NaN."""

    years: tuple[int, ...]  # [Y]
    returns: Floats  # [Y, 12]
    totals: Floats  # [Y] each year as a whole


def periods_per_year(times: ArrayLike) -> float:
    """How many periods a year has, from their stamps: A = (T − 1)/(elapsed years of 365.25 days). Source: definition.

    times [T] with T ≥ 2 -> scalar. Sessions and holidays are counted as they were: about 252 for days of a stock exchange,
    365.25 for days and 8766 for hours of a market that never closes. Over less than some months weekends distort it.
    """
    stamps = as_times(times, least=2)
    years = float(stamps[-1] - stamps[0]) / NANOSECONDS / YEAR_SECONDS
    return (len(stamps) - 1) / years


def monthly_returns(times: ArrayLike, returns: ArrayLike) -> Months:
    """What each month and year brought: Π(1 + r) − 1 over the periods stamped in it. Source: definition.

    times [T], returns [T] -> years [Y], returns [Y, 12], totals [Y].
    """
    r = as_growth(returns)
    stamps = as_times(times, rows=len(r)).astype("datetime64[ns]")
    year = stamps.astype("datetime64[Y]").astype(np.int64) + 1970
    month = stamps.astype("datetime64[M]").astype(np.int64) % 12
    years = range(int(year[0]), int(year[-1]) + 1)
    growth, seen = np.ones((len(years), 12)), np.zeros((len(years), 12), bool)
    np.multiply.at(growth, (year - years[0], month), 1 + r)
    seen[year - years[0], month] = True
    totals = np.where(seen.any(axis=1), growth.prod(axis=1) - 1, np.nan)
    return Months(tuple(years), np.where(seen, growth - 1, np.nan), totals)
