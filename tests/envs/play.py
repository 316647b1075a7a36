"""What tests of environments share: one of each oracle, noise, actions, and playing a policy for long."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from quantail.envs import oracles
from quantail.envs.base import EpisodicEnv
from quantail.types import Box, Discrete

ODDS = 4.5  # standard errors allowed between a simulated mean and the truth: a sound one is refused once in 150 000 runs

# Every oracle with a horizon short enough that a test sees several episodes; dtype and num_envs are given by the test.
EVERY: dict[str, Callable[..., EpisodicEnv]] = {
    "LQR": lambda n, **where: oracles.LQR(n, a=1.05, b=0.7, start_sd=0.4, horizon=4, **where),
    "GarleanuPedersen": lambda n, **where: oracles.GarleanuPedersen(n, horizon=3, **where),
    "HiddenRegime": lambda n, **where: oracles.HiddenRegime(n, p=0.3, horizon=5, **where),
    "CartPole": lambda n, **where: oracles.CartPole(n, horizon=12, **where),
    "CartPole blind": lambda n, **where: oracles.CartPole(n, velocities=False, horizon=6, **where),
}


def noise_rows(env: EpisodicEnv, rows: int, seed: int = 1) -> Tensor:
    """[rows, B, noise_dim] standard normals."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, env.num_envs, env.noise_dim, generator=generator, dtype=torch.float64)


def action_rows(env: EpisodicEnv, rows: int, seed: int = 2) -> Tensor:
    """[rows, B, ...] random actions."""
    generator = torch.Generator().manual_seed(seed)
    space = env.action_space
    if isinstance(space, Box):
        return 0.5 * torch.randn(rows, env.num_envs, *space.shape, generator=generator, dtype=torch.float64)
    assert isinstance(space, Discrete)
    return torch.randint(space.n, (rows, env.num_envs), generator=generator)


def check_mean(samples: Tensor, truth: float) -> None:
    """The mean of independent samples lies within ODDS standard errors of the truth."""
    error = float(samples.std()) / math.sqrt(len(samples))
    assert abs(float(samples.mean()) - truth) <= ODDS * error + 1e-9, (float(samples.mean()), truth, error)
