"""The end of an iteration: statistics renewed, and everything that it reports gathered in one tensor."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from quantail import ranks
from quantail.config import Config
from quantail.control import EPISODES
from quantail.losses import Knobs
from quantail.nets.agent import Agent
from quantail.normaliser import renewed, scale_figures
from quantail.optim.joint import figures as optimizer_figures
from quantail.reading import Reading
from quantail.risk import risk_figures
from quantail.rollout import Carry, Rollout
from quantail.statistics import gathered, latest_episodes

COUNTS = ("rollout/valid_rows", "rollout/learned_rows", "rollout/episodes")


class Figures(NamedTuple):
    """What crosses to the host, and what stays."""

    later: Carry  # renewed, and not yet in force
    names: tuple[str, ...]
    values: Tensor  # [names] float64
    episodes: Tensor  # [E, 3] float64, as `latest_episodes` has them


@torch.no_grad()
def figures_of(
    agent: Agent,
    optimizer: torch.optim.Optimizer,
    config: Config,
    rollout: Rollout,
    reading: Reading,
    steps: tuple[Sequence[str], Tensor],
    knobs: Knobs,
    rests: bool,
) -> Figures:
    """`steps`: names and values [S, names] of the optimizer steps; `rests`: whether the return's scale stays as it is."""
    carry, batch, estimates, _ = reading
    later = renewed(carry, rollout, estimates.particles, config, rests, estimates.cost_returns)
    others = scale_figures(carry, later, config) | optimizer_figures(optimizer) | risk_figures(carry.risk, config.risk)
    names, values = gathered(agent, carry, rollout, batch, estimates, steps, knobs, others)
    episodes = ranks.whole(latest_episodes(rollout, EPISODES), 0)
    return Figures(later, names, of_all_ranks(names, values), episodes)


def of_all_ranks(names: tuple[str, ...], values: Tensor) -> Tensor:
    """Figures of all processes that train together: what counts rows is summed, of all else the mean; NaN is none."""
    if ranks.count() == 1:
        return values
    counts = torch.tensor([name in COUNTS or name.startswith("health/not_finite") for name in names], device=values.device)
    return torch.where(counts, ranks.total(values), ranks.joint(names, values, mean=True))
