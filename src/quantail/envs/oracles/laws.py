"""Processes whose discounted return has a known law, to judge a critic by: there is nothing to decide, actions are ignored."""

import math
from typing import Unpack

import torch
from torch import Tensor

from quantail.envs.base import Move, uniform
from quantail.envs.oracles.oracle import Nothing, Oracle, Scalar, Where
from quantail.errors import ConfigError
from quantail.functional.checks import check_number, check_tensor
from quantail.types import Box, Discrete

DEEP = 2000  # digits of a Bernoulli sum: far more than float64 tells apart


class ReturnLaw(Oracle):
    """Z = Σ γᵗ·r_t from the start of an episode: its quantile function and CVaR. Sees a 0 [1] unless said otherwise."""

    unit = "discounted"
    gamma: float

    def __init__(self, num_envs: int, gamma: float, horizon: int | None, **where: Unpack[Where]) -> None:
        seen = self.seen()
        super().__init__(num_envs, (seen, Discrete(2)), 1, horizon, **where)
        self.gamma = gamma

    def seen(self) -> Box:
        """The space of observations."""
        return Box((1,), 0.0, 1.0)

    @property
    def discount(self) -> float:
        return self.gamma

    def quantile(self, u: Tensor) -> Tensor:
        """F⁻¹(u) of Z, u [...] in (0, 1)."""
        raise NotImplementedError

    def cvar(self, alpha: float) -> float:
        """CVaR_α of Z = 1/α ∫₀^α F⁻¹(u) du."""
        raise NotImplementedError

    def optimum(self) -> float:
        """Discounted: the mean of Z."""
        return self.cvar(1.0)

    def best_action(self, obs: Tensor) -> Tensor:
        """Any: obs [..., 1] -> [...]."""
        return torch.zeros(obs.shape[:-1], dtype=torch.int64, device=obs.device)


class Stateless(ReturnLaw):
    """A law whose process has no state."""

    def start(self, noise: Tensor) -> Nothing:
        return Nothing()

    def observe(self, core: Nothing, time: Tensor) -> Tensor:
        return torch.zeros_like(time, dtype=self.dtype)[:, None]


class CoinSum(Stateless):
    """r = 1 with probability p, else 0, for ever; gamma ≤ 1/2   (Erdős 1939).

    gamma = 1/2, p = 1/2: Z is uniform on [0, 2]. gamma = 1/3: Cantor's law, without density. As gamma ≤ 1/2 the first coin
    decides more than all others: Z's digits are those of u, F⁻¹(u) = b + γ·F⁻¹(u'), b = [u ≥ 1 − p].
    """

    def __init__(
        self, num_envs: int, gamma: float = 0.5, p: float = 0.5, horizon: int | None = None, **where: Unpack[Where]
    ) -> None:
        check_number("gamma", gamma, 0.0, 1.0, high_open=True)
        check_number("p", p, 0.0, 1.0, low_open=True, high_open=True)
        if gamma > 0.5:
            raise ConfigError(f"gamma={gamma}: above 1/2 the law of a sum of coins has no known form; choose gamma <= 0.5")
        super().__init__(num_envs, gamma, horizon, **where)
        self.p = p

    def move(self, core: Nothing, time: Tensor, action: Tensor, noise: Tensor) -> Move:
        return Move(core, (uniform(noise[:, 0]) < self.p).to(self.dtype))

    def quantile(self, u: Tensor) -> Tensor:
        """Σ γᵏ·b_k, b_k the digits of u in the number system of the coin."""
        check_tensor("u", u)
        value, weight = torch.zeros_like(u), 1.0
        for _ in range(DEEP):
            heads = u >= 1 - self.p
            value = value + weight * heads
            u = torch.where(heads, (u - (1 - self.p)) / self.p, u / (1 - self.p)).clamp(0.0, 1.0)
            weight *= self.gamma
            if weight < torch.finfo(value.dtype).tiny:
                break
        return value

    def cvar(self, alpha: float) -> float:
        """From A(α) = ∫₀^α F⁻¹: A(α) = (1 − p)·γ·A(α/(1 − p)) below 1 − p; above, also p·(α' + γ·A(α')) of the upper part."""
        check_number("alpha", alpha, 0.0, 1.0, low_open=True)
        mean, below = self.p / (1 - self.gamma), 1 - self.p
        area, weight, rest = 0.0, 1.0, alpha
        for _ in range(DEEP):
            if rest <= below:
                rest, weight = rest / below, weight * below * self.gamma
            else:
                rest = min((rest - below) / self.p, 1.0)  # rounded above 1 it would run away
                area += weight * (below * self.gamma * mean + self.p * rest)
                weight *= self.p * self.gamma
        return (area + weight * rest * mean) / alpha


class NormalLaw(ReturnLaw):
    """A law that is normal."""

    def moments(self) -> tuple[float, float]:
        """Mean and standard deviation of Z."""
        raise NotImplementedError

    def quantile(self, u: Tensor) -> Tensor:
        """mean + sd·Φ⁻¹(u)."""
        check_tensor("u", u)
        mean, sd = self.moments()
        z: Tensor = torch.special.ndtri(u)
        return mean + sd * z

    def cvar(self, alpha: float) -> float:
        """mean − sd·φ(Φ⁻¹(α))/α."""
        check_number("alpha", alpha, 0.0, 1.0, low_open=True)
        return _normal_cvar(*self.moments(), alpha)


