"""Laws as N quantiles: which levels, which loss, which mean, and how far a prediction may move."""

import torch
from torch import Tensor

from quantail.functional.checks import (
    check_choice,
    check_count,
    check_knob,
    check_number,
    check_rank,
    check_shape,
)
from quantail.types import Law

TAIL = 0.1  # `tail_levels` packs half of its levels into the worst tenth
CLIP_MODES = ("off", "mean_only", "mean_and_variance", "per_quantile")


def midpoint_levels(n: int, *, dtype: torch.dtype | None = None, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Midpoints of n equal cells, τ_i = (i + ½)/n: the levels nearest to the law in W₁   (Dabney et al. 2018, lemma 2).

    -> levels [n], cell masses [n], each 1/n.
    """
    check_count("n", n)
    return _levels_of(torch.arange(n + 1, dtype=torch.float64, device=device) / n, dtype)


def tail_levels(n: int, *, dtype: torch.dtype | None = None, device: torch.device | None = None) -> tuple[Tensor, Tensor]:
    """Half of the levels packed into the worst tenth, the rest spread evenly   (Source: docs/algorithms.md, CVaR read-out).

        τ_i = 0.1·((i + ½)/k)²  for i < k = round(n/2);      then the midpoints of n − k equal cells of [0.1, 1]

    -> levels [n], cell masses [n]: 0.1·((i + 1)² − i²)/k², then 0.9/(n − k). The masses sum to 1; they weigh every mean
    and every draw. Read by `risk.cvar_from_quantiles`, these levels give the CVaR of heavy tails from n = 21 on.
    """
    check_count("n", n)
    packed = round(n / 2)
    steps = torch.arange(n + 1, dtype=torch.float64, device=device)
    if not packed:
        return midpoint_levels(n, dtype=dtype, device=device)
    dense, even = steps[: packed + 1] / packed, steps[1 : n - packed + 1] / (n - packed)
    levels, masses = _levels_of(torch.cat([TAIL * dense**2, TAIL + (1 - TAIL) * even]), torch.float64)
    levels[:packed] = TAIL * ((steps[:packed] + 0.5) / packed) ** 2
    return levels.to(dtype or torch.get_default_dtype()), masses.to(dtype or torch.get_default_dtype())


def quantile_mean(quantiles: Tensor, masses: Tensor | None = None) -> Tensor:
    """Mean of a law given by quantiles: E[Z] = Σ_i m_i·θ_i, m_i the cell masses (1/N if none)   (Dabney et al. 2018).

    quantiles [..., N], masses [N] -> [...].
    """
    check_rank("quantiles", quantiles, 1, "[..., quantiles]")
    if masses is None:
        return quantiles.mean(-1)
    check_shape("masses", masses, quantiles.shape[-1:], "one for each quantile")
    return (quantiles * masses).sum(-1)


def sort_quantiles(quantiles: Tensor) -> Tensor:
    """The quantiles in order, θ_(1) ≤ … ≤ θ_(N): uncrosses a head, never further from the truth   (Chernozhukov et al. 2010).

    quantiles [..., N] -> [..., N].
    """
    check_rank("quantiles", quantiles, 1, "[..., quantiles]")
    return quantiles.sort(-1).values


def quantile_huber_loss(quantiles: Tensor, targets: Tensor, taus: Tensor | None = None, kappa: float = 1.0) -> Tensor:
    """Asymmetric Huber loss of every target to every quantile   (Dabney et al. 2018, there divided by κ).

        ρ_τ(u) = |τ − 1{u < 0}|·L_κ(u),   u = target − θ;     L_κ(u) = u²/2 if |u| ≤ κ else κ·(|u| − κ/2);     L_0(u) = |u|

    quantiles [..., N], targets [..., M], taus [N] (midpoints if none) -> [...], the mean over N and M. Not divided by κ;
    κ = 0 is the pinball loss, whose minimiser is the exact quantile. The larger κ, the more the quantiles collapse
    towards the mean: κ of one standard deviation understates a Gaussian CVaR by 18 %.
    """
    check_rank("quantiles", quantiles, 1, "[..., quantiles]")
    check_rank("targets", targets, 1, "[..., particles]")
    check_shape("targets", targets, (*quantiles.shape[:-1], targets.shape[-1]), "rows as quantiles, then particles")
    check_number("kappa", kappa, 0.0)
    if taus is None:
        taus, _ = midpoint_levels(quantiles.shape[-1], dtype=quantiles.dtype, device=quantiles.device)
    check_shape("taus", taus, quantiles.shape[-1:], "one for each quantile")
    error = targets[..., None, :] - quantiles[..., :, None]  # [..., N, M]
    side = torch.where(error < 0, 1 - taus[:, None], taus[:, None])
    inner = error.clamp(-kappa, kappa)
    size = inner * (error - 0.5 * inner) if kappa > 0 else error.abs()
    return (side * size).mean((-2, -1))


def pool_quantiles(critics: Tensor, reduce: str = "mean", masses: Tensor | None = None) -> Tensor:
    """One law from several critics' quantiles   (Source: docs/algorithms.md, twin critics).

        mean   θ_i = 1/C·Σ_c θ_(i),c     the average of the sorted quantiles
        min    θ = θ_c*,  c* = argmin_c E[Z_c]     the whole law of the critic with the lowest mean, row by row

    critics [C, ..., N], masses [N] -> [..., N].
    """
    check_rank("critics", critics, 2, "[critics, ..., quantiles]")
    check_choice("reduce", reduce, ("mean", "min"))
    if reduce == "mean":
        return critics.sort(-1).values.mean(0)
    return take_lowest(critics, quantile_mean(critics, masses))


def take_lowest(laws: Tensor, means: Tensor) -> Tensor:
    """Row by row the law whose mean is lowest: x_c* with c* = argmin_c mean_c   (Fujimoto et al. 2018, made whole laws).

    laws [C, ..., N], means [C, ...] -> [..., N]. Of equal means the first.
    """
    check_shape("means", means, laws.shape[:-1], "critics, then rows, as laws")
    lowest = means.argmin(0)[None, ..., None].expand(1, *laws.shape[1:])
    return laws.gather(0, lowest)[0]


def clip_quantiles(
    new: Tensor,
    old: Tensor,
    radius: float | Tensor,
    mode: str,
    variance_factor: float = 2.0,
    masses: Tensor | None = None,
) -> Tensor:
    """Keep predicted quantiles near old ones: PPO's clipped value, for a law   (Source: docs/algorithms.md, value clipping).

        mean_only            θ + (clip(μ − μ_old, ±radius) − (μ − μ_old))        shape kept, mean within the radius
        mean_and_variance    then shrunk around the clipped mean by min(1, factor·σ_old/σ): never widened
        per_quantile         θ_old + clip(θ − θ_old, ±radius)                     each quantile within the radius

    new, old [..., N], radius a number or a scalar tensor, masses [N] -> [..., N]. `off` gives `new`. What lies within the
    radius comes back bit for bit. The old law is data: no gradient reaches it.
    """
    check_rank("new", new, 1, "[..., quantiles]")
    check_shape("old", old, new.shape, "as new")
    check_knob("radius", radius, 0.0)
    check_number("variance_factor", variance_factor, 1.0)
    check_choice("mode", mode, CLIP_MODES)
    if masses is None:
        masses = midpoint_levels(new.shape[-1], dtype=new.dtype, device=new.device)[1]
    check_shape("masses", masses, new.shape[-1:], "one for each quantile")
    old = old.detach()
    if mode == "off":
        return new
    if mode == "per_quantile":
        return new + clip_excess(new - old, radius)
    return clip_moments(Law(new, masses), Law(old, masses), radius, variance_factor if mode == "mean_and_variance" else None)


def clip_moments(new: Law, old: Law, radius: float | Tensor, variance_factor: float | None) -> Tensor:
    """Locations moved towards an old law, and shrunk if a factor is given   (Source: docs/algorithms.md, value clipping).

        z' = z + shift + (shrink − 1)·(z − μ)
        shift = clip(μ − μ_old, ±radius) − (μ − μ_old)        shrink = min(1, factor·σ_old/σ)

    laws with locations and masses [..., N] or [N] -> locations [..., N].
    """
    mean, variance = _mean_and_variance(new)
    old_mean, old_variance = _mean_and_variance(old)
    moved = new.locations + clip_excess(mean - old_mean, radius)
    if variance_factor is None:
        return moved
    wide = variance > variance_factor**2 * old_variance
    narrower = variance_factor * old_variance.sqrt() / torch.where(wide, variance, 1.0).sqrt()  # safe root where not wide
    return moved + (torch.where(wide, narrower, 1.0) - 1.0) * (new.locations - mean)


def clip_excess(change: Tensor, radius: float | Tensor) -> Tensor:
    """What must be added to a change to keep it within the radius: clip(x, ±r) − x, 0 inside   (Schulman et al. 2017, ppo2).

    change [...], radius a number or a scalar tensor -> [...].
    """
    return torch.clamp(change, -radius, radius) - change  # type: ignore[arg-type]  # number or tensor: torch takes both


def _mean_and_variance(law: Law) -> tuple[Tensor, Tensor]:
    """Mean and variance per row, [..., 1] each."""
    mean = (law.locations * law.masses).sum(-1, keepdim=True)
    return mean, ((law.locations - mean).square() * law.masses).sum(-1, keepdim=True)


def _levels_of(edges: Tensor, dtype: torch.dtype | None) -> tuple[Tensor, Tensor]:
    """Midpoints and masses of the cells between consecutive edges."""
    dtype = dtype or torch.get_default_dtype()
    return ((edges[:-1] + edges[1:]) / 2).to(dtype), edges.diff().to(dtype)
