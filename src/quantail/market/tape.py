"""Bars laid out for an environment: everything a step looks up, one row per decision, P paths one behind the other.

Row 0 is no time at all: prices stand still and nothing trades, so a row that only starts an episode needs no case of its own.
Row 1 + p·T + t is bar t of path p, and holds what is seen at its close and what happens from there to the next close.
T bars, P paths, A assets, F features, R = 1 + P·T rows.
"""

from dataclasses import dataclass, fields
from typing import Any, cast

import torch
from torch import Tensor

from quantail.errors import ConfigError, InputError
from quantail.market.costs import BP, FUNDING_HOURS, Costs
from quantail.market.series import NANOSECONDS, YEAR_SECONDS, Bars, Features
from quantail.market.terms import Rules

RISK_BARS = 252  # of which the variance before an episode is taken
VOLUME_DAYS = 20  # of which the average daily notional is taken


@dataclass(frozen=True, eq=False)
class Tape:
    """Looked up by row; of one asset without its axis. What no rule asks for is None."""

    gap: Tensor  # [R, A] open/close before
    move: Tensor  # [R, A] close/open
    can: Tensor  # [R, A] bool
    seen: Tensor  # [R, A·F] float32, and room for what the portfolio adds
    low: Tensor | None = None
    high: Tensor | None = None
    years: Tensor | None = None  # [R]
    funding: Tensor | None = None
    impact: Tensor | None = None
    price: Tensor | None = None
    closes: Tensor | None = None  # [R, A] bool: whether the next bar trades, where `can` is about this one
    most: Tensor | None = None
    gone: Tensor | None = None  # [R, A] bool
    idle_years: Tensor | None = None  # [R]
    idle_funding: Tensor | None = None
    market: Tensor | None = None  # [R]
    valid: Tensor | None = None  # [R, A] bool: whether there is a bar to have bought in
    known: Tensor | None = None  # [R, A] bool: whether the calendar allows a trade, as is known before
    variance: Tensor | None = None  # [R] mean square return of the bars before, averaged over assets


@dataclass(frozen=True)
class Needs:
    """Which columns a tape has to have."""

    rules: Rules
    costs: Costs
    room: int  # columns that the portfolio adds to what is seen
    variance: bool
    valid: bool = False
    market: bool = False
    per_day: float = 0.0  # bars in a day of trading, by which impact knows a day's volume; counted in the bars if 0


def tape(bars: Bars, features: Features, needs: Needs, paths: int = 1, tradable: Tensor | None = None) -> Tape:
    """Lay out bars of P·A series, those of a path side by side; tradable [T, A]: what the calendar allows at each bar."""
    check_same_bars(bars, features)
    columns = laid(bars, needs, tradable)
    found: dict[str, Tensor] = {name: _rows(name, column, paths) for name, column in columns.items()}
    seen = features.values.reshape(len(bars), paths, -1).transpose(0, 1).flatten(0, 1)
    if "variance" in found and found["variance"].ndim == 2:
        found["variance"] = found["variance"].mean(-1)
    if needs.market:
        found["market"] = mean_return(found, found.pop("there"))
    found["seen"] = torch.nn.functional.pad(seen, (0, needs.room, 1, 0)).contiguous()
    return Tape(**found)


def check_same_bars(bars: Bars, features: Features) -> None:
    """A row of features for each bar of each asset."""
    there, here = list(features.values.shape[:2]), [len(bars), len(bars.symbols)]
    if there != here:
        raise InputError(f"features are of {there} bars and assets, bars are {here}; needs features of the same bars")


def _rows(name: str, column: Tensor, paths: int) -> Tensor:
    """[T, P·A] or [T] as [R, A], [R] of one asset or of none, with row 0 in front."""
    still = {"gap": 1, "move": 1, "low": 1, "high": 1, "price": 1, "variance": 1}.get(name, 0)
    if column.ndim == 1:
        flat = column.repeat(paths)
    else:
        flat = column.reshape(len(column), paths, -1).transpose(0, 1).flatten(0, 1)
        flat = flat[:, 0] if flat.shape[1] == 1 else flat
    return torch.cat([torch.full_like(flat[:1], still), flat]).contiguous()