class GaussianSum(NormalLaw, Stateless):
    """r ~ N(mu, sd²), independent, for ever: Z ~ N(mu/(1 − γ), sd²/(1 − γ²))."""

    def __init__(
        self,
        num_envs: int,
        mu: float = 0.1,
        sd: float = 1.0,
        gamma: float = 0.99,
        horizon: int | None = None,
        **where: Unpack[Where],
    ) -> None:
        check_number("mu", mu)
        check_number("sd", sd, 0.0)
        check_number("gamma", gamma, 0.0, 1.0, high_open=True)
        super().__init__(num_envs, gamma, horizon, **where)
        self.mu, self.sd = mu, sd

    def move(self, core: Nothing, time: Tensor, action: Tensor, noise: Tensor) -> Move:
        return Move(core, self.mu + self.sd * noise[:, 0])

    def moments(self) -> tuple[float, float]:
        return self.mu / (1 - self.gamma), self.sd / math.sqrt(1 - self.gamma**2)


class AR1Sum(NormalLaw):
    """x' = rho·x + sd·z, reward x: given x, Z ~ N(x/(1 − γ·rho), γ²·sd²/((1 − γ²)·(1 − γ·rho)²)). Sees x [1].

    Episodes start at x from its long-run law, and `quantile` and `cvar` speak of that start; `given` of one x.
    """

    def __init__(
        self,
        num_envs: int,
        rho: float = 0.9,
        sd: float = 1.0,
        gamma: float = 0.95,
        horizon: int | None = None,
        **where: Unpack[Where],
    ) -> None:
        check_number("rho", rho, -1.0, 1.0, low_open=True, high_open=True)
        check_number("sd", sd, 0.0)
        check_number("gamma", gamma, 0.0, 1.0, high_open=True)
        super().__init__(num_envs, gamma, horizon, **where)
        self.rho, self.sd = rho, sd

    def seen(self) -> Box:
        return Box((1,))

    def start(self, noise: Tensor) -> Scalar:
        return Scalar(self._long_run() * noise[:, 0])

    def observe(self, core: Scalar, time: Tensor) -> Tensor:
        return core.x[:, None]

    def move(self, core: Scalar, time: Tensor, action: Tensor, noise: Tensor) -> Move:
        return Move(Scalar(self.rho * core.x + self.sd * noise[:, 0]), core.x)

    def given(self, x: float) -> tuple[float, float]:
        """Mean and standard deviation of Z from state x."""
        slope = 1 / (1 - self.gamma * self.rho)
        return slope * x, self.gamma * self.sd * slope / math.sqrt(1 - self.gamma**2)

    def cvar_given(self, x: float, alpha: float) -> float:
        """CVaR_α of Z from state x."""
        check_number("alpha", alpha, 0.0, 1.0, low_open=True)
        return _normal_cvar(*self.given(x), alpha)

    def moments(self) -> tuple[float, float]:
        slope, sd = self.given(1.0)
        return 0.0, math.hypot(slope * self._long_run(), sd)

    def _long_run(self) -> float:
        return self.sd / math.sqrt(1 - self.rho**2)


class GeometricSum(Stateless):
    """Reward 1 per step until an end that comes with probability p in each: n steps give Z = (1 − γⁿ)/(1 − γ), or n."""

    def __init__(self, num_envs: int, p: float = 0.1, gamma: float = 1.0, **where: Unpack[Where]) -> None:
        check_number("p", p, 0.0, 1.0, low_open=True, high_open=True)
        check_number("gamma", gamma, 0.0, 1.0, low_open=True)
        super().__init__(num_envs, gamma, None, **where)
        self.p = p

    def move(self, core: Nothing, time: Tensor, action: Tensor, noise: Tensor) -> Move:
        ended = uniform(noise[:, 0]) < self.p
        return Move(core, torch.ones_like(noise[:, 0]), ended)

    def quantile(self, u: Tensor) -> Tensor:
        """Z of n = ⌈ln(1 − u)/ln(1 − p)⌉ steps."""
        check_tensor("u", u)
        steps = self._steps(u)
        return steps if self.gamma == 1 else (1 - self.gamma**steps) / (1 - self.gamma)

    def cvar(self, alpha: float) -> float:
        """Whole atoms below the α-quantile, and the part of the one that straddles it."""
        check_number("alpha", alpha, 0.0, 1.0, low_open=True)
        if alpha == 1:
            return 1 / (1 - self.gamma * (1 - self.p))
        whole = int(self._steps(torch.tensor(alpha, dtype=torch.float64))) - 1
        stay, gamma = 1 - self.p, self.gamma
        below = 1 - stay**whole
        if gamma == 1:
            area, last = below / self.p - whole * stay**whole, float(whole + 1)
        else:
            area = (below - self.p * gamma * (1 - (gamma * stay) ** whole) / (1 - gamma * stay)) / (1 - gamma)
            last = (1 - gamma ** (whole + 1)) / (1 - gamma)
        return (area + (alpha - below) * last) / alpha

    def _steps(self, u: Tensor) -> Tensor:
        return (torch.log1p(-u) / math.log1p(-self.p) - 1e-12).ceil().clamp_min(1.0)


def _normal_cvar(mean: float, sd: float, alpha: float) -> float:
    if alpha == 1:
        return mean
    z = float(torch.special.ndtri(torch.tensor(alpha, dtype=torch.float64)))
    return mean - sd * math.exp(-z * z / 2) / (alpha * math.sqrt(2 * math.pi))
