"""An agent at work: a bar in, weights out, its state saved on the way. Prints the largest difference from the backtest: 0.

python examples/07_bar_by_bar.py [STEPS]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import quantail as qt
from quantail.backtest.course import course
from quantail.backtest.track import Player, play
from quantail.config import PpoConfig
from quantail.market.candles import simulate
from quantail.market.synthetic import HiddenDrift
from quantail.market.terms import Rules

BEGIN, END = 800, 900


def main(steps: int = 20_000) -> float:
    """Train on the bars up to BEGIN; those after it come one by one, and to the judge all at once."""
    bars = simulate(HiddenDrift(), END, 1, torch.Generator().manual_seed(7)).bars(86400)
    rules = Rules(actions="long_short")
    market = qt.MarketEnv(16, bars.rows(0, BEGIN), rules=rules)
    model = qt.DistributionalPPO("MlpLstmPolicy", market, config=qt.Config(ppo=PpoConfig(n_steps=64, batch_size=256)), seed=0)
    model.learn(steps)
    runner = qt.Runner(model, history=bars.rows(0, BEGIN), ends_in=END - 1 - BEGIN)
    decided = []
    with tempfile.TemporaryDirectory() as folder:
        for row in range(BEGIN, END - 1):
            decided.append(runner.on_bar(bars.rows(row, row + 1)))
            runner.save(Path(folder) / "state.safetensors")  # what a restart would begin from
    player = Player(model.policy, model.progress.carry.obs_moments, model.config)
    walk = play(course(qt.MarketEnv(1, bars, rules=rules), rows=range(BEGIN + 1, END)), player)
    asked = walk.orders[:, 0]
    return float(np.nanmax(np.abs(np.array(decided) - asked)))


if __name__ == "__main__":
    print(f"{main(*map(int, sys.argv[1:])):.1e}")
