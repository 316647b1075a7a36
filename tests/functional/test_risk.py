"""VaR, CVaR and what a policy pays for them. The read-out of quantiles and the controller have files of their own."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.autograd import gradcheck

from oracles import risk as oracle
from quantail.functional import risk

EXACT = {"rtol": 0, "atol": 1e-12}


def doubles(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def samples(seed: int, *shape: int, ties: bool = False) -> torch.Tensor:
    x = 3 * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x.round() if ties else x


# --- samples ---------------------------------------------------------------------------------------------------------

SAMPLES = {
    "seed": st.integers(0, 10**6),
    "n": st.integers(1, 9),
    "alpha": st.sampled_from([1e-6, 0.01, 0.07, 0.1, 0.25, 1 / 3, 0.5, 0.6, 0.9, 1.0]),
    "ties": st.booleans(),
}


@pytest.mark.property
@given(**SAMPLES, weighted=st.booleans())
def test_tail_of_samples_against_exact_fractions(seed, n, alpha, ties, weighted):
    x = samples(seed, 2, 3, n, ties=ties)
    weights = torch.randint(0, 4, x.shape, generator=torch.Generator().manual_seed(seed)).double() if weighted else None
    if weights is not None:
        weights[..., seed % n] += 1
    fraction = Fraction(alpha).limit_denominator(10**6)
    cvar, var = risk.cvar_of_samples(x, alpha, weights), risk.var_of_samples(x, alpha, weights)
    for row in np.ndindex(2, 3):
        law = x[row].tolist(), None if weights is None else weights[row].tolist()
        assert cvar[row].item() == pytest.approx(oracle.exact_cvar(law[0], fraction, law[1]), abs=1e-10)
        assert cvar[row].item() == pytest.approx(oracle.highest_shortfall_value(law[0], alpha, law[1]), abs=1e-8)
        assert var[row].item() == oracle.exact_var(law[0], fraction, law[1])


@pytest.mark.parametrize("alpha", [0.25, 0.5, 0.75, 0.3, 0.7123, 1.0])
def test_var_against_numpy(alpha):
    x, weights = doubles(5, 8), torch.randint(1, 4, (8,)).double()
    expected = np.quantile(x.numpy(), alpha, axis=-1, method="inverted_cdf")
    np.testing.assert_array_equal(risk.var_of_samples(x, alpha), expected)
    weighted = np.quantile(x.numpy(), alpha, axis=-1, method="inverted_cdf", weights=weights.numpy().repeat(5).reshape(8, 5).T)
    np.testing.assert_array_equal(risk.var_of_samples(x, alpha, weights), weighted)


@pytest.mark.parametrize(("alpha", "n", "rank"), [(0.07, 100, 7), (0.1, 30, 3), (0.3, 10, 3), (0.6, 5, 3), (0.29, 100, 29)])
def test_var_does_not_slip_past_a_sample_by_rounding(alpha, n, rank):
    """0.07·100 is 7.000000000000001 in floating point; the quantile is the 7th sample all the same."""
    x = torch.randperm(n).double() + 1
    assert risk.var_of_samples(x, alpha) == rank
    assert risk.var_of_samples(x, alpha, torch.full((n,), 0.1).double()) == rank
    assert risk.var_of_samples(x, alpha + 1e-6) == rank + 1
    assert risk.cvar_of_samples(x, alpha).item() == pytest.approx((rank + 1) / 2, abs=1e-12)


def test_a_weight_is_so_many_samples_and_only_its_share_counts():
    x, weights = doubles(2, 5), torch.tensor([3, 0, 1, 2, 4])
    repeated = x.repeat_interleave(weights, -1)
    for alpha in (0.05, 0.35, 0.8, 1.0):
        for tail in (risk.cvar_of_samples, risk.var_of_samples):
            torch.testing.assert_close(tail(x, alpha, 0.37 * weights.double()), tail(repeated, alpha), **EXACT)


def test_alpha_one_is_the_plain_mean():
    x, weights = doubles(2, 7), torch.rand(2, 7, dtype=torch.float64)
    torch.testing.assert_close(risk.cvar_of_samples(x, 1.0), x.mean(-1), **EXACT)
    expected = torch.as_tensor(np.average(x.numpy(), axis=-1, weights=weights.numpy()))
    torch.testing.assert_close(risk.cvar_of_samples(x, 1, weights), expected, **EXACT)
    assert torch.equal(risk.var_of_samples(x, 1.0, weights), x.amax(-1))


@pytest.mark.parametrize("hole", [math.nan, math.inf, -math.inf, -1e300])
def test_what_has_weight_0_may_hold_anything(hole):
    x = torch.tensor([[hole, 2.0, -1.0, hole, 4.0], [1.0, hole, 3.0, 5.0, hole]], dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([[0, 1, 1, 0, 2], [1, 0, 1, 1, 0]]).double()
    cvar = risk.cvar_of_samples(x, 0.5, weights)
    assert cvar.tolist() == pytest.approx([0.5, 5 / 3], abs=1e-12)
    assert risk.var_of_samples(x, 0.5, weights).tolist() == [2, 3]
    cvar.sum().backward()
    assert x.grad.isfinite().all()


def test_where_nothing_has_weight_there_is_no_tail():
    x, weights = doubles(2, 3), torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    for tail in (risk.cvar_of_samples, risk.var_of_samples):
        found = tail(x, 0.3, weights)
        assert found[0].isnan()
        assert found[1].item() == pytest.approx(x[1, 1].item(), abs=1e-15)


def test_a_million_float32_samples_lose_no_digits():
    x = (torch.rand(1_000_000) * 1e-3 + 1).float()
    weights = torch.rand(1_000_000)
    order = np.sort(x.double().numpy())
    for alpha in (0.05, 1.0):
        cvar = risk.cvar_of_samples(x, alpha)
        assert cvar.dtype == torch.float32
        assert cvar.item() == pytest.approx(order[: round(alpha * 1_000_000)].mean(), abs=1e-7)
        assert risk.cvar_of_samples(x, alpha, torch.ones_like(weights)).item() == pytest.approx(cvar.item(), abs=1e-7)
    expected = np.average(x.double().numpy(), weights=weights.double().numpy())
    assert risk.cvar_of_samples(x, 1.0, weights).item() == pytest.approx(expected, abs=1e-7)


def test_cvar_of_samples_gradients():
    """Up the tail by each sample's share, and in the weights."""
    x, weights = doubles(2, 6).requires_grad_(), (0.1 + torch.rand(2, 6, dtype=torch.float64)).requires_grad_()
    assert gradcheck(lambda x: risk.cvar_of_samples(x, 0.4), x)
    assert gradcheck(lambda x, w: risk.cvar_of_samples(x, 0.4, w), (x, weights))
    (slope,) = torch.autograd.grad(risk.cvar_of_samples(x, 0.4).sum(), x)
    assert slope.sort(-1, descending=True).values[0].tolist() == pytest.approx([1 / 2.4, 1 / 2.4, 0.4 / 2.4, 0, 0, 0])


