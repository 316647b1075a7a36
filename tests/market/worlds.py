"""Bars for tests: a random walk with believable highs and lows."""

import torch

from quantail.market.series import NANOSECONDS, Bars

HOUR = 3600


def bars_of(rows, assets, seed=0, missing=0.0):
    """Hourly bars from 1970 on; `missing` is the share of bars that are masked."""
    source = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=source, dtype=torch.float64)

    close = 100 * (0.01 * draw(rows, assets)).cumsum(0).exp()
    open_ = torch.cat([close[:1], close[:-1]]) * (0.002 * draw(rows, assets)).exp()
    high = torch.maximum(open_, close) * (0.004 * draw(rows, assets).abs()).exp()
    low = torch.minimum(open_, close) * (-0.004 * draw(rows, assets).abs()).exp()
    volume = (5 + draw(rows, assets)).exp()
    valid = torch.rand(rows, assets, generator=source) >= missing
    void = float("nan")
    return Bars(
        time=torch.arange(rows) * HOUR * NANOSECONDS,
        open=open_.masked_fill(~valid, void),
        high=high.masked_fill(~valid, void),
        low=low.masked_fill(~valid, void),
        close=marked(close, valid),
        valid=valid,
        symbols=tuple(f"S{i}" for i in range(assets)),
        bar_seconds=float(HOUR),
        volume=volume.masked_fill(~valid, void),
        funding=torch.zeros(rows, assets, dtype=torch.float64),
    )


def marked(close, valid):
    """The last valid close, by a slow loop."""
    marks = torch.full_like(close, float("nan"))
    for row in range(len(close)):
        marks[row] = torch.where(valid[row], close[row], marks[row - 1] if row else marks[row])
    return marks
