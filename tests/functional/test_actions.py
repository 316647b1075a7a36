"""Action laws against torch.distributions, mpmath and scipy's integrals."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate
from torch.autograd import gradcheck
from torch.distributions import Categorical, Independent, Normal

from oracles import actions as oracle
from quantail.functional import actions

EXACT = {"rtol": 0, "atol": 1e-12}
SQUASHES = ["tanh", "sigmoid"]
FORBIDDEN = -math.inf


def doubles(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


# --- Gaussian --------------------------------------------------------------------------------------------------------


@pytest.mark.property
@given(seed=st.integers(0, 10**6), rows=st.sampled_from([(), (2,), (2, 3)]), width=st.integers(1, 4), shared=st.booleans())
def test_gaussian_against_torch(seed, rows, width, shared):
    generator = torch.Generator().manual_seed(seed)
    raw, mean, log_std = (torch.randn(*rows, width, dtype=torch.float64, generator=generator) for _ in range(3))
    log_std = log_std.reshape(-1, width)[0] if shared else log_std
    theirs = Independent(Normal(mean, log_std.exp().expand(mean.shape)), 1)
    torch.testing.assert_close(actions.gaussian_log_prob(raw, mean, log_std), theirs.log_prob(raw), **EXACT)
    torch.testing.assert_close(actions.gaussian_entropy(log_std.expand(mean.shape)), theirs.entropy(), **EXACT)


def test_gaussian_by_hand():
    """One action at one standard deviation: −½ − log σ − ½·log 2π; entropy ½·log 2πe + log σ."""
    mean, log_std = torch.tensor([[1.0]], dtype=torch.float64), torch.tensor([math.log(2)], dtype=torch.float64)
    at = actions.gaussian_log_prob(torch.tensor([[3.0]], dtype=torch.float64), mean, log_std)
    assert at.tolist() == pytest.approx([-0.5 - math.log(2) - 0.9189385332046727], abs=1e-14)
    assert actions.gaussian_entropy(log_std).item() == pytest.approx(1.4189385332046727 + math.log(2), abs=1e-14)


def test_gaussian_samples_are_shifted_and_scaled_noise():
    mean, log_std, noise = doubles(3, 2), doubles(2), doubles(5, 3, 2)
    expected = mean.numpy() + np.exp(log_std.numpy()) * noise.numpy()
    np.testing.assert_allclose(actions.gaussian_sample(mean, log_std, noise), expected, **EXACT)
    np.testing.assert_allclose(actions.gaussian_sample(mean, log_std.expand(3, 2), noise[0]), expected[0], **EXACT)
    drawn = actions.gaussian_sample(mean, log_std, noise)
    standardised = Normal(mean, log_std.exp()).cdf(drawn)
    torch.testing.assert_close(standardised, Normal(0.0, 1.0).cdf(noise), **EXACT)


def test_gaussian_gradients():
    raw, mean, log_std, noise = doubles(3, 2), doubles(3, 2), doubles(2), doubles(4, 3, 2)
    inputs = [tensor.requires_grad_() for tensor in (raw, mean, log_std)]
    assert gradcheck(actions.gaussian_log_prob, inputs)
    assert gradcheck(lambda mean, log_std: actions.gaussian_sample(mean, log_std, noise), inputs[1:])
    assert gradcheck(actions.gaussian_entropy, inputs[2:])


@pytest.mark.parametrize("width", [1, 2, 5])
def test_one_number_per_row_and_each_action_once(width):
    """For actions of several dimensions the entropy was once counted twice."""
    raw, mean, log_std, noise = doubles(3, width), doubles(3, width), doubles(width), doubles(4, 3, width)
    joint = actions.gaussian_log_prob(raw, mean, log_std)
    single = [actions.gaussian_log_prob(raw[:, [a]], mean[:, [a]], log_std[[a]]) for a in range(width)]
    torch.testing.assert_close(joint, sum(single), **EXACT)
    for kind in actions.SQUASHES:
        entropy = actions.squashed_entropy(mean, log_std, noise, kind)
        parts = [actions.squashed_entropy(mean[:, [a]], log_std[[a]], noise[..., [a]], kind) for a in range(width)]
        torch.testing.assert_close(entropy, sum(parts), **EXACT)
        assert entropy.shape == joint.shape == (3,)


# --- squashed --------------------------------------------------------------------------------------------------------


def test_squash_against_numpy():
    raw = doubles(2, 3)
    np.testing.assert_allclose(actions.squash(raw, "tanh"), np.tanh(raw.numpy()), **EXACT)
    np.testing.assert_allclose(actions.squash(raw, "sigmoid"), 1 / (1 + np.exp(-raw.numpy())), **EXACT)
    assert actions.squash(raw, "none") is raw
    for kind in actions.SQUASHES:
        assert gradcheck(lambda x, kind=kind: actions.squash(x, kind), doubles(5).requires_grad_())


@pytest.mark.parametrize("kind", SQUASHES)
@pytest.mark.parametrize("x", [0.0, 1e-8, 0.3, 1.0, 5.0, 18.7, 20.0, 40.0])
def test_log_slope_has_all_digits_far_out(kind, x):
    for side in (x, -x):
        ours = actions.log_slope(torch.tensor([side], dtype=torch.float64), kind).item()
        assert ours == pytest.approx(oracle.log_slope(side, kind), rel=1e-14, abs=1e-15)


@pytest.mark.parametrize("kind", SQUASHES)
def test_log_slope_is_the_derivative_of_the_squash(kind):
    raw = doubles(2, 5).requires_grad_()
    (slope,) = torch.autograd.grad(actions.squash(raw, kind).sum(), raw)
    torch.testing.assert_close(actions.log_slope(raw, kind).exp(), slope, **EXACT)
    assert gradcheck(lambda x: actions.log_slope(x, kind), raw)
    assert torch.equal(actions.log_slope(raw, "none"), torch.zeros(2, 5, dtype=torch.float64))


@pytest.mark.parametrize(("kind", "at_200", "slope_at_200"), [("tanh", math.log(4) - 400, -2.0), ("sigmoid", -200.0, -1.0)])
def test_float32_stays_finite_where_the_squash_is_flat(kind, at_200, slope_at_200):
    raw = torch.tensor([-200.0, 200.0], requires_grad=True)
    slope = actions.log_slope(raw, kind)
    slope.sum().backward()
    assert slope.tolist() == pytest.approx([at_200, at_200], rel=1e-6)
    assert raw.grad.tolist() == pytest.approx([-slope_at_200, slope_at_200])


@pytest.mark.parametrize("kind", SQUASHES)
def test_squashed_density_against_torch(kind):
    raw, mean, log_std = doubles(2, 3, 4), doubles(2, 3, 4), 0.5 * doubles(4)
    theirs = oracle.squashed_normal(mean, log_std.expand(mean.shape), kind).log_prob(actions.squash(raw, kind))
    torch.testing.assert_close(actions.squashed_log_prob(raw, mean, log_std, kind), theirs, rtol=0, atol=1e-10)
    inputs = [tensor.requires_grad_() for tensor in (raw, mean, log_std)]
    assert gradcheck(lambda *tensors: actions.squashed_log_prob(*tensors, kind), inputs)
    assert torch.equal(actions.squashed_log_prob(*inputs, "none"), actions.gaussian_log_prob(*inputs))


ONE = {"mean": torch.tensor([0.4], dtype=torch.float64), "log_std": torch.tensor([-0.3], dtype=torch.float64)}
INVERSE = {"tanh": (math.atanh, -1.0), "sigmoid": (lambda y: math.log(y / (1 - y)), 0.0)}


def density(y: float, kind: str) -> float:
    raw = torch.tensor([INVERSE[kind][0](y)], dtype=torch.float64)
    return actions.squashed_log_prob(raw, **ONE, kind=kind).exp().item()


@pytest.mark.parametrize("kind", SQUASHES)
def test_squashed_density_integrates_to_one(kind):
    total, _ = integrate.quad(density, INVERSE[kind][1], 1.0, args=(kind,), epsabs=1e-11, limit=200)
    assert total == pytest.approx(1, abs=1e-8)


@pytest.mark.parametrize("kind", SQUASHES)
def test_squashed_entropy_is_minus_the_integral_of_p_log_p(kind):
    """Gauss–Hermite nodes as noise make the sampled term exact; the judge integrates over the squashed action."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    grid = torch.as_tensor(nodes)[:, None]
    each = torch.stack([actions.squashed_entropy(**ONE, noise=node[None], kind=kind) for node in grid])
    entropy = float(weights @ each.numpy() / weights.sum())
    expected, _ = integrate.quad(lambda y: -density(y, kind) * math.log(density(y, kind)), INVERSE[kind][1], 1.0, epsabs=1e-10)
    assert entropy == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("kind", actions.SQUASHES)
