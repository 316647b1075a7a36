"""The same market with nothing to be known in it: what an agent earns there before costs is 0, or something leaks."""

import math
from dataclasses import replace

import numpy as np
import torch

from quantail.backtest.course import Course, course
from quantail.market.env import MarketEnv
from quantail.market.features import NAMES, functions_of, unproved
from quantail.market.series import Bars, Features
from quantail.market.synthetic import GBM, Signal
from quantail.market.world import Recorded, Synthetic

PATHS = 64  # of a synthetic market
REORDERED = 16  # of recorded bars


def null_course(one: Course) -> Course | None:
    """A course of the same length, rules and costs in a market without drift or memory; None where it cannot be made.

    Of a synthetic market: Brownian motion of the same volatility. Of recorded bars of one asset with default features: the same
    candles in random order, their mean log return taken out.
    """
    world = one.market.world
    empty: Synthetic | None = None
    if isinstance(world, Synthetic) and not isinstance(world.model, Signal):
        year = one.periods_per_year
        vol = float(np.diff(np.log(one.closes), axis=0).std()) * math.sqrt(year)
        empty = replace(world, model=GBM(0.0, vol, bars_per_year=year), paths=min(world.paths, PATHS))
    if isinstance(world, Recorded) and world.assets == 1 and set(world.features.names) <= set(NAMES):
        empty = reordered(world, one)
    if empty is None:
        return None
    market = one.market
    terms = {"rules": market.rules, "reward": market.reward, "episode": market.episode, "dtype": market.dtype}
    env = MarketEnv(empty.paths, empty, costs=market.costs, device=market.device, **terms)  # type: ignore[arg-type]
    return course(one.wrapped(env))


def reordered(world: Recorded, one: Course) -> Synthetic:
    """The candles of the stretch, each by itself, drawn anew without their drift; seen through the features of the agent."""
    bars = without_drift(one.bars)
    names, units = world.features.names, world.units

    def features(drawn: Bars) -> Features:
        seen = unproved(functions_of(names), drawn)
        seen = Features(seen.values, seen.names, min(seen.warmup, len(drawn) - one.periods - 1))
        return seen if units is None else units.apply(seen)

    count = one.periods + 1 + world.features.warmup
    return Synthetic(bars, REORDERED, count, mean_block=1.0, part="test", features=features)


def without_drift(bars: Bars) -> Bars:
    """The same candles, each scaled so that closes end where they began, and without volumes and funding."""
    known = bars.close[:, 0].isfinite() & (bars.close[:, 0] > 0)
    close = bars.close[known, 0]
    drift = float((close[-1] / close[0]).log()) / max(len(close) - 1, 1)
    scale = torch.exp(-drift * torch.arange(len(bars), dtype=torch.float64))[:, None]
    prices = {name: vars(bars)[name] * scale for name in ("open", "high", "low", "close")}
    return replace(bars, **prices, volume=None, funding=None, card=None)
