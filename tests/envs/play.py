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
    "Kelly": lambda n, **where: oracles.Kelly(n, rounds=3, **where),
    "Merton": lambda n, **where: oracles.Merton(n, rounds=2, **where),
    "CVaRPosition": lambda n, **where: oracles.CVaRPosition(n, cost=0.02, cost_in_risk=False, **where),
    "OUSignal": lambda n, **where: oracles.OUSignal(n, horizon=4, **where),
    "OUSignal continuous": lambda n, **where: oracles.OUSignal(n, continuous=True, horizon=3, **where),
    "AlmgrenChriss": lambda n, **where: oracles.AlmgrenChriss(n, **where),
    "CVaRBandit": lambda n, **where: oracles.CVaRBandit(n, **where),
    "StaticNested": lambda n, **where: oracles.StaticNested(n, **where),
    "Corridor": lambda n, **where: oracles.Corridor(n, short=3, long=5, hazard=0.3, **where),
    "MemoryChain": lambda n, **where: oracles.MemoryChain(n, length=4, **where),
    "TMaze": lambda n, **where: oracles.TMaze(n, length=2, horizon=6, **where),
    "CoinSum": lambda n, **where: oracles.CoinSum(n, horizon=5, **where),
    "GaussianSum": lambda n, **where: oracles.GaussianSum(n, horizon=4, **where),
    "AR1Sum": lambda n, **where: oracles.AR1Sum(n, horizon=3, **where),
    "GeometricSum": lambda n, **where: oracles.GeometricSum(n, p=0.3, **where),
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


def first_returns(env, policy: Callable[[Tensor], Tensor], rows: int, seed: int = 3) -> Tensor:
    """[B] sums Σ discountᵗ·r_t of the first episode of each environment, of at most `rows` steps; one policy call a row."""
    generator = torch.Generator().manual_seed(seed)
    state, obs = env.reset(torch.randn(env.num_envs, env.noise_dim, generator=generator, dtype=torch.float64))
    total, running = torch.zeros(env.num_envs, dtype=torch.float64), torch.ones(env.num_envs, dtype=torch.float64)
    for _ in range(rows):
        noise = torch.randn(env.num_envs, env.noise_dim, generator=generator, dtype=torch.float64)
        state, step = env.step(state, policy(obs), noise)
        total += running * step.reward
        running = running * env.discount * ~(step.terminated | step.truncated)  # float64 by float64: not through a float32
        obs = step.obs
    return total
