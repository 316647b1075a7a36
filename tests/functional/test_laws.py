"""Reading a law: quantiles between levels, means of cells, and the share of what happened below them."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from functional.refusals import Refusal, assert_refused, name, never_refused
from quantail.errors import InputError
from quantail.functional import laws, quantile, risk

EXACT = {"rtol": 1e-12, "atol": 1e-12}
U = torch.tensor([0.001, 0.03, 0.5, 0.2, 0.77, 0.9999], dtype=torch.float64)


def rows(n: int, *shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def slow_quantile(theta, taus, u):
    """The straight line on the probit axis through the two levels around u, or the nearest two."""
    z, at = stats.norm.ppf(taus), stats.norm.ppf(u)
    i = min(max(int(np.sum(z < at)) - 1, 0), len(z) - 2)
    return theta[i] + (theta[i + 1] - theta[i]) * (at - z[i]) / (z[i + 1] - z[i])


@pytest.mark.parametrize("levels", [quantile.midpoint_levels, quantile.tail_levels])
def test_quantiles_between_levels(levels):
    taus, _ = levels(9, dtype=torch.float64)
    theta = rows(9, 4, 3)
    ours = laws.interpolate_quantiles(theta, taus, U)
    assert ours.shape == (4, 3, len(U))
    for i, j in np.ndindex(4, 3):
        ordered = sorted(theta[i, j].tolist())
        for k, u in enumerate(U.tolist()):
            assert float(ours[i, j, k]) == pytest.approx(slow_quantile(ordered, taus.numpy(), u), rel=1e-10)
    normal = laws.interpolate_quantiles(2 + 3 * torch.special.ndtri(taus), taus, U)
    np.testing.assert_allclose(normal.numpy(), stats.norm(2, 3).ppf(U.numpy()), rtol=1e-10)
    assert laws.interpolate_quantiles(torch.full((2, 1), 7.0), torch.tensor([0.5]), U.float()).tolist() == [[7.0] * 6] * 2


@pytest.mark.parametrize("levels", [quantile.midpoint_levels, quantile.tail_levels])
def test_what_is_interpolated_is_what_the_cvar_integrates(levels):
    taus, masses = levels(8, dtype=torch.float64)
    theta = rows(8)

    def at(u):
        return float(laws.interpolate_quantiles(theta, taus, torch.tensor([u], dtype=torch.float64))[0])

    for alpha in (0.05, 0.3):
        area, _ = integrate.quad(at, 0, alpha, limit=400, points=[float(t) for t in taus if t < alpha])
        assert float(risk.cvar_from_quantiles(theta, alpha, taus)) == pytest.approx(area / alpha, rel=1e-6)
    edges = [0.0, *masses.cumsum(0).tolist()]
    means = laws.cell_means(theta, taus, masses)
    for i in range(8):
        inside = [float(t) for t in taus if edges[i] < t < edges[i + 1]]
        area, _ = integrate.quad(at, edges[i], min(edges[i + 1], 1 - 1e-13), limit=400, points=inside)
        assert float(means[i]) == pytest.approx(area / (edges[i + 1] - edges[i]), rel=1e-5)


def test_cells_have_the_tail_mean_of_the_law_at_every_edge():
    taus, masses = quantile.tail_levels(12, dtype=torch.float64)
    theta = rows(12, 5)
    means = laws.cell_means(theta, taus, masses)
    for edge in masses.cumsum(0)[:-1].tolist():
        ours, law = risk.cvar_of_samples(means, edge, masses.expand_as(means)), risk.cvar_from_quantiles(theta, edge, taus)
        torch.testing.assert_close(ours, law, rtol=1e-9, atol=1e-9)
    areas = risk.area_weights(taus, torch.tensor([0.0, 0.4, 1.0], dtype=torch.float64))
    torch.testing.assert_close(areas.sum(-1), torch.tensor([0.0, 0.4, 1.0], dtype=torch.float64), **EXACT)
    assert risk.area_weights(torch.tensor([0.5]), torch.tensor([0.25])).tolist() == [[0.25]]


def test_atoms_are_a_histogram():
    atoms = torch.linspace(-2, 4, 7, dtype=torch.float64)
    probs = rows(7, 3, 2).softmax(-1)
    probs[0, 0, 2], probs[1, 1, 0] = 0.0, 0.0
    probs = probs / probs.sum(-1, keepdim=True)
    ours = laws.interpolate_atoms(probs, atoms, U)
    edges = np.linspace(-2.5, 4.5, 8)
    for i, j in np.ndindex(3, 2):
        expected = stats.rv_histogram((probs[i, j].numpy(), edges), density=False).ppf(U.numpy())
        np.testing.assert_allclose(ours[i, j].numpy(), expected, rtol=1e-10, atol=1e-10)
    assert laws.interpolate_atoms(torch.ones(2, 1), torch.tensor([7.0]), U.float()).tolist() == [[7.0] * 6] * 2


def test_share_below_counts_rows():
    thresholds = rows(3, 4, 5)
    x, weights = rows(5, 4, seed=1), torch.randint(0, 3, (4, 5), generator=torch.Generator().manual_seed(2)).double()
    x[1, 2] = thresholds[1, 2, 0]
    weights[1, 2] = 2.0
    expected = np.zeros(3)
    for i, j, k in np.ndindex(4, 5, 3):
        gap = float(thresholds[i, j, k] - x[i, j])
        expected[k] += float(weights[i, j]) * (0.5 if gap == 0 else float(gap > 0))
    np.testing.assert_allclose(laws.share_below(thresholds, x, weights), expected / float(weights.sum()), rtol=1e-12)
    plain = (x[..., None] < thresholds).double() + 0.5 * (x[..., None] == thresholds)
    torch.testing.assert_close(laws.share_below(thresholds, x), plain.flatten(0, 1).mean(0), **EXACT)
    x[weights == 0] = math.nan
    assert laws.share_below(thresholds, x, weights).isfinite().all()
    assert laws.share_below(thresholds, x, 0 * weights).isnan().all()
    assert laws.share_below(thresholds[0, 0], thresholds[0, 0, 1]).tolist()[1] == 0.5


def test_a_calibrated_law_has_the_share_of_its_level():
    """40 000 normal outcomes, each with a law of its own: within five standard errors."""
    noise = torch.Generator().manual_seed(3)
    mean = torch.randn(40_000, dtype=torch.float64, generator=noise)
    x = mean + torch.randn(40_000, dtype=torch.float64, generator=noise)
    shares = laws.share_below(mean[:, None] + torch.special.ndtri(U), x)
    assert ((shares - U).abs() <= 5 * (U * (1 - U) / 40_000).sqrt() + 1e-12).all()


def test_a_distribution_reads_both_kinds():
    taus, masses = quantile.tail_levels(9, dtype=torch.float64)
    theta, atoms = rows(9, 4), torch.linspace(-3, 3, 9, dtype=torch.float64)
    probs = theta.softmax(-1)
    ours = laws.Distribution(theta, masses, taus)
    torch.testing.assert_close(ours.mean, (theta * masses).sum(-1), **EXACT)
    torch.testing.assert_close(ours.cvar(0.1), risk.cvar_from_quantiles(theta, 0.1, taus), **EXACT)
    torch.testing.assert_close(ours.quantile(U), laws.interpolate_quantiles(theta, taus, U), **EXACT)
    torch.testing.assert_close(ours.quantile(0.03), ours.quantile(U)[..., 1], **EXACT)
    torch.testing.assert_close(ours.quantile(U[1]), ours.quantile(0.03), **EXACT)
    theirs = laws.Distribution(atoms, probs)
    torch.testing.assert_close(theirs.mean, probs @ atoms, **EXACT)
    torch.testing.assert_close(theirs.cvar(0.1), risk.cvar_from_categorical(probs, atoms, 0.1), **EXACT)
    torch.testing.assert_close(theirs.quantile(U), laws.interpolate_atoms(probs, atoms, U), **EXACT)


def test_a_distribution_refuses():
    scalar = laws.Distribution(torch.zeros(4, 1), torch.ones(1), torch.tensor([0.5]))
    assert scalar.mean.tolist() == [0.0] * 4
    for read in (lambda: scalar.quantile(0.5), lambda: scalar.cvar(0.05)):
        with pytest.raises(InputError, match="a scalar critic predicts a mean and nothing else"):
            read()
    law = laws.Distribution(torch.zeros(4, 2), torch.ones(2) / 2, torch.tensor([0.25, 0.75]))
    for bad in (0.0, 1.0, torch.tensor([0.5, 1.5])):
        with pytest.raises(InputError, match=r"u=.* is outside \(0, 1\)"):
            law.quantile(bad)


GRID = {"u": torch.tensor([0.5])}
GOOD = {
    laws.interpolate_quantiles: {"quantiles": torch.zeros(2, 3), "taus": torch.tensor([0.1, 0.5, 0.9]), **GRID},
    laws.interpolate_atoms: {"probs": torch.ones(2, 3) / 3, "atoms": torch.arange(3.0), **GRID},
    laws.cell_means: {"quantiles": torch.zeros(2, 3), "taus": torch.tensor([0.1, 0.5, 0.9]), "masses": torch.ones(3) / 3},
    laws.share_below: {"thresholds": torch.zeros(2, 3), "x": torch.zeros(2), "weights": torch.ones(2)},
}
REFUSALS = [
    Refusal(laws.interpolate_quantiles, "quantiles", torch.tensor(1.0), "quantiles has shape []; needs [..., quantiles]"),
    Refusal(laws.interpolate_quantiles, "taus", torch.ones(4), "taus has shape [4]; needs [3] (one for each quantile)"),
    Refusal(laws.interpolate_quantiles, "u", torch.zeros(1, 1), "u has shape [1, 1]; needs [levels]"),
    Refusal(laws.interpolate_atoms, "probs", torch.tensor(1.0), "probs has shape []; needs [..., atoms]"),
    Refusal(laws.interpolate_atoms, "atoms", torch.zeros(2), "atoms has shape [2]; needs [3] (one for each probability)"),
    Refusal(laws.interpolate_atoms, "u", 0.5, "u is a float; needs a torch.Tensor"),
    Refusal(
        laws.cell_means, "quantiles", torch.zeros(2, 0), "quantiles has shape [2, 0]; needs [..., quantiles], no axis empty"
    ),
    Refusal(laws.cell_means, "taus", torch.ones(4), "taus has shape [4]; needs [3]"),
    Refusal(laws.cell_means, "masses", torch.ones(2, 3), "masses has shape [2, 3]; needs [3]"),
    Refusal(laws.share_below, "thresholds", torch.tensor(1.0), "thresholds has shape []; needs [..., levels]"),
    Refusal(laws.share_below, "x", torch.zeros(3), "x has shape [3]; needs [2] (as thresholds without its levels)"),
    Refusal(laws.share_below, "weights", torch.zeros(3), "weights has shape [3]; needs [2] (as x)"),
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=name)
def test_refusals(refusal):
    assert_refused(refusal, GOOD)


def test_every_argument_has_a_refusal():
    assert never_refused(laws, REFUSALS) == set()
