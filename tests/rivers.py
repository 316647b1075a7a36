"""A small world with ragged episodes of every kind, and one iteration of learning in it up to any point; all sizes differ."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quantail import stepper
from quantail.config import Config, CriticConfig, NetConfig, PpoConfig
from quantail.envs.base import TensorEnv
from quantail.estimate import Batch, Estimates, estimate
from quantail.loop import begin, make_agent, rollout_noise
from quantail.losses import Knobs, LossTerm, Part, batch_loss
from quantail.nets.agent import Agent
from quantail.normaliser import adopt, first_scale, frozen, renewed
from quantail.rollout import Carry, Noise, Rollout, collect
from quantail.statistics import crossed, gathered
from quantail.stepper import Sequences, parts_of
from quantail.streams import Stream, generator
from quantail.types import Box, Discrete, MultiDiscrete, Space, Step
from quantail.update import Learned, picks, sequences

T, B = 11, 5
ACTIONS: dict[str, tuple[Space, dict[str, Any]]] = {
    "real": (Box((2,)), {}),
    "tanh": (Box((2,), -1.0, 3.0), {"squash": "tanh", "state_dependent_std": True}),
    "sigmoid": (Box((2,), -1.0, 3.0), {"squash": "sigmoid"}),
    "choice": (Discrete(3), {}),
    "choices": (MultiDiscrete((2, 3)), {}),
}


class World(NamedTuple):
    """Where each environment is."""

    x: Tensor  # [B, 4]
    time: Tensor  # [B] int64
    done: Tensor  # [B] bool


class Ragged(TensorEnv):
    """Noise and what the agent does to it. Environment b's episodes last 2 + b steps; every other environment is truncated.

    A row in which the first feature is large has no effect on the policy's side (`policy_weight` 0), others weigh 1 or 0.5.
    """

    observation_space = Box((4,))
    noise_dim = 4
    device = torch.device("cpu")

    def __init__(self, action: str = "choice", same_step: bool = False, num_envs: int = B) -> None:
        self.action_space = ACTIONS[action][0]
        self.num_envs, self.dtype = num_envs, torch.float64
        self.same_step = same_step

    def reset(self, noise: Tensor) -> tuple[World, Tensor]:
        zero = torch.zeros(self.num_envs, dtype=torch.int64)
        world = World(3 + 2 * noise.double(), zero, zero.bool())
        return world, world.x

    def step(self, state: World, action: Tensor, noise: Tensor) -> tuple[World, Step]:
        noise = noise.double()
        restart = state.done & ~torch.full((), self.same_step)
        pushed = action.double().reshape(self.num_envs, -1).sum(-1, keepdim=True)
        moved = 0.5 * state.x + noise + 0.1 * pushed + 1.5
        x = torch.where(restart[:, None], 3 + 2 * noise, moved)
        time = torch.where(restart, 0, state.time + 1)
        done = (time >= 2 + torch.arange(self.num_envs)) & ~restart
        truncated = done & (torch.arange(self.num_envs) % 2 == 0)
        reward = torch.where(restart, 0.0, moved[:, 0] + 0.3 * moved[:, 1])
        weight = torch.where(state.x[:, 0] > 4.5, 0.0, torch.where(state.x[:, 1] > 3, 0.5, 1.0))
        step = Step(x, reward, done & ~truncated, truncated, policy_weight=weight, info={"pushed": pushed[:, 0]})
        if not self.same_step:
            return World(x, time, done), step
        fresh = torch.where(done[:, None], 3 + 2 * noise.flip(-1), x)
        return World(fresh, torch.where(done, 0, time), done), step._replace(obs=fresh, final_obs=x)


def settings(action: str = "choice", critic: dict[str, Any] | None = None, **parts: Any) -> Config:
    """A small config for an action space; `net` and `ppo` are mappings, other parts whole."""
    sizes = {"encoder_sizes": (6,), "actor_sizes": (5,), "critic_sizes": (7,), "hidden": 4}
    net = NetConfig(**sizes | ACTIONS[action][1] | parts.pop("net", {}))
    ppo = PpoConfig(**{"n_steps": T, "batch_size": 2 * T, "n_epochs": 2} | parts.pop("ppo", {}))
    kind = CriticConfig(**{"atoms": 6, "particles": 9} | (critic or {}))
    return Config(net=net, ppo=ppo, critic=kind, **parts)


def configured(action: str, values: Mapping[str, Any]) -> Config:
    """The small config with settings at paths; those of one part together, for some are refused alone."""
    plain = settings(action).to_dict()
    for path, value in values.items():
        *parts, name = path.split(".")
        inner = plain
        for part in parts:
            inner = inner[part]
        inner[name] = value
    return Config.from_dict(plain)


class River(NamedTuple):
    """One iteration up to the update."""

    env: TensorEnv
    agent: Agent
    before: Carry
    carry: Carry  # after the rollout
    noise: Noise
    rollout: Rollout
    batch: Batch
    estimates: Estimates
    groups: list[Sequences]


def flow(config: Config, env: TensorEnv | None = None, iterations: int = 2, action: str = "choice") -> River:
    """The last of so many iterations without any update, in float64, of an agent whose weights are anything but symmetric."""
    env = env or Ragged(action)
    agent = disturb(make_agent(config, env).double(), 0.2)
    carry = begin(config, env, agent).carry
    for i in range(iterations):
        noise = rollout_noise(config, env, agent, i)
        before = carry
        rollout, carry = collect(env, agent, carry, noise, config)
        carry = first_scale(carry, rollout, config) if i == 0 else carry
    source = generator(config.seed, Stream.TARGETS, iterations, env.device)
    batch, estimates = estimate(rollout, agent, carry.scale, source, config)
    groups = sequences(batch, rollout.memory, noise.dropout, config.ppo)
    return River(env, agent, before, carry, noise, rollout, batch, estimates, groups)


def refresh(carry: Carry, rollout: Rollout, particles: Tensor, agent: Agent, config: Config, lost: int = 0) -> Carry:
    """The carry after the update, its scale in force."""
    rests = frozen(carry.iteration, lost, config.critic)
    return adopt(carry, renewed(carry, rollout, particles, config, rests), agent)


def disturb(agent: Agent, size: float, seed: int = 7) -> Agent:
    """Every weight moved a little."""
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter += size * torch.randn(parameter.shape, generator=source, dtype=torch.float64).to(parameter.dtype)
    return agent


def turned(**values: float) -> Knobs:
    """Knobs, all sizes different."""
    start = {"learning_rate": 0.01, "clip": 0.17, "entropy_coef": 0.3, "clone_coef": 0.7, "kl_penalty": 0.9, "value_clip": 1.0}
    return Knobs(**{name: torch.tensor(value, dtype=torch.float64) for name, value in (start | values).items()})


def with_part(config: Config, part: str, **values: Any) -> Config:
    """The config with some fields of one part changed."""
    return replace(config, **{part: replace(getattr(config, part), **values)})


def gradients(agent: Agent) -> dict[str, Tensor]:
    """A copy of every gradient by name."""
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in agent.named_parameters()}


def minibatches(
    groups: list[Sequences], order: torch.Generator, ppo: PpoConfig, *, entropy_noise: bool = False
) -> Iterator[list[Part]]:
    """The parts of each optimizer step of an epoch."""
    return (parts_of(pick, ppo) for pick in picks(groups, order, ppo, entropy_noise=entropy_noise))


def metrics_of(
    agent: Agent, carry: Carry, rollout: Rollout, batch: Batch, estimates: Estimates, learned: Learned, knobs: Knobs
) -> dict[str, float]:
    """All figures of an iteration."""
    return crossed(*gathered(agent, carry, rollout, batch, estimates, learned.rows, knobs))


def accumulate(
    agent: Agent, parts: list[Part], knobs: Knobs, config: Config, loss_terms: Sequence[LossTerm] = ()
) -> dict[str, Tensor]:
    """Gradients of one optimizer step; the statistics."""
    return stepper.accumulate(agent, parts, knobs, lambda part, knobs: batch_loss(agent, part, knobs, config, loss_terms))
