"""Small agents of every kind, their inputs, and what to compare; all sizes different."""

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from quantail.config import CriticConfig, NetConfig
from quantail.nets import Agent, Outputs
from quantail.types import Box, Discrete, Group, MultiDiscrete, Observation, Space

T, B, FEATURES, HIDDEN = 6, 5, 4, 3
OBS = Box((FEATURES,))
ACTIONS: Mapping[str, tuple[Space, dict[str, Any]]] = {
    "tanh": (Box((2,), -1.0, 3.0), {"squash": "tanh"}),
    "sigmoid, free deviation": (Box((2,), -1.0, 3.0), {"squash": "sigmoid", "state_dependent_std": True}),
    "gsde": (Box((2,)), {"gsde": True}),
    "choice": (Discrete(4), {}),
    "choices": (MultiDiscrete((2, 3)), {}),
}
MEMORIES, TRUNKS, CRITICS = (
    ("lstm", "gru", "mingru", "none"),
    ("shared", "actor_critic", "each"),
    ("quantile", "categorical", "scalar"),
)
MANY = Group(
    (
        ("velocity", Box((FEATURES,))),
        ("image", Box((9, 7, 2), 0, 255, "uint8")),
        ("regime", Discrete(3)),
        ("orders", MultiDiscrete((2, 4))),
    )
)


def make(
    action: str = "tanh",
    critic: str = "quantile",
    obs_space: Space = OBS,
    twin: bool = True,
    noncrossing: bool = False,
    **net: Any,
) -> Agent:
    """A float64 agent with small sizes."""
    space, options = ACTIONS[action]
    sizes = {"encoder_sizes": (7,), "hidden": HIDDEN, "actor_sizes": (8,), "critic_sizes": (9,)}
    config = NetConfig(**{**sizes, **options, **net})
    return Agent(obs_space, space, config, CriticConfig(kind=critic, atoms=6, twin=twin, noncrossing=noncrossing)).double()


def ragged(rows: int = T, envs: int = B) -> Tensor:
    """Starts nowhere, on the first row, on two rows in a row, on every row, on the last row."""
    start = torch.zeros(rows, envs, dtype=torch.bool)
    start[0, 1] = start[3:4, 1] = True
    start[2:4, 2] = True
    start[:, 3] = True
    start[-1, 4] = True
    return start


def observe(space: Space = OBS, rows: int = T, envs: int = B) -> Observation:
    """A random observation of a space."""
    match space:
        case Group(parts):
            return {name: observe(part, rows, envs) for name, part in parts}
        case Discrete(n):
            return torch.randint(n, (rows, envs))
        case MultiDiscrete(sizes):
            return torch.stack([torch.randint(n, (rows, envs)) for n in sizes], -1)
        case Box(shape, dtype="uint8"):
            return torch.randint(256, (rows, envs, *shape), dtype=torch.uint8)
    return torch.randn(rows, envs, *space.shape, dtype=torch.float64)


def remember(agent: Agent, envs: int = B) -> tuple[Tensor, ...]:
    """A memory that is not empty."""
    return tuple(torch.randn_like(state) for state in agent.initial_memory(envs))


def extras(agent: Agent, action: str, rows: int = T, envs: int = B) -> dict[str, Tensor | None]:
    """Action mask, dropout mask and held exploration, as far as the agent takes them."""
    choices = {"choice": 4, "choices": 5}.get(action)
    dropout, explore = agent.dropout_shape(envs), agent.explore_shape(envs)
    return {
        "action_mask": torch.rand(rows, envs, choices) < 0.6 if choices else None,
        "dropout": agent.dropout_mask(torch.rand(dropout, dtype=torch.float64)) if dropout else None,
        "explore": torch.randn(explore, dtype=torch.float64) if explore else None,
    }


def take(obs: Any, index: Any) -> Any:
    """Rows or environments of an observation, a record or a tensor."""
    if obs is None:
        return None
    if isinstance(obs, Mapping):
        return {name: part[index] for name, part in obs.items()}
    if isinstance(obs, tuple):
        return type(obs)(*(part[index] for part in obs))
    return obs[index]


def parts(outputs: Outputs) -> dict[str, Tensor]:
    """Every tensor of the outputs with time and environments in front, by name."""
    return {**outputs.policy._asdict(), "critics": outputs.critics.movedim(0, -1)}


def kinds() -> list[tuple[str, str]]:
    """Every memory with every arrangement of trunks."""
    return list(itertools.product(MEMORIES, TRUNKS))
