"""Linear dynamics and quadratic costs, where the best policy is linear: the regulator, and trading on a fading signal."""

import math
from collections.abc import Mapping
from typing import NamedTuple, Unpack

import numpy as np
import torch
from torch import Tensor

from quantail.envs.base import Move
from quantail.envs.oracles.oracle import Oracle, Scalar, Where
from quantail.errors import ConfigError
from quantail.functional.checks import check_number
from quantail.types import Box


class LQR(Oracle):
    """Keep x near 0: x' = a·x + b·u + sd·z, reward −(q·x² + r·u²), discount gamma   (Bertsekas 2017, §3.1).

    Sees x [1], takes u [1]. Starts at x ~ N(0, start_sd²); `horizon` cuts episodes off, and the value of the state reached
    then still counts.
    """

    unit = "discounted"

    def __init__(
        self,
        num_envs: int,
        a: float = 1.0,
        b: float = 1.0,
        q: float = 1.0,
        r: float = 0.1,
        sd: float = 0.1,
        gamma: float = 0.99,
        start_sd: float = 0.0,
        horizon: int | None = 200,
        **where: Unpack[Where],
    ) -> None:
        check_number("a", a)
        check_number("b", b)
        check_number("q", q, 0.0, low_open=True)
        check_number("r", r, 0.0, low_open=True)
        check_number("sd", sd, 0.0)
        check_number("gamma", gamma, 0.0, 1.0, low_open=True, high_open=True)
        check_number("start_sd", start_sd, 0.0)
        if b == 0 and gamma * a * a >= 1:
            raise ConfigError(f"b=0 leaves x' = {a}·x alone, of infinite cost with gamma={gamma}; use b≠0 or a smaller a")
        super().__init__(num_envs, (Box((1,)), Box((1,))), 1, horizon, **where)
        self.a, self.b, self.q, self.r, self.sd, self.gamma, self.start_sd = a, b, q, r, sd, gamma, start_sd

    def start(self, noise: Tensor) -> Scalar:
        return Scalar(self.start_sd * noise[:, 0])

    def observe(self, core: Scalar, time: Tensor) -> Tensor:
        return core.x[:, None]

    def move(self, core: Scalar, time: Tensor, action: Tensor, noise: Tensor) -> Move:
        x, u = core.x, action[:, 0]
        return Move(Scalar(self.a * x + self.b * u + self.sd * noise[:, 0]), -(self.q * x.square() + self.r * u.square()))

    @property
    def discount(self) -> float:
        return self.gamma

    def price(self) -> float:
        """P of the value −P·x² − const: P = q + γa²P − (γabP)²/(r + γb²P), a quadratic in P."""
        square, line = self.gamma * self.b**2, self.r - self.gamma * (self.q * self.b**2 + self.r * self.a**2)
        if square == 0:
            return self.q * self.r / line
        root = math.sqrt(line * line + 4 * square * self.q * self.r)
        return 2 * self.q * self.r / (line + root) if line > 0 else (root - line) / (2 * square)

    def gain(self) -> float:
        """K of the best policy u = −K·x: K = γabP/(r + γb²P)."""
        price = self.price()
        return self.gamma * self.a * self.b * price / (self.r + self.gamma * self.b**2 * price)

    def best_action(self, obs: Tensor) -> Tensor:
        """u = −K·x: obs [..., 1] -> [..., 1]."""
        return -self.gain() * obs

    def optimum(self) -> float:
        """Discounted: −P·(start_sd² + γ/(1 − γ)·sd²); never above 0."""
        return -self.price() * (self.start_sd**2 + self.gamma / (1 - self.gamma) * self.sd**2)

    def value(self, gain: float) -> float:
        """What the policy u = −gain·x gets: −(q + r·gain²)·Σ γᵗ·E x_t²; −∞ if that sum diverges."""
        growth = self.gamma * (self.a - self.b * gain) ** 2
        if growth >= 1:
            return -math.inf
        squares = (self.start_sd**2 + self.gamma / (1 - self.gamma) * self.sd**2) / (1 - growth)
        return -(self.q + self.r * gain**2) * squares

    def baselines(self) -> Mapping[str, float]:
        """`passive`: u = 0."""
        return {"passive": self.value(0.0)}


class Holding(NamedTuple):
    """The state of a trader with a signal."""

    position: Tensor  # [B] before the trade of this row
    signal: Tensor  # [B] f


