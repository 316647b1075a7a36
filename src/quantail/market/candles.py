"""Bars around the returns of a model: open, high and low drawn from what a Brownian path does between two closes.

Within a bar that opens at 0 and closes at b (log prices) with deviation σ, the highest point of a Brownian bridge is
½(b + √(b² − 2σ²·ln U)), the lowest ½(b − √(b² − 2σ²·ln U')), U uniform: each exact by itself, drawn independently.
Source: reflection principle.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from quantail.errors import InputError
from quantail.functional.checks import check_count
from quantail.market.series import NANOSECONDS, YEAR_SECONDS, Bars
from quantail.market.synthetic import Model
from quantail.settings import check_within

BLOCK = 1 << 19  # bars made at a time: what the processor keeps near
EPOCH = 946_684_800  # 2000-01-01 UTC, where time begins


class Candles(NamedTuple):
    """Prices of P paths over T bars."""

    open: Tensor  # [T, P] float64
    high: Tensor
    low: Tensor
    close: Tensor
    hidden: Tensor | None  # [T, P], see `Returns`
    signal: Tensor | None  # [T, P]

    def bars(self, bar_seconds: float) -> Bars:
        """As bars of P assets, of which a trade can be believed at any time; the busier, the larger the volume."""
        bars, paths = self.close.shape
        step = round(bar_seconds * NANOSECONDS)
        time = EPOCH * NANOSECONDS + step * torch.arange(bars, device=self.close.device)
        volume = 1e8 * (self.high / self.low - 1)  # of the bar alone: a mean over the path would know what comes
        symbols = tuple(f"path{i}" for i in range(paths))
        prices = (self.open, self.high, self.low, self.close)
        return Bars(time, *prices, torch.ones_like(self.close, dtype=torch.bool), symbols, bar_seconds, volume)


def simulate(
    model: Model, bars: int, paths: int, source: torch.Generator, overnight: float = 0.0, price: float = 100.0
) -> Candles:
    """Draw P paths of T bars; `overnight` is the share of a bar's variance that lies between a close and the next open."""
    check_count("bars", bars)
    check_count("paths", paths)
    check_within("overnight", overnight, 0.0, 1.0, high_open=True)
    width = min(paths, max(64, BLOCK // bars))
    found = [_block(model, bars, min(width, paths - at), source, overnight, price) for at in range(0, paths, width)]
    if len(found) == 1:
        return found[0]
    joined = [None if column[0] is None else torch.cat(column, 1) for column in zip(*found, strict=True)]
    return Candles(*joined)  # type: ignore[arg-type]


def _block(model: Model, bars: int, paths: int, source: torch.Generator, overnight: float, price: float) -> Candles:
    z = torch.randn(model.draws, bars, paths, generator=source, device=source.device)
    luck = torch.rand(2, bars, paths, generator=source, device=source.device)
    gap = torch.randn(bars, paths, generator=source, device=source.device) if overnight else None
    made = model.returns(z)
    return Candles(*candles(made.log_return, made.sigma, luck, gap, overnight, price), made.hidden, made.signal)


def candles(
    log_return: Tensor, sigma: Tensor, luck: Tensor, gap: Tensor | None = None, overnight: float = 0.0, price: float = 100.0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Open, high, low, close [T, P] float64 from log returns, their σ, and uniforms luck [2, T, P] (normals gap [T, P])."""
    close = log_return.cumsum(0, dtype=torch.float64).exp_().mul_(price)
    before = torch.cat([torch.full_like(close[:1], price), close[:-1]])
    inside, variance = log_return, sigma.square()
    opened = before
    if gap is not None:
        jump = overnight * log_return + math.sqrt(overnight * (1 - overnight)) * sigma * gap
        inside, variance, opened = log_return - jump, variance * (1 - overnight), before * jump.exp()
    base, spread = inside.square(), variance * -2.0
    top = luck[0].clamp_(min=1e-38).log_().mul_(spread).add_(base).sqrt_().add_(inside).mul_(0.5).exp_()
    bottom = luck[1].clamp_(min=1e-38).log_().mul_(spread).add_(base).sqrt_().neg_().add_(inside).mul_(0.5).exp_()
    high, low = opened * top, opened * bottom
    # What is rounded in float32 may miss the close by a part in 10⁷.
    torch.maximum(high, torch.maximum(opened, close), out=high)
    torch.minimum(low, torch.minimum(opened, close), out=low)
    return opened, high, low, close


def bar_seconds(model: Model) -> float:
    """How long a bar lasts where trading never rests."""
    return YEAR_SECONDS / model.bars_per_year


# --- resampling what happened -----------------------------------------------------------------------------------------


def block_bootstrap(bars: Bars, length: int, paths: int, mean_block: float, source: torch.Generator) -> Candles:
    """Stationary block bootstrap of one asset's bars: whole candles, in blocks of geometric length   (Politis & Romano 1994).

    Each new bar continues the block with probability 1 − 1/mean_block, around the end of the series if need be, and else
    begins another anywhere. Gaps, extremes and volatility clusters shorter than a block stay as they were.
    """
    check_within("mean_block", mean_block, 1.0)
    usable = bars.valid[1:, 0] & (bars.close[:-1, 0] > 0)
    if len(bars.symbols) != 1 or not bool(usable.any()):
        raise InputError(f"bars hold {len(bars.symbols)} assets; needs one asset with at least two valid bars")
    before = bars.close[:-1, :1][usable]
    rows = torch.cat([column[1:, :1][usable] for column in (bars.open, bars.high, bars.low, bars.close)], 1) / before  # [n, 4]
    device = source.device
    fresh = torch.rand(length, paths, generator=source, device=device) * mean_block < 1
    fresh[0] = True
    places = torch.randint(len(rows), (length, paths), generator=source, device=device)
    time = torch.arange(length, device=device)[:, None].expand(-1, paths)
    since = torch.where(fresh, time, 0).cummax(0).values
    chosen = (places.gather(0, since) + time - since) % len(rows)
    drawn = rows.to(device)[chosen]  # [T, P, 4]
    close = drawn[..., 3].cumprod(0) * 100.0
    base = torch.cat([torch.full_like(close[:1], 100.0), close[:-1]])
    opened, high, low = (base * drawn[..., i] for i in range(3))
    high, low = torch.maximum(high, torch.maximum(opened, close)), torch.minimum(low, torch.minimum(opened, close))
    return Candles(opened, high, low, close, None, None)  # where a bar closed at its extreme, rounding may not put it beyond