# --- laws on atoms ---------------------------------------------------------------------------------------------------


@pytest.mark.property
@given(**SAMPLES, shared=st.booleans())
def test_tail_of_a_law_on_atoms_against_exact_fractions(seed, n, alpha, ties, shared):
    atoms = samples(seed, *((n,) if shared else (2, 3, n)), ties=ties)
    masses = torch.randint(0, 4, (2, 3, n), generator=torch.Generator().manual_seed(seed)).double()
    masses[..., seed % n] += 1
    p, fraction = masses / masses.sum(-1, keepdim=True), Fraction(alpha).limit_denominator(10**6)
    cvar, var = risk.cvar_from_categorical(p, atoms, alpha), risk.var_from_categorical(p, atoms, alpha)
    for row in np.ndindex(2, 3):
        law = atoms.expand(p.shape)[row].tolist()
        assert cvar[row].item() == pytest.approx(oracle.exact_cvar(law, fraction, masses[row].tolist()), abs=1e-10)
        assert cvar[row].item() == pytest.approx(oracle.highest_shortfall_value(law, alpha, masses[row].tolist()), abs=1e-8)
        assert var[row].item() == oracle.exact_var(law, fraction, masses[row].tolist())


@pytest.mark.parametrize(("alpha", "cvar"), [(0.05, -10), (0.1, -4), (0.25, -0.4), (0.5, 0.8), (0.8, 1.25), (1.0, 1.4)])
def test_the_risky_arm_of_a_bandit(alpha, cvar):
    p, atoms = torch.tensor([0.95, 0.05], dtype=torch.float64), torch.tensor([2.0, -10.0], dtype=torch.float64)
    assert risk.cvar_from_categorical(p, atoms, alpha).item() == pytest.approx(cvar, abs=1e-12)
    assert risk.var_from_categorical(p, atoms, alpha) == (-10 if alpha == 0.05 else 2)


@pytest.mark.parametrize(("alpha", "cvar"), [(0.05, 1), (0.1, 1), (0.25, 1.84), (1.0, 10)])
def test_a_geometric_law(alpha, cvar):
    """Steps until an event of probability 0.1: mean 10; 0.1 at 1, 0.09 at 2, 0.06 of the 0.081 at 3 make up a quarter."""
    atoms = torch.arange(1, 600).double()
    p = 0.1 * 0.9 ** (atoms - 1)
    assert risk.cvar_from_categorical(p, atoms, alpha).item() == pytest.approx(cvar, abs=1e-9)
    assert risk.var_from_categorical(p, atoms, alpha / 2) == stats.geom(0.1).ppf(alpha / 2)


