"""One position, one period, and a limit on the tail of the outcome."""

import math
from typing import Unpack

import torch
from torch import Tensor

from quantail.envs.base import Move
from quantail.envs.oracles.numerics import TAIL, cdf, density, normal_nodes, root
from quantail.envs.oracles.oracle import Nothing, Oracle, Where
from quantail.errors import ConfigError
from quantail.functional.checks import check_number
from quantail.types import Box


class CVaRPosition(Oracle):
    """Hold w of an asset with return R ~ N(mu, s²) for one period: reward w·R − cost·w²   (Rockafellar & Uryasev 2000).

    To be solved under the limit CVaR_alpha(X) ≥ −limit, where X = w·R − cost·w², or X = w·R if not `cost_in_risk`; X is the
    `pnl` of the step. A policy that draws w ~ N(m, policy_sd²) has a wider X than one that holds m: the answers take
    `policy_sd`. Sees nothing but a 0 [1], takes w [1]; every episode has one step.
    """

    unit = "episode"
    observes_gained = True  # nothing, before the only row

    def __init__(
        self,
        num_envs: int,
        mu: float = 0.02,
        s: float = 0.1,
        alpha: float = 0.05,
        limit: float = 0.1,
        cost: float = 0.0,
        cost_in_risk: bool = True,
        max_position: float = 10.0,
        **where: Unpack[Where],
    ) -> None:
        check_number("mu", mu)
        check_number("s", s, 0.0, low_open=True)
        check_number("alpha", alpha, 0.0, 1.0, low_open=True, high_open=True)
        check_number("limit", limit, 0.0)
        check_number("cost", cost, 0.0)
        check_number("max_position", max_position, 0.0, low_open=True)
        super().__init__(num_envs, (Box((1,), 0.0, 1.0), Box((1,), -max_position, max_position)), 1, None, **where)
        self.mu, self.s, self.alpha, self.limit = mu, s, alpha, limit
        self.cost, self.cost_in_risk, self.max_position = cost, cost_in_risk, max_position

    def start(self, noise: Tensor) -> Nothing:
        return Nothing()

    def observe(self, core: Nothing, time: Tensor) -> Tensor:
        return torch.zeros_like(time, dtype=self.dtype)[:, None]

    def move(self, core: Nothing, time: Tensor, action: Tensor, noise: Tensor) -> Move:
        w = action[:, 0]
        gain = w * (self.mu + self.s * noise[:, 0])
        reward = gain - self.cost * w.square()
        return Move(core, reward, torch.ones_like(time, dtype=torch.bool), reward if self.cost_in_risk else gain)

    def reward(self, position: float, policy_sd: float = 0.0) -> float:
        """Mean reward: m·mu − cost·(m² + sd²)."""
        return position * self.mu - self.cost * (position**2 + policy_sd**2)

    def tail_loss(self, position: float, policy_sd: float = 0.0) -> float:
        """−CVaR_alpha(X) = E[(ν − X)⁺]/α − ν at ν = VaR, X a mixture of normals over the position drawn."""
        return self._tail(position, policy_sd)[0]

    def optimal_position(self, policy_sd: float = 0.0) -> float:
        """The m with the highest mean reward among those within the limit."""
        check_number("policy_sd", policy_sd, 0.0)
        side = math.copysign(1.0, self.mu)  # R is symmetric around mu: a short in a falling asset is a long in a rising one
        free = side * self._unlimited()
        if self.tail_loss(free, policy_sd) <= self.limit:
            return free
        safest = root(lambda m: side * self._tail(side * m, policy_sd)[1], -self.max_position, abs(free))  # the loss is convex
        if self.tail_loss(side * safest, policy_sd) > self.limit:
            raise ConfigError(
                f"limit={self.limit} cannot be kept with policy_sd={policy_sd}: the safest position, {side * safest:g}, has a "
                f"tail loss of {self.tail_loss(side * safest, policy_sd):g}; raise the limit or lower policy_sd"
            )
        return side * root(lambda m: self.tail_loss(side * m, policy_sd) - self.limit, safest, abs(free))

    def multiplier(self, policy_sd: float = 0.0) -> float:
        """Lagrange multiplier: reward gained per unit that the limit is raised, J'(m)/loss'(m); 0 if it does not bind."""
        position = self.optimal_position(policy_sd)
        if abs(position) >= self._unlimited():
            return 0.0
        return (self.mu - 2 * self.cost * position) / self._tail(position, policy_sd)[1]

    def best_action(self, obs: Tensor) -> Tensor:
        """The best fixed position: obs [..., 1] -> [..., 1]."""
        return torch.full_like(obs, self.optimal_position())

    def optimum(self, policy_sd: float = 0.0) -> float:
        """Per episode: mean reward of the best policy within the limit."""
        return self.reward(self.optimal_position(policy_sd), policy_sd)

    def _unlimited(self) -> float:
        """Size of the best position without a limit."""
        if self.mu == 0:
            return 0.0
        return min(abs(self.mu) / (2 * self.cost), self.max_position) if self.cost else self.max_position

    def _tail(self, position: float, policy_sd: float) -> tuple[float, float]:
        """(tail loss, its derivative by m).  For each w, X ~ N(a, b²): E(ν − X)⁺ = (ν − a)·Φ(d) + b·φ(d), d = (ν − a)/b."""
        z, weights = normal_nodes() if policy_sd else (torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64))
        w = position + policy_sd * z
        charged = self.cost if self.cost_in_risk else 0.0
        a, b = w * self.mu - charged * w.square(), (w.abs() * self.s).clamp_min(torch.finfo(torch.float64).tiny)
        low, high = float((a - 2 * TAIL * b).min()), float((a + 2 * TAIL * b).max())
        nu = root(lambda x: float((weights * cdf((x - a) / b)).sum()) - self.alpha, low, high)
        d = (nu - a) / b
        loss = float((weights * ((nu - a) * cdf(d) + b * density(d))).sum()) / self.alpha - nu
        slope = (weights * (w.sign() * self.s * density(d) - (self.mu - 2 * charged * w) * cdf(d))).sum()
        return loss, float(slope) / self.alpha
