"""Follow a signal that reverts, and pay for every change of mind."""

import math
from collections.abc import Mapping
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from quantail.envs.base import Move
from quantail.envs.oracles.numerics import TAIL, cdf, density, nodes, root
from quantail.envs.oracles.oracle import Oracle, Where
from quantail.functional.checks import check_number
from quantail.types import Box, Discrete


class Following(NamedTuple):
    """The state of the follower."""

    signal: Tensor  # [B] x, N(0, 1) in the long run
    position: Tensor  # [B] q before the trade of this row


class OUSignal(Oracle):
    """x' = rho·x + √(1 − rho²)·z, reward q·x − c·|q − q₋|, q in {−1, 0, 1}   (de Lataillade et al. 2012).

    Sees (x, q₋) [2]; takes q + 1 as a choice among 3, or q in [−1, 1] itself if `continuous`. The best policy is the same:
    never flat, long once x > b, short once x < −b, and in between it stays as it is.
    """

    unit = "step"

    def __init__(
        self,
        num_envs: int,
        rho: float = 0.9,
        c: float = 0.5,
        continuous: bool = False,
        horizon: int | None = None,
        **where: Unpack[Where],
    ) -> None:
        check_number("rho", rho, 0.0, 1.0, high_open=True)
        check_number("c", c, 0.0)
        action = Box((1,), -1.0, 1.0) if continuous else Discrete(3)
        seen = Box((2,), (-math.inf, -1.0), (math.inf, 1.0))
        super().__init__(num_envs, (seen, action), 1, horizon, **where)
        self.rho, self.c, self.continuous = rho, c, continuous
        self.innovation = math.sqrt(1 - rho * rho)

    def start(self, noise: Tensor) -> Following:
        return Following(noise[:, 0], torch.zeros_like(noise[:, 0]))

    def observe(self, core: Following, time: Tensor) -> Tensor:
        return torch.stack([core.signal, core.position], -1)

    def move(self, core: Following, time: Tensor, action: Tensor, noise: Tensor) -> Move:
        q = action[:, 0] if self.continuous else (action - 1).to(self.dtype)
        reward = q * core.signal - self.c * (q - core.position).abs()
        return Move(Following(self.rho * core.signal + self.innovation * noise[:, 0], q), reward)

    def policy(self, obs: Tensor, threshold: float) -> Tensor:
        """Long above the threshold, short below minus it, else as before; at the first row the nearer: obs [..., 2]."""
        x, held = obs.unbind(-1)
        side = torch.where((x.abs() > threshold) | (held == 0), x.sign(), held)
        return side[..., None] if self.continuous else side.long() + 1

    def best_action(self, obs: Tensor) -> Tensor:
        """The policy at the best threshold: obs [..., 2] -> the action."""
        return self.policy(obs, self.threshold())

    def threshold(self) -> float:
        """b at which changing sides pays its 2c: D(b) = 2c.

        D(x) is what it is worth to hold +1 rather than −1, D(x) = 2x + E[min(max(D(x'), −2c), 2c)], rising and odd: beyond
        ±b the clip holds, within it D solves a Fredholm equation on Gauss points. D(x) ≥ 2x for x > 0, so b ≤ c.
        """
        return root(lambda b: self._advantage(b) - 2 * self.c, 0.0, self.c)

    def gain(self, threshold: float) -> float:
        """Mean reward per step of a threshold policy, E[x·v(x)] − c·E|Δq| with v(x) = E[q | x] in the long run.

        x reads the same backwards in time, so v(x) = ±1 beyond the threshold and E[v(x') | x] within it; a change to +1 costs
        2c and happens where x > b after q = −1.
        """
        b = threshold
        x, weights, held = self._within(b, 1.0)
        far, far_weights = nodes(b, b + TAIL, self._piece())
        before = self._carried(far, x, weights, held, b, 1.0)
        changes = 2 * (far_weights * density(far) * (1 - before)).sum()
        followed = 2 * density(torch.tensor(b, dtype=torch.float64)) + (weights * density(x) * x * held).sum()
        return float(followed - self.c * changes)

    def optimum(self) -> float:
        """Per step in the long run: the gain at the best threshold."""
        return self.gain(self.threshold())

    def baselines(self) -> Mapping[str, float]:
        """`sign`: q = sign x. `myopic`: change when it pays at once, b = c. `free`: a bound, E|x|, as if trades were free."""
        return {"sign": self.gain(0.0), "myopic": self.gain(self.c), "free": math.sqrt(2 / math.pi)}

    def _advantage(self, b: float) -> float:
        """D(b) if the clip holds beyond ±b."""
        points, weights, values = self._within(b, 2 * self.c, slope=2.0)
        here = torch.tensor([b], dtype=torch.float64)
        return 2 * b + float(self._carried(here, points, weights, values, b, 2 * self.c))

    def _within(self, b: float, edge: float, slope: float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
        """Gauss points on [−b, b], weights, and g there: g(x) = slope·x + E[g(x')], with g = ±edge beyond ±b."""
        points, weights = nodes(-b, b, self._piece())
        kernel = self._kernel(points, points) * weights
        outside = self._outside(points, b, edge)
        values: Tensor = torch.linalg.solve(torch.eye(len(points), dtype=points.dtype) - kernel, slope * points + outside)
        return points, weights, values

    def _carried(self, x: Tensor, points: Tensor, weights: Tensor, values: Tensor, b: float, edge: float) -> Tensor:
        """E[g(x') | x] from g at the Gauss points within ±b and ±edge beyond."""
        return (self._kernel(x, points) * weights) @ values + self._outside(x, b, edge)

    def _kernel(self, x: Tensor, after: Tensor) -> Tensor:
        return density((after - self.rho * x[:, None]) / self.innovation) / self.innovation

    def _outside(self, x: Tensor, b: float, edge: float) -> Tensor:
        return edge * (cdf((self.rho * x - b) / self.innovation) - cdf((-b - self.rho * x) / self.innovation))

    def _piece(self) -> float:
        return 6 * self.innovation
