"""Bars of your own: a file, the three parts of its time, and features in units of the training part. Prints the growth per year
in the last part, which nothing has seen.

python examples/02_your_data.py [STEPS] [BARS.csv]     # without a file, bars are made up
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pandas as pd
import torch

import quantail as qt
from quantail.backtest import metrics
from quantail.backtest.course import course
from quantail.backtest.track import Player, play
from quantail.market.candles import simulate
from quantail.market.make import on_part
from quantail.market.synthetic import HiddenDrift


def main(steps: int = 500_000, file: str = "") -> float:
    """Train on the first part, judge on the last."""
    with tempfile.TemporaryDirectory() as folder:
        data = file or made_up(Path(folder) / "prices.csv")
        config = replace(qt.presets.daily(), total_timesteps=steps)
        options = {**config.env.options, "data": data, "validation": 0.7, "test": 0.85}  # shares of the rows, or dates
        config = replace(config, env=replace(config.env, options=options))
        *_, report = qt.train(config)
        player = Player(report.agent, report.carry.obs_moments, config)
        walk = play(course(on_part(options, "test")), player)
        return metrics.cagr(walk.net.ravel(), walk.periods_per_year)


def made_up(path: Path) -> str:
    """Eight years of days as a CSV: time, open, high, low, close, volume."""
    bars = simulate(HiddenDrift(), 2000, 1, torch.Generator().manual_seed(2)).bars(86400)
    columns = {name: getattr(bars, name)[:, 0].numpy() for name in ("open", "high", "low", "close", "volume")}
    pd.DataFrame({"time": pd.to_datetime(bars.time.numpy(), utc=True), **columns}).to_csv(path, index=False)
    return str(path)


if __name__ == "__main__":
    print(f"{main(*(int(word) if word.isdigit() else word for word in sys.argv[1:])):.4f}")
