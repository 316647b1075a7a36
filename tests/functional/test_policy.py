"""The policy's losses and divergences, judged by enumeration, quadrature, torch.distributions, scipy and hand tables."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import entropy
from torch.distributions import Categorical, Independent, Normal, TanhTransform, TransformedDistribution, kl_divergence
from torch.testing import assert_close

from oracles.policy import normal_mean, precise_k3, precise_kl_gaussian
from quantail.functional.policy import (
    awr_loss,
    awr_weights,
    clamp_log_ratio,
    clipped_surrogate,
    kl_categorical,
    kl_estimate,
    kl_gaussian,
)

DTYPES = [torch.float32, torch.float64]
TIGHT = {"rtol": 1e-12, "atol": 1e-12}


def numbers(*x: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(x, dtype=dtype)


# --- clamp_log_ratio --------------------------------------------------------------------------------------------------


@pytest.mark.property
@given(x=st.lists(st.floats(-1e30, 1e30), min_size=1), bound=st.sampled_from([0.5, 20.0, 85.0]))
def test_clamps_as_numpy_does(x, bound):
    log_ratio = numbers(*x)
    np.testing.assert_array_equal(clamp_log_ratio(log_ratio, bound), np.clip(x, -bound, bound))
    np.testing.assert_allclose(clamp_log_ratio(log_ratio, bound, "tanh"), bound * np.tanh(np.array(x) / bound), rtol=1e-14)


def test_hard_leaves_the_inside_untouched_and_tanh_bends_5_by_2_percent():
    inside = torch.linspace(-20, 20, 101, dtype=torch.float64)
    assert torch.equal(clamp_log_ratio(inside), inside)
    assert (clamp_log_ratio(numbers(5.0), mode="tanh") / 5).item() == pytest.approx(0.98, abs=5e-4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("mode", ["hard", "tanh"])
def test_nothing_overflows_and_nan_does_not_hide(mode, dtype):
    """Bugs G28 and G29: an unbounded ratio overflowed, and a clamp was feared to hide NaN behind a finite number."""
    clamped = clamp_log_ratio(numbers(math.inf, -math.inf, 1e30, math.nan, dtype=dtype), mode=mode)
    assert clamped[:3].tolist() == [20, -20, 20]
    assert clamped[3].isnan()
    assert clamped[:3].exp().square().isfinite().all()


def test_only_tanh_keeps_a_gradient_outside():
    x = numbers(-25.0, 0.0, 25.0).requires_grad_()
    (hard,) = torch.autograd.grad(clamp_log_ratio(x).sum(), x)
    (soft,) = torch.autograd.grad(clamp_log_ratio(x, mode="tanh").sum(), x)
    assert hard.tolist() == [0, 1, 0]
    assert_close(soft, 1 - torch.tanh(x.detach() / 20) ** 2, **TIGHT)
    assert torch.autograd.gradcheck(lambda x: clamp_log_ratio(x, 3.0, "tanh"), numbers(-4, 0.3, 2).requires_grad_())


# --- clipped_surrogate ------------------------------------------------------------------------------------------------

# ε = 0.2: ratio, advantage -> loss, and its gradient with respect to the log-ratio.
CASES = [
    ("good, below", 0.5, 2.0, -1.0, -1.0),
    ("good, at one", 1.0, 2.0, -2.0, -2.0),
    ("good, inside", 1.125, 2.0, -2.25, -2.25),
    ("good, above", 1.5, 2.0, -2.4, 0.0),
    ("bad, below", 0.5, -2.0, 1.6, 0.0),
    ("bad, at one", 1.0, -2.0, 2.0, 2.0),
    ("bad, inside", 0.875, -2.0, 1.75, 1.75),
    ("bad, above", 1.5, -2.0, 3.0, 3.0),
    ("no advantage", 1.5, 0.0, 0.0, 0.0),
]


@pytest.mark.parametrize("clip", [0.2, torch.tensor(0.2, dtype=torch.float64)], ids=["number", "knob"])
@pytest.mark.parametrize(("ratio", "advantage", "loss", "slope"), [row[1:] for row in CASES], ids=[row[0] for row in CASES])
def test_surrogate_by_hand(ratio, advantage, loss, slope, clip):
    log_ratio = numbers(ratio).log().requires_grad_()
    found = clipped_surrogate(log_ratio, numbers(advantage), clip)
    (gradient,) = torch.autograd.grad(found.sum(), log_ratio)
    assert found.item() == pytest.approx(loss, abs=1e-14)
    assert gradient.item() == pytest.approx(slope, abs=1e-14)


@pytest.mark.property
@given(seed=st.integers(0, 10**6), clip=st.sampled_from([0.0, 0.1, 0.5, 2.0]), scale=st.sampled_from([1e-20, 1.0, 1e20]))
def test_surrogate_is_a_wall_on_the_side_that_gains(seed, clip, scale):
    """The second form of the same loss: −min(r·A, (1 ± ε)·A), + where A > 0   (Achiam 2018, Spinning Up)."""
    rng = np.random.default_rng(seed)
    log_ratio, advantages = rng.normal(0, 1, (5, 3)), scale * rng.normal(0, 1, (5, 3))
    wall = np.where(advantages > 0, (1 + clip) * advantages, (1 - clip) * advantages)
    expected = -np.minimum(np.exp(log_ratio) * advantages, wall)
    found = clipped_surrogate(torch.from_numpy(log_ratio), torch.from_numpy(advantages), clip)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12 * scale)


def test_surrogate_gradients_and_dtype():
    log_ratio, advantages = numbers(-0.7, -0.1, 0.1, 0.7).requires_grad_(), numbers(1, -2, 3, -4).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, a: clipped_surrogate(x, a, 0.2), (log_ratio, advantages))
    assert (
        clipped_surrogate(log_ratio.float(), advantages.float(), torch.tensor(0.2, dtype=torch.float64)).dtype == torch.float32
    )


# --- kl_estimate ------------------------------------------------------------------------------------------------------


def test_k1_and_k3_are_exact_in_the_mean_over_the_old_policy():
    """Bug G37, KL reversed: the mean over all actions of the *old* policy is KL(old ‖ new), and not KL(new ‖ old)."""
    old, new = torch.randn(2, 5, 7, dtype=torch.float64).softmax(-1)
    log_ratio = (new / old).log()
    forward, backward = entropy(old, new, axis=-1), entropy(new, old, axis=-1)
    for kind in ("k1", "k3"):
        np.testing.assert_allclose((old * kl_estimate(log_ratio, kind)).sum(-1), forward, rtol=1e-12)
    assert np.abs(forward - backward).min() > 1e-3
    assert torch.equal(kl_estimate(log_ratio), kl_estimate(log_ratio, "k3"))


# Old N(0, 1), new N(d, s): KL, and mean and deviation of the estimators in units of it, to the digits known.
TABLE = [
    (0.1, 1.0, 0.0050, 20, 1.00, 1.42, 1.42),
    (0.3, 1.0, 0.045, 6.7, 1.02, 1.45, 1.44),
    (1.0, 1.0, 0.50, 2.0, 1.25, 1.73, 1.69),
    (0.3, 0.8, 0.128, 4.8, 1.54, 5.1, 2.3),
    (0.0, 1.3, 0.058, 5.0, 0.75, 2.5, 7.35),
]


@pytest.mark.parametrize(("d", "s", "kl", "k1_sd", "k2_mean", "k2_sd", "k3_sd"), TABLE)
def test_moments_of_the_estimators_between_gaussians(d, s, kl, k1_sd, k2_mean, k2_sd, k3_sd):
    def moments(kind: str) -> tuple[float, float]:
        def estimate(x: torch.Tensor) -> torch.Tensor:
            return kl_estimate(Normal(d, s).log_prob(x) - Normal(0.0, 1.0).log_prob(x), kind)

        mean = normal_mean(estimate)
        return mean, math.sqrt(normal_mean(lambda x: (estimate(x) - mean) ** 2))

    exact = math.log(s) + (1 + d**2) / (2 * s**2) - 0.5
    found = {kind: moments(kind) for kind in ("k1", "k2", "k3")}
    assert exact == pytest.approx(kl, rel=0.01)
    assert (found["k1"][0], found["k3"][0]) == pytest.approx((exact, exact), rel=1e-6)
    in_units = (found["k1"][1] / exact, found["k2"][0] / exact, found["k2"][1] / exact, found["k3"][1] / exact)
    assert in_units == pytest.approx((k1_sd, k2_mean, k2_sd, k3_sd), rel=0.02)


@pytest.mark.parametrize("dtype", DTYPES)
def test_k3_is_never_negative_and_precise_near_0(dtype):
    size = torch.logspace(-30, 1, 4001, dtype=dtype)
    assert (kl_estimate(torch.cat([size, -size])) >= 0).all()
    for x in (1e-3, -1e-3, 0.7, -4.0):
        assert kl_estimate(numbers(x)).item() == pytest.approx(precise_k3(x), rel=1e-12)


def test_k2_is_half_the_square_and_gradients_hold():
    x = numbers(-1.5, -0.2, 0.3, 2.0).requires_grad_()
    assert_close(kl_estimate(x, "k2"), numbers(1.125, 0.02, 0.045, 2.0), **TIGHT)
    for kind in ("k1", "k2", "k3"):
        assert torch.autograd.gradcheck(lambda x, kind=kind: kl_estimate(x, kind), x)


# --- kl_gaussian ------------------------------------------------------------------------------------------------------


def diagonal(mean: torch.Tensor, log_std: torch.Tensor) -> Independent:
    return Independent(Normal(mean, log_std.exp().expand_as(mean)), 1)


@pytest.mark.parametrize(("p_rows", "q_rows"), [((5, 2, 3), (5, 2, 3)), ((3,), (5, 2, 3)), ((5, 2, 3), (3,)), ((3,), (3,))])
def test_kl_gaussian_equals_torch_distributions(p_rows, q_rows):
    mean_p, mean_q = torch.randn(2, 5, 2, 3, dtype=torch.float64)
    log_std_p, log_std_q = torch.randn(p_rows, dtype=torch.float64), torch.randn(q_rows, dtype=torch.float64)
    expected = kl_divergence(diagonal(mean_p, log_std_p), diagonal(mean_q, log_std_q))
    assert_close(kl_gaussian(mean_p, log_std_p, mean_q, log_std_q), expected, **TIGHT)


@pytest.mark.parametrize("squash", [None, TanhTransform()], ids=["plain", "tanh"])
def test_kl_gaussian_is_the_mean_log_ratio_with_or_without_a_squashing(squash):
    p, q = Normal(numbers(0.3), numbers(0.6)), Normal(numbers(-0.2), numbers(0.9))

    def log_ratio(u: torch.Tensor) -> torch.Tensor:
        if squash is None:
            return p.log_prob(u) - q.log_prob(u)
        x = squash(u)
        return TransformedDistribution(p, squash).log_prob(x) - TransformedDistribution(q, squash).log_prob(x)

    found = kl_gaussian(p.mean, p.stddev.log(), q.mean, q.stddev.log())
    assert found.item() == pytest.approx(normal_mean(log_ratio, 0.3, 0.6, nodes=60), rel=1e-10)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("gap", [0.0, 1e-10, 1.0])
def test_kl_gaussian_is_finite_down_to_1e_minus_10(gap, dtype):
    """Bug G34: the diagnostic divided by the unguarded variance, which in float32 is 0 for such a deviation."""
    tiny, wide = numbers(math.log(1e-10), dtype=dtype), numbers(0.0, dtype=dtype)
    mean = numbers(gap, dtype=dtype)
    for log_std_p, log_std_q in ((tiny, tiny), (wide, tiny), (tiny, wide)):
        inputs = [x.clone().requires_grad_() for x in (mean, log_std_p, torch.zeros_like(mean), log_std_q)]
        found = kl_gaussian(*inputs)
        expected = precise_kl_gaussian(*(x.item() for x in inputs))
        assert found.item() == pytest.approx(expected, rel=1e-4 if dtype == torch.float32 else 1e-12)
        assert all(g.isfinite().all() for g in torch.autograd.grad(found.sum(), inputs))


@pytest.mark.parametrize(("log_std", "gap"), [(0.0, 1e-9), (-2.5, 1e-7), (3.0, 0.0)])
@pytest.mark.parametrize("log_scale", [1e-9, -1e-6, 1e-3])
def test_kl_gaussian_near_equality(log_scale, log_std, gap):
    """The rounding of s itself is all that is lost: 1e-16·s, where the textbook form loses 1e-16."""
    log_std_p = log_std + log_scale
    found = kl_gaussian(numbers(gap), numbers(log_std_p), numbers(0.0), numbers(log_std)).item()
    expected = precise_kl_gaussian(gap, log_std_p, 0.0, log_std)
    assert found >= 0
    assert found == pytest.approx(expected, rel=1e-12, abs=4e-16 * abs(log_scale))


def test_kl_gaussian_of_a_law_with_itself_is_0():
    mean, log_std = torch.randn(2, 7, 3)
    assert (kl_gaussian(mean, log_std, mean, log_std) == 0).all()


def test_kl_gaussian_gradients():
    inputs = [torch.randn(2, 3, dtype=torch.float64, requires_grad=True) for _ in range(4)]
    assert torch.autograd.gradcheck(kl_gaussian, inputs)


# --- kl_categorical ---------------------------------------------------------------------------------------------------


def test_kl_categorical_equals_torch_distributions_and_scipy():
    logits_p, logits_q = 3 * torch.randn(2, 5, 2, 7, dtype=torch.float64)
    found = kl_categorical(logits_p, logits_q)
    assert_close(found, kl_divergence(Categorical(logits=logits_p), Categorical(logits=logits_q)), **TIGHT)
    np.testing.assert_allclose(found, entropy(logits_p.softmax(-1), logits_q.softmax(-1), axis=-1), rtol=1e-12)


def test_kl_categorical_of_forbidden_choices():
    no = -math.inf
    logits_p = torch.tensor([[0.0, 1.0, no], [0.0, 1.0, no], [0.0, 1.0, 2.0], [1.0, no, no]], dtype=torch.float64)
    logits_q = torch.tensor([[0.5, 0.0, 1.0], [0.5, 0.0, no], [0.5, 0.0, no], [0.5, 0.0, 1.0]], dtype=torch.float64)
    found = kl_categorical(logits_p, logits_q)
    expected = [entropy(logits_p[row].softmax(-1), logits_q[row].softmax(-1)) for row in range(4)]
    assert found[2].item() == math.inf
    assert found.tolist() == pytest.approx(expected, rel=1e-12)
    finite = logits_p[[0, 1, 3]].requires_grad_()
    assert torch.autograd.grad(kl_categorical(finite, logits_q[[0, 1, 3]]).sum(), finite)[0].isfinite().all()


def test_kl_categorical_ignores_shifts_and_passes_gradients():
    logits_p, logits_q = torch.randn(2, 3, 4, dtype=torch.float64)
    assert_close(kl_categorical(logits_p + 1e3, logits_q - 1e3), kl_categorical(logits_p, logits_q), rtol=1e-9, atol=1e-12)
    assert torch.autograd.gradcheck(kl_categorical, (logits_p.requires_grad_(), logits_q.requires_grad_()))


# --- advantage-weighted regression ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rounds", "expected"), [(1, [0.5065, 0.3072, 0.1863]), (3, [0.7856, 0.1753, 0.0391])])
def test_awr_on_a_bandit_multiplies_by_the_exponential(rounds, expected):
    """Q = [1, .5, 0], β = 1: each regression gives π_k ∝ π_0·exp(kQ/β), at which the gradient of its loss is 0."""
    q, chance = numbers(1, 0.5, 0), torch.full((3,), 1 / 3, dtype=torch.float64)
    for _ in range(rounds):
        advantages = q - (chance * q).sum()
        following = chance * awr_weights(advantages, 1.0)
        following = following / following.sum()
        logits = following.log().requires_grad_()
        loss = (chance * awr_loss(logits.log_softmax(-1), advantages, 1.0)).sum()
        assert torch.autograd.grad(loss, logits)[0].abs().max() < 1e-15
        chance = following
    assert_close(chance, (rounds * q).softmax(-1), **TIGHT)
    assert chance.tolist() == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("beta", [0.5, torch.tensor(0.5, dtype=torch.float64)], ids=["number", "knob"])
def test_awr_weights_and_loss_equal_numpy(beta):
    advantages, log_prob = torch.randn(2, 5, 3, dtype=torch.float64) * 3
    weights = np.minimum(np.exp(advantages.numpy() / 0.5), 7.0)
    assert (weights == 7).any()
    np.testing.assert_allclose(awr_weights(advantages, beta, 7.0), weights, rtol=1e-14)
    np.testing.assert_allclose(awr_loss(log_prob, advantages, beta, 7.0), -log_prob.numpy() * weights, rtol=1e-14)


@pytest.mark.parametrize("dtype", DTYPES)
def test_awr_clamps_the_exponent_so_that_nothing_overflows(dtype):
    """Bug G27: exp(1e5) is infinite before a clamp of the weight can help, and its gradient NaN."""
    advantages = numbers(1e5, -1e5, 0.0, dtype=dtype)
    assert awr_weights(advantages, 0.05).tolist() == pytest.approx([20, 0, 1], rel=1e-6)
    log_prob = numbers(-1.0, -2.0, -3.0, dtype=dtype).requires_grad_()
    (gradient,) = torch.autograd.grad(awr_loss(log_prob, advantages, 0.05).sum(), log_prob)
    assert gradient.tolist() == pytest.approx([-20, 0, -1], rel=1e-6)


def test_awr_learns_through_the_log_prob_alone():
    log_prob, advantages = torch.randn(2, 4, dtype=torch.float64).requires_grad_().unbind()
    assert not awr_weights(advantages, 1.0).requires_grad
    loss = awr_loss(log_prob, advantages, 1.0)
    by_log_prob, by_advantages = torch.autograd.grad(loss.sum(), (log_prob, advantages), allow_unused=True)
    assert by_advantages is None
    assert torch.equal(by_log_prob, -awr_weights(advantages, 1.0))
