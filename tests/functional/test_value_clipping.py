"""How far a prediction may move: the clipped value of PPO, for quantiles and for laws on a grid."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from oracles import categorical as grid
from oracles import quantile as oracle
from quantail.functional.categorical import categorical_loss, clip_categorical
from quantail.functional.quantile import CLIP_MODES, clip_excess, clip_moments, clip_quantiles, quantile_mean, tail_levels
from quantail.types import Law

EXACT = {"rtol": 0, "atol": 1e-12}
CLIPPING = [mode for mode in CLIP_MODES if mode != "off"]
MOMENTS = ["mean_only", "mean_and_variance"]


def doubles(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def std(quantiles: torch.Tensor) -> torch.Tensor:
    return quantiles.var(-1, correction=0).sqrt()


# --- quantiles -------------------------------------------------------------------------------------------------------


@pytest.mark.property
@pytest.mark.parametrize("mode", CLIP_MODES)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 6),
    radius=st.sampled_from([0.0, 0.1, 1.0, 9.0]),
    factor=st.sampled_from([1.0, 1.5, 3.0]),
    weighted=st.booleans(),
)
def test_quantiles_against_a_loop(mode, seed, n, radius, factor, weighted):
    generator = torch.Generator().manual_seed(seed)
    new, old = (torch.randn(3, 2, n, dtype=torch.float64, generator=generator) for _ in range(2))
    new = new * torch.tensor([0.3, 1.0, 4.0], dtype=torch.float64)[:, None, None]  # narrower than the old law, like it, wider
    masses = tail_levels(n, dtype=torch.float64)[1] if weighted else None
    clipped = clip_quantiles(new, old, radius, mode, factor, masses)
    weights = [1 / n] * n if masses is None else masses.tolist()
    for row in np.ndindex(3, 2):
        expected = oracle.clipped_quantiles(new[row].tolist(), old[row].tolist(), radius, mode, factor, weights)
        np.testing.assert_allclose(clipped[row], expected, **EXACT)


def test_mean_only_keeps_the_shape_and_brings_the_mean_within_the_radius():
    new, old = 3 * doubles(5, 7) + 1, doubles(5, 7)
    clipped = clip_quantiles(new, old, 0.2, "mean_only")
    torch.testing.assert_close(clipped.diff(dim=-1), new.diff(dim=-1), **EXACT)
    moved = clipped.mean(-1) - old.mean(-1)
    torch.testing.assert_close(moved, (new.mean(-1) - old.mean(-1)).clamp(-0.2, 0.2), **EXACT)
    assert moved.abs().max() == pytest.approx(0.2)


def test_mean_and_variance_shrinks_and_never_widens():
    """Multiplied by the ratio of the spreads instead of shrunk by it, a law came out 17 times too wide."""
    new, old = doubles(6, 7) * torch.tensor([0.1, 0.5, 1, 2, 4, 17], dtype=torch.float64)[:, None], doubles(6, 7)
    clipped = clip_quantiles(new, old, 0.2, "mean_and_variance", 1.5)
    expected = torch.minimum(std(new), 1.5 * std(old))
    torch.testing.assert_close(std(clipped), expected, **EXACT)
    assert (std(clipped) < std(new)).tolist()[-1]
    torch.testing.assert_close(clipped.mean(-1), clip_quantiles(new, old, 0.2, "mean_only").mean(-1), **EXACT)


def test_default_variance_factor_is_two():
    new, old = 9 * doubles(4, 7), doubles(4, 7)
    torch.testing.assert_close(std(clip_quantiles(new, old, 99.0, "mean_and_variance")), 2 * std(old), **EXACT)


def test_per_quantile_leaves_unchanged_predictions_their_spread():
    """Clipped around the old mean, every law collapsed to it; each quantile has its own old place."""
    old = 5 * doubles(3, 7)
    assert torch.equal(clip_quantiles(old, old, 0.1, "per_quantile"), old)
    torch.testing.assert_close(clip_quantiles(old + 1, old, 0.1, "per_quantile"), old + 0.1, **EXACT)
    torch.testing.assert_close(clip_quantiles(old - 1, old, 0.1, "per_quantile"), old - 0.1, **EXACT)


def test_cell_masses_say_where_the_mean_is():
    masses = tail_levels(6, dtype=torch.float64)[1]
    new, old = 2 * doubles(4, 6), doubles(4, 6)
    clipped = clip_quantiles(new, old, 0.05, "mean_only", masses=masses)
    moved = quantile_mean(clipped, masses) - quantile_mean(old, masses)
    torch.testing.assert_close(moved.abs(), torch.full((4,), 0.05, dtype=torch.float64), **EXACT)
    assert ((clipped - old).mean(-1).abs() > 0.051).any()


@pytest.mark.parametrize("mode", CLIP_MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_within_the_radius_quantiles_come_back_bit_for_bit(mode, dtype):
    old = doubles(50, 7).to(dtype)
    new = old + 0.09 * (2 * torch.rand(50, 7, dtype=dtype) - 1)
    assert torch.equal(clip_quantiles(new, old, 0.1, mode), new)


@pytest.mark.parametrize("mode", CLIPPING)
def test_radius_as_a_scalar_tensor(mode):
    new, old = (3 * doubles(4, 7)).float(), doubles(4, 7).float()
    clipped = clip_quantiles(new, old, torch.tensor(0.25, dtype=torch.float64), mode)
    assert clipped.dtype == torch.float32
    assert torch.equal(clipped, clip_quantiles(new, old, 0.25, mode))


@pytest.mark.parametrize("mode", CLIPPING)
def test_gradients_reach_the_new_quantiles_and_never_the_old(mode):
    new = doubles(4, 5) * torch.tensor([0.1, 1, 3, 9], dtype=torch.float64)[:, None]
    old = doubles(4, 5).requires_grad_()
    assert gradcheck(lambda new: clip_quantiles(new, old.detach(), 0.3, mode), new.requires_grad_())
    clip_quantiles(new, old, 0.3, mode).sum().backward()
    assert old.grad is None


@pytest.mark.parametrize("collapsed", [False, True])
def test_equal_laws_and_laws_without_spread_give_finite_gradients(collapsed):
    old = doubles(3, 5) * (not collapsed)
    for new in (old.clone(), doubles(3, 5)):
        new.requires_grad_()
        clipped = clip_quantiles(new, old, 0.3, "mean_and_variance")
        clipped.square().sum().backward()
        assert new.grad.isfinite().all()
        assert not collapsed or std(clipped).max() < 1e-12


def test_clip_excess_is_the_step_back_into_the_radius():
    change = torch.tensor([-3.0, -0.5, -0.25, 0.0, 0.5, 2.0], dtype=torch.float64)
    expected = [2.5, 0, 0, 0, 0, -1.5]
    assert clip_excess(change, 0.5).tolist() == expected == clip_excess(change, torch.tensor(0.5)).tolist()
    np.testing.assert_allclose(change + clip_excess(change, 0.5), np.clip(change.numpy(), -0.5, 0.5), **EXACT)
    assert gradcheck(lambda change: clip_excess(change, 0.4), change.requires_grad_())


def test_clip_moments_takes_each_law_in_its_own_masses():
    new, old = Law(doubles(5), doubles(3, 5).softmax(-1)), Law(4 * doubles(3, 4), doubles(4).softmax(-1))
    for factor in (None, 1.2):
        moved = clip_moments(new, old, 0.1, factor)
        for row in range(3):
            expected = oracle.moved_points(
                new.locations.tolist(),
                new.masses[row].tolist(),
                old.locations[row].tolist(),
                old.masses.tolist(),
                0.1,
                factor or float("inf"),
            )
            np.testing.assert_allclose(moved[row], expected, **EXACT)


# --- laws on a grid --------------------------------------------------------------------------------------------------

EVEN = torch.linspace(-2, 3, 6, dtype=torch.float64)
UNEVEN = torch.tensor([-2.0, -1.9, -0.5, 0.0, 1.7, 3.0], dtype=torch.float64)


@pytest.mark.property
@pytest.mark.parametrize("mode", CLIP_MODES)
@given(
    seed=st.integers(0, 10**6),
    radius=st.sampled_from([0.0, 0.1, 0.8, 2.5, 9.0]),
    factor=st.sampled_from([1.0, 1.3, 3.0]),
    atoms=st.sampled_from([EVEN, UNEVEN, UNEVEN[1:3]]),
    sharpness=st.sampled_from([0.3, 2.0, 9.0]),
)
def test_laws_on_a_grid_against_a_loop(mode, seed, radius, factor, atoms, sharpness):
    generator = torch.Generator().manual_seed(seed)
    logits, old = (sharpness * torch.randn(3, 2, len(atoms), dtype=torch.float64, generator=generator) for _ in range(2))
    old_probs = old.softmax(-1)
    clipped = clip_categorical(logits, old_probs, atoms, radius, mode, factor).exp()
    torch.testing.assert_close(clipped.sum(-1), torch.ones(3, 2).double(), **EXACT)
    for row in np.ndindex(3, 2):
        new = logits[row].softmax(-1).tolist()
        expected = grid.clipped_law(new, old_probs[row].tolist(), atoms.tolist(), radius, mode, factor)
        np.testing.assert_allclose(clipped[row], expected, **EXACT)


@pytest.mark.parametrize("atoms", [EVEN, UNEVEN], ids=["even", "uneven"])
def test_per_quantile_is_a_clip_at_every_level(atoms):
    """The same from 200 000 levels drawn through numpy, each clipped and projected by numpy's interpolation."""
    new, old = 2 * doubles(2, 6).softmax(-1).numpy()
    levels = (np.arange(200_000) + 0.5) / 200_000
    start, old_start = (atoms.numpy()[np.searchsorted(np.cumsum(p), levels * p.sum())] for p in (new, old))
    moved = old_start + np.clip(start - old_start, -0.4, 0.4)
    expected = [np.interp(moved, atoms.numpy(), unit).mean() for unit in np.eye(6)]
    logits, old_probs = torch.as_tensor(new)[None].log(), torch.as_tensor(old / old.sum())[None]
    np.testing.assert_allclose(clip_categorical(logits, old_probs, atoms, 0.4, "per_quantile")[0].exp(), expected, atol=2e-5)