def test_cvar_from_categorical_gradients():
    logits, atoms = doubles(2, 5).requires_grad_(), doubles(2, 5).requires_grad_()
    assert gradcheck(lambda x, z: risk.cvar_from_categorical(x.softmax(-1), z, 0.3), (logits, atoms))


# --- what a policy pays ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.05, 0.3, 1.0])
def test_shortfall_cost_against_numpy_and_its_maximum(alpha):
    x = doubles(40)
    for nu in (0.3, torch.tensor(0.3), torch.full((40,), 0.3)):
        np.testing.assert_allclose(
            risk.ru_cost(x, nu, alpha), np.maximum(float(np.float32(0.3)) - x.numpy(), 0) / alpha, atol=1e-6
        )
    grid = torch.cat([torch.linspace(-4, 4, 999, dtype=torch.float64), x])
    values = [(nu - risk.ru_cost(x, nu.item(), alpha).mean()).item() for nu in grid]
    best = max(values)
    var = risk.var_of_samples(x, alpha)
    assert best == pytest.approx(oracle.exact_cvar(x.tolist(), Fraction(str(alpha))), abs=1e-12)
    assert (var - risk.ru_cost(x, var, alpha).mean()).item() == pytest.approx(best, abs=1e-12)


def test_shortfall_cost_of_its_own_threshold_per_row():
    x, nu = doubles(2, 3), doubles(2, 3)
    expected = [[max(n - a, 0) / 0.2 for a, n in zip(*rows, strict=True)] for rows in zip(x.tolist(), nu.tolist(), strict=True)]
    np.testing.assert_allclose(risk.ru_cost(x, nu, 0.2), expected, **EXACT)
    assert gradcheck(lambda x, nu: risk.ru_cost(x, nu, 0.2), (x.requires_grad_(), nu.requires_grad_()))


@pytest.mark.parametrize("limit", [0.0, -0.7, 1.3])
def test_mean_charge_at_var_is_the_limit_less_the_cvar_with_its_sign(limit):
    x = doubles(50)
    var, cvar = risk.var_of_samples(x, 0.1), oracle.exact_cvar(x.tolist(), Fraction(1, 10))
    charges = risk.cvar_charge(x, var, 0.1, limit)
    assert charges.mean().item() == pytest.approx(limit - cvar, abs=1e-12)
    assert torch.equal(charges, risk.cvar_charge(x, var.item(), 0.1, torch.tensor(limit, dtype=torch.float64)))
    expected = [max(var.item() - a, 0) / 0.1 - var.item() + limit for a in x.tolist()]
    np.testing.assert_allclose(charges, expected, **EXACT)


def test_a_charge_may_be_a_reward():
    """A charge that is only ever positive would reward ending early, before it is due."""
    assert risk.cvar_charge(torch.tensor([5.0, 0.0]), 1.0, 0.5).tolist() == [-1.0, 1.0]
    assert gradcheck(lambda x: risk.cvar_charge(x, 0.2, 0.3, 0.1), doubles(6).requires_grad_())


@pytest.mark.parametrize("price", [0.0, 0.25, 1.0, 7.0])
def test_advantages_are_blended_and_penalised_entry_by_entry(price):
    reward, cost = doubles(2, 3), doubles(2, 3)
    blended, penalised = risk.blend_advantages(reward, cost, min(price, 1)), risk.penalize_advantages(reward, cost, price)
    for row in np.ndindex(2, 3):
        a, c, w = reward[row].item(), cost[row].item(), min(price, 1)
        assert blended[row].item() == pytest.approx((1 - w) * a - w * c, abs=1e-12)
        assert penalised[row].item() == pytest.approx((a - price * c) / (1 + price), abs=1e-12)
    knob = torch.tensor(price, dtype=torch.float64)
    assert torch.equal(risk.penalize_advantages(reward, cost, knob), penalised)
    assert torch.equal(risk.blend_advantages(reward, cost, knob.clamp_max(1)), blended)


def test_price_limits():
    reward, cost = doubles(2, 3).requires_grad_(), doubles(2, 3).requires_grad_()
    assert torch.equal(risk.blend_advantages(reward, cost, 0.0), reward)
    assert torch.equal(risk.blend_advantages(reward, cost, 1.0), -cost)
    assert torch.equal(risk.penalize_advantages(reward, cost, 0.0), reward)
    torch.testing.assert_close(risk.penalize_advantages(reward, cost, 1e14), -cost, **EXACT)
    assert gradcheck(lambda a, c: risk.blend_advantages(a, c, 0.3), (reward, cost))
    assert gradcheck(lambda a, c: risk.penalize_advantages(a, c, 2.0), (reward, cost))
