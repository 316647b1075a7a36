"""A predicted law, to be read: its mean, its quantiles and its tail; and whether what happened bears it out."""

from typing import NamedTuple

import torch
from torch import Tensor

from quantail.errors import InputError
from quantail.functional.checks import bad_shape, check_number, check_rank, check_shape
from quantail.functional.risk import area_weights, cvar_from_categorical, cvar_from_quantiles


def interpolate_quantiles(quantiles: Tensor, taus: Tensor, u: Tensor) -> Tensor:
    """Q(u) of a law given by quantiles, linear in Φ⁻¹(u)   (Source: docs/algorithms.md, CVaR read-out).

        Q(u) = θ_i + (θ_{i+1} − θ_i)·(Φ⁻¹(u) − z_i)/(z_{i+1} − z_i),   z = Φ⁻¹(τ);  the outermost segments extrapolate

    quantiles [..., N] at levels taus [N], u [K] in (0, 1) -> [..., K]. The function that `risk.cvar_from_quantiles` integrates;
    exact for a Gaussian. Crossed quantiles are sorted first; one quantile alone is the law.
    """
    check_rank("quantiles", quantiles, 1, "[..., quantiles]")
    check_shape("taus", taus, quantiles.shape[-1:], "one for each quantile")
    _check_probabilities(u)
    quantiles = quantiles.sort(-1).values
    if quantiles.shape[-1] == 1:
        return quantiles.expand(*quantiles.shape[:-1], len(u))
    z, at = torch.special.ndtri(taus.double()), torch.special.ndtri(u.double())
    lower = (torch.searchsorted(z, at) - 1).clamp(0, len(z) - 2)
    share = ((at - z[lower]) / (z[lower + 1] - z[lower])).to(quantiles.dtype)
    return torch.lerp(quantiles[..., lower], quantiles[..., lower + 1], share)


def interpolate_atoms(probs: Tensor, atoms: Tensor, u: Tensor) -> Tensor:
    """Q(u) of a law on an even grid, each atom's mass spread evenly over its cell   (Source: definition, a histogram).

        Q(u) = z_i + Δ·((u − F_{i−1})/p_i − ½),   i the first atom with F_i >= u

    probs [..., N], atoms [N] evenly spaced, u [K] in (0, 1) -> [..., K]. Means and cells keep their mass; a step function would
    be off by Δ/4 on average for any law with a density.
    """
    check_rank("probs", probs, 1, "[..., atoms]")
    check_shape("atoms", atoms, probs.shape[-1:], "one for each probability")
    _check_probabilities(u)
    if len(atoms) == 1:
        return atoms.expand(*probs.shape[:-1], len(u))
    cumulative = probs.double().cumsum(-1)
    cumulative = cumulative / cumulative[..., -1:]
    levels = u.double().expand(*probs.shape[:-1], -1).contiguous()
    at = torch.searchsorted(cumulative, levels).clamp_max(len(atoms) - 1)
    upper = cumulative.gather(-1, at)
    mass = cumulative.diff(dim=-1, prepend=torch.zeros_like(cumulative[..., :1])).gather(-1, at)
    share = (levels - (upper - mass)) / torch.where(mass > 0, mass, 1.0)
    return atoms[at] + ((atoms[1] - atoms[0]) * (share - 0.5)).to(atoms.dtype)


def cell_means(quantiles: Tensor, taus: Tensor, masses: Tensor) -> Tensor:
    """Means of the quantiles' cells: 1/m_i·∫ Q over [M_{i−1}, M_i], M = Σ m   (Source: docs/algorithms.md, CVaR read-out).

    quantiles [..., N] at levels taus [N] with cell masses [N] -> [..., N]. A law of these atoms has the interpolated law's tail
    mean at every edge of a cell, which its quantiles have not: many such laws may be pooled into one.
    """
    check_rank("quantiles", quantiles, 1, "[..., quantiles]")
    check_shape("taus", taus, quantiles.shape[-1:], "one for each quantile")
    check_shape("masses", masses, quantiles.shape[-1:], "one for each quantile")
    edges = masses.double().cumsum(0)
    areas = area_weights(taus, edges / edges[-1])
    weights = areas.diff(dim=0, prepend=torch.zeros_like(areas[:1])) * (edges[-1] / masses.double())[:, None]
    return quantiles.sort(-1).values @ weights.T.to(quantiles.dtype)


def share_below(thresholds: Tensor, x: Tensor, weights: Tensor | None = None) -> Tensor:
    """How much of what happened lies below each predicted level: Σ w·(1{x < θ} + ½·1{x = θ})/Σ w   (Gneiting et al. 2007).

    thresholds [..., K], one law per row; x [...] what happened there; weights >= 0 [...], equal if none -> [K]. Of a calibrated
    law the quantile at level u has the share u. What has weight 0 may hold anything; NaN where nothing has weight.
    """
    check_rank("thresholds", thresholds, 1, "[..., levels]")
    check_shape("x", x, thresholds.shape[:-1], "as thresholds without its levels")
    below = (x[..., None] < thresholds).double() + 0.5 * (x[..., None] == thresholds)
    if weights is None:
        return below.flatten(0, -2).mean(0) if below.ndim > 1 else below
    check_shape("weights", weights, x.shape, "as x")
    share = torch.where(weights > 0, weights, 0.0).double()[..., None]
    rows = tuple(range(x.ndim))
    return (below * share).sum(rows) / share.sum(rows)


class Distribution(NamedTuple):
    """The law of what follows, row by row, as a critic predicts it; in raw units, to be read."""

    locations: Tensor  # [..., N] quantiles, or [N] atoms shared by all rows
    masses: Tensor  # [N] of the quantiles' cells, or [..., N] probabilities of the atoms
    taus: Tensor | None = None  # [N] the levels of quantiles; none of atoms

    @property
    def mean(self) -> Tensor:
        """E[Z]: [...]."""
        return (self.locations * self.masses).sum(-1)

    def quantile(self, u: float | Tensor) -> Tensor:
        """F⁻¹(u) of Z: [...] for a number, [..., K] for levels [K]."""
        self._check_spread("quantiles")
        levels = torch.as_tensor(u, dtype=torch.float64, device=self.masses.device).reshape(-1)
        for level in levels.tolist():
            check_number("u", level, 0.0, 1.0, low_open=True, high_open=True)
        if self.taus is None:
            found = interpolate_atoms(self.masses, self.locations, levels)
        else:
            found = interpolate_quantiles(self.locations, self.taus, levels)
        return found if isinstance(u, Tensor) and u.ndim else found[..., 0]

    def cvar(self, alpha: float) -> Tensor:
        """Mean of the worst α of Z: [...]; of one state, not of an episode (docs/risk.md)."""
        self._check_spread("a tail")
        if self.taus is None:
            return cvar_from_categorical(self.masses, self.locations, alpha)
        return cvar_from_quantiles(self.locations, alpha, self.taus)

    def _check_spread(self, what: str) -> None:
        if self.masses.shape[-1] == 1:
            raise InputError(f"a scalar critic predicts a mean and nothing else; for {what} train with critic.kind='quantile'")


def _check_probabilities(u: Tensor) -> None:
    check_rank("u", u, 1, "[levels]")
    if u.ndim != 1:
        bad_shape("u", u, "[levels]")
