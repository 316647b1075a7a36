"""Markets that are made up, with known truth: models of returns. `candles.py` makes bars of them.

A model is a frozen record of its parameters, in units per year, and a function `returns(z)` of standard normals z [K, T, P]
(K = `draws`) to log returns of P paths over T bars. P is the fast axis: only variances and regimes are followed bar by bar.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from quantail.functional.checks import check_rank
from quantail.settings import check_within

DAYS = 252.0


class Returns(NamedTuple):
    """What a model makes."""

    log_return: Tensor  # [T, P]
    sigma: Tensor  # [T, P] or [T, 1] of each bar's log return: how far prices stray inside the bar
    hidden: Tensor | None = None  # [T, P] what nobody sees: the regime during the bar, or the distance from the anchor after it
    signal: Tensor | None = None  # [T, P] what is seen at the end of the bar beside prices


@dataclass(frozen=True)
class Model(ABC):
    """Log returns from noise."""

    bars_per_year: float = field(default=DAYS, kw_only=True)

    draws: ClassVar[int]

    @abstractmethod
    def returns(self, z: Tensor) -> Returns:
        """[K, T, P] standard normals -> returns."""

    def __post_init__(self) -> None:
        check_within("bars_per_year", self.bars_per_year, 0.0, low_open=True)

    @property
    def dt(self) -> float:
        """Years per bar."""
        return 1.0 / self.bars_per_year

    def _checked(self, z: Tensor) -> tuple[Tensor, ...]:
        check_rank("z", z, 3, "[draws, bars, paths]")
        return z[: self.draws].unbind(0)


# --- noise ------------------------------------------------------------------------------------------------------------


def student(a: Tensor, b: Tensor, nu: float) -> Tensor:
    """Student-t of variance 1 from two standard normals: a/ρ·√((ν − 2)(e^{ρ²/ν} − 1)), ρ² = a² + b²   (Bailey 1994).

    a, b [...] -> [...]; ν = ∞ gives a back.
    """
    if math.isinf(nu):
        return a
    square = a.square().addcmul_(b, b).clamp_(min=1e-30)
    return torch.expm1(square / nu).mul_(nu - 2).div_(square).sqrt_().mul_(a)


def garch(shock: Tensor, alpha: float, beta: float) -> Tensor:
    """Variances of mean 1: h' = 1 − α − β + h·(α·e² + β), h₀ = 1   (Bollerslev 1986).

    Shocks [T, P] of variance 1 -> h [T, P].
    """
    growth = shock.square().mul_(alpha).add_(beta)
    h = torch.empty_like(shock)
    h[0] = 1.0
    base = torch.full_like(shock[0], 1 - alpha - beta)
    for t in range(1, len(shock)):
        torch.addcmul(base, h[t - 1], growth[t - 1], out=h[t])
    return h


def autoregressive(shock: Tensor, rho: float) -> Tensor:
    """x' = ρ·x + shock', x₀ = shock₀: [T, P] -> [T, P]."""
    x = shock.clone()
    for t in range(1, len(x)):
        x[t].add_(x[t - 1], alpha=rho)
    return x


def exceeds(probability: float) -> float:
    """z with P(Z > z) = probability, so that a switch is a comparison."""
    return float(-torch.special.ndtri(torch.tensor(probability, dtype=torch.float64)))


# --- models -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GBM(Model):
    """Geometric Brownian motion: nothing can be known. With drift 0 it is the null market."""

    drift: float = 0.0
    vol: float = 0.16

    draws: ClassVar[int] = 1

    def returns(self, z: Tensor) -> Returns:
        (a,) = self._checked(z)
        sigma = self.vol * math.sqrt(self.dt)
        log_return = a * sigma + (self.drift - 0.5 * self.vol**2) * self.dt
        return Returns(log_return, torch.full_like(a[:, :1], sigma))


@dataclass(frozen=True)
class Garch(Model):
    """Volatility in clusters with Student-t shocks: h' = ω + (α·e² + β)·h, of long-run volatility `vol`."""

    drift: float = 0.0
    vol: float = 0.16
    alpha: float = 0.08
    beta: float = 0.90
    nu: float = 6.0

    draws: ClassVar[int] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_within("alpha + beta", self.alpha + self.beta, 0.0, 1.0, high_open=True)
        check_within("nu", min(self.nu, 1e9), 2.0, low_open=True)

    def returns(self, z: Tensor) -> Returns:
        a, b = self._checked(z)
        noise, sigma = self.noise(a, b)
        return Returns(noise.add_((self.drift - 0.5 * self.vol**2) * self.dt), sigma)

    def noise(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """σ_t·e_t and σ_t, [T, P] each."""
        shock = student(a, b, self.nu)
        sigma = garch(shock, self.alpha, self.beta).sqrt_().mul_(self.vol * math.sqrt(self.dt))
        return shock.mul_(sigma), sigma


@dataclass(frozen=True)
class HiddenDrift(Garch):
    """A drift of ±`drift` that switches out of sight every `mean_days` bars on average, in GARCH-t noise: the default demo.

    Holding earns nothing, one bar says almost nothing, the sign can be filtered (`policies.hidden_drift_odds`).
    """

    drift: float = 0.40
    mean_days: float = 60.0

    draws: ClassVar[int] = 3

    def returns(self, z: Tensor) -> Returns:
        switch, a, b = self._checked(z)
        turns = switch > exceeds(1 / self.mean_days)
        turns[0] = switch[0] > 0
        sign = (turns.cumsum(0, dtype=torch.int32) & 1).to(a.dtype).mul_(2).sub_(1)
        noise, sigma = self.noise(a, b)
        return Returns(noise.add_(sign, alpha=self.drift * self.dt).sub_(0.5 * self.vol**2 * self.dt), sigma, sign)


@dataclass(frozen=True)
class BullBear(Model):
    """A calm bull and a wild bear market: drift, volatility and mean length in bars of each; the risk demo."""

    drift: tuple[float, float] = (0.30, -0.40)
    vol: tuple[float, float] = (0.12, 0.28)
    mean_days: tuple[float, float] = (250.0, 80.0)
    nu: float = 6.0

    draws: ClassVar[int] = 3

    def returns(self, z: Tensor) -> Returns:
        switch, a, b = self._checked(z)
        leaves_bull, leaves_bear = (switch > exceeds(1 / days) for days in self.mean_days)
        bear = torch.empty_like(leaves_bull)
        bear[0] = switch[0] > exceeds(self.bear_share)
        stays = ~leaves_bear
        for t in range(1, len(bear)):
            torch.where(bear[t - 1], stays[t], leaves_bull[t], out=bear[t])
        sigma = self._each(bear, a, [vol * math.sqrt(self.dt) for vol in self.vol])
        log_drift = [(mu - 0.5 * vol**2) * self.dt for mu, vol in zip(self.drift, self.vol, strict=True)]
        log_return = student(a, b, self.nu).mul_(sigma).add_(self._each(bear, a, log_drift))
        return Returns(log_return, sigma, self._each(bear, a, [1.0, -1.0]))

    def _each(self, bear: Tensor, like: Tensor, values: Sequence[float]) -> Tensor:
        """The bull's value or the bear's, in the dtype of the noise."""
        bull, other = (like.new_tensor(value) for value in values)
        return torch.where(bear, other, bull)

    @property
    def bear_share(self) -> float:
        """How much of the time is a bear market."""
        return self.mean_days[1] / sum(self.mean_days)


@dataclass(frozen=True)
class Anchored(Garch):
    """The log price strays from an anchor, x' = φ·x + noise with a half-life in bars; the anchor itself drifts and varies."""

    drift: float = 0.06
    anchor_vol: float = 0.12
    half_life: float = 15.0

    draws: ClassVar[int] = 3

    def returns(self, z: Tensor) -> Returns:
        anchor, a, b = self._checked(z)
        noise, sigma = self.noise(a, b)
        x = autoregressive(noise, 2 ** (-1 / self.half_life))
        log_return = torch.cat([x[:1], x.diff(dim=0)])
        log_return.add_((self.drift - 0.5 * self.vol**2 - 0.5 * self.anchor_vol**2) * self.dt)
        log_return.add_(anchor, alpha=self.anchor_vol * math.sqrt(self.dt))
        return Returns(log_return, (sigma.square() + self.anchor_vol**2 * self.dt).sqrt_(), x)


@dataclass(frozen=True)
class Signal(Garch):
    """A signal that is seen and correlates by `ic` with the next return; it fades with a half-life in bars."""

    drift: float = 0.06
    ic: float = 0.08
    half_life: float = 10.0

    draws: ClassVar[int] = 3

    def returns(self, z: Tensor) -> Returns:
        s, a, b = self._checked(z)
        rho = 2 ** (-1 / self.half_life)
        scaled = s * math.sqrt(1 - rho * rho)
        scaled[0] = s[0]
        signal = autoregressive(scaled, rho)
        noise, sigma = self.noise(a, b)
        before = torch.cat([torch.zeros_like(signal[:1]), signal[:-1]])
        level = self.vol * math.sqrt(self.dt)
        log_return = noise.mul_(math.sqrt(1 - self.ic**2)).add_(before, alpha=self.ic * level)
        return Returns(log_return.add_((self.drift - 0.5 * self.vol**2) * self.dt), sigma, before, signal)


@dataclass(frozen=True)
class Heston(Model):
    """Volatility that reverts: dv = κ(θ − v)dt + ξ√v dW, correlated by ρ with prices; full truncation (Lord et al. 2010)."""

    drift: float = 0.05
    kappa: float = 3.7
    theta: float = 0.036
    xi: float = 0.65
    rho: float = -0.7

    draws: ClassVar[int] = 2

    def returns(self, z: Tensor) -> Returns:
        a, b = self._checked(z)
        shock = (self.rho * a).add_(b, alpha=math.sqrt(1 - self.rho**2)).mul_(self.xi * math.sqrt(self.dt))
        v = torch.full_like(a[0], self.theta)
        positive = torch.empty_like(a)
        pull, level = self.kappa * self.dt, self.kappa * self.theta * self.dt
        for t in range(len(a)):
            torch.clamp(v, min=0.0, out=positive[t])
            v = torch.addcmul(v + level, shock[t], positive[t].sqrt()).sub_(positive[t], alpha=pull)
        sigma = positive.mul_(self.dt).sqrt_()
        drift = self.drift * self.dt - 0.5 * sigma.square()
        return Returns(drift.addcmul_(sigma, a), sigma)


@dataclass(frozen=True)
class Jumps(Model):
    """Diffusion with normal jumps at random times   (Merton 1976); `drift` is that of the price, jumps included."""

    drift: float = 0.05
    vol: float = 0.083
    jumps_per_year: float = 158.0
    jump_mean: float = -0.0013
    jump_sd: float = 0.0131

    draws: ClassVar[int] = 3

    def returns(self, z: Tensor) -> Returns:
        a, jump, count = self._checked(z)
        number, rate, below = torch.zeros_like(a), self.jumps_per_year * self.dt, 0.0
        for k in range(1 + int(rate + 8 * math.sqrt(rate) + 8)):  # P(more) < 1e-12
            below += math.exp(-rate + k * math.log(rate) - math.lgamma(k + 1)) if rate else float(k == 0)
            number += count > exceeds(max(1 - below, 1e-300)) if below < 1 else 0.0
        mean = math.exp(self.jump_mean + 0.5 * self.jump_sd**2) - 1
        base = (self.drift - 0.5 * self.vol**2 - self.jumps_per_year * mean) * self.dt
        jumped = number * self.jump_mean + number.sqrt() * self.jump_sd * jump
        sigma = self.vol * math.sqrt(self.dt)  # between the jumps
        return Returns(base + sigma * a + jumped, torch.full_like(a[:, :1], sigma))
