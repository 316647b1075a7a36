"""Laws as quantiles: levels, loss, means, pools. Value clipping has a file of its own."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.autograd import gradcheck

from oracles import quantile as oracle
from oracles.risk import integrated_cvar
from quantail.functional import quantile

EXACT = {"rtol": 0, "atol": 1e-12}


def doubles(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


# --- levels ----------------------------------------------------------------------------------------------------------

# worked by hand: k = round(n/2) levels at 0.1·((i + ½)/k)², then midpoints of the rest of [0.1, 1]
TAIL_LEVELS = {
    1: ([0.5], [1.0]),
    2: ([0.025, 0.55], [0.1, 0.9]),
    3: ([0.00625, 0.05625, 0.55], [0.025, 0.075, 0.9]),
    4: ([0.00625, 0.05625, 0.325, 0.775], [0.025, 0.075, 0.45, 0.45]),
    5: ([0.00625, 0.05625, 0.25, 0.55, 0.85], [0.025, 0.075, 0.3, 0.3, 0.3]),
}


@pytest.mark.parametrize("n", TAIL_LEVELS)
def test_tail_levels_by_hand(n):
    levels, masses = quantile.tail_levels(n, dtype=torch.float64)
    np.testing.assert_allclose(levels, TAIL_LEVELS[n][0], **EXACT)
    np.testing.assert_allclose(masses, TAIL_LEVELS[n][1], **EXACT)


@pytest.mark.parametrize("n", [1, 2, 5, 32])
def test_midpoint_levels_by_hand(n):
    levels, masses = quantile.midpoint_levels(n, dtype=torch.float64)
    np.testing.assert_allclose(levels, [(2 * i + 1) / (2 * n) for i in range(n)], **EXACT)
    np.testing.assert_allclose(masses, [1 / n] * n, **EXACT)


@pytest.mark.property
@given(n=st.integers(1, 300))
@pytest.mark.parametrize("levels_of", [quantile.midpoint_levels, quantile.tail_levels])
def test_cells_tile_the_unit_interval_with_one_level_in_each(levels_of, n):
    levels, masses = levels_of(n, dtype=torch.float64)
    ends = masses.cumsum(0)
    assert levels.shape == masses.shape == (n,)
    assert ends[-1].item() == pytest.approx(1, abs=1e-12)
    assert ((ends - masses < levels) & (levels < ends)).all()


def test_half_of_the_tail_levels_lie_in_the_worst_tenth():
    assert [int((quantile.tail_levels(n)[0] < 0.1).sum()) for n in (20, 21, 32, 51)] == [10, 10, 16, 26]


@pytest.mark.parametrize("levels_of", [quantile.midpoint_levels, quantile.tail_levels])
@pytest.mark.parametrize("n", [1, 7])
def test_levels_are_computed_in_float64_and_rounded_once(levels_of, n):
    for rounded, exact in zip(levels_of(n, dtype=torch.float32), levels_of(n, dtype=torch.float64), strict=True):
        assert torch.equal(rounded, exact.float())
    assert {values.dtype for values in levels_of(n)} == {torch.get_default_dtype()}


# --- mean and order --------------------------------------------------------------------------------------------------


def test_mean_of_quantiles_against_numpy_and_a_known_law():
    quantiles, (levels, masses) = doubles(2, 3, 7), quantile.tail_levels(7, dtype=torch.float64)
    torch.testing.assert_close(quantile.quantile_mean(quantiles), torch.as_tensor(quantiles.numpy().mean(-1)), **EXACT)
    averaged = np.average(quantiles.numpy(), axis=-1, weights=masses.numpy())
    torch.testing.assert_close(quantile.quantile_mean(quantiles, masses), torch.as_tensor(averaged), **EXACT)
    # Q(u) = 2u, k = 4: a packed level lies 0.1/4k² below the middle of its cell, the others in the middle
    assert quantile.quantile_mean(2 * levels, masses).item() == pytest.approx(1 - 2 * 0.1 * 0.1 / (4 * 4**2), abs=1e-12)
    assert gradcheck(quantile.quantile_mean, (quantiles.requires_grad_(), masses.requires_grad_()))


def test_sorting_equals_numpy_and_never_leads_away_from_the_truth():
    truth, crossed = doubles(2, 4, 9).sort(-1).values, doubles(2, 4, 9)
    ordered = quantile.sort_quantiles(crossed)
    np.testing.assert_array_equal(ordered, np.sort(crossed.numpy(), -1))
    for power in (1, 2, 3):  # Chernozhukov et al. 2010, proposition 1
        assert ((ordered - truth).abs() ** power).sum() < ((crossed - truth).abs() ** power).sum()
    assert gradcheck(quantile.sort_quantiles, crossed.requires_grad_())


# --- loss ------------------------------------------------------------------------------------------------------------


@pytest.mark.property
@given(data=st.data(), kappa=st.sampled_from([0.0, 0.01, 0.5, 1.0, 2.0]), whole=st.booleans())
@pytest.mark.parametrize("levels_of", [quantile.midpoint_levels, quantile.tail_levels])
def test_loss_is_the_double_loop_of_the_paper(levels_of, data, kappa, whole):
    rows, n, m = (data.draw(st.integers(1, top)) for top in (3, 6, 5))
    seed = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
    theta, targets = (2 * torch.randn(rows, k, dtype=torch.float64, generator=seed) for k in (n, m))
    if whole:  # ties: errors of exactly 0 and exactly κ
        theta, targets = theta.round(), targets.round()
    taus = levels_of(n, dtype=torch.float64)[0]
    expected = [
        oracle.quantile_huber_loss(*row, taus.tolist(), kappa) for row in zip(theta.tolist(), targets.tolist(), strict=True)
    ]
    np.testing.assert_allclose(quantile.quantile_huber_loss(theta, targets, taus, kappa), expected, **EXACT)
    if levels_of is quantile.midpoint_levels:
        np.testing.assert_allclose(quantile.quantile_huber_loss(theta, targets, kappa=kappa), expected, **EXACT)


def test_loss_of_one_error_by_hand():
    def loss(u, tau, kappa):
        return quantile.quantile_huber_loss(
            *torch.tensor([[[0.0]], [[u]]], dtype=torch.float64), torch.tensor([tau], dtype=torch.float64), kappa
        ).item()

    # not divided by κ: with κ = 2 the quadratic zone is u²/2, whichever κ
    assert loss(1.5, 0.25, 2.0) == pytest.approx(0.25 * 1.125)
    assert loss(1.5, 0.25, 1.5) == pytest.approx(0.25 * 1.125)
    assert loss(3.0, 0.25, 2.0) == pytest.approx(0.25 * 4.0)
    # a target above the quantile is an underestimate and costs τ, one below costs 1 − τ
    assert loss(1.0, 0.9, 0.0) == pytest.approx(0.9)
    assert loss(-1.0, 0.9, 0.0) == pytest.approx(0.1)
    assert loss(0.0, 0.9, 0.0) == 0


def test_default_kappa_is_one():
    theta, targets = 2 * doubles(3, 4), 2 * doubles(3, 5)
    assert torch.equal(quantile.quantile_huber_loss(theta, targets), quantile.quantile_huber_loss(theta, targets, kappa=1.0))


def test_each_row_has_its_own_targets():
    """Targets [B, 1] once spread over the batch, and all rows learned one and the same law."""
    theta, targets = doubles(3, 4), doubles(3, 1).requires_grad_()
    quantile.quantile_huber_loss(theta, targets)[1].backward()
    assert (targets.grad[:, 0] != 0).tolist() == [False, True, False]


def test_minimiser_of_the_pinball_loss_is_the_empirical_quantile():
    sample = doubles(37)
    taus = torch.tensor([0.03, 0.1, 0.42, 0.5, 0.9, 0.999], dtype=torch.float64)
    losses = [[quantile.quantile_huber_loss(c.view(1), sample, t.view(1), 0.0).item() for c in sample] for t in taus]
    best = [sample[int(np.argmin(row))].item() for row in losses]
    assert best == np.quantile(sample.numpy(), taus.numpy(), method="inverted_cdf").tolist()


def test_quantiles_learned_on_skewed_data_come_out_in_order():
    """With the sign of u turned round, the level 0.9 ended below the level 0.1."""
    targets = torch.as_tensor(stats.expon.ppf((np.arange(99) + 0.5) / 99))
    taus = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    theta = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    for _ in range(600):
        (slope,) = torch.autograd.grad(quantile.quantile_huber_loss(theta, targets, taus, 0.01) / 0.01, theta)
        theta = (theta - 0.2 * slope).detach().requires_grad_()
    np.testing.assert_allclose(theta.detach(), stats.expon.ppf([0.1, 0.5, 0.9]), atol=0.05)


@pytest.mark.parametrize("n", [1, 2, 9])
def test_pinball_over_all_levels_is_half_the_crps(n):
    points, outcomes = doubles(n).sort().values, doubles(5)
    pinball = [quantile.quantile_huber_loss(points, y.view(1), kappa=0.0).item() for y in outcomes]
    assert pinball == pytest.approx([oracle.crps(points.tolist(), y.item()) / 2 for y in outcomes], abs=1e-12)


@pytest.mark.parametrize("kappa", [1e-3, 1e-7])
def test_huber_over_kappa_tends_to_pinball(kappa):
    theta, targets, taus = doubles(3, 5), doubles(3, 4), quantile.midpoint_levels(5, dtype=torch.float64)[0]
    below = (targets[:, None] < theta[..., None]).double()
    side = (taus[:, None] - below).abs().mean((-2, -1))  # each error beyond κ loses κ/2 of its size
    huber, pinball = (quantile.quantile_huber_loss(theta, targets, taus, k) for k in (kappa, 0.0))
    torch.testing.assert_close(huber / kappa, pinball - kappa / 2 * side, rtol=0, atol=1e-10)


@pytest.mark.parametrize(("kappa", "understated"), [(0.1, 2.3), (0.5, 10), (1.0, 18), (2.0, 25)])
def test_huber_collapses_towards_the_mean_as_documented(kappa, understated):
    """Quantiles that minimise the loss for a unit Gaussian, then their CVaR at 5 %: too high by so many per cent."""
    targets = torch.as_tensor(stats.norm.ppf((np.arange(4000) + 0.5) / 4000))
    levels = quantile.midpoint_levels(51, dtype=torch.float64)[0]
    theta = torch.as_tensor(stats.norm.ppf(levels)).requires_grad_()
    search = torch.optim.LBFGS(
        [theta], max_iter=60, line_search_fn="strong_wolfe", tolerance_grad=1e-11, tolerance_change=1e-14
    )

    def loss():
        search.zero_grad()
        value = 51 * quantile.quantile_huber_loss(theta, targets, levels, kappa)
        value.backward()
        return value

    search.step(loss)
    truth = -math.exp(-(stats.norm.ppf(0.05) ** 2) / 2) / math.sqrt(2 * math.pi) / 0.05
    error = 100 * (1 - integrated_cvar(levels.numpy(), theta.detach().numpy(), 0.05) / truth)
    assert error == pytest.approx(understated, abs=0.5 if understated >= 10 else 0.06)


@pytest.mark.parametrize("kappa", [0.0, 0.7, 5.0])
def test_loss_gradients(kappa):
    theta, targets = doubles(2, 3).requires_grad_(), doubles(2, 4).requires_grad_()
    taus = torch.tensor([0.1, 0.35, 0.8], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda *tensors: quantile.quantile_huber_loss(*tensors, kappa), (theta, targets, taus))


# --- pools -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_pools_against_a_loop(weighted):
    critics = doubles(3, 2, 4, 5)
    masses = quantile.tail_levels(5, dtype=torch.float64)[1] if weighted else None
    lowest, average = quantile.pool_quantiles(critics, "min", masses), quantile.pool_quantiles(critics, masses=masses)
    weights = [0.2] * 5 if masses is None else masses.tolist()
    for row in np.ndindex(2, 4):
        laws = [critics[(c, *row)].tolist() for c in range(3)]
        assert lowest[row].tolist() == min(laws, key=lambda law: oracle.mean_and_std(law, weights)[0])
        np.testing.assert_allclose(average[row], np.mean([sorted(law) for law in laws], axis=0), **EXACT)


def test_pool_by_mean_is_the_barycentre_of_the_laws():
    """The average of sorted quantiles keeps the average of the means, and of equal laws it is that law."""
    critics = doubles(2, 3, 7)
    torch.testing.assert_close(quantile.pool_quantiles(critics).mean(-1), critics.mean((0, 2)), **EXACT)
    law, shuffled = doubles(7).sort().values, torch.randperm(7)
    torch.testing.assert_close(quantile.pool_quantiles(torch.stack([law, law[shuffled]])), law, **EXACT)


def test_lowest_law_comes_whole_and_of_equal_means_the_first():
    laws = torch.tensor([[[1.0, 5.0]], [[0.0, 4.0]], [[2.0, 2.0]]])
    assert quantile.take_lowest(laws, laws.mean(-1)).tolist() == [[0.0, 4.0]]
    assert quantile.pool_quantiles(laws, "min").tolist() == [[0.0, 4.0]]
    assert quantile.take_lowest(laws, torch.tensor([[3.0], [1.0], [1.0]])).tolist() == [[0.0, 4.0]]


@pytest.mark.parametrize("reduce", ["mean", "min"])
def test_pool_gradients(reduce):
    assert gradcheck(lambda critics: quantile.pool_quantiles(critics, reduce), doubles(2, 3, 4).requires_grad_())
