"""Laws on a fixed grid of atoms (C51), and drawing from any discrete law."""

import torch
from torch import Tensor

from quantail.errors import InputError
from quantail.functional.checks import (
    bad_shape,
    check_choice,
    check_count,
    check_increasing,
    check_knob,
    check_last,
    check_law,
    check_number,
    check_rank,
    check_shape,
    check_tensor,
)
from quantail.functional.quantile import CLIP_MODES, clip_excess, clip_moments, take_lowest
from quantail.types import Law


def support(low: float, high: float, n: int, *, dtype: torch.dtype | None = None, device: torch.device | None = None) -> Tensor:
    """Evenly spaced atoms z_i = low + i·(high − low)/(n − 1)   (Bellemare, Dabney & Munos 2017).

    -> [n], increasing. One atom, or none between the ends, is no support and is refused.
    """
    check_count("n", n, 2)
    check_number("low", low)
    check_number("high", high)
    if high <= low:
        raise InputError(f"low={low} and high={high} leave no room for {n} atoms; choose high > low")
    return torch.linspace(low, high, n, dtype=dtype, device=device)


def project(probs: Tensor, atoms: Tensor, support: Tensor) -> Tensor:
    """Move mass from any atoms onto the grid, each split between its two neighbours   (Bellemare, Dabney & Munos 2017).

        h_j = Σ_i p_i·max(0, 1 − |clip(z_i) − s_j|/Δ),    Δ the gap of the grid on the side of z_i

    probs [..., M], atoms [M] or [..., M], support [N] increasing, even or not -> [..., N]. Mass is conserved; the mean
    too, as far as the atoms lie inside the support; an atom that hits the grid goes there whole. Differentiable in the
    probabilities, and piecewise in the atoms.
    """
    check_rank("probs", probs, 1, "[..., atoms]")
    check_last("atoms", atoms, probs.shape, "rows, atoms")
    _check_support("support", support)
    dtype = torch.promote_types(torch.promote_types(probs.dtype, atoms.dtype), support.dtype)
    probs, atoms, support = probs.to(dtype), atoms.to(dtype), support.to(dtype)
    inside = atoms.clamp(support[0], support[-1])
    lower = (torch.searchsorted(support, inside.detach(), right=True) - 1).clamp(0, support.shape[0] - 2)
    upper_share = (inside - support[lower]) / (support[lower + 1] - support[lower])
    lower, upper_share = lower.expand(probs.shape), upper_share.expand(probs.shape)
    empty = probs.new_zeros((*probs.shape[:-1], support.shape[0]))
    return empty.scatter_add(-1, lower, probs * (1 - upper_share)).scatter_add(-1, lower + 1, probs * upper_share)


def two_hot(values: Tensor, support: Tensor) -> Tensor:
    """A number as the law on its two neighbouring atoms whose mean it is: Σ_j h_j·s_j = clip(v)   (Schrittwieser et al. 2020).

    values [...], support [N] increasing -> [..., N].
    """
    check_tensor("values", values)
    return project(torch.ones_like(values)[..., None], values[..., None], support)


def categorical_mean(probs: Tensor, atoms: Tensor) -> Tensor:
    """Mean of a law on atoms: E[Z] = Σ_i p_i·z_i   (Bellemare, Dabney & Munos 2017).

    probs [..., N], atoms [N] or [..., N] -> [...].
    """
    check_rank("probs", probs, 1, "[..., atoms]")
    check_last("atoms", atoms, probs.shape, "rows, atoms")
    return (probs * atoms).sum(-1)


