"""Laws on a grid and draws from them. Value clipping has a file of its own."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck
from torch.nn.functional import cross_entropy

from oracles import categorical as oracle
from quantail.functional import categorical
from quantail.types import Law

EXACT = {"rtol": 0, "atol": 1e-12}
UNEVEN = torch.tensor([-3.0, -1.0, -0.75, 0.5, 2.0], dtype=torch.float64)
EVEN = torch.linspace(-2, 2, 5, dtype=torch.float64)


def doubles(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


# --- support ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("low", "high", "n"), [(-10, 10, 51), (-5.0, 5.0, 101), (0.1, 0.7, 2), (-3, -1, 3)])
def test_support_by_its_formula_and_numpy(low, high, n):
    atoms = categorical.support(low, high, n, dtype=torch.float64)
    np.testing.assert_allclose(atoms, [low + i * (high - low) / (n - 1) for i in range(n)], **EXACT)
    np.testing.assert_allclose(atoms, np.linspace(low, high, n), **EXACT)
    assert categorical.support(low, high, n).dtype == torch.get_default_dtype()


# --- projection ------------------------------------------------------------------------------------------------------


@pytest.mark.property
@given(seed=st.integers(0, 10**6), m=st.integers(1, 6), grid=st.sampled_from([EVEN, UNEVEN, UNEVEN[:2]]), batched=st.booleans())
def test_projection_against_a_loop_and_numpys_interpolation(seed, m, grid, batched):
    generator = torch.Generator().manual_seed(seed)
    probs = torch.randn(2, 3, m, dtype=torch.float64, generator=generator).softmax(-1)
    atoms = 2.5 * torch.randn(*((2, 3, m) if batched else (m,)), dtype=torch.float64, generator=generator)
    atoms = torch.where(torch.rand(atoms.shape, generator=generator) < 0.4, atoms.round(), atoms)  # hits, ties, ends
    projected = categorical.project(probs, atoms, grid)
    assert projected.shape == (2, 3, len(grid))
    for row in np.ndindex(2, 3):
        mass, points = probs[row].numpy(), atoms.expand(2, 3, m)[row].numpy()
        np.testing.assert_allclose(projected[row], oracle.project(mass, points, grid.tolist()), **EXACT)
        hats = [np.interp(points, grid.numpy(), unit) @ mass for unit in np.eye(len(grid))]
        np.testing.assert_allclose(projected[row], hats, **EXACT)


@pytest.mark.parametrize("grid", [EVEN, UNEVEN], ids=["even", "uneven"])
def test_projection_conserves_mass_and_inside_the_support_the_mean(grid):
    probs = doubles(7, 9).softmax(-1)
    inside = grid[0] + (grid[-1] - grid[0]) * torch.rand(7, 9, dtype=torch.float64)
    for atoms in (inside, 9 * doubles(7, 9)):
        torch.testing.assert_close(categorical.project(probs, atoms, grid).sum(-1), probs.sum(-1), **EXACT)
    torch.testing.assert_close(categorical.project(probs, inside, grid) @ grid, (probs * inside).sum(-1), **EXACT)


@pytest.mark.parametrize("grid", [EVEN, UNEVEN], ids=["even", "uneven"])
def test_an_atom_that_hits_the_grid_goes_there_whole(grid):
    """Exact hits once went to the wrong atom, and of several in a row all but one were lost."""
    probs = doubles(3, 5).softmax(-1)
    assert torch.equal(categorical.project(probs, grid, grid), probs)
    assert torch.equal(categorical.project(probs, grid.flip(0), grid), probs.flip(-1))
    assert torch.equal(categorical.two_hot(grid, grid), torch.eye(5).double())
    same = categorical.project(probs, grid[-1].expand(5), grid)
    torch.testing.assert_close(same, torch.eye(5).double()[-1].expand(3, 5), **EXACT)


def test_atoms_outside_the_support_go_to_its_ends():
    atoms = torch.tensor([-99.0, -3.0001, 2.0001, math.inf], dtype=torch.float64)
    masses = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    np.testing.assert_allclose(categorical.project(masses, atoms, UNEVEN), [0.3, 0, 0, 0, 0.7], **EXACT)


@pytest.mark.parametrize("shape", [(4,), (3, 4), (2, 3, 4)])
def test_atoms_of_one_axis_serve_every_row(shape):
    """Atoms without a batch axis once failed as soon as there were two rows."""
    probs, atoms = doubles(*shape).softmax(-1), doubles(4)
    assert torch.equal(
        categorical.project(probs, atoms, EVEN), categorical.project(probs, atoms.expand(shape).contiguous(), EVEN)
    )


def test_projection_gradients():
    probs, atoms = doubles(2, 4).softmax(-1).requires_grad_(), (2 * doubles(2, 4)).requires_grad_()
    for locations in (atoms, atoms[0].detach().requires_grad_()):
        assert gradcheck(lambda p, z: categorical.project(p, z, UNEVEN), (probs, locations))


@pytest.mark.property
@given(value=st.floats(-4, 4), grid=st.sampled_from([EVEN, UNEVEN]))
def test_two_hot_is_the_law_on_two_neighbours_with_that_mean(value, grid):
    law = categorical.two_hot(torch.tensor(value, dtype=torch.float64), grid)
    assert (law > 0).sum() <= 2
    assert (law @ grid).item() == pytest.approx(min(max(value, grid[0].item()), grid[-1].item()), abs=1e-12)
    np.testing.assert_allclose(law, oracle.project([1.0], [value], grid.tolist()), **EXACT)


def test_two_hot_of_many_values_and_its_gradient():
    values = doubles(2, 3)
    laws = categorical.two_hot(values, UNEVEN)
    assert laws.shape == (2, 3, 5)
    assert torch.equal(laws[1, 2], categorical.two_hot(values[1, 2], UNEVEN))
    assert gradcheck(lambda v: categorical.two_hot(v, UNEVEN), values.requires_grad_())


# --- mean and loss ---------------------------------------------------------------------------------------------------


def test_mean_against_numpy():
    probs, shared, own = doubles(2, 3, 5).softmax(-1), doubles(5), doubles(2, 3, 5)
    torch.testing.assert_close(categorical.categorical_mean(probs, shared), probs @ shared, **EXACT)
    expected = np.einsum("abn,abn->ab", probs.numpy(), own.numpy())
    np.testing.assert_allclose(categorical.categorical_mean(probs, own), expected, **EXACT)
    assert gradcheck(categorical.categorical_mean, (probs.requires_grad_(), own.requires_grad_()))


def test_loss_against_torch_and_the_sum_of_entropy_and_divergence():
    logits, target = 3 * doubles(2, 3, 5), doubles(2, 3, 5).softmax(-1)
    loss = categorical.categorical_loss(logits, target)
    theirs = cross_entropy(logits.view(6, 5), target.view(6, 5), reduction="none").view(2, 3)
    torch.testing.assert_close(loss, theirs, **EXACT)
    p, t = torch.distributions.Categorical(logits=logits), torch.distributions.Categorical(target)
    torch.testing.assert_close(loss, t.entropy() + torch.distributions.kl_divergence(t, p), **EXACT)
    assert gradcheck(categorical.categorical_loss, (logits.requires_grad_(), target.requires_grad_()))


def test_even_a_dead_atom_gets_its_full_gradient():
    """Through a logarithm of clamped probabilities an atom at softmax 0 gets none, and a law can never move there."""
    logits = torch.tensor([[200.0, 0.0, -200.0, 1.0], [-200.0, -200.0, 200.0, -200.0]], dtype=torch.float64).requires_grad_()
    target = torch.tensor([[0.0, 0.0, 1.0, 0.0], [0.25, 0.25, 0.25, 0.25]], dtype=torch.float64)
    loss = categorical.categorical_loss(logits, target)
    np.testing.assert_allclose(loss.detach(), [400.0, 300.0], rtol=1e-12)
    (slope,) = torch.autograd.grad(loss.sum(), logits)
    np.testing.assert_allclose(slope, torch.tensor([[1.0, 0, 0, 0], [0, 0, 1, 0]]).double() - target, **EXACT)


# --- pools -----------------------------------------------------------------------------------------------------------


def test_pools_against_a_loop():
    critics, atoms = doubles(3, 2, 4, 5).softmax(-1), doubles(5)
    mixture, lowest = categorical.pool_categorical(critics, atoms), categorical.pool_categorical(critics, atoms, "min")
    torch.testing.assert_close(mixture @ atoms, (critics @ atoms).mean(0), **EXACT)
    for row in np.ndindex(2, 4):
        laws = [critics[(c, *row)].tolist() for c in range(3)]
        np.testing.assert_allclose(mixture[row], [sum(column) / 3 for column in zip(*laws, strict=True)], **EXACT)
        assert lowest[row].tolist() == min(laws, key=lambda law: np.dot(law, atoms.numpy()))


def test_pool_of_critics_that_agree_on_the_mean():
    critics = torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]], dtype=torch.float64)
    atoms = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    assert categorical.pool_categorical(critics, atoms).tolist() == [0.25, 0.5, 0.25]
    assert categorical.pool_categorical(critics, atoms, "min").tolist() == [0, 1, 0]


@pytest.mark.parametrize("reduce", ["mean", "min"])
def test_pool_gradients(reduce):
    critics = doubles(2, 3, 5).softmax(-1).requires_grad_()
    assert gradcheck(lambda laws: categorical.pool_categorical(laws, UNEVEN, reduce), critics)


@pytest.mark.parametrize("odd", range(3))
def test_projection_of_mixed_dtypes_has_the_widest(odd):
    exact = [torch.tensor([[0.25, 0.75]]), torch.tensor([0.5, 3.0]), torch.arange(-1.0, 4.0)]
    expected = torch.tensor([[0, 0.125, 0.125, 0, 0.75]], dtype=torch.float64)
    for narrow, wide in ((torch.float32, torch.float64), (torch.bfloat16, torch.float32)):
        for one, rest in ((narrow, wide), (wide, narrow)):
            found = categorical.project(*(x.to(one if i == odd else rest) for i, x in enumerate(exact)))
            assert found.dtype == wide
            assert torch.equal(found.double(), expected)
    atoms, logits = exact[2].double(), torch.zeros(2, 5)
    assert categorical.two_hot(torch.tensor([2.25], dtype=torch.bfloat16), exact[2]).tolist() == [[0, 0, 0, 0.75, 0.25]]
    assert categorical.clip_categorical(logits, logits + 0.2, atoms, 0.1, "mean_only").shape == (2, 5)


# --- draws -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_stratified_grid_of_noise_draws_each_cell_by_its_mass(dtype):
    counts = torch.tensor([[5, 0, 16, 1, 10], [0, 32, 0, 0, 0], [7, 7, 7, 11, 0]])
    noise = ((torch.arange(32) + 0.5) / 32).expand(3, 32)
    for scale in (1 / 32, 1.0, 3.7):  # masses need not sum to 1
        index = categorical.draw_index(scale * counts.to(dtype), noise)
        assert torch.equal(torch.stack([(index == i).sum(-1) for i in range(5)], -1), counts)
        assert index.dtype == torch.int64


@pytest.mark.property
@given(seed=st.integers(0, 10**6), n=st.integers(1, 6), shared=st.booleans())
def test_draws_against_a_walk_along_the_cells(seed, n, shared):
    generator = torch.Generator().manual_seed(seed)
    masses = torch.randint(0, 4, (n,) if shared else (2, 3, n), generator=generator).double()
    masses[..., seed % n] += 1
    noise = torch.rand(2, 3, 7, dtype=torch.float64, generator=generator)
    index = categorical.draw_index(masses, noise)
    for row in np.ndindex(2, 3):
        expected = [oracle.first_above(masses.expand(2, 3, n)[row].tolist(), u) for u in noise[row].tolist()]
        assert index[row].tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_atom_without_mass_is_never_drawn(dtype):
    just_below_1 = 1 - torch.finfo(dtype).eps / 2
    masses = torch.rand(500, 9, dtype=dtype) * (torch.rand(500, 9) < 0.5)
    masses[:, [0, 4, 8]] = torch.tensor([0.0, 0.3, 0.0], dtype=dtype)
    ends = torch.cat([masses.new_zeros(500, 1), masses.cumsum(-1) / masses.sum(-1, keepdim=True)], -1).clamp_max(just_below_1)
    noise = torch.cat([ends, torch.full((500, 1), just_below_1, dtype=dtype)], -1)
    assert masses.gather(-1, categorical.draw_index(masses, noise)).min() > 0


@pytest.mark.parametrize("coarse", [torch.float32, torch.float16, torch.bfloat16])
def test_masses_coarser_than_the_noise_do_not_round_it_up_to_1(coarse):
    masses = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]], dtype=coarse)
    noise = torch.full((2, 1), 1 - 2.0**-30, dtype=torch.float64)
    assert categorical.draw_index(masses, noise).tolist() == [[1], [0]]
    even = categorical.draw_index(torch.ones(300, dtype=coarse), (torch.arange(300) + 0.5) / 300)
    assert torch.equal(even, torch.arange(300))


def test_noise_at_the_edge_of_a_cell_opens_the_next_one():
    masses = torch.tensor([0.25, 0.25, 0.0, 0.5], dtype=torch.float64)
    noise = torch.tensor(
        [0.0, 0.25, math.nextafter(0.25, 0), 0.5, math.nextafter(0.5, 0), math.nextafter(1, 0)], dtype=torch.float64
    )
    assert categorical.draw_index(masses, noise).tolist() == [0, 1, 0, 3, 1, 3]


def test_draws_are_the_locations_of_the_cells():
    noise = torch.rand(2, 3, 7, dtype=torch.float64)
    for locations, masses in (
        (doubles(5), doubles(2, 3, 5)),
        (doubles(2, 3, 5), doubles(5)),
        (doubles(2, 3, 5), doubles(2, 3, 5)),
    ):
        law = Law(locations, masses.softmax(-1))
        drawn, index = categorical.draw(law, noise), categorical.draw_index(law.masses, noise)
        for row in np.ndindex(2, 3, 7):
            assert drawn[row] == locations.expand(2, 3, 5)[(*row[:2], index[row])]


def test_draws_follow_the_law():
    """Mean of 40 000 draws within 4.5 standard errors: a false alarm once in 150 000 seeds."""
    law = Law(doubles(6), doubles(6).softmax(-1))
    drawn = categorical.draw(law, torch.rand(40_000, dtype=torch.float64))
    mean = (law.locations * law.masses).sum()
    spread = ((law.locations - mean).square() * law.masses).sum().sqrt()
    assert abs(drawn.mean() - mean) < 4.5 * spread / 200


def test_no_gradient_runs_through_the_choice_but_one_through_the_locations():
    law = Law(doubles(2, 5).requires_grad_(), doubles(2, 5).softmax(-1).requires_grad_())
    categorical.draw(law, torch.rand(2, 3)).sum().backward()
    assert law.locations.grad.sum() == 6
    assert law.masses.grad is None
