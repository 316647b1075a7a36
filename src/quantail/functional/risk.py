"""The tail of a law: VaR, CVaR, and the charge that makes a policy pay for it.

Returns are gains: bigger is better. The tail is the *lower* one, and CVaR_α is the mean of the worst α. A CVaR further
down is worse; reading one too high understates the risk.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from quantail.functional.checks import (
    check_count,
    check_knob,
    check_last,
    check_levels,
    check_number,
    check_rank,
    check_record,
    check_shape,
    check_tensor,
)
from quantail.functional.quantile import midpoint_levels

DENSITY_AT_0 = 1 / math.sqrt(2 * math.pi)
REACHED = 1 - 1e-9  # a cumulative mass within rounding of α has reached it: .07·100 is 7.000000000000001


def cvar_of_samples(x: Tensor, alpha: float, weights: Tensor | None = None) -> Tensor:
    """Mean of the worst α of a sample: CVaR_α = 1/α ∫₀^α F⁻¹(u) du   (Rockafellar & Uryasev 2000; Acerbi & Tasche 2002).

    x [..., n] in any order; weights >= 0 [..., n] or [n], equal if none -> [...]. The atom that straddles α counts by its
    part, so ties and discrete laws are exact; α = 1 is the plain mean. What has weight 0 may hold anything; where nothing
    has weight there is no tail, and the answer is NaN.
    """
    check_rank("x", x, 1, "[..., samples]")
    check_number("alpha", alpha, 0.0, 1.0, low_open=True)
    x, mass, before = _sorted_with_mass(x, weights)
    inside = torch.minimum((alpha - before).clamp_min(0.0), mass)  # [..., n] part of each sorted atom inside the tail
    return ((x * inside).sum(-1) / alpha).to(x.dtype)


def var_of_samples(x: Tensor, alpha: float, weights: Tensor | None = None) -> Tensor:
    """The α-quantile of a sample: VaR_α = min{x : F(x) >= α}   (Rockafellar & Uryasev 2000; Hyndman & Fan 1996, type 1).

    x [..., n] in any order, weights >= 0 [..., n] or [n] -> [...], always one of the samples; NaN where none has weight. It
    is the ν at which ν − E[(ν − x)⁺]/α is greatest.
    """
    check_rank("x", x, 1, "[..., samples]")
    check_number("alpha", alpha, 0.0, 1.0, low_open=True)
    x, mass, before = _sorted_with_mass(x, weights)
    index = (before + mass < alpha * REACHED).sum(-1, keepdim=True).clamp_max(x.shape[-1] - 1)
    return x.gather(-1, index.expand(*x.shape[:-1], 1))[..., 0]


def cvar_from_categorical(p: Tensor, atoms: Tensor, alpha: float) -> Tensor:
    """CVaR of a law on atoms: (Σ_{z < q} p·z + q·(α − P(z < q)))/α,  q = VaR_α   (Acerbi & Tasche 2002).

    p [..., N], atoms [N] or [..., N] in any order -> [...]; the atom at q counts by its part.
    """
    check_rank("p", p, 1, "[..., atoms]")
    check_last("atoms", atoms, p.shape, "rows, atoms")
    return cvar_of_samples(atoms.expand(p.shape), alpha, p)


def var_from_categorical(p: Tensor, atoms: Tensor, alpha: float) -> Tensor:
    """The α-quantile of a law on atoms: VaR_α = min{z : P(Z <= z) >= α}   (Rockafellar & Uryasev 2000).

    p [..., N], atoms [N] or [..., N] in any order -> [...].
    """
    check_rank("p", p, 1, "[..., atoms]")
    check_last("atoms", atoms, p.shape, "rows, atoms")
    return var_of_samples(atoms.expand(p.shape), alpha, p)


def cvar_from_quantiles(q: Tensor, alpha: float, taus: Tensor | None = None) -> Tensor:
    """CVaR of a law given by quantiles: w·sort(q), w = `cvar_weights`   (Source: docs/algorithms.md, CVaR read-out).

    q [..., N] at levels taus [N] (midpoints if none) -> [...]. Exact for a Gaussian at any N and α; with
    `quantile.tail_levels` within 0.6 % for heavy tails from N = 21. Crossed quantiles are sorted first.
    """
    check_rank("q", q, 1, "[..., quantiles]")
    if taus is None:
        taus, _ = midpoint_levels(q.shape[-1], dtype=torch.float64, device=q.device)
    check_shape("taus", taus, q.shape[-1:], "one for each quantile")
    return (q.sort(-1).values * cvar_weights(taus, alpha).to(q.dtype)).sum(-1)


def cvar_weights(taus: Tensor, alpha: float) -> Tensor:
    """The constant w with CVaR_α = w·θ for quantiles θ at any levels   (Source: docs/algorithms.md, CVaR read-out).

    The quantile function is taken as linear in z = Φ⁻¹(u) between the levels and beyond the outermost two, and
    integrated exactly over [0, α]. On the segment between nodes z_i, z_{i+1}, as far as it lies below Φ⁻¹(α):

        m₀ = ∫φ,  m₁ = ∫z·φ;      w_{i+1} += (m₁ − z_i·m₀)/(z_{i+1} − z_i)/α,    w_i += (z_{i+1}·m₀ − m₁)/(z_{i+1} − z_i)/α

    taus [N] in (0, 1) -> [N] float64, summing to 1. Weights of nodes that only extrapolate may be negative.
    """
    check_number("alpha", alpha, 0.0, 1.0, low_open=True)
    check_levels("taus", taus)
    return area_weights(taus, torch.full((1,), alpha, dtype=torch.float64, device=taus.device))[0] / alpha


def area_weights(taus: Tensor, u: Tensor) -> Tensor:
    """The constants w with ∫₀ᵘ Q = w·θ for the Q that `cvar_weights` reads   (Source: docs/algorithms.md, CVaR read-out).

    taus [N] increasing in (0, 1), u [K] in [0, 1] -> [K, N] float64; row k sums to u_k. Looks at the shapes alone.
    """
    check_rank("u", u, 1, "[levels]")
    check_rank("taus", taus, 1, "[levels]")
    z, u = torch.special.ndtri(taus.double()), u.double()
    if z.shape[0] == 1:
        return u[:, None]
    edges = torch.cat([z.new_full((1,), -math.inf), z[1:-1], z.new_full((1,), math.inf)])
    edges = edges.minimum(torch.special.ndtri(u)[:, None])  # [K, N] ends of the segments, as far as they lie below u
    mass = torch.special.ndtr(edges).diff()
    moment = -_gaussian_density(edges).diff()
    gap = z.diff()
    right, left = (moment - z[:-1] * mass) / gap, (z[1:] * mass - moment) / gap
    return torch.nn.functional.pad(right, (1, 0)) + torch.nn.functional.pad(left, (0, 1))


def var_from_quantiles(q: Tensor, alpha: float, taus: Tensor | None = None) -> Tensor:
    """The α-quantile of a law given by quantiles: as `cvar_weights` reads them   (Source: docs/algorithms.md, CVaR read-out).

        Q(α) = θ_i + (θ_{i+1} − θ_i)·(Φ⁻¹(α) − z_i)/(z_{i+1} − z_i),   z = Φ⁻¹(τ);  the outermost segments extrapolate

    q [..., N] at levels taus [N] (midpoints if none) -> [...].
    """
    check_rank("q", q, 1, "[..., quantiles]")
    check_number("alpha", alpha, 0.0, 1.0, low_open=True, high_open=True)
    if taus is None:
        taus, _ = midpoint_levels(q.shape[-1], dtype=torch.float64, device=q.device)
    check_shape("taus", taus, q.shape[-1:], "one for each quantile")
    q = q.sort(-1).values
    if q.shape[-1] == 1:
        return q[..., 0]
    z = _probit(taus)
    at: Tensor = torch.special.ndtri(z.new_tensor([alpha]))
    lower = (torch.searchsorted(z, at) - 1).clamp(0, z.shape[0] - 2)
    share = ((at - z[lower]) / (z[lower + 1] - z[lower])).to(q.dtype)
    return torch.lerp(q[..., lower], q[..., lower + 1], share)[..., 0]


def ru_cost(x: Tensor, nu: float | Tensor, alpha: float) -> Tensor:
    """Shortfall below ν, scaled: (ν − x)⁺/α, whence CVaR_α(X) = max_ν ν − E[(ν − X)⁺]/α   (Rockafellar & Uryasev 2000).

    x [...], nu a number, a scalar tensor or [...] -> [...].
    """
    check_tensor("x", x)
    check_number("alpha", alpha, 0.0, 1.0, low_open=True)
    if not (isinstance(nu, Tensor) and nu.shape == x.shape):
        check_knob("nu", nu)
    cost: Tensor = (nu - x).clamp_min(0.0) / alpha
    return cost


def cvar_charge(x: Tensor, nu: float | Tensor, alpha: float, limit: float | Tensor = 0.0) -> Tensor:
    """What an outcome costs a policy that minds CVaR: c = (ν − x)⁺/α − ν + ℓ   (Rockafellar & Uryasev 2000; Chow et al. 2017).

    x [...], nu as in `ru_cost`, limit a number or a scalar tensor -> [...]. At ν = VaR its mean is ℓ − CVaR_α(X). It is signed:
    a charge that is only ever positive would reward ending early, before it is due.
    """
    check_knob("limit", limit)
    return ru_cost(x, nu, alpha) - nu + limit


def blend_advantages(reward_advantages: Tensor, cost_advantages: Tensor, weight: float | Tensor) -> Tensor:
    """Advantage of (1 − w)·E[X] + w·CVaR_α(X):  A = (1 − w)·A_r − w·A_c   (Tamar et al. 2015; costs from `cvar_charge`).

    both [...], weight in [0, 1] or a scalar tensor -> [...].
    """
    check_tensor("reward_advantages", reward_advantages)
    check_shape("cost_advantages", cost_advantages, reward_advantages.shape, "as reward_advantages")
    check_knob("weight", weight, 0.0, 1.0)
    return (1.0 - weight) * reward_advantages - weight * cost_advantages


def penalize_advantages(reward_advantages: Tensor, cost_advantages: Tensor, multiplier: float | Tensor) -> Tensor:
    """Advantage of the Lagrangian, kept at the scale of one: A = (A_r − λ·A_c)/(1 + λ)   (Stooke, Achiam & Abbeel 2020).

    both [...], multiplier >= 0 or a scalar tensor -> [...].
    """
    check_tensor("reward_advantages", reward_advantages)
    check_shape("cost_advantages", cost_advantages, reward_advantages.shape, "as reward_advantages")
    check_knob("multiplier", multiplier, 0.0)
    return (reward_advantages - multiplier * cost_advantages) / (1.0 + multiplier)


class PidGains(NamedTuple):
    """How a multiplier answers a violation; the defaults are the published ones' order of magnitude (Stooke et al. 2020)."""

    proportional: float = 0.1
    integral: float = 0.01
    derivative: float = 0.01
    smoothing: float = 0.95  # of the violation, before P and D see it
    cap: float = 100.0  # of the multiplier


