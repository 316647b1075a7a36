"""What a rollout says: outcomes, scales, advantages, targets, and the sequences to learn from."""

from typing import NamedTuple

import torch
from torch import Tensor

from quantail.config import Config
from quantail.estimate import Batch, Estimates, estimate
from quantail.nets.agent import Agent
from quantail.normaliser import first_cost_scale, first_scale
from quantail.ranks import whole
from quantail.risk import assessed
from quantail.rollout import Carry, Rollout
from quantail.stepper import Sequences
from quantail.update import sequences


class Reading(NamedTuple):
    """A rollout, read."""

    carry: Carry
    batch: Batch
    estimates: Estimates
    groups: list[Sequences]


def read(
    agent: Agent,
    config: Config,
    rollout: Rollout,
    carry: Carry,
    levels: torch.Generator,
    dropout: Tensor | None = None,
    done: float = 1.0,
    first: bool = False,
) -> Reading:
    """The whole of it; `done` is the share of training so far, `levels` draws those of the targets."""
    carry = informed(carry, rollout, config, done, first)
    batch, estimates = estimate(rollout, agent, carry.scale, levels, config, carry.risk)
    return Reading(carry, batch, estimates, sequences(batch, rollout.memory, dropout, config.ppo))


def informed(carry: Carry, rollout: Rollout, config: Config, done: float, first: bool) -> Carry:
    """The carry that knows the rollout's outcomes; and, where it is the very first, the scales that it is read in."""
    carry = carry._replace(risk=assessed(carry.risk, whole(rollout.outcome, 1), config.risk, done))
    carry = first_cost_scale(carry, rollout, config)
    return first_scale(carry, rollout, config) if first else carry