@pytest.mark.parametrize(("radius", "steps"), [(0.0, 0), (0.5, 1), (1.0, 2), (7.0, 3)])
@pytest.mark.parametrize("mode", CLIPPING)
def test_a_shifted_law_stops_at_the_radius(mode, radius, steps):
    """A law shifted by three gaps of ½ stops after radius/½ of them: it is the old one shifted by whole atoms."""
    bump = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)

    def shifted(by):
        return torch.cat([torch.zeros(1 + by), bump, torch.zeros(4 - by)])

    clipped = clip_categorical(shifted(3).log().clamp_min(-700), shifted(0), torch.arange(8).double() / 2, radius, mode)
    torch.testing.assert_close(clipped.exp(), shifted(steps), **EXACT)


@pytest.mark.parametrize("mode", MOMENTS)
def test_mean_of_a_law_on_a_grid_stays_within_the_radius(mode):
    atoms = torch.linspace(-9, 9, 19, dtype=torch.float64)
    logits, old = (-0.5 * (atoms - centre).square() + 0.1 * doubles(4, 19) for centre in (1.0, 0.0))
    clipped, old_probs = clip_categorical(logits, old.softmax(-1), atoms, 0.25, mode).exp(), old.softmax(-1)
    torch.testing.assert_close((clipped - old_probs) @ atoms, torch.full((4,), 0.25, dtype=torch.float64), rtol=0, atol=1e-7)


