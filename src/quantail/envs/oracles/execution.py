"""Sell a block before the deadline: cost of haste against risk of waiting."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Unpack

import torch
from torch import Tensor

from quantail.envs.base import Move
from quantail.envs.oracles.oracle import Oracle, Scalar, Where
from quantail.errors import ConfigError
from quantail.functional.checks import check_count, check_number
from quantail.types import Box


class AlmgrenChriss(Oracle):
    """Sell X shares in N trades over T days; reward −(expected cost + lam·variance) of each trade   (Almgren & Chriss 2000).

    With τ = T/N and x what is left: a trade of n costs gamma·n·x + gamma/2·n² + eps·n + (eta/τ − gamma/2)·n², in sum
    gamma/2·X² + eps·X + (eta − gamma·τ/2)/τ·Σn²; what is left afterwards has the variance s²·τ·x². Sees (x/X, part of the
    time that is left) [2], takes the part of the rest to sell now [1]; the last trade sells all. `pnl` is money: minus the
    cost, and the move of the price on what was left.
    """

    unit = "episode"

    def __init__(
        self,
        num_envs: int,
        X: float = 1e6,
        T: float = 5.0,
        N: int = 5,
        s: float = 0.95,
        gamma: float = 2.5e-7,
        eta: float = 2.5e-6,
        eps: float = 0.0625,
        lam: float = 1e-6,
        **where: Unpack[Where],
    ) -> None:
        check_number("X", X, 0.0, low_open=True)
        check_number("T", T, 0.0, low_open=True)
        check_count("N", N)
        check_number("s", s, 0.0)
        check_number("gamma", gamma, 0.0)
        check_number("eta", eta, 0.0, low_open=True)
        check_number("eps", eps, 0.0)
        check_number("lam", lam, 0.0)
        if eta <= gamma * T / N / 2:
            raise ConfigError(f"eta={eta} is not above gamma·T/(2N)={gamma * T / N / 2:g}: haste would pay; raise eta or N")
        super().__init__(num_envs, (Box((2,), 0.0, 1.0), Box((1,), 0.0, 1.0)), 1, None, **where)
        self.X, self.T, self.N, self.s = X, T, N, s
        self.gamma, self.eta, self.eps, self.lam = gamma, eta, eps, lam

    def start(self, noise: Tensor) -> Scalar:
        return Scalar(torch.ones_like(noise[:, 0]))

    def observe(self, core: Scalar, time: Tensor) -> Tensor:
        return torch.stack([core.x, 1 - time.to(self.dtype) / self.N], -1)

    def move(self, core: Scalar, time: Tensor, action: Tensor, noise: Tensor) -> Move:
        """x counts in units of X."""
        last = time + 1 >= self.N
        sold = torch.where(last, core.x, action[:, 0] * core.x)
        left = core.x - sold
        tau, n, x = self.T / self.N, self.X * sold, self.X * core.x
        cost = self.gamma * n * (x - n / 2) + self.eps * n + (self.eta / tau - self.gamma / 2) * n.square()
        spread = self.s * math.sqrt(tau) * self.X * left
        return Move(Scalar(left), -cost - self.lam * spread.square(), last, spread * noise[:, 0] - cost)

    def kappa(self) -> float:
        """Urgency: cosh(κτ) = 1 + lam·s²·τ²/(2·(eta − gamma·τ/2))."""
        tau = self.T / self.N
        return math.acosh(1 + self.lam * self.s**2 * tau**2 / (2 * (self.eta - self.gamma * tau / 2))) / tau

    def schedule(self) -> list[float]:
        """What is left at t₀ … t_N under the best policy: x_j = X·sinh(κ(T − t_j))/sinh(κT)."""
        kappa, tau = self.kappa(), self.T / self.N
        if kappa * self.T < 1e-8:
            return [self.X * (1 - j / self.N) for j in range(self.N + 1)]
        return [self.X * _sinh_ratio(kappa * (self.T - j * tau), kappa * self.T) for j in range(self.N)] + [0.0]

    def cost(self, left: Sequence[float]) -> float:
        """Expected cost of a schedule x₀ … x_N: gamma/2·X² + eps·X + (eta − gamma·τ/2)/τ·Σn²."""
        tau = self.T / self.N
        squares = sum((before - after) ** 2 for before, after in pairwise(left))
        return self.gamma / 2 * self.X**2 + self.eps * self.X + (self.eta - self.gamma * tau / 2) / tau * squares

    def variance(self, left: Sequence[float]) -> float:
        """Variance of the cost of a schedule x₀ … x_N: s²·τ·Σ_{j ≥ 1} x_j²."""
        return self.s**2 * self.T / self.N * sum(x * x for x in left[1:])

    def utility(self, left: Sequence[float]) -> float:
        """U = expected cost + lam·variance of a schedule: what the best policy makes least."""
        return self.cost(left) + self.lam * self.variance(left)

    def best_action(self, obs: Tensor) -> Tensor:
        """Part of the rest to sell: 1 − x_{j+1}/x_j of the best schedule: obs [..., 2] -> [..., 1]."""
        left = torch.tensor(self.schedule(), dtype=obs.dtype, device=obs.device)
        part = 1 - left[1:] / left[:-1]
        j = ((1 - obs[..., 1]) * self.N).round().long().clamp_max(self.N - 1)
        return part[j][..., None]

    def optimum(self) -> float:
        """Per episode: −U of the best schedule."""
        return -self.utility(self.schedule())

    def baselines(self) -> Mapping[str, float]:
        """`twap`: equal trades. `sell_now`: all in the first."""
        twap = [self.X * (1 - j / self.N) for j in range(self.N + 1)]
        return {"twap": -self.utility(twap), "sell_now": -self.utility([self.X] + [0.0] * self.N)}


def _sinh_ratio(a: float, b: float) -> float:
    """sinh a/sinh b for 0 ≤ a ≤ b, also where both overflow."""
    return math.exp(a - b) * math.expm1(-2 * a) / math.expm1(-2 * b)