def laid(bars: Bars, needs: Needs, tradable: Tensor | None) -> dict[str, Tensor]:
    """The columns [T, P·A] that the rules ask for."""
    rules, costs = needs.rules, needs.costs
    alive = bars.valid[1:] & (bars.close[:-1] > 0)  # a bar that comes after a price is known
    gap = torch.where(alive, bars.open[1:] / bars.close[:-1], 1.0)
    move = torch.where(alive, bars.close[1:] / bars.open[1:], 1.0)
    calendar = torch.ones_like(bars.valid) if tradable is None else tradable.to(bars.valid).expand_as(bars.valid)
    at_fill = bars.valid & calendar
    trades = _ended(alive & at_fill[1:], False)
    can = _ended(at_fill[: len(bars) - 1], False) if rules.fill == "same_close" else trades
    gone = delisted(bars, rules)
    if gone is not None:
        gap = torch.where(gone[1:], 1 - rules.haircut, gap)
    found = {"gap": _ended(gap, 1.0), "move": _ended(move, 1.0), "can": can}
    if gone is not None:
        found["gone"] = _ended(gone[1:], False)
    if needs.market:
        found["there"] = _ended(alive if gone is None else alive | gone[1:], False)
    if needs.valid:
        found["valid"] = bars.valid
    if tradable is not None:
        found["known"] = calendar if rules.fill == "same_close" else _ended(calendar[1:], False)
    if rules.maintenance:
        found["low"] = _ended(torch.where(alive, bars.low[1:] / bars.open[1:], 1.0), 1.0)
        found["high"] = _ended(torch.where(alive, bars.high[1:] / bars.open[1:], 1.0), 1.0)
        if rules.fill == "same_close":
            found["closes"] = trades
    found |= financing(bars, costs)
    fill = {"next_open": bars.open[1:], "next_close": bars.close[1:], "same_close": bars.close[:-1]}[rules.fill]
    if rules.lot_size:
        found["price"] = _ended(torch.where(fill > 0, fill, 1.0), 1.0)
    if rules.max_participation is not None:
        found["most"] = _ended(participation(bars, rules, fill), 0.0)
    if costs.impact_y:
        rate = impact(bars, costs, needs.per_day)
        found["impact"], found["can"] = rate.masked_fill(rate.isinf(), 0.0), can & ~rate.isinf()
    if needs.variance:
        found["variance"] = variance(gap * move - 1)
    return found


def mean_return(tape: dict[str, Tensor], there: Tensor) -> Tensor:
    """Of the assets that have a bar, from close to close: [R]; 0 where none has."""
    gains = tape["gap"] * tape["move"] - 1
    if gains.ndim == 1:
        return gains
    return torch.where(there, gains, 0.0).sum(-1) / there.sum(-1).clamp(min=1)


def delisted(bars: Bars, rules: Rules) -> Tensor | None:
    """Where an asset has had no bar for so many rows, after having had one: [T, A] bool. Known at that row, not before."""
    if not rules.delisted_after:
        return None
    rows = torch.arange(len(bars), device=bars.valid.device)[:, None]
    last = torch.where(bars.valid, rows, -1).cummax(0).values
    return (last >= 0) & (rows - last == rules.delisted_after)


def participation(bars: Bars, rules: Rules, price: Tensor) -> Tensor:
    """The most that one trade may move in the bar it is filled in, in currency: [T-1, A] from prices at the fill."""
    if bars.volume is None:
        raise ConfigError(f"max_participation={rules.max_participation:g} needs volumes, which these bars do not have")
    volume = bars.volume[: len(bars) - 1] if rules.fill == "same_close" else bars.volume[1:]
    return (cast(float, rules.max_participation) * volume * price).nan_to_num(nan=0.0)