class GarleanuPedersen(Oracle):
    """Trade on a fading signal at quadratic cost   (Gârleanu & Pedersen 2013).

    f' = (1 − Phi)·f + sd·z; reward (1 − rho)·(B·x·f − gamma/2·S·x²) − lam/2·S·(x − x₋)², discount 1 − rho: B·f is the expected
    gain per unit, S its variance, gamma the aversion to risk, lam·S the price of a trade. Sees (x₋, f) [2], takes the new
    position x [1]. Starts flat with a stationary f; `horizon` cuts episodes off.
    """

    unit = "discounted"

    def __init__(
        self,
        num_envs: int,
        B: float = 1.0,
        Phi: float = 0.3,
        S: float = 1.0,
        gamma: float = 1.0,
        lam: float = 5.0,
        rho: float = 0.01,
        sd: float = 0.5,
        horizon: int | None = 200,
        **where: Unpack[Where],
    ) -> None:
        check_number("B", B)
        check_number("Phi", Phi, 0.0, 1.0, low_open=True)
        check_number("S", S, 0.0, low_open=True)
        check_number("gamma", gamma, 0.0, low_open=True)
        check_number("lam", lam, 0.0, low_open=True)
        check_number("rho", rho, 0.0, 1.0, low_open=True, high_open=True)
        check_number("sd", sd, 0.0)
        super().__init__(num_envs, (Box((2,)), Box((1,))), 1, horizon, **where)
        self.B, self.Phi, self.S, self.gamma, self.lam, self.rho, self.sd = B, Phi, S, gamma, lam, rho, sd

    def start(self, noise: Tensor) -> Holding:
        signal = math.sqrt(self._signal_variance()) * noise[:, 0]
        return Holding(torch.zeros_like(signal), signal)

    def observe(self, core: Holding, time: Tensor) -> Tensor:
        return torch.stack([core.position, core.signal], -1)

    def move(self, core: Holding, time: Tensor, action: Tensor, noise: Tensor) -> Move:
        x, f = action[:, 0], core.signal
        gain = self.discount * (self.B * x * f - self.gamma / 2 * self.S * x.square())
        cost = self.lam / 2 * self.S * (x - core.position).square()
        return Move(Holding(x, (1 - self.Phi) * f + self.sd * noise[:, 0]), gain - cost)

    @property
    def discount(self) -> float:
        return 1 - self.rho

    def rate(self) -> float:
        """Share of the way to the aim that is traded in a step: a/λ (their Proposition 2)."""
        both = self.gamma * self.discount + self.lam * self.rho
        a = (math.sqrt(both**2 + 4 * self.gamma * self.lam * self.discount**2) - both) / (2 * self.discount)
        return a / self.lam

    def aim(self) -> float:
        """Position aimed at per unit of signal: B/(γS)/(1 + Φ·a/γ), less than Markowitz holds, for the signal fades."""
        return self.B / (self.gamma * self.S) / (1 + self.Phi * self.rate() * self.lam / self.gamma)

    def best_action(self, obs: Tensor) -> Tensor:
        """x = (1 − rate)·x₋ + rate·aim·f: obs [..., 2] -> [..., 1]."""
        return (1 - self.rate()) * obs[..., :1] + self.rate() * self.aim() * obs[..., 1:]

    def optimum(self) -> float:
        """Discounted, from a flat start with a stationary signal; times rho it is per step."""
        return self.value(1 - self.rate(), self.rate() * self.aim())

    def value(self, keep: float, follow: float) -> float:
        """What the policy x = keep·x₋ + follow·f gets, |keep| <= 1.

        With s = (x₋, f) and s' = Gs + noise W, the moments D = Σ δᵗ·E ss' solve D = E s₀s₀' + δ/(1 − δ)·W + δ·G·D·G'; the
        reward is a quadratic form of s.
        """
        discount = self.discount
        step = np.array([[keep, follow], [0.0, 1 - self.Phi]])
        source = np.diag([0.0, self._signal_variance() + discount / (1 - discount) * self.sd**2])
        moments = np.linalg.solve(np.eye(4) - discount * np.kron(step, step), source.reshape(4)).reshape(2, 2)
        x, f, trade = np.array([keep, follow]), np.array([0.0, 1.0]), np.array([keep - 1.0, follow])
        gain = self.B * np.outer(x, f) - self.gamma / 2 * self.S * np.outer(x, x)
        return float(((discount * gain - self.lam / 2 * self.S * np.outer(trade, trade)) * moments).sum())

    def baselines(self) -> Mapping[str, float]:
        """`myopic`: the best for this step alone. `markowitz`: x = B·f/(γS), blind to costs. `passive`: no trade."""
        risk = self.discount * self.gamma
        return {
            "myopic": self.value(self.lam / (risk + self.lam), self.discount * self.B / (risk + self.lam) / self.S),
            "markowitz": self.value(0.0, self.B / (self.gamma * self.S)),
            "passive": 0.0,
        }

    def _signal_variance(self) -> float:
        return self.sd**2 / (1 - (1 - self.Phi) ** 2)