def categorical_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Cross-entropy H(t, p) = −Σ_i t_i·log softmax(x)_i   (Bellemare, Dabney & Munos 2017).

    logits, target [..., N] -> [...]. Never a logarithm of probabilities: an atom whose softmax underflows still gets its
    full gradient, p − t. Divide by ln N to compare losses of different supports.
    """
    check_rank("logits", logits, 1, "[..., atoms]")
    check_shape("target", target, logits.shape, "as logits")
    return -(target * logits.log_softmax(-1)).sum(-1)


def pool_categorical(critics: Tensor, atoms: Tensor, reduce: str = "mean") -> Tensor:
    """One law from several critics' probabilities   (Source: docs/algorithms.md, twin critics).

        mean   p = 1/C·Σ_c p_c                         the mixture
        min    p = p_c*,  c* = argmin_c Σ_i p_c,i·z_i  the whole law of the critic with the lowest mean, row by row

    critics [C, ..., N], atoms [N] or [C, ..., N] -> [..., N].
    """
    check_rank("critics", critics, 2, "[critics, ..., atoms]")
    check_choice("reduce", reduce, ("mean", "min"))
    return critics.mean(0) if reduce == "mean" else take_lowest(critics, categorical_mean(critics, atoms))


def clip_categorical(
    logits: Tensor,
    old_probs: Tensor,
    atoms: Tensor,
    radius: float | Tensor,
    mode: str,
    variance_factor: float = 2.0,
) -> Tensor:
    """Keep a predicted law near an old one, on its grid   (Source: docs/algorithms.md, value clipping).

        mean_only, mean_and_variance    atoms move as the quantiles of `clip_quantiles` do
        per_quantile                    Q(u) -> Q_old(u) + clip(Q(u) − Q_old(u), ±radius) for every level u
        p' = project(p, moved atoms, atoms)

    logits, old_probs [..., N], atoms [N] -> log-probabilities [..., N], fit for `categorical_loss`. `off`, and any row
    that lies within the radius, is exactly log softmax(logits). The old law is data: no gradient reaches it.
    """
    check_rank("logits", logits, 1, "[..., atoms]")
    check_shape("old_probs", old_probs, logits.shape, "as logits")
    check_shape("atoms", atoms, logits.shape[-1:], "one for each logit")
    _check_support("atoms", atoms)
    check_knob("radius", radius, 0.0)
    check_number("variance_factor", variance_factor, 1.0)
    check_choice("mode", mode, CLIP_MODES)
    log_probs = logits.log_softmax(-1)
    if mode == "off":
        return log_probs
    new, old = Law(atoms, log_probs.exp()), Law(atoms, old_probs.detach())
    if mode == "per_quantile":
        start, old_start, masses = _common_steps(new, old)
        moved = start + clip_excess(start - old_start, radius)
    else:
        start, masses = atoms, new.masses
        moved = clip_moments(new, old, radius, variance_factor if mode == "mean_and_variance" else None)
    clipped = project(masses, moved, atoms).clamp_min(torch.finfo(logits.dtype).eps ** 2).log()
    untouched = ((moved == start) | (masses == 0)).all(-1, keepdim=True)
    return torch.where(untouched, log_probs, clipped)


def draw(law: Law, noise: Tensor) -> Tensor:
    """Draws from a discrete law by inverse transform: x = z_i, i the first with Σ_{j≤i} m_j > u   (Devroye 1986).

    law of locations and masses [..., N] or [N], noise uniform on [0, 1) [..., M] -> [..., M]. An atom without mass is
    never drawn, whatever the rounding.
    """
    check_rank("noise", noise, 1, "[..., draws]")
    check_law("law", law, noise.shape[:-1])
    index = draw_index(law.masses, noise)
    if law.locations.ndim == 1:
        return law.locations[index]
    return law.locations.gather(-1, index)


def draw_index(masses: Tensor, noise: Tensor) -> Tensor:
    """Which cell each draw falls into: the first i with Σ_{j≤i} m_j > u·Σ_j m_j   (inverse transform; Devroye 1986).

    masses [..., N] or [N], noise uniform on [0, 1) [..., M] -> indices [..., M] (int64).
    """
    check_rank("masses", masses, 1, "[..., cells]")
    check_rank("noise", noise, 1, "[..., draws]")
    if masses.ndim > 1:
        check_shape("noise", noise, (*masses.shape[:-1], noise.shape[-1]), "rows as masses, then draws")
    dtype = torch.promote_types(masses.dtype, noise.dtype)  # never the coarser: it would round u < 1 up to 1
    cumulative = masses.detach().to(dtype).cumsum(-1)
    cumulative = cumulative / cumulative[..., -1:]  # ends at 1 exactly, so u < 1 always finds a cell with mass
    noise = noise.to(dtype).contiguous()
    return torch.searchsorted(cumulative.contiguous(), noise, right=True).clamp_max(masses.shape[-1] - 1)


def _common_steps(new: Law, old: Law) -> tuple[Tensor, Tensor, Tensor]:
    """Two step functions Q(u), Q_old(u) on the levels where either jumps: both locations and the step's mass, [..., 2N]."""
    ends, old_ends = new.masses.cumsum(-1), old.masses.cumsum(-1)
    edges = torch.cat([ends, old_ends], -1).sort(-1).values
    edges = torch.cat([torch.zeros_like(edges[..., :1]), edges], -1)
    inside = ((edges[..., :-1] + edges[..., 1:]) / 2).detach()  # a level amid the step: rounding at its ends does not matter
    last = new.masses.shape[-1] - 1
    at = torch.searchsorted(ends.detach(), inside).clamp_max(last)
    old_at = torch.searchsorted(old_ends, inside).clamp_max(last)
    return new.locations[at], old.locations[old_at], edges.diff(dim=-1)


def _check_support(name: str, support: Tensor) -> None:
    check_rank(name, support, 1, "[atoms]")
    if support.ndim != 1 or support.shape[0] < 2:
        bad_shape(name, support, "[atoms], at least 2 of them")
    check_increasing(**{name: support})
