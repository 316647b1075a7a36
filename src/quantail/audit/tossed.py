"""A market that goes nowhere, made of recorded bars: a coin says for each bar whether it goes its own way or the other."""

from dataclasses import dataclass

import torch
from torch import Tensor

from quantail.audit.subject import blank
from quantail.market.series import Bars
from quantail.market.tape import Needs, moved, tape
from quantail.market.terms import Episode
from quantail.market.world import Ground, World, grounded
from quantail.streams import Stream, generator, uniform

WIDE = 0.9  # a move beyond it has no other way above 0, and is left out


@dataclass(frozen=True, eq=False)
class Tossed(World):
    """P copies of bars without a hole in their clock: E[O'/C] = E[C'/O'] = 1 in each, with their volatility, volumes and gaps.

    The coins of a bar, one for its gap and one for its move, are the same for all assets: what moved together still does.
    """

    history: Bars
    copies: int
    seed: int

    @property
    def assets(self) -> int:  # type: ignore[override]
        """How many there are."""
        return len(self.history.symbols)

    def lay(self, needs: Needs, episode: Episode, dtype: torch.dtype, device: torch.device) -> Ground:
        """Laid out once."""
        bars = tossed(self.history, self.copies, self.seed)
        laid = moved(tape(bars, blank(bars), needs, self.copies), device)
        return grounded(laid, 0, len(bars), self.copies, episode, dtype)


def tossed(bars: Bars, copies: int, seed: int) -> Bars:
    """The copies side by side, [T, P·A]: a relative r of price becomes 1 ± (r − 1); volumes are those of the bars."""
    rows, assets = bars.close.shape
    coins = uniform((2, rows, copies, 1), generator(seed, Stream.PLAY, 2)) < 0.5

    def wide(x: Tensor) -> Tensor:
        return x[:, None, :].expand(rows, copies, assets)

    valid = wide(bars.valid)
    before = torch.cat([bars.close[:1], bars.close[:-1]])
    known = valid & wide(before > 0)
    gap = turned(torch.where(known, wide(bars.open / before), 1.0), coins[0])
    move = turned(torch.where(valid, wide(bars.close / bars.open), 1.0), coins[1])
    close = wide(bars.close[:1].nan_to_num(nan=1.0)) * (gap * move).cumprod(0)
    opened = close / move
    up, down = ((torch.where(valid, wide(x / bars.open), 1.0) - 1).abs().clamp(max=WIDE) for x in (bars.high, bars.low))
    high = torch.maximum(opened * (1 + torch.where(coins[1], down, up)), torch.maximum(opened, close))
    low = torch.minimum(opened * (1 - torch.where(coins[1], up, down)), torch.minimum(opened, close))
    opened, high, low = (x.masked_fill(~valid, torch.nan).flatten(1) for x in (opened, high, low))
    return Bars(
        time=bars.time,
        open=opened,
        high=high,
        low=low,
        close=torch.where(wide(bars.close > 0), close, torch.nan).flatten(1),
        valid=valid.flatten(1),
        symbols=tuple(f"{symbol} {copy}" for copy in range(copies) for symbol in bars.symbols),
        bar_seconds=bars.bar_seconds,
        volume=None if bars.volume is None else wide(bars.volume).flatten(1),
        funding=None if bars.funding is None else wide(bars.funding).flatten(1),
    )


def turned(relative: Tensor, coin: Tensor) -> Tensor:
    """1 + (r − 1), or 1 − (r − 1) where the coin says so; 1 where that would be nothing."""
    move = relative - 1
    way: Tensor = torch.where(move.abs() > WIDE, 0.0, torch.where(coin, -move, move))
    return 1 + way
