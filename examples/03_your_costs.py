"""Costs of your own: an agent that learned with them, judged with them doubled. Prints the net Sharpe ratio at twice the cost.

python examples/03_your_costs.py [STEPS]
"""

import sys
from dataclasses import replace

import quantail as qt
from quantail.backtest import metrics
from quantail.backtest.course import course
from quantail.backtest.track import Player, play
from quantail.market.make import on_part


def main(steps: int = 1_500_000) -> float:
    """Train where a trade costs 12 bp and shorts are borrowed, judge where it costs 24."""
    config = qt.presets.quick()
    own = {"fee_bps": 10.0, "half_spread_bps": 2.0, "borrow_per_year": 0.03, "band": 0.05}
    options = {**config.env.options, **own}
    config = replace(config, total_timesteps=steps, env=replace(config.env, options=options))
    *_, report = qt.train(config)
    player = Player(report.agent, report.carry.obs_moments, config)
    walk = play(course(on_part(options, "test", cost_factor=2.0)), player)
    return metrics.sharpe(walk.net.ravel(), walk.periods_per_year)


if __name__ == "__main__":
    print(f"{main(*map(int, sys.argv[1:])):.2f}")
