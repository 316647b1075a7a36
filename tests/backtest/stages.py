"""Courses, agents and orders for tests: small, and every size another."""

import numpy as np
import torch

from market.worlds import bars_of
from quantail.backtest.course import course
from quantail.backtest.track import Player
from quantail.config import Config
from quantail.loop import make_agent
from quantail.market.costs import Costs
from quantail.market.env import MarketEnv
from quantail.market.presets import MARKETS
from quantail.market.series import Features
from quantail.market.terms import Episode, Reward, Rules
from quantail.market.world import Recorded, Synthetic
from quantail.types import Scale
from rivers import disturb

COSTS = Costs(fee_bps=7.0, half_spread_bps=3.0)


def recorded(rows=90, assets=2, warmup=6, seed=0, parts=("features", "weights"), bars=None, **rules):
    """A market of hourly bars with three features that are nothing but noise."""
    bars = bars_of(rows, assets, seed) if bars is None else bars
    noise = torch.randn(rows, assets, 3, generator=torch.Generator().manual_seed(seed + 5))
    features = Features(noise, ("a", "b", "c"), warmup)
    terms = Rules(**{"actions": "long_short", "leverage": 1.5, **rules})
    return MarketEnv(5, Recorded(bars, features), costs=COSTS, rules=terms, episode=Episode(length=20, parts=parts))


def synthetic(market="hidden_drift", paths=3, bars=200, seed=4, **rules):
    """Paths of a synthetic market."""
    return MarketEnv(
        7,
        Synthetic(MARKETS[market](), paths=paths, bars=bars, seed=seed, part="test"),
        rules=Rules(**rules),
        reward=Reward(scale=100.0),
        episode=Episode(length=50),
    )


def player(env, seed=0, scale=True, **config):
    """An agent that has learned nothing, in float64, and does different things."""
    config = Config(seed=seed, **config)
    agent = disturb(make_agent(config, env).double(), 0.3)
    units = Scale(torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)) if scale else None
    return Player(agent, {}, config, units)


def random_orders(one, seed=0, holds=0.4):
    """Orders [T, P, A], some of them "nothing"."""
    noise = np.random.default_rng(seed)
    shape = (one.periods, one.paths, one.market.assets)
    return np.where(noise.random(shape) < holds, np.nan, noise.uniform(-0.7, 0.7, shape))


__all__ = ["COSTS", "course", "player", "random_orders", "recorded", "synthetic"]
