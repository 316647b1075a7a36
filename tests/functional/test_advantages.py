"""normalize_advantages, judged by exact fractions, numpy, and the cases in which there is nothing to learn."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from oracles import returns as oracle
from quantail.functional.returns import normalize_advantages

FLOAT32_EPS = 1.1920928955078125e-07


def weighted_moments(x: torch.Tensor, weights: torch.Tensor, axis: int | None) -> tuple[np.ndarray, np.ndarray]:
    mean = np.average(x.numpy(), axis, weights.numpy(), keepdims=True)
    return mean, np.sqrt(np.average((x.numpy() - mean) ** 2, axis, weights.numpy()))


@pytest.mark.property
@given(
    shape=st.sampled_from([(2,), (3, 1), (5, 2), (4, 3, 2)]),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1e-30, 1e-6, 1.0, 1e30]),
    weighted=st.booleans(),
)
def test_global_equals_exact_fractions(shape, seed, scale, weighted):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(scale * rng.normal(0.5, 1, shape))
    weights = torch.from_numpy(rng.integers(1, 8, shape) / 4.0) if weighted else torch.ones_like(x)
    found = normalize_advantages(x, weights=weights if weighted else None)
    expected = oracle.standardised(x.flatten().tolist(), weights.flatten().tolist())
    assert_close(found.flatten(), torch.tensor(expected, dtype=torch.float64), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("mode", "axis"), [("global", None), ("env", 0)])
def test_mean_0_and_deviation_1_as_numpy_averages_them(mode, axis):
    x = torch.randn(13, 3, 2, dtype=torch.float64) * torch.tensor([1.0, 10.0]) + 5
    weights = torch.rand(13, 3, 2, dtype=torch.float64).clamp_min(0.1)
    mean, std = weighted_moments(normalize_advantages(x, mode, weights=weights), weights, axis)
    np.testing.assert_allclose(mean, 0, atol=1e-13)
    np.testing.assert_allclose(std, 1, rtol=1e-13)


def test_env_is_each_environment_alone_and_global_keeps_their_proportions():
    x = torch.randn(7, 2, dtype=torch.float64) * torch.tensor([1.0, 10.0])
    alone = torch.stack([normalize_advantages(x[:, b]) for b in range(2)], 1)
    assert_close(normalize_advantages(x, "env"), alone, rtol=1e-13, atol=1e-13)
    together = normalize_advantages(x)
    assert_close(together.std(0)[1] / together.std(0)[0], x.std(0)[1] / x.std(0)[0], rtol=1e-13, atol=0)


def test_global_is_the_default_and_off_returns_them_as_they_are():
    x = torch.randn(5, 3)
    assert torch.equal(normalize_advantages(x), normalize_advantages(x, "global"))
    assert torch.equal(normalize_advantages(x, "off", weights=torch.zeros(5, 3)), x)


def test_divides_by_n_not_by_n_minus_1():
    """Bug G50: 1 and 3 are ±1 with the deviation of these two, ±0.71 with an estimate for a population."""
    assert normalize_advantages(torch.tensor([1.0, 3.0])).tolist() == [-1, 1]


# Bug G45: the prior system divided rounding noise by rounding noise, gave NaN for one sample, and ±3 for none to learn from.
@pytest.mark.parametrize("mode", ["global", "env"])
@pytest.mark.parametrize(
    "advantages",
    [
        pytest.param(torch.full((7, 2), 0.1), id="constant"),
        pytest.param(torch.full((7, 2), 1e6), id="constant and large"),
        pytest.param(torch.zeros(7, 2), id="zero"),
        pytest.param(torch.tensor([[3.0]]), id="one sample"),
        pytest.param(1000 + 1e-4 * torch.randn(64, 2), id="1000 ± 1e-4 in float32"),
        pytest.param(1 + 1e-7 * torch.randn(64, 2), id="1 ± 1e-7 in float32"),
        pytest.param((0.1 + torch.zeros(64, 2)).cumsum(0) - 0.1 * torch.arange(1, 65)[:, None] + 5, id="sums that round"),
    ],
)
def test_where_there_is_no_signal_there_is_no_advantage(advantages, mode):
    assert (normalize_advantages(advantages, mode) == 0).all()


def test_a_constant_environment_beside_a_lively_one():
    x = torch.stack([torch.full((5,), 2.0), torch.arange(5.0)], 1)
    found = normalize_advantages(x, "env")
    assert (found[:, 0] == 0).all()
    assert_close(found[:, 1], (torch.arange(5.0) - 2) / math.sqrt(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1e6])
def test_rewards_of_any_scale_still_train(dtype, scale):
    x = torch.tensor([-1.0, 0.5, 0.5, 2.0], dtype=dtype)
    assert_close(normalize_advantages(scale * x), normalize_advantages(x), rtol=1e-6, atol=1e-6)
    assert normalize_advantages(scale * x).abs().max() > 1


@pytest.mark.parametrize(("magnitude", "learns"), [(0.99, True), (1.0, False), (1.01, False)])
def test_the_floor_is_64_roundings_of_the_largest_value(magnitude, learns):
    """Advantages ±1 and the size of a value at which 64·2⁻²³ of it is below, at or above their deviation."""
    x = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    sizes = torch.tensor([[magnitude / (64 * FLOAT32_EPS)], [1.0]], dtype=torch.float64)
    for mode in ("global", "env"):
        assert normalize_advantages(x, mode, magnitude=sizes).flatten().tolist() == ([1, -1] if learns else [0, 0])
    assert normalize_advantages(x, magnitude=-sizes).any() == learns


@pytest.mark.parametrize(("spread", "learns"), [(1.01, True), (0.99, False)])
def test_the_size_of_the_advantages_counts_beside_the_magnitude(spread, learns):
    around = torch.tensor([1.0, -1.0], dtype=torch.float64) * spread * 64 * FLOAT32_EPS - 1
    assert normalize_advantages(around, magnitude=torch.zeros(2, dtype=torch.float64)).any() == learns
    assert normalize_advantages(around).any() == learns


def test_magnitude_is_judged_per_environment_in_env_mode():
    x = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    sizes = torch.tensor([[1e9, 1.0], [1.0, 1.0]])
    assert normalize_advantages(x, "env", magnitude=sizes).tolist() == [[0, 1], [0, -1]]
    assert not normalize_advantages(x, magnitude=sizes).any()


@pytest.mark.parametrize("mode", ["global", "env"])
@pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e30])
def test_rows_of_weight_0_neither_count_nor_learn(mode, garbage):
    x, sizes, counts = torch.randn(11, 3), torch.rand(11, 3), torch.rand(11, 3) < 0.6
    counts[:2] = True
    weights = counts * (torch.rand(11, 3) + 0.1)
    dirty, dirty_sizes = (torch.where(counts, clean, garbage) for clean in (x, sizes))
    found = normalize_advantages(dirty, mode, weights=weights, magnitude=dirty_sizes)
    assert torch.equal(found, normalize_advantages(x, mode, weights=weights, magnitude=sizes))
    assert (found[~counts] == 0).all()


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_broken_advantage_that_counts_is_never_taken_for_no_signal(broken, dtype):
    x = torch.randn(11, 3, dtype=dtype)
    x[4, 1] = broken
    assert not normalize_advantages(x).isfinite().any()
    found = normalize_advantages(x, "env")
    assert not found[:, 1].isfinite().any()
    assert torch.equal(found[:, [0, 2]], normalize_advantages(x[:, [0, 2]], "env"))


def test_rows_of_weight_0_might_as_well_be_absent():
    x, counts = torch.randn(11, 3), torch.rand(11, 3) < 0.6
    assert_close(normalize_advantages(x, weights=counts.float())[counts], normalize_advantages(x[counts]))


def test_no_weight_at_all_gives_zeros():
    x = torch.randn(5, 2)
    assert (normalize_advantages(x, weights=torch.zeros(5, 2)) == 0).all()
    one_idle = normalize_advantages(x, "env", weights=torch.tensor([1.0, 0.0]).expand(5, 2))
    assert (one_idle[:, 1] == 0).all()
    assert_close(one_idle[:, 0], normalize_advantages(x[:, 0]))


def test_weights_are_repetitions():
    x, times = torch.tensor([1.0, 4, 6, 9], dtype=torch.float64), torch.tensor([3, 1, 2, 1])
    repeated = normalize_advantages(x.repeat_interleave(times))
    assert_close(normalize_advantages(x, weights=times.double()).repeat_interleave(times), repeated, rtol=1e-13, atol=1e-13)
    assert_close(normalize_advantages(x, weights=7 * times.double()).repeat_interleave(times), repeated, rtol=1e-13, atol=1e-13)


def test_float32_advantages_have_float64_statistics():
    """100 000 numbers near 1000: float32 sums of them, or of their weights, are off by far more than their rounding."""
    generator = torch.Generator().manual_seed(1)
    x, weights = 1000 + torch.randn(100_000, generator=generator), torch.rand(100_000, generator=generator)
    exact, w = x.numpy().astype(np.longdouble), weights.numpy().astype(np.longdouble)
    exact = exact - (w * exact).sum() / w.sum()
    exact = exact / np.sqrt((w * exact**2).sum() / w.sum())
    found = normalize_advantages(x, weights=weights)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found, exact.astype(np.float64), rtol=6.1e-8, atol=1e-11)


def test_gradients():
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.rand(4, 3, dtype=torch.float64)
    for mode in ("global", "env"):
        assert torch.autograd.gradcheck(lambda x, mode=mode: normalize_advantages(x, mode, weights=weights), x)
