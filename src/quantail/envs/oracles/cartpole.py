"""Balance a pole on a cart: the classic, equal step for step to Gymnasium's CartPole-v1."""

import math
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from quantail.envs.base import Move, uniform
from quantail.envs.oracles.oracle import Oracle, Where
from quantail.types import Box, Discrete

GRAVITY = 9.8
POLE_MASS = 0.1
TOTAL_MASS = 1.0 + POLE_MASS
HALF_LENGTH = 0.5
FORCE = 10.0
SECONDS = 0.02
MAX_ANGLE = 12 * 2 * math.pi / 360
MAX_POSITION = 2.4
START = 0.05  # each number of the state starts uniformly within ± this


class Pole(NamedTuple):
    """The state of cart and pole."""

    position: Tensor  # [B]
    speed: Tensor  # [B]
    angle: Tensor  # [B] radians from upright
    spin: Tensor  # [B] radians per second


class CartPole(Oracle):
    """Push the cart left (0) or right (1) so that the pole stays up; reward 1 per step   (Barto, Sutton & Anderson 1983).

    Ends when the pole leans 12° or the cart leaves ±2.4; cut off after `horizon` steps. Sees position, speed, angle and spin
    [4]; without `velocities` position and angle [2], so that a policy needs memory.
    """

    unit = "episode"

    def __init__(self, num_envs: int, velocities: bool = True, horizon: int = 500, **where: Unpack[Where]) -> None:
        far = (2 * MAX_POSITION, math.inf, 2 * MAX_ANGLE, math.inf) if velocities else (2 * MAX_POSITION, 2 * MAX_ANGLE)
        space = Box((len(far),), tuple(-x for x in far), far)
        super().__init__(num_envs, (space, Discrete(2)), 4, horizon, **where)
        self.velocities = velocities

    def start(self, noise: Tensor) -> Pole:
        return Pole(*((2 * uniform(noise) - 1) * START).unbind(-1))

    def observe(self, core: Pole, time: Tensor) -> Tensor:
        seen = (core.position, core.speed, core.angle, core.spin) if self.velocities else (core.position, core.angle)
        return torch.stack(seen, -1)

    def move(self, core: Pole, time: Tensor, action: Tensor, noise: Tensor) -> Move:
        """Euler's step of Florian's equations (2007), in the order of Gymnasium's source."""
        force = torch.where(action == 1, FORCE, -FORCE).to(self.dtype)
        cos, sin = core.angle.cos(), core.angle.sin()
        push = (force + POLE_MASS * HALF_LENGTH * core.spin.square() * sin) / TOTAL_MASS
        turn = (GRAVITY * sin - cos * push) / (HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cos.square() / TOTAL_MASS))
        pull = push - POLE_MASS * HALF_LENGTH * turn * cos / TOTAL_MASS
        after = Pole(
            core.position + SECONDS * core.speed,
            core.speed + SECONDS * pull,
            core.angle + SECONDS * core.spin,
            core.spin + SECONDS * turn,
        )
        fallen = (after.position.abs() > MAX_POSITION) | (after.angle.abs() > MAX_ANGLE)
        return Move(after, torch.ones_like(core.position), fallen)

    def best_action(self, obs: Tensor) -> Tensor:
        """Push towards the side to which the pole falls and, more gently, back to the middle: obs [..., 4] -> [...]."""
        return (obs @ obs.new_tensor([0.1, 0.3, 3.0, 1.0]) > 0).long()

    def optimum(self) -> float:
        """Per episode: every step until the time limit."""
        assert self.horizon is not None
        return float(self.horizon)
