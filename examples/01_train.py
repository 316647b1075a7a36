"""Train in a market whose drift is hidden, then live through paths that training never drew. Prints the net Sharpe ratio there.

python examples/01_train.py [STEPS]     # 20 seconds of one core with the default of 1,500,000
"""

import sys
from dataclasses import replace

import quantail as qt
from quantail.backtest import metrics
from quantail.backtest.course import course
from quantail.backtest.track import Player, play
from quantail.market.make import on_part


def main(steps: int = 1_500_000) -> float:
    """Train, play, judge."""
    config = replace(qt.presets.quick(), total_timesteps=steps)
    *_, report = qt.train(config)
    player = Player(report.agent, report.carry.obs_moments, config)
    walk = play(course(on_part(config.env.options, "test")), player)  # all costs, from the first bar to the last, once
    return metrics.sharpe(walk.net.ravel(), walk.periods_per_year)


if __name__ == "__main__":
    print(f"{main(*map(int, sys.argv[1:])):.2f}")
