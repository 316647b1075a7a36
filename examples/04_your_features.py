"""A feature of your own: a function of the bars, proved to look at nothing that comes later. Prints the net Sharpe ratio in the
last part of the bars.

python examples/04_your_features.py [STEPS]
"""

import sys
from dataclasses import replace

import torch
from torch import Tensor

import quantail as qt
from quantail.backtest import metrics
from quantail.backtest.course import course
from quantail.backtest.track import Player, play
from quantail.market.candles import simulate
from quantail.market.features import compute
from quantail.market.normalise import fit
from quantail.market.series import Bars
from quantail.market.synthetic import HiddenDrift
from quantail.market.terms import Episode, Reward, Rules
from quantail.market.world import Recorded


def place_in_range(bars: Bars) -> Tensor:
    """Where a bar closed between its low and its high, 0 to 1: [T, A]."""
    return (bars.close - bars.low) / (bars.high - bars.low).clamp(min=1e-9)


def main(steps: int = 300_000) -> float:
    """Bars, features in units of the first part, an environment, an agent."""
    bars = simulate(HiddenDrift(), 3000, 1, torch.Generator().manual_seed(4)).bars(86400)
    seen = compute(bars, ["return_1", "return_20", "volatility_20"], {"place_in_range": place_in_range})
    train = range(2400)
    world = Recorded(bars, seen, units=fit(seen, bars, train))  # units of the training part and no other
    rules, reward = Rules(actions="tanh"), Reward(scale=100.0)
    market = qt.MarketEnv(64, replace(world, within=train), rules=rules, reward=reward, episode=Episode(252))
    start = qt.presets.daily()
    config = replace(start, total_timesteps=steps, env=replace(start.env, id="", options={}, num_envs=64))
    *_, report = qt.train(config, market)
    player = Player(report.agent, report.carry.obs_moments, config)
    last = qt.MarketEnv(1, world, rules=rules, reward=reward, episode=Episode(252))
    walk = play(course(last, rows=range(2401, 3000), memory=250), player)
    return metrics.sharpe(walk.net.ravel(), walk.periods_per_year)


if __name__ == "__main__":
    print(f"{main(*map(int, sys.argv[1:])):.2f}")
