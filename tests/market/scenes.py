"""Small markets for tests: bars, features, and playing an environment row by row."""

import torch

from quantail.market.env import MarketEnv
from quantail.market.series import Bars, Features

DAY = 86_400.0


def bars_of(seed=0, bars=40, assets=1, sd=0.02, gaps=0.0, volume=False):
    """Random bars with overnight jumps; a share of them missing."""
    g = torch.Generator().manual_seed(seed)
    draw = lambda: torch.randn(bars, assets, generator=g, dtype=torch.float64)  # noqa: E731
    close = 50 * (sd * draw()).cumsum(0).exp()
    opened = torch.cat([close[:1], close[:-1]]) * (0.4 * sd * draw()).exp()
    high = torch.maximum(opened, close) * (sd * draw().abs()).exp()
    low = torch.minimum(opened, close) / (sd * draw().abs()).exp()
    valid = torch.rand(bars, assets, generator=g) >= gaps
    valid[0] = True
    last = torch.where(valid, torch.arange(bars)[:, None], 0).cummax(0).values
    close = close.gather(0, last)  # the mark of a bar that is missing is the last that was there
    prices = [torch.where(valid, x, torch.nan) for x in (opened, torch.maximum(high, close), torch.minimum(low, close))]
    volumes = torch.where(valid, 1e4 * draw().exp(), torch.nan) if volume else None
    time = torch.arange(bars) * int(DAY * 1e9) + 946_684_800 * 10**9
    return Bars(time, *prices, close, valid, tuple(f"s{i}" for i in range(assets)), DAY, volumes)


def features_of(bars, count=2, warmup=3, seed=9):
    """Causal by construction: functions of the close of the same row, and noise."""
    g = torch.Generator().manual_seed(seed)
    values = torch.randn(len(bars), bars.close.shape[1], count, generator=g)
    values[..., 0] = bars.close.log().float()
    return Features(values, tuple(f"f{i}" for i in range(count)), warmup)


def env_of(num_envs=5, bars=None, warmup=3, **options):
    """Bars, features and an environment over them."""
    bars = bars_of() if bars is None else bars
    return MarketEnv(num_envs, bars, features_of(bars, warmup=warmup), **options)


def noise_of(env, rows, seed=1):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(rows, env.num_envs, env.noise_dim, generator=g)


def actions_of(env, rows, seed=2):
    g = torch.Generator().manual_seed(seed)
    space = env.action_space
    if hasattr(space, "n"):
        return torch.randint(space.n, (rows, env.num_envs), generator=g)
    if hasattr(space, "sizes"):
        return torch.randint(space.sizes[0], (rows, env.num_envs, len(space.sizes)), generator=g)
    return torch.randn(rows, env.num_envs, *space.shape, generator=g)


def play(env, actions, noise):
    """[(state before, Step)] of every row, and the first observation; noise [rows + 1, ...]."""
    state, obs = env.reset(noise[0])
    rows = []
    for action, luck in zip(actions, noise[1:], strict=True):
        after, step = env.step(state, action, luck)
        rows.append((state, step))
        state = after
    return obs, rows