class PidState(NamedTuple):
    """What the controller remembers; `pid_start` makes the first one."""

    integral: Tensor  # scalar, in [0, cap]
    smoothed: Tensor  # [delay + 1] moving average of the violation, newest first
    steps: Tensor  # scalar, how many violations were seen


def pid_start(delay: int = 10, *, dtype: torch.dtype = torch.float64, device: torch.device | None = None) -> PidState:
    """The state of a controller that has seen nothing: I = 0; D = the change over `delay` steps   (Stooke et al. 2020).

    -> integral scalar, smoothed [delay + 1], steps scalar.
    """
    check_count("delay", delay)
    zero = torch.zeros((), dtype=dtype, device=device)
    return PidState(zero, zero.expand(delay + 1).clone(), zero.clone())


def pid_step(state: PidState, violation: Tensor, gains: PidGains) -> tuple[PidState, Tensor]:
    """One step of the PID-controlled Lagrange multiplier   (Stooke, Achiam & Abbeel 2020, algorithm 2).

        P = EMA(d)    I = clip(I + k_i·d, 0, cap)    D = (EMA(d)_t − EMA(d)_{t−delay})⁺    λ = clip(k_p·P + I + k_d·D, 0, cap)

    d = violation, a scalar, > 0 when the limit is broken -> new state, λ scalar. The integral rests while λ stands at the
    cap and d would push it further (no wind-up). The average starts at the first violation, not at 0.
    """
    check_record("state", state, PidState)
    check_record("gains", gains, PidGains)
    check_shape("violation", violation, (), "a scalar")
    for name, gain in gains._asdict().items():
        check_number(name, gain, 0.0, 1.0 if name == "smoothing" else math.inf, high_open=name == "smoothing")
    fresh = state.steps == 0
    average = torch.where(fresh, violation, gains.smoothing * state.smoothed[0] + (1 - gains.smoothing) * violation)
    smoothed = torch.where(fresh, average, torch.cat([average[None], state.smoothed[:-1]]))
    push = gains.proportional * average + gains.derivative * (smoothed[0] - smoothed[-1]).clamp_min(0.0)
    at_cap = (push + state.integral >= gains.cap) & (violation > 0)
    integral = torch.where(at_cap, state.integral, (state.integral + gains.integral * violation).clamp(0.0, gains.cap))
    return PidState(integral, smoothed, state.steps + 1), (push + integral).clamp(0.0, gains.cap)


def _sorted_with_mass(x: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Samples in order, the mass of each, and the mass before it; masses in float64, so that long sums do not drift."""
    n = x.shape[-1]
    if weights is None:
        before = torch.arange(n, dtype=torch.float64, device=x.device) / n
        return x.sort(-1).values, torch.full_like(before, 1 / n), before
    check_last("weights", weights, x.shape, "as x, or one for each sample")
    weights = weights.expand(x.shape)
    counts = weights > 0
    x = torch.where(counts, x, torch.where(counts.any(-1, keepdim=True), 0.0, math.nan).to(x.dtype))
    x, order = x.sort(-1)
    mass = weights.double().gather(-1, order)
    mass = mass / mass.sum(-1, keepdim=True)
    return x, mass, mass.cumsum(-1) - mass


def _probit(taus: Tensor) -> Tensor:
    check_levels("taus", taus)
    z: Tensor = torch.special.ndtri(taus.double())
    return z


def _gaussian_density(z: Tensor) -> Tensor:
    return torch.exp(-0.5 * z.square()) * DENSITY_AT_0