def test_squashed_entropy_against_a_loop_over_the_noise(kind):
    mean, log_std, noise = doubles(3, 2), 0.3 * doubles(2), doubles(5, 3, 2)
    slopes = torch.zeros(3, dtype=torch.float64)
    for k, row, a in np.ndindex(5, 3, 2):
        x = (mean[row, a] + log_std[a].exp() * noise[k, row, a]).item()
        slopes[row] += 0 if kind == "none" else oracle.log_slope(x, kind) / 5
    expected = Independent(Normal(mean, log_std.exp().expand(3, 2)), 1).entropy() + slopes
    torch.testing.assert_close(actions.squashed_entropy(mean, log_std, noise, kind), expected, **EXACT)
    assert torch.equal(
        actions.squashed_entropy(mean, log_std.expand(3, 2), noise, kind), actions.squashed_entropy(mean, log_std, noise, kind)
    )
    inputs = [tensor.requires_grad_() for tensor in (mean, log_std)]
    assert gradcheck(lambda mean, log_std: actions.squashed_entropy(mean, log_std, noise, kind), inputs)


def test_squashed_entropy_does_not_reward_saturation():
    """The entropy of the raw Gaussian grows for ever with σ; that of what the environment sees must fall in the end."""
    noise = doubles(400, 1)
    wide = [
        actions.squashed_entropy(torch.zeros(1).double(), torch.tensor([s]).double(), noise, "tanh") for s in (0.0, 2.0, 4.0)
    ]
    assert wide[0] > wide[1] > wide[2]


