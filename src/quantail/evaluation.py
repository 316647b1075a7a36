"""Playing without learning: nothing here changes weights or statistics, and the same seed gives the same number."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from quantail.config import Config
from quantail.envs.base import TensorEnv
from quantail.envs.contract import started, stepped
from quantail.intake import ObservationMoments, standardize_observation
from quantail.nets.agent import Agent, Memory
from quantail.streams import Stream, generator, normal, uniform
from quantail.trees import tree_map
from quantail.types import Observation


class Played(NamedTuple):
    """What happened, row by row; rows without effect (NEXT_STEP) are not valid and hold reward 0."""

    reward: Tensor  # [T, B] raw
    valid: Tensor  # [T, B] bool
    terminated: Tensor  # [T, B] bool
    truncated: Tensor  # [T, B] bool

    def per_step(self) -> float:
        """Mean reward of the valid rows."""
        return float(self.reward.sum() / self.valid.sum())

    def episode_returns(self) -> Tensor:
        """Sum of rewards of every episode that ended, in the order of environments: [E]."""
        done = (self.terminated | self.truncated).T
        total = self.reward.double().cumsum(0).T[done]  # since the first row, environment after environment
        env = done.nonzero()[:, 0]
        same = torch.cat([env.new_zeros(1, dtype=torch.bool), env[1:] == env[:-1]])[: len(total)]
        return total - torch.where(same, total.roll(1), 0.0)


@torch.no_grad()
def act(
    agent: Agent,
    obs: Observation,
    memory: Memory,
    start: Tensor,
    moments: ObservationMoments,
    config: Config,
    noise: Tensor | None = None,
    action_mask: Tensor | None = None,
) -> tuple[Tensor, Memory]:
    """One row of actions [B, ...] for the environment, the mode without noise, a sample with it [B, D]; the memory after."""
    seen = standardize_observation(obs, moments, config.input)
    row = tree_map(lambda x: x[None], seen)
    outputs, memory = agent.unroll(row, memory, start[None], None if action_mask is None else action_mask[None])
    params = tree_map(lambda x: x[0], outputs.policy)
    raw = agent.policy.mode(params) if noise is None else agent.policy.sample(params, noise)
    return agent.policy.to_env(raw), memory


@torch.no_grad()
def play(
    env: TensorEnv,
    agent: Agent,
    moments: ObservationMoments,
    config: Config,
    steps: int,
    *,
    seed: int = 0,
    deterministic: bool = True,
    watch: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> Played:
    """So many rows of fresh episodes, on streams of their own; `watch` goes through the rows, to show how far it is."""
    world, choice = (generator(seed, stream, 0, env.device) for stream in (Stream.PLAY, Stream.PLAY_ACT))
    state, obs, mask = started(env, normal((env.num_envs, env.noise_dim), world))
    memory = agent.initial_memory(env.num_envs)
    start = torch.ones(env.num_envs, dtype=torch.bool, device=env.device)
    ended = ~start
    draw = uniform if agent.policy.noise_kind == "uniform" else normal
    rows = []
    for _ in watch(range(steps)):
        noise = None if deterministic else draw((env.num_envs, agent.policy.noise_dim), choice)
        action, memory = act(agent, obs, memory, start, moments, config, noise, mask)
        state, step = stepped(env, state, action, normal((env.num_envs, env.noise_dim), world))
        valid = torch.ones_like(ended) if env.same_step else ~ended
        rows.append(Played(torch.where(valid, step.reward, 0.0), valid, step.terminated, step.truncated))
        obs, mask, done = step.obs, step.action_mask, step.terminated | step.truncated
        start, ended = (done if env.same_step else ended), done
    return Played(*(torch.stack(part) for part in zip(*rows, strict=True)))
