"""What was seen at the start is asked for at the end: nothing but memory helps."""

from collections.abc import Mapping
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from quantail.envs.base import Move
from quantail.envs.oracles.oracle import Oracle, Scalar, Where
from quantail.functional.checks import check_count
from quantail.types import Box, Discrete


class MemoryChain(Oracle):
    """A cue ±1 in the first row is asked for `length` rows later: reward 1 for the right choice, −1 for the wrong one.

    Sees (cue, in the first row only; 1 when asked; part of the rows that is over) [3]; takes 0 for −1, 1 for +1, which counts
    in the last row only   (after Osband et al. 2020, memory length).
    """

    unit = "episode"

    def __init__(self, num_envs: int, length: int = 10, **where: Unpack[Where]) -> None:
        check_count("length", length)
        super().__init__(num_envs, (Box((3,), (-1.0, 0.0, 0.0), (1.0, 1.0, 1.0)), Discrete(2)), 1, None, **where)
        self.length = length

    def start(self, noise: Tensor) -> Scalar:
        return Scalar(_cue(noise))

    def observe(self, core: Scalar, time: Tensor) -> Tensor:
        cue = torch.where(time == 0, core.x, 0.0)
        return torch.stack([cue, (time == self.length).to(self.dtype), time.to(self.dtype) / (self.length + 1)], -1)

    def move(self, core: Scalar, time: Tensor, action: Tensor, noise: Tensor) -> Move:
        asked = time == self.length
        right = (action == 1) == (core.x > 0)
        return Move(core, torch.where(asked, torch.where(right, 1.0, -1.0), 0.0).to(self.dtype), asked)

    def best_action(self, cue: Tensor) -> Tensor:
        """The choice that the cue of the first row asks for: [...] -> [...]."""
        return (cue > 0).long()

    def optimum(self) -> float:
        """Per episode: always right."""
        return 1.0

    def baselines(self) -> Mapping[str, float]:
        """`memoryless`: right half of the time."""
        return {"memoryless": 0.0}


class Maze(NamedTuple):
    """The state of the maze."""

    cue: Tensor  # [B] ±1
    position: Tensor  # [B] int64, 0 … length


class TMaze(Oracle):
    """A sign ±1 at the entrance says where to turn after a corridor of `length` steps: 1 if right, −1 if not   (Bakker 2001).

    Sees (sign, in the first row only; 1 at the junction) [2]; takes 0 left (sign −1), 1 right (sign 1), 2 forward. Walls stop
    every other move. `horizon` cuts off whoever dawdles.
    """

    unit = "episode"

    def __init__(self, num_envs: int, length: int = 10, horizon: int | None = None, **where: Unpack[Where]) -> None:
        check_count("length", length)
        super().__init__(num_envs, (Box((2,), (-1.0, 0.0), (1.0, 1.0)), Discrete(3)), 1, horizon or 4 * length + 4, **where)
        self.length = length

    def start(self, noise: Tensor) -> Maze:
        return Maze(_cue(noise), torch.zeros_like(noise[:, 0], dtype=torch.int64))

    def observe(self, core: Maze, time: Tensor) -> Tensor:
        return torch.stack([torch.where(time == 0, core.cue, 0.0), (core.position == self.length).to(self.dtype)], -1)

    def move(self, core: Maze, time: Tensor, action: Tensor, noise: Tensor) -> Move:
        junction = core.position == self.length
        turned = junction & (action != 2)
        right = (action == 1) == (core.cue > 0)
        position = torch.where((action == 2) & ~junction, core.position + 1, core.position)
        return Move(Maze(core.cue, position), torch.where(turned, torch.where(right, 1.0, -1.0), 0.0).to(self.dtype), turned)

    def best_action(self, cue: Tensor, obs: Tensor) -> Tensor:
        """Forward, and at the junction where the sign said: cue [...], obs [..., 2] -> [...]."""
        return torch.where(obs[..., 1] > 0, (cue > 0).long(), 2)

    def optimum(self) -> float:
        """Per episode: always right."""
        return 1.0

    def baselines(self) -> Mapping[str, float]:
        """`memoryless`: straight ahead, then right half of the time."""
        return {"memoryless": 0.0}


def _cue(noise: Tensor) -> Tensor:
    return torch.where(noise[:, 0] > 0, 1.0, -1.0).to(noise.dtype)
