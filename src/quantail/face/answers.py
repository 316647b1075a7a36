"""What an agent says about observations that come from outside: actions, and the law of what is to come."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from torch import Tensor

from quantail.config import Config
from quantail.envs.crossing import Port, mask_rows, read
from quantail.errors import InputError
from quantail.estimate import distribution
from quantail.functional import laws
from quantail.intake import ObservationMoments, standardize_observation
from quantail.nets.agent import Agent, Memory
from quantail.trees import tree_map
from quantail.types import Observation, Scale, Space

Array = Any


class Asked(NamedTuple):
    """Observations as the agent reads them."""

    obs: Observation  # [n, ...]
    memory: Memory
    start: Tensor  # [n] bool
    single: bool  # whether one observation came without a batch axis


def asked(value: Any, state: Any, episode_start: Any, space: Any, port: Port, agent: Agent) -> Asked:
    """An observation, or a batch of them, of this space, with what is remembered; images lie either way."""
    if isinstance(value, tuple):
        raise InputError(
            "observation is a tuple, which is what Gymnasium's `obs, info = env.reset()` gives and a VecEnv's reset does not; "
            "pass obs alone"
        )
    parts = {"": space} if not isinstance(space, gymnasium.spaces.Dict) else dict(space.items())
    if "" not in parts and (not isinstance(value, Mapping) or not set(parts) <= set(value)):
        came = sorted(value) if isinstance(value, Mapping) else f"a {type(value).__name__}"
        raise InputError(f"observation is {came}; needs a mapping with {sorted(parts)}")
    batches = {name: _batched(name, value[name] if name else value, part) for name, part in parts.items()}
    rows = {len(batch) for batch, _ in batches.values()}
    if len(rows) > 1:
        raise InputError(f"parts of the observation have {sorted(rows)} rows; needs as many in each")
    single = all(alone for _, alone in batches.values())
    whole = {name: batch for name, (batch, _) in batches.items()} if "" not in batches else batches[""][0]
    device, count = next(agent.parameters()).device, rows.pop()
    memory, start = _memory_of(agent, state, count), _starts_of(episode_start, count, device)
    return Asked(read(port, whole, count, torch.float32, device), memory, start, single)


def mask_for(space: Space, action_masks: Any, device: torch.device) -> Tensor | None:
    """Which choices are allowed, one row for each observation."""
    return None if action_masks is None else torch.from_numpy(mask_rows(space, list(np.atleast_2d(action_masks)))).to(device)


def _batched(name: str, value: Any, space: Any) -> tuple[Array, bool]:
    """One part [n, *shape], and whether it came without the n."""
    array, shape = np.asarray(value), tuple(space.shape)
    image = isinstance(space, gymnasium.spaces.Box) and space.dtype == np.uint8 and len(shape) == 3
    for _ in range(1 + image):
        if array.shape == shape:
            return array[None], True
        if array.shape[1:] == shape and array.ndim == len(shape) + 1:
            return array, False
        if image:  # the other way round
            in_front = shape[0] < min(shape[1:])
            array = np.moveaxis(array, -1, -3) if in_front else np.moveaxis(array, -3, -1)
    raise InputError(
        f"Unexpected observation shape {list(array.shape)}{f' of {name!r}' if name else ''}; needs {list(shape)}, or "
        f"{['n', *shape]} for n environments"
    )


FORGOTTEN = (
    "predict without a state in the middle of an episode: the policy has forgotten everything before this row; pass the state "
    "that it returned last, and episode_start=np.ones(n, dtype=bool) in the first row"
)


class Attention:
    """Notices, once, that a policy with a memory is asked without its state in the middle of an episode.

    One question without state and without a word about starts may well be the first of an episode; the next is not.
    """

    def __init__(self) -> None:
        self.doubts = 0

    def lapses(self, state: Any, episode_start: Any) -> bool:
        """Whether now is the moment to say so."""
        if state is not None or (episode_start is not None and np.all(episode_start)):
            self.doubts = 0 if self.doubts < 2 else 2
            return False
        before, self.doubts = self.doubts, min(self.doubts + (1 if episode_start is None else 2), 2)
        return before < self.doubts == 2


def _memory_of(agent: Agent, state: Any, rows: int) -> Memory:
    """The memory in a `state` that `predict` gave, or the empty one."""
    empty = agent.initial_memory(rows)
    if state is None or not empty:
        return empty
    arrays = [np.asarray(part) for part in state]
    shapes, needed = [array.shape for array in arrays], [tuple(part.shape) for part in empty]
    if shapes != needed:
        raise InputError(f"state has shapes {shapes}; needs {needed}: pass on what predict returned, or None at a start")
    return tuple(torch.as_tensor(array).to(like) for array, like in zip(arrays, empty, strict=True))


def _starts_of(episode_start: Any, rows: int, device: torch.device) -> Tensor:
    """Which rows start an episode: none if nothing is said."""
    flags = np.zeros(rows, dtype=bool) if episode_start is None else np.asarray(episode_start).astype(bool).reshape(-1)
    if len(flags) != rows:
        raise InputError(f"episode_start has {len(flags)} entries; needs {rows}, one for each observation")
    return torch.as_tensor(flags, device=device)


@dataclass(frozen=True)
class Distribution:
    """The law of the discounted return from here on, in the units of the rewards that the environment gives.

    One number per observation; of a single observation, one number.
    """

    law: laws.Distribution  # [n] rows
    single: bool

    @property
    def mean(self) -> Array:
        """What to expect: the critic's value."""
        return self._out(self.law.mean)

    def quantile(self, u: Any) -> Array:
        """What the return stays below with probability u, 0 < u < 1; of several u, one after the other: [n, len(u)]."""
        levels = torch.as_tensor(np.asarray(u, dtype=np.float64), device=self.law.masses.device)
        if levels.ndim > 1:
            raise InputError(f"u has shape {list(levels.shape)}; needs a number, or a list of them")
        return self._out(self.law.quantile(levels if levels.ndim else float(levels)))

    def cvar(self, alpha: float) -> Array:
        """The mean of the worst share alpha."""
        return self._out(self.law.cvar(alpha))

    def _out(self, values: Tensor) -> Array:
        array: Array = values.cpu().double().numpy()
        return array[0] if self.single else array


@torch.no_grad()
def law_ahead(agent: Agent, question: Asked, moments: ObservationMoments, scale: Scale, config: Config) -> Distribution:
    """What the critics together say about the return after each observation."""
    row = tree_map(lambda x: x[None], standardize_observation(question.obs, moments, config.input))
    outputs, _ = agent.unroll(row, question.memory, question.start[None])
    raw = Scale(scale.mean / config.input.reward_scale, scale.std / config.input.reward_scale)
    return Distribution(distribution(agent, outputs.critics[:, 0], raw, config.critic), question.single)
