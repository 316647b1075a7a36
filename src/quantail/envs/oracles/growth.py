"""How much to stake so that wealth grows fastest: Kelly's coin and Merton's share."""

import math
from collections.abc import Mapping
from typing import Unpack

import torch
from torch import Tensor

from quantail.envs.base import Move, uniform
from quantail.envs.oracles.numerics import normal_nodes, root
from quantail.envs.oracles.oracle import Nothing, Oracle, Where
from quantail.functional.checks import check_count, check_number
from quantail.types import Box


class Growth(Oracle):
    """Rounds of a bet on a share of wealth, independent of each other; the reward is the growth of log wealth.

    Sees the part of the rounds that is over [1], takes the share [1]; the last round ends the episode.
    """

    unit = "step"
    rounds: int
    max_fraction: float

    def __init__(self, num_envs: int, max_fraction: float, rounds: int, **where: Unpack[Where]) -> None:
        check_count("rounds", rounds)
        super().__init__(num_envs, (Box((1,), 0.0, 1.0), Box((1,), 0.0, max_fraction)), 1, None, **where)
        self.rounds, self.max_fraction = rounds, max_fraction

    def start(self, noise: Tensor) -> Nothing:
        return Nothing()

    def observe(self, core: Nothing, time: Tensor) -> Tensor:
        return (time.to(self.dtype) / self.rounds)[:, None]

    def move(self, core: Nothing, time: Tensor, action: Tensor, noise: Tensor) -> Move:
        return Move(core, self.log_growth(action[:, 0], noise[:, 0]), time + 1 >= self.rounds)

    def log_growth(self, fraction: Tensor, noise: Tensor) -> Tensor:
        """Of one round: share of wealth, standard normal -> ln(wealth after/wealth before)."""
        raise NotImplementedError

    def growth(self, fraction: float) -> float:
        """Mean growth of log wealth per round for a constant share."""
        raise NotImplementedError

    def best_fraction(self) -> float:
        """The share that grows fastest."""
        raise NotImplementedError

    def best_action(self, obs: Tensor) -> Tensor:
        """The best share, whatever is seen: obs [..., 1] -> [..., 1]."""
        return torch.full_like(obs, self.best_fraction())

    def optimum(self) -> float:
        """Per step: the growth of log wealth in a round at the best share."""
        return self.growth(self.best_fraction())


class Kelly(Growth):
    """A coin that wins `odds` times the stake with probability p: reward ln(1 + odds·f) or ln(1 − f)   (Kelly 1956).

    f* = p − (1 − p)/odds, within [0, max_fraction].
    """

    def __init__(
        self,
        num_envs: int,
        p: float = 0.55,
        odds: float = 1.0,
        max_fraction: float = 0.99,
        rounds: int = 20,
        **where: Unpack[Where],
    ) -> None:
        check_number("p", p, 0.0, 1.0)
        check_number("odds", odds, 0.0, low_open=True)
        check_number("max_fraction", max_fraction, 0.0, 1.0, low_open=True, high_open=True)
        super().__init__(num_envs, max_fraction, rounds, **where)
        self.p, self.odds = p, odds

    def log_growth(self, fraction: Tensor, noise: Tensor) -> Tensor:
        return torch.log1p(torch.where(uniform(noise) < self.p, self.odds * fraction, -fraction))

    def growth(self, fraction: float) -> float:
        """p·ln(1 + odds·f) + (1 − p)·ln(1 − f)."""
        return self.p * math.log1p(self.odds * fraction) + (1 - self.p) * math.log1p(-fraction)

    def best_fraction(self) -> float:
        """f* = p − (1 − p)/odds, within [0, max_fraction]."""
        return min(max(self.p - (1 - self.p) / self.odds, 0.0), self.max_fraction)

    def baselines(self) -> Mapping[str, float]:
        """`half`, `double`: half and twice the best share. `none`: no bet."""
        best = self.best_fraction()
        return {"half": self.growth(best / 2), "double": self.growth(min(2 * best, self.max_fraction)), "none": 0.0}


class Merton(Growth):
    """Share f of wealth in a lognormal asset, the rest in cash, set anew every `dt` years   (Merton 1969, in discrete time).

    Reward ln[(1 − f)·e^{r·dt} + f·e^{(mu − s²/2)·dt + s·√dt·z}]; rates per year. As dt -> 0, f* -> (mu − r)/s².
    """

    def __init__(
        self,
        num_envs: int,
        mu: float = 0.05,
        r: float = 0.01,
        s: float = 0.3,
        dt: float = 1 / 12,
        max_fraction: float = 1.0,
        rounds: int = 12,
        **where: Unpack[Where],
    ) -> None:
        check_number("mu", mu)
        check_number("r", r)
        check_number("s", s, 0.0, low_open=True)
        check_number("dt", dt, 0.0, low_open=True)
        check_number("max_fraction", max_fraction, 0.0, 1.0, low_open=True)
        super().__init__(num_envs, max_fraction, rounds, **where)
        self.mu, self.r, self.s, self.dt = mu, r, s, dt

    def log_growth(self, fraction: Tensor, noise: Tensor) -> Tensor:
        return self.r * self.dt + torch.log1p(fraction * torch.expm1(self._excess(noise)))

    def growth(self, fraction: float) -> float:
        """E ln[...] over the normal law of z, by Gauss–Legendre."""
        z, weights = normal_nodes()
        return float((weights * self.log_growth(torch.tensor(fraction, dtype=z.dtype), z)).sum())

    def best_fraction(self) -> float:
        """Where E[(R − C)/((1 − f)·C + f·R)] = 0, R and C the gross returns of asset and cash; within [0, max_fraction]."""
        z, weights = normal_nodes()
        excess = torch.expm1(self._excess(z))
        return root(lambda f: -float((weights * excess / (1 + f * excess)).sum()), 0.0, self.max_fraction)

    def baselines(self) -> Mapping[str, float]:
        """`cash`: nothing in the asset. `all_in`: as much as is allowed."""
        return {"cash": self.growth(0.0), "all_in": self.growth(self.max_fraction)}

    def _excess(self, z: Tensor) -> Tensor:
        """Log return of the asset above cash."""
        return (self.mu - self.s**2 / 2 - self.r) * self.dt + self.s * math.sqrt(self.dt) * z