# --- one choice ------------------------------------------------------------------------------------------------------

MASKED = torch.tensor([[0.3, FORBIDDEN, -1.0, 2.0], [FORBIDDEN, FORBIDDEN, 0.0, FORBIDDEN], [-300.0, 0.0, 1.0, FORBIDDEN]])


def test_categorical_against_torch():
    logits, action = 3 * doubles(2, 3, 5), torch.randint(0, 5, (2, 3))
    theirs = Categorical(logits=logits)
    torch.testing.assert_close(actions.categorical_log_prob(logits, action), theirs.log_prob(action), **EXACT)
    torch.testing.assert_close(actions.categorical_log_prob(logits, action.int()), theirs.log_prob(action), **EXACT)
    torch.testing.assert_close(actions.categorical_entropy(logits), theirs.entropy(), **EXACT)
    logits.requires_grad_()
    assert gradcheck(lambda x: actions.categorical_log_prob(x, action), logits)
    assert gradcheck(actions.categorical_entropy, logits)


def test_categorical_by_hand():
    logits = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64).log()
    assert actions.categorical_log_prob(logits, torch.tensor(1)).item() == pytest.approx(math.log(0.25), abs=1e-15)
    expected = math.log(8) / 8 + math.log(4) / 4 - 0.625 * math.log(0.625)
    assert actions.categorical_entropy(logits).item() == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_forbidden_choices_count_nothing(dtype):
    logits = MASKED.to(dtype, copy=True).requires_grad_()
    entropy, log_prob = actions.categorical_entropy(logits), actions.categorical_log_prob(logits, torch.tensor([3, 2, 1]))
    allowed = [row[row > FORBIDDEN].double() for row in MASKED]
    assert entropy.tolist() == pytest.approx([Categorical(logits=row).entropy().item() for row in allowed], abs=1e-6)
    expected = [Categorical(logits=row).log_prob(torch.tensor(at)).item() for row, at in zip(allowed, (2, 0, 1), strict=True)]
    assert log_prob.tolist() == pytest.approx(expected, abs=1e-6)
    (entropy + log_prob).sum().backward()
    assert logits.grad.isfinite().all()
    assert (logits.grad[MASKED == FORBIDDEN] == 0).all()
    assert (actions.categorical_log_prob(logits, torch.tensor([1, 0, 3])) == FORBIDDEN).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_forbidden_choice_is_never_made(dtype):
    logits = MASKED.to(dtype)[:, None].expand(3, 257, 4)
    just_below_1 = 1 - torch.finfo(dtype).eps / 2
    noise = torch.cat([torch.linspace(0, just_below_1, 256, dtype=dtype), torch.tensor([just_below_1], dtype=dtype)])
    action = actions.categorical_sample(logits, noise.expand(3, 257))
    assert logits.gather(-1, action[..., None]).min() > FORBIDDEN
    assert action[1].unique().tolist() == [2]


