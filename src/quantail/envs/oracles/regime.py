"""Trade a drift that switches out of sight: the best policy remembers, by Bayes' rule."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from quantail.envs.base import Move, uniform
from quantail.envs.oracles.numerics import TAIL, cdf, density, nodes
from quantail.envs.oracles.oracle import Oracle, Where
from quantail.functional.checks import check_number
from quantail.types import Box


class Regime(NamedTuple):
    """The state of the market."""

    sign: Tensor  # [B] -1 or 1: of the drift behind the last return
    seen: Tensor  # [B] the last return


class HiddenRegime(Oracle):
    """Hold q in [−1, 1] of an asset whose return is ±m + noise; the sign switches with probability p in every step.

    Sees the last return r_t [1], takes q_t [1], reward q_t·r_{t+1}. The log-odds ℓ that the drift is up follow Bayes' rule
    (Shiryaev 1963): ℓ_t = T(ℓ_{t−1}) + 2m·r_t, T(ℓ) = ln[((1 − p)eˡ + p)/(p·eˡ + 1 − p)]; best is q = sign T(ℓ).
    """

    unit = "step"

    def __init__(
        self, num_envs: int, m: float = 0.5, p: float = 0.02, horizon: int | None = None, **where: Unpack[Where]
    ) -> None:
        check_number("m", m, 0.0, low_open=True)
        check_number("p", p, 0.0, 1.0, low_open=True, high_open=True)
        super().__init__(num_envs, (Box((1,)), Box((1,), -1.0, 1.0)), 2, horizon, **where)
        self.m, self.p = m, p

    def start(self, noise: Tensor) -> Regime:
        sign = torch.where(noise[:, 0] > 0, 1.0, -1.0).to(self.dtype)
        return Regime(sign, self.m * sign + noise[:, 1])

    def observe(self, core: Regime, time: Tensor) -> Tensor:
        return core.seen[:, None]

    def move(self, core: Regime, time: Tensor, action: Tensor, noise: Tensor) -> Move:
        sign = torch.where(uniform(noise[:, 0]) < self.p, -core.sign, core.sign)
        seen = self.m * sign + noise[:, 1]
        return Move(Regime(sign, seen), action[:, 0] * seen)

    def predicted(self, log_odds: Tensor) -> Tensor:
        """T(ℓ): log-odds of the next drift, a switch being possible: 2·artanh((1 − 2p)·tanh(ℓ/2)), any shape."""
        return 2 * torch.atanh((1 - 2 * self.p) * torch.tanh(log_odds / 2))

    def updated(self, log_odds: Tensor, obs: Tensor) -> Tensor:
        """ℓ_t from ℓ_{t−1} [...] and the return seen, obs [..., 1]; begin with ℓ = 0."""
        return self.predicted(log_odds) + 2 * self.m * obs[..., 0]

    def best_action(self, log_odds: Tensor) -> Tensor:
        """q = sign T(ℓ): [...] -> [..., 1]."""
        return self.predicted(log_odds).sign()[..., None]

    def optimum(self) -> float:
        """Per step: |1 − 2p|·m·E|tanh(ℓ/2)| = |1 − 2p|·m·(2·P(ℓ favours the truth) − 1).

        The mean is over all rows of an episode that `horizon` cuts off, or over the long run if nothing does. The law of ℓ·sign
        is carried from step to step on Gauss points: a switch turns its sign, the return adds 2m² + 2m·z.
        """
        drift, spread = 2 * self.m**2, 2 * self.m
        reach = abs(math.log((1 - self.p) / self.p)) + TAIL * spread
        points, weights = nodes(drift - reach, drift + reach, 6 * min(spread, 1.0))
        ahead = self.predicted(points)
        kernel = self._mixed(density, points[:, None] - drift, ahead) / spread * weights  # [to, from]
        right = self._mixed(lambda z: cdf(-z), torch.full((1, 1), -drift, dtype=torch.float64), ahead)[0]  # P(ℓ' > 0 | ℓ)
        favour = 2 * cdf(torch.tensor(self.m, dtype=torch.float64)) - 1  # after the first return: ℓ ~ N(2m², (2m)²)
        if self.horizon is None:
            law = _stationary(kernel, weights)
            favour = 2 * (right * weights) @ law - 1
        else:
            law = density((points - drift) / spread) / spread
            each = [favour]
            for _ in range(self.horizon - 1):
                each.append(2 * (right * weights) @ law - 1)
                law = kernel @ law
            favour = torch.stack(each).mean()
        return abs(1 - 2 * self.p) * self.m * float(favour)

    def baselines(self) -> Mapping[str, float]:
        """`memoryless`: the sign of the last return. `informed`: sees the drift itself."""
        informed = abs(1 - 2 * self.p) * self.m
        return {"memoryless": informed * math.erf(self.m / math.sqrt(2)), "informed": informed}

    def _mixed(self, law: Callable[[Tensor], Tensor], beyond: Tensor, ahead: Tensor) -> Tensor:
        """Mean of law((ℓ' − 2m² ∓ T)/2m) over staying and switching; beyond [n, 1] is ℓ' − 2m² -> [n, from]."""
        stay, switch = law((beyond - ahead) / (2 * self.m)), law((beyond + ahead) / (2 * self.m))
        return (1 - self.p) * stay + self.p * switch


def _stationary(kernel: Tensor, weights: Tensor) -> Tensor:
    """The density that a kernel [to, from] leaves as it is, with Σ weights·density = 1."""
    size = len(weights)
    system = kernel - torch.eye(size, dtype=kernel.dtype) + weights  # adding 1·w' turns "= 0" into the one solution of mass 1
    law: Tensor = torch.linalg.solve(system, torch.ones(size, dtype=kernel.dtype))
    return law