def financing(bars: Bars, costs: Costs) -> dict[str, Tensor]:
    """Elapsed years and funding rates of each bar, and of the time between it and the one before, where there is such time."""
    found: dict[str, Tensor] = {}
    opens, ends = bars.time[1:], bars.end
    if costs.credit_per_year or costs.debit_per_year or costs.borrow_per_year:
        seconds = {"idle_years": opens - ends[:-1], "years": ends[1:] - opens}
        found |= {name: _ended(ns.double() / (NANOSECONDS * YEAR_SECONDS), 0.0) for name, ns in seconds.items()}
    if bars.funding is not None:
        found["funding"] = _ended(bars.funding[1:], 0.0)
    elif costs.funding_bps:
        every = round(FUNDING_HOURS * 3600 * NANOSECONDS)  # due at 0, 8 and 16 h UTC
        due = {"idle_funding": (ends[:-1], opens), "funding": (opens, ends[1:])}
        for name, (since, until) in due.items():
            count = until.div(every, rounding_mode="floor") - since.div(every, rounding_mode="floor")
            found[name] = _ended((count.double() * costs.funding_bps * BP)[:, None].expand(-1, len(bars.symbols)), 0.0)
    return {name: part for name, part in found.items() if not name.startswith("idle") or bool((part != 0).any())}


def bars_per_day(bars: Bars) -> float:
    """How many rows a day of trading has, at least 1."""
    days = bars.time.div(86400 * NANOSECONDS, rounding_mode="floor")
    return max(1.0, len(days) / (1 + int((days.diff() > 0).sum())))


def volume_rows(per_day: float) -> int:
    """Rows of which the average daily notional is taken."""
    return max(2, round(VOLUME_DAYS * per_day))


def impact(bars: Bars, costs: Costs, per_day: float = 0.0) -> Tensor:
    """⅔·Y·σ_day/√ADV, [T, A], from bars up to t: times √|x| it is what an order of x pays per unit. Source: square-root law.

    Infinite where nothing was traded in all the days before: no size has a price there.
    """
    if bars.volume is None:
        raise ConfigError(f"impact_y={costs.impact_y:g} needs volumes, which these bars do not have; set impact_y=0")
    per_day = per_day or bars_per_day(bars)
    window = volume_rows(per_day)
    returns = torch.zeros_like(bars.close)
    returns[1:] = torch.where(bars.valid[1:] & (bars.close[:-1] > 0), (bars.close[1:] / bars.close[:-1]).log(), 0.0)
    notional = torch.where(bars.valid, bars.volume * bars.close, 0.0)
    sigma_day = (trailing_mean(returns.square(), window) * per_day).sqrt()
    adv = trailing_mean(notional, window) * per_day
    return torch.where(adv > 0, 2 / 3 * costs.impact_y * sigma_day / adv.sqrt(), torch.inf)


def variance(returns: Tensor) -> Tensor:
    """Mean square of each asset's returns up to each row, 1 % squared before the first: [T-1, A] -> [T, A]."""
    before = torch.full_like(returns[:1], BP)
    return torch.cat([before, trailing_mean(returns.square(), RISK_BARS).clamp(min=1e-10)])


def trailing_mean(x: Tensor, window: int) -> Tensor:
    """Mean of the last `window` rows, of fewer at the beginning: [T, ...] -> [T, ...]."""
    total = torch.cat([torch.zeros_like(x[:1]), x]).cumsum(0)
    upto = torch.arange(1, len(x) + 1, device=x.device)
    since = (upto - window).clamp(min=0)
    count = (upto - since).to(x.dtype).reshape(-1, *[1] * (x.ndim - 1))
    return (total[upto] - total[since]) / count


def _ended(x: Tensor, last: float | bool) -> Tensor:
    """With a last row, after which no bar comes."""
    return torch.cat([x, torch.full_like(x[:1], last)])


def moved(one: Tape, device: torch.device) -> Tape:
    """A tape on another device."""
    parts: dict[str, Any] = {field.name: getattr(one, field.name) for field in fields(one)}
    there: dict[str, Any] = {name: part if part is None else part.to(device) for name, part in parts.items()}
    return Tape(**there)