def test_choices_come_as_often_as_they_should():
    """Stratified noise: exact counts, for probabilities k/32."""
    counts = torch.tensor([[5, 9, 16, 2], [32, 0, 0, 0], [8, 8, 15, 1]])
    noise = ((torch.arange(32, dtype=torch.float64) + 0.5) / 32).expand(3, 32)
    action = actions.categorical_sample(counts.double().log()[:, None].expand(3, 32, 4), noise)
    assert torch.equal(torch.stack([(action == k).sum(-1) for k in range(4)], -1), counts)
    assert action.dtype == torch.int64
    assert actions.categorical_sample(counts[0].double().log(), torch.tensor(0.99, dtype=torch.float64)).shape == ()


# --- several choices -------------------------------------------------------------------------------------------------

SIZES = (3, 1, 4)


def test_several_choices_against_a_loop_over_torch():
    logits, noise = 2 * doubles(2, 5, 8), torch.rand(2, 5, 3, dtype=torch.float64)
    blocks = [logits[..., :3], logits[..., 3:4], logits[..., 4:]]
    action = actions.multi_categorical_sample(logits, SIZES, noise)
    for row in np.ndindex(2, 5):
        for d, block in enumerate(blocks):
            ends = np.cumsum(np.exp(block[row].numpy()) / np.exp(block[row].numpy()).sum())
            assert action[row][d] == (ends <= noise[row][d].item()).sum()
    log_prob, entropy = (
        actions.multi_categorical_log_prob(logits, SIZES, action),
        actions.multi_categorical_entropy(logits, SIZES),
    )
    laws = [Categorical(logits=block) for block in blocks]
    torch.testing.assert_close(log_prob, sum(law.log_prob(action[..., d]) for d, law in enumerate(laws)), **EXACT)
    torch.testing.assert_close(entropy, sum(law.entropy() for law in laws), **EXACT)
    assert action.shape == (2, 5, 3)
    assert action.dtype == torch.int64


def test_probabilities_of_all_joint_choices_sum_to_one():
    logits = doubles(8)
    every = torch.cartesian_prod(*(torch.arange(size) for size in SIZES))
    log_probs = actions.multi_categorical_log_prob(logits.expand(12, 8), list(SIZES), every)
    assert log_probs.exp().sum().item() == pytest.approx(1, abs=1e-12)
    entropy = actions.multi_categorical_entropy(logits, SIZES).item()
    assert -(log_probs.exp() * log_probs).sum().item() == pytest.approx(entropy, abs=1e-12)


def test_several_choices_gradients():
    logits, action = doubles(2, 8).requires_grad_(), torch.tensor([[2, 0, 1], [0, 0, 3]])
    assert gradcheck(lambda x: actions.multi_categorical_log_prob(x, SIZES, action), logits)
    assert gradcheck(lambda x: actions.multi_categorical_entropy(x, SIZES), logits)
