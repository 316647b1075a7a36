"""What the benchmarks of traders share: training by a preset, held-out paths, two figures."""

import math
import time
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from quantail.backtest.course import Course, course
from quantail.backtest.series import Floats
from quantail.backtest.track import Player
from quantail.config import Config
from quantail.loop import train
from quantail.market.make import on_part
from quantail.registry import make, observed


class Trained(NamedTuple):
    """An agent, and what it took."""

    player: Player
    seconds: float
    env_steps: int


def trained(config: Config) -> Trained:
    """The agent after its training, with all that a judge needs."""
    begun = time.perf_counter()
    *_, report = train(config, make(config.env, risk=config.risk))
    player = Player(report.agent, report.carry.obs_moments, config, report.carry.scale)
    return Trained(player, time.perf_counter() - begun, report.env_steps)


def seeded(config: Config, seed: int) -> Config:
    """Another run, on other training paths."""
    return replace(config, seed=seed, env=replace(config.env, options={**config.env.options, "seed": seed}))


def held_out(config: Config, **sizes: int) -> Course:
    """Paths that no training draws, whatever its seed; the same for all runs unless `sizes` names a seed."""
    return course(observed(on_part({**config.env.options, "seed": 0, **sizes}, "test"), config.risk))


def pooled(net: Floats, year: float) -> float:
    """Sharpe ratio a year of all paths together."""
    return float(net.mean() / max(net.std(), 1e-12)) * math.sqrt(year)


def growth(net: Floats, year: float) -> float:
    """Mean log growth a year."""
    return float(np.log1p(net).mean()) * year
