"""A tail limit: the worst 5 % of all stretches of twenty bars may lose 5 % on average, and not more. Prints that average on
paths that training never drew.

python examples/05_tail_limit.py [STEPS]
"""

import sys
from dataclasses import replace

import torch

import quantail as qt
from quantail.backtest.course import course
from quantail.backtest.track import Player, play
from quantail.functional.risk import cvar_of_samples
from quantail.market.make import on_part
from quantail.registry import observed


def main(steps: int = 3_000_000) -> float:
    """The preset has the limit; `risk.limit` is what you would change."""
    config = replace(qt.presets.risk_averse(), total_timesteps=steps)
    *_, report = qt.train(config)
    player = Player(report.agent, report.carry.obs_moments, config)
    market = on_part(config.env.options, "test")  # it shows what the last twenty bars have gained, as in training
    walk = play(course(observed(market, config.risk)), player)
    log_returns = torch.from_numpy(walk.net).log1p()
    stretches = log_returns.unfold(0, config.risk.window, 1).sum(-1)
    return float(cvar_of_samples(stretches.flatten(), config.risk.alpha))


if __name__ == "__main__":
    print(f"{main(*map(int, sys.argv[1:])):.4f}")