@pytest.mark.parametrize("mode", MOMENTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_untouched_rows_are_exactly_log_softmax(mode, dtype):
    logits = (9 * doubles(40, 6)).to(dtype)
    old, atoms, own = doubles(40, 6).softmax(-1).to(dtype), EVEN.to(dtype), logits.log_softmax(-1)
    within = ((own.exp() - old) @ atoms).abs() < 1.0
    assert 5 < within.sum() < 35
    clipped = clip_categorical(logits, old, atoms, 1.0, mode, 99.0)
    assert torch.equal((clipped == own).all(-1), within)
    assert torch.equal(clip_categorical(logits, logits.softmax(-1), atoms, 1e-3, mode), own)


@pytest.mark.parametrize("mode", CLIP_MODES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_wide_radius_is_exactly_log_softmax(mode, dtype):
    logits, old = (9 * doubles(40, 6)).to(dtype), doubles(40, 6).softmax(-1).to(dtype)
    assert torch.equal(clip_categorical(logits, old, EVEN.to(dtype), 5.0, mode, 99.0), logits.log_softmax(-1))


@pytest.mark.parametrize("mode", CLIPPING)
def test_gradients_reach_the_logits_and_never_the_old_law(mode):
    """Computed without a graph, clipping had no effect on learning."""
    logits, old = 2 * doubles(3, 6), doubles(3, 6).softmax(-1).requires_grad_()
    assert gradcheck(lambda x: clip_categorical(x, old.detach(), UNEVEN, 0.3, mode, 1.1), logits.requires_grad_())
    target = doubles(3, 6).softmax(-1)
    clipped = clip_categorical(logits, old, UNEVEN, 0.3, mode, 1.1)
    (slope,) = torch.autograd.grad(categorical_loss(clipped, target).sum(), logits)
    assert (slope.abs().amax(-1) > 1e-3).all()
    assert (categorical_loss(clipped, target) - categorical_loss(logits, target)).abs().min() > 1e-3
    assert torch.autograd.grad(clipped.sum(), old, allow_unused=True) == (None,)


@pytest.mark.parametrize("mode", CLIPPING)
def test_laws_without_spread_give_finite_values_and_gradients(mode):
    certain = torch.tensor([[200.0, -200, -200, -200, -200, -200], [-200.0, -200, -200, -200, -200, 200]], dtype=torch.float64)
    for new, old in itertools.product((certain, doubles(2, 6)), (certain, certain.flip(0))):
        logits = new.clone().requires_grad_()
        clipped = clip_categorical(logits, old.softmax(-1), EVEN, 0.3, mode)
        clipped.square().sum().backward()
        assert clipped.isfinite().all()
        assert logits.grad.isfinite().all()


@pytest.mark.parametrize("mode", CLIPPING)
def test_radius_of_a_grid_as_a_scalar_tensor(mode):
    logits, old = doubles(3, 6).float(), doubles(3, 6).float().softmax(-1)
    clipped = clip_categorical(logits, old, EVEN.float(), torch.tensor(0.25, dtype=torch.float64), mode)
    assert clipped.dtype == torch.float32
    assert torch.equal(clipped, clip_categorical(logits, old, EVEN.float(), 0.25, mode))
