"""From rewards and predictions to learning targets: advantages, λ-returns, and particles of the return's whole law.

Time runs along axis 0. What comes after a row that ends an episode depends on the source:

* NEXT_STEP: the next row shows the final observation, so `values[t + 1]` is already the value to bootstrap from. That
  row is not valid: its action was ignored.
* SAME_STEP: the next row starts the next episode, so the value of the final observation comes separately, as
  `final_values`, and every row is valid.

A termination bootstraps 0, a truncation the value of the observation reached. Both cut the sum over time.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from quantail.functional.categorical import draw, draw_index
from quantail.functional.checks import (
    check_choice,
    check_law,
    check_mask,
    check_number,
    check_rank,
    check_shape,
)
from quantail.types import Law

FLOAT32_EPS = 2.0**-23


def gae(
    rewards: Tensor,
    values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    lam: float,
    *,
    valid: Tensor | None = None,
    final_values: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation, cut at every episode end   (Schulman et al. 2016; time limits: Pardo et al. 2018).

        δ_t = r_t + γ·(1 − terminated_t)·V⁺_{t+1} − V_t                V⁺: value of the observation actually reached
        A_t = δ_t + γλ·(1 − terminated_t)·(1 − truncated_t)·A_{t+1}

    rewards, terminated, truncated, valid, final_values [T, ...], values [T+1, ...] -> advantages, returns = A + V [T, ...].
    Without `valid`, a row is invalid if the row before it ended (NEXT_STEP), unless `final_values` are given (SAME_STEP):
    then every row is valid. Invalid rows have A = 0 and their value as return.
    """
    check_number("gamma", gamma, 0.0, 1.0)
    check_number("lam", lam, 0.0, 1.0)
    rows = _timeline(rewards, terminated, truncated, valid, same_step=final_values is not None)
    _check_values(rewards, values, final_values)
    deltas = rewards + gamma * _reached(values[1:], final_values, rows) - values[:-1]
    advantages = _sum_back(deltas, gamma * lam * rows.goes_on.to(deltas), rows.valid)
    return advantages, advantages + values[:-1]


def lambda_return(
    rewards: Tensor,
    values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    lam: float,
    *,
    valid: Tensor | None = None,
    final_values: Tensor | None = None,
) -> Tensor:
    """The scalar λ-return y_t = r_t + γ·((1 − λ)·V⁺_{t+1} + λ·y_{t+1}) = A_t + V_t   (Sutton 1988).

    Arguments as in `gae` -> [T, ...]. It is the conditional *mean* of the particles of `distributional_targets`: a critic
    trained on it learns only √((1 − γ²)/(1 − (γλ)²)) of the spread of independent rewards (0.41 at γ=.99, λ=.95), and so
    a tail that is far too thin. Kept for comparison.
    """
    return gae(rewards, values, terminated, truncated, gamma, lam, valid=valid, final_values=final_values)[1]


def distributional_targets(
    rewards: Tensor,
    law: Law,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    lam: float,
    follow_noise: Tensor,
    level_noise: Tensor,
    *,
    valid: Tensor | None = None,
    final_law: Law | None = None,
) -> Tensor:
    """Particles of the λ-return's law, by sample replacement   (SR(λ); Nam, Kim & Park 2021).

        y_t = r_t + γ·( y_{t+1} if the row goes on and u_t < λ; else z ~ Z⁺_{t+1} )          z = 0 at a termination

    rewards, terminated, truncated, valid [T, ...]; law of Z(o_t): a `Law` of [T+1, ..., N] (or shared [N]); final_law
    [T, ..., N] under SAME_STEP; both noises uniform on [0, 1) [T, ..., M] -> particles [T, ..., M]. Each row and particle
    has fresh noise, and E[particles] = A + V of `gae` on the means of the law. Invalid rows hold draws from their own
    law. For a categorical critic project the particles once, afterwards: a projection at each step would undo λ.
    """
    check_number("gamma", gamma, 0.0, 1.0)
    check_number("lam", lam, 0.0, 1.0)
    rows = _timeline(rewards, terminated, truncated, valid, same_step=final_law is not None)
    check_rank("level_noise", level_noise, 2, "[time, ..., particles]")
    check_shape("level_noise", level_noise, (*rewards.shape, level_noise.shape[-1]), "as rewards, then particles")
    check_shape("follow_noise", follow_noise, level_noise.shape, "as level_noise")
    check_law("law", law, (rewards.shape[0] + 1, *rewards.shape[1:]))
    if final_law is not None:
        check_law("final_law", final_law, rewards.shape)

    final = None if final_law is None else draw(final_law, level_noise)
    own, after = _drawn(law, level_noise)
    draws = _reached(after, final, rows.per_particle())
    follow = (follow_noise < lam) & rows.goes_on[..., None]
    particles = [draws[-1]]
    for t in range(len(rewards) - 1, -1, -1):
        particle = rewards[t, ..., None] + gamma * torch.where(follow[t], particles[-1], draws[t])
        particles.append(torch.where(rows.valid[t, ..., None], particle, own[t]))
    return torch.stack(particles[:0:-1])


def vtrace(
    log_ratio: Tensor,
    rewards: Tensor,
    values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    lam: float = 1.0,
    rho_max: float = 1.0,
    c_max: float = 1.0,
    *,
    valid: Tensor | None = None,
    final_values: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Off-policy targets by truncated importance weights   (V-trace; Espeholt et al. 2018).

        ρ_t = min(ρ̄, π/μ)     c_t = λ·min(c̄, π/μ)
        v_t = V_t + e_t       e_t = ρ_t·(r_t + γ·V⁺_{t+1} − V_t) + γ·c_t·e_{t+1}
        A_t = ρ_t·(r_t + γ·(V⁺_{t+1} + λ·e_{t+1}) − V_t)

    log_ratio = log π/μ and the rest as in `gae`: [T, ...], values [T+1, ...] -> targets v, advantages A [T, ...]. The
    sums are cut at episode ends as in `gae`, to which both results reduce when π = μ and ρ̄, c̄ ≥ 1.
    """
    check_number("gamma", gamma, 0.0, 1.0)
    check_number("lam", lam, 0.0, 1.0)
    check_number("rho_max", rho_max, 0.0, low_open=True)
    check_number("c_max", c_max, 0.0, low_open=True)
    rows = _timeline(rewards, terminated, truncated, valid, same_step=final_values is not None)
    _check_values(rewards, values, final_values)
    check_shape("log_ratio", log_ratio, rewards.shape, "as rewards")
    rho = log_ratio.clamp(max=math.log(rho_max)).exp()  # min before exp: a ratio that overflows is still just ρ̄
    c = lam * log_ratio.clamp(max=math.log(c_max)).exp()
    one_step = rewards + gamma * _reached(values[1:], final_values, rows) - values[:-1]
    errors = _sum_back(rho * one_step, gamma * c * rows.goes_on, rows.valid)
    following = torch.cat([errors[1:], torch.zeros_like(errors[:1])]) * rows.goes_on
    advantages = torch.where(rows.valid, rho * (one_step + gamma * lam * following), 0.0)
    return values[:-1] + errors, advantages


def normalize_advantages(
    advantages: Tensor,
    mode: str = "global",
    *,
    weights: Tensor | None = None,
    magnitude: Tensor | None = None,
) -> Tensor:
    """Advantages with weighted mean 0 and standard deviation 1: (A − mean)/std   (Schulman et al. 2017, as practised).

    advantages, weights (≥ 0), magnitude [T, ...] -> [T, ...]. `global` uses one mean and deviation for all rows, `env` one
    for each environment (over time only), `off` returns the advantages as they are. Rows of weight 0 neither count nor
    learn: they become 0. `magnitude` is max(|V|, |return|) per row, the size of the numbers whose difference A is;
    |A| itself always counts too.

    Where std ≤ 64·2⁻²³·max(magnitude) the spread is what float32 makes of equal numbers, so all advantages are 0: no
    signal, rather than noise blown up to ±3. Statistics are in float64 and divide by the weight, not by n − 1. NaN or
    infinity in a row that counts leaves nothing finite: it must not pass for "no signal".
    """
    check_choice("mode", mode, ("global", "env", "off"))
    check_rank("advantages", advantages, 1, "[time, ...]")
    for name, extra in (("weights", weights), ("magnitude", magnitude)):
        if extra is not None:
            check_shape(name, extra, advantages.shape, "as advantages")
    if mode == "off":
        return advantages
    dims = tuple(range(advantages.ndim)) if mode == "global" else (0,)
    weight = torch.ones_like(advantages) if weights is None else weights
    counts = weight > 0
    weight, raw = weight.double(), torch.where(counts, advantages, 0.0).double()
    size = raw.abs() if magnitude is None else torch.maximum(raw.abs(), torch.where(counts, magnitude, 0.0).abs())
    total = weight.sum(dims, keepdim=True)
    total = torch.where(total > 0, total, 1.0)
    centred = raw - (weight * raw).sum(dims, keepdim=True) / total
    std = ((weight * centred.square()).sum(dims, keepdim=True) / total).sqrt()
    rounding = std <= 64 * FLOAT32_EPS * size.amax(dims, keepdim=True)  # False for NaN, which must not pass for no signal
    signal = counts & ~rounding
    return torch.where(signal, centred / torch.where(std > 0, std, 1.0), 0.0).to(advantages.dtype)


class _Timeline(NamedTuple):
    """What is known about each row before any value is looked at; all bool, shaped as the rewards."""

    terminated: Tensor  # [T, ...]
    truncated: Tensor  # [T, ...]
    goes_on: Tensor  # [T, ...] neither terminated nor truncated: sums run on to the next row
    valid: Tensor  # [T, ...]

    def per_particle(self) -> "_Timeline":
        return _Timeline(*(mask[..., None] for mask in self))


def _timeline(rewards: Tensor, terminated: Tensor, truncated: Tensor, valid: Tensor | None, *, same_step: bool) -> _Timeline:
    check_rank("rewards", rewards, 1, "[time, ...]")
    terminated = check_mask("terminated", terminated, rewards.shape, "as rewards")
    truncated = check_mask("truncated", truncated, rewards.shape, "as rewards")
    goes_on = ~(terminated | truncated)
    if valid is not None:
        valid = check_mask("valid", valid, rewards.shape, "as rewards")
    elif same_step:
        valid = torch.ones_like(goes_on)
    else:
        valid = torch.cat([torch.ones_like(goes_on[:1]), goes_on[:-1]])
    return _Timeline(terminated, truncated, goes_on, valid)


def _reached(following: Tensor, final: Tensor | None, rows: _Timeline) -> Tensor:
    """What stands at the observation each row really reached: 0 after a termination. By `where`: garbage × 0 may be NaN."""
    if final is not None:
        following = torch.where(rows.truncated, final, following)
    return torch.where(rows.terminated, 0.0, following)


def _sum_back(terms: Tensor, decay: Tensor, valid: Tensor) -> Tensor:
    """s_t = term_t + decay_t·s_{t+1} backwards over axis 0, with s = 0 on invalid rows."""
    terms = torch.where(valid, terms, 0.0)
    decay = torch.where(valid, decay, 0.0)
    sums = [torch.zeros_like(terms[0])]
    for t in range(len(terms) - 1, -1, -1):
        sums.append(terms[t] + decay[t] * sums[-1])
    return torch.stack(sums[:0:-1])


def _check_values(rewards: Tensor, values: Tensor, final_values: Tensor | None) -> None:
    check_shape("values", values, (rewards.shape[0] + 1, *rewards.shape[1:]), "as rewards, with one row more to bootstrap from")
    if final_values is not None:
        check_shape("final_values", final_values, rewards.shape, "as rewards")


def _drawn(law: Law, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Draws from the law of every row but the last, and by the same noise from that of the row after it."""
    if law.masses.ndim > 1 or law.locations.ndim == 1:
        return draw(_rows_of(law, slice(None, -1)), noise), draw(_rows_of(law, slice(1, None)), noise)
    index = draw_index(law.masses, noise)  # masses that all rows share are searched once
    return law.locations[:-1].gather(-1, index), law.locations[1:].gather(-1, index)


def _rows_of(law: Law, rows: slice) -> Law:
    """Some rows of a law; what is shared by all rows stays shared."""
    return Law(*(part[rows] if part.ndim > 1 else part for part in law))
