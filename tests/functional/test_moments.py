"""Moments and PopArt, judged by numpy on all the data at once, exact fractions, and averages written out as sums."""

import functools
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from oracles.moments import debiased_average, exact_moments
from quantail.functional.moments import (
    average_moments,
    batch_moments,
    finite_moments,
    limit_scale,
    merge_moments,
    no_moments,
    pool_moments,
    popart_rescale,
    scale_of,
    standardize,
)
from quantail.types import Moments, Scale

FLOAT32_EPS = 1.1920928955078125e-07
TIGHT = {"rtol": 1e-12, "atol": 1e-12}


def doubles(*x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def moments_of(mean: float, variance: float, weight: float) -> Moments:
    return Moments(doubles(mean), doubles(variance), doubles(weight))


def scale(mean: float, std: float) -> Scale:
    return Scale(*torch.tensor([mean, std], dtype=torch.float64))


def assert_same(found: Moments, expected: Moments, **tolerance: float) -> None:
    for one, other in zip(found, expected, strict=True):
        assert_close(one, other, **(tolerance or TIGHT))


# --- no_moments and standardize ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (3,), (5, 2)])
def test_no_moments_change_nothing(shape):
    nothing = no_moments(shape)
    for part, value in zip(nothing, (0, 1, 0), strict=True):
        assert torch.equal(part, torch.full(shape, value, dtype=torch.float64))
    assert {part.device.type for part in no_moments(shape, device=torch.device("meta"))} == {"meta"}
    x = torch.randn(7, *shape)
    assert torch.equal(standardize(x, nothing), x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_standardize_equals_numpy_and_clips_both_sides(dtype):
    x = torch.randn(11, 5, 3, dtype=dtype)
    seen = Moments(doubles(0.5, -2, 10), doubles(4, 0.25, 9), doubles(1, 1, 1))
    expected = (x.double().numpy() - [0.5, -2, 10]) / [2, 0.5, 3]
    found = standardize(x, seen)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, expected.astype(found.numpy().dtype))
    np.testing.assert_array_equal(standardize(x, seen, 1.5), found.numpy().clip(-1.5, 1.5))
    assert (expected.min() < -1.5, expected.max() > 1.5) == (True, True)


@pytest.mark.parametrize("unit", [1e-12, 1e-6, 1e9])
def test_features_of_any_scale_come_out_alike(unit):
    x = torch.randn(97, 2, dtype=torch.float64) + 3
    assert_close(standardize(unit * x, batch_moments(unit * x)), standardize(x, batch_moments(x)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("std", "moves"), [(0.99, False), (1.01, True)])
@pytest.mark.parametrize("mean", [-50.0, 50.0])
def test_a_feature_that_never_moved_is_0(mean, std, moves):
    seen = Moments(doubles(mean, 0), doubles((std * abs(mean) * FLOAT32_EPS) ** 2, 0), doubles(9, 9))
    found = standardize(torch.full((1, 2), 60.0, dtype=torch.float64), seen)
    assert found.ne(0).tolist() == [[moves, False]]
    constant = torch.full((5, 2), 0.1)
    assert (standardize(constant, batch_moments(constant)) == 0).all()


def test_standardize_lets_nan_through():
    assert standardize(doubles(math.nan, 1), no_moments((2,)), 5.0).isnan().tolist() == [True, False]


# --- batch_moments ----------------------------------------------------------------------------------------------------


@pytest.mark.property
@given(
    x=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12),
    offset=st.sampled_from([0.0, 1e8]),
    scale=st.sampled_from([1e-30, 1.0, 1e30]),
    data=st.data(),
)
def test_batch_moments_equal_exact_fractions(x, offset, scale, data):
    x = [scale * (offset + n) for n in x]
    weights = data.draw(st.lists(st.sampled_from([0.25, 1.0, 3.0]), min_size=len(x), max_size=len(x)))
    found = batch_moments(doubles(*x), weights=doubles(*weights))
    mean, variance = exact_moments(x, weights)
    size = max(map(abs, x))
    assert found.weight.item() == sum(weights)
    assert found.mean.item() == pytest.approx(mean, rel=1e-12, abs=1e-15 * size)
    assert found.variance.item() == pytest.approx(variance, rel=1e-9, abs=(4e-16 * size) ** 2)


@pytest.mark.parametrize("dims", [0, 1, -1, (0, 1), (0, 2), (0, 1, 2), (-3, -2)], ids=str)
def test_dims_are_those_of_numpy(dims):
    x = torch.randn(7, 5, 3)
    found = batch_moments(x, dims)
    expected = x.double().numpy()
    np.testing.assert_allclose(found.mean, expected.mean(dims), rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(found.variance, expected.var(dims), rtol=1e-13)
    assert (found.weight == x.numel() / found.mean.numel()).all()
    assert {part.dtype for part in found} == {torch.float64}
    assert found.variance.shape == found.weight.shape == expected.mean(dims).shape


def test_the_default_is_over_the_first_axis():
    x = torch.randn(7, 3)
    assert_same(batch_moments(x), batch_moments(x, 0), rtol=0, atol=0)


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_weights_are_repetitions_over_the_leading_axes(axes):
    x = torch.randn(4, 5, 3, dtype=torch.float64)
    weights = torch.randint(1, 4, x.shape[:axes]).double()
    whole = weights.reshape(*weights.shape, *[1] * (3 - axes)).expand_as(x)
    found = batch_moments(x, (0, 1), weights)
    for f in range(3):
        repeated = np.repeat(x[..., f].flatten().numpy(), whole[..., f].flatten().long().numpy())
        np.testing.assert_allclose(found.mean[f], repeated.mean(), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(found.variance[f], repeated.var(), rtol=1e-12)
        assert found.weight[f] == len(repeated)


@pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e30])
def test_what_has_weight_0_may_hold_anything(garbage):
    x, counts = torch.randn(11, 3), torch.rand(11) < 0.6
    found = batch_moments(torch.where(counts[:, None], x, garbage), weights=counts.double())
    assert_same(found, batch_moments(x[counts]))


def test_no_weight_at_all_gives_no_moments():
    x, weights = torch.full((5, 2), math.nan), torch.zeros(5, 2)
    assert_same(batch_moments(x, weights=weights), no_moments((2,)), rtol=0, atol=0)
    weights[:, 1] = 1
    half = batch_moments(torch.ones(5, 2), weights=weights)
    assert (half.mean.tolist(), half.variance.tolist(), half.weight.tolist()) == ([0, 1], [1, 0], [0, 5])


def test_what_overflowed_is_merged_as_nothing():
    """Entry by entry, whichever of the two overflowed; sound moments come back bit for bit."""
    seen = batch_moments(doubles(*range(7)).reshape(7, 1).expand(7, 4))
    broken = seen._replace(mean=seen.mean.clone(), variance=seen.variance.clone())
    broken.mean[1], broken.variance[2], broken.variance[3] = math.inf, math.inf, math.nan
    found = finite_moments(broken)
    assert found.mean.tolist() == pytest.approx([3.0, 0.0, 0.0, 0.0])
    assert found.variance.tolist() == pytest.approx([4.0, 1.0, 1.0, 1.0])
    assert found.weight.tolist() == [7.0, 0.0, 0.0, 0.0]
    assert_same(finite_moments(seen), seen, rtol=0, atol=0)
    known = Moments(*(part[:1].expand(4) for part in batch_moments(doubles(5, 6, 9).reshape(3, 1))))
    merged = merge_moments(known, found)
    for part, old in zip(merged, known, strict=True):
        torch.testing.assert_close(part[1:], old[1:], rtol=0, atol=0)


def test_a_small_spread_on_a_huge_offset():
    """1e8 ± 1e-3: mean of squares minus square of the mean would lose all of it, even in float64."""
    x = (1e8 + 1e-3 * np.random.default_rng(1).standard_normal(999)).tolist()
    mean, variance = exact_moments(x)
    parts = [batch_moments(doubles(*part)) for part in (x[:200], x[200:201], x[201:])]
    for found in (batch_moments(doubles(*x)), functools.reduce(merge_moments, parts)):
        assert found.mean.item() == pytest.approx(mean, rel=1e-15)
        assert found.variance.item() == pytest.approx(variance, rel=1e-9 if found.weight == 999 else 0)


# --- merge_moments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_merging_parts_in_any_order_is_the_whole(order):
    x = torch.randn(23, 5, 3, dtype=torch.float64) * doubles(1, 1e-3, 1e3) + doubles(0, 5, -1e4)
    parts = [batch_moments(part, (0, 1)) for part in x.split([2, 17, 4])]
    a, b, c = (parts[i] for i in order)
    for merged in (merge_moments(merge_moments(a, b), c), merge_moments(a, merge_moments(b, c))):
        np.testing.assert_allclose(merged.mean, x.numpy().mean((0, 1)), rtol=1e-12)
        np.testing.assert_allclose(merged.variance, x.numpy().var((0, 1)), rtol=1e-12)
        assert (merged.weight == 115).all()


@pytest.mark.property
@given(
    x=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8),
    y=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8),
    weight=st.sampled_from([0.125, 1.0, 1e6]),
)
def test_merging_weighted_parts_equals_exact_fractions(x, y, weight):
    weights = [1.0] * len(x) + [weight] * len(y)
    merged = merge_moments(batch_moments(doubles(*x)), batch_moments(doubles(*y), weights=doubles(*weights[len(x) :])))
    mean, variance = exact_moments(x + y, weights)
    size = max(map(abs, x + y))
    assert merged.mean.item() == pytest.approx(mean, rel=1e-12, abs=1e-15 * size)
    assert merged.variance.item() == pytest.approx(variance, rel=1e-9, abs=(4e-16 * size) ** 2)


def test_nothing_merges_as_nothing():
    some, nothing = batch_moments(torch.randn(5, 3)), no_moments((3,))
    for merged in (merge_moments(some, nothing), merge_moments(nothing, some)):
        assert_same(merged, some, rtol=0, atol=0)
    assert_same(merge_moments(nothing, nothing), nothing, rtol=0, atol=0)


# --- pool_moments and limit_scale -------------------------------------------------------------------------------------


def test_pooled_moments_are_those_of_all_rows():
    rows = [torch.randn(n, 3, dtype=torch.float64) * (n + 1) + n for n in (4, 1, 7)]
    each = [batch_moments(x, 0) for x in [*rows, rows[0][:0].reshape(0, 3).new_zeros(1, 3)]]
    each[-1] = no_moments((3,))
    pooled = pool_moments(Moments(*(torch.stack(part, -1) for part in zip(*each, strict=True))))
    together = torch.cat(rows).numpy()
    np.testing.assert_allclose(pooled.mean, together.mean(0), rtol=1e-12)
    np.testing.assert_allclose(pooled.variance, together.var(0), rtol=1e-12)
    assert pooled.weight.tolist() == [12.0] * 3
    nothing = pool_moments(no_moments((2, 5)))
    assert_same(nothing, no_moments((2,)), rtol=0, atol=0)


@pytest.mark.parametrize("step", [0.1, 1.0])
def test_a_limited_scale_arrives_in_bounded_steps(step):
    scale, goal = (Scale(*(torch.tensor(x, dtype=torch.float64) for x in pair)) for pair in ((1.0, 2.0), (-70.0, 0.02)))
    for count in itertools.count(1):
        later = limit_scale(scale, goal, step)
        assert float(scale.std / later.std) <= 1 + step + 1e-12
        assert float((later.mean - scale.mean).abs()) <= step * float(scale.std) + 1e-12
        if later == goal or count > 100:
            break
        scale = later
        if float(scale.std) == 0.02:  # the rest of the way is as slow as its own unit
            break
    assert float(later.std) == 0.02
    up = limit_scale(goal, Scale(goal.mean + 1, 50 * goal.std), step)
    assert float(up.std) == pytest.approx(0.02 * (1 + step))
    assert float(up.mean - goal.mean) == pytest.approx(step * float(up.std))
    near = Scale(goal.mean + 0.001 * step, goal.std * (1 + step / 2))
    assert limit_scale(goal, near, step) == near


# --- average_moments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [1e-6, 0.1, 0.5, 1.0])
def test_the_moving_average_is_that_of_first_and_second_moments(rate):
    steps = [(float(i % 4 - 1), 0.5 + i, 2.0 + i) for i in range(7)]
    average = no_moments((1,))
    for n, step in enumerate(steps, start=1):
        average = average_moments(average, moments_of(*step), rate)
        mean, variance = debiased_average([(mu, var) for mu, var, _ in steps[:n]], rate)
        assert average.mean.item() == pytest.approx(mean, rel=1e-9, abs=1e-10)
        assert average.variance.item() == pytest.approx(variance, rel=1e-9)
        assert average.weight.item() == n


def test_one_step_by_hand():
    """β = ½, second step: s = ½/(1 − ¼) = ⅔ of N(3, 4) into N(0, 1): mean 2, variance ⅓·1 + ⅔·4 + 2/9·9 = 5."""
    found = average_moments(moments_of(0, 1, 1), moments_of(3, 4, 100), 0.5)
    assert [part.item() for part in found] == pytest.approx([2, 5, 2], rel=1e-15)


def test_the_first_step_takes_all_and_an_empty_one_is_no_step():
    some = batch_moments(torch.randn(7, 3))
    first = average_moments(no_moments((3,)), some, 0.3)
    assert_same(first, some._replace(weight=torch.ones(3, dtype=torch.float64)))
    assert_same(average_moments(first, no_moments((3,)), 0.3), first, rtol=0, atol=0)
    assert_same(average_moments(no_moments((3,)), no_moments((3,)), 0.3), no_moments((3,)), rtol=0, atol=0)
    half = average_moments(no_moments((3,)), some._replace(weight=doubles(0, 1, 1)), 0.3)
    assert half.weight.tolist() == [0, 1, 1]
    assert (half.mean[0].item(), half.variance[0].item()) == (0, 1)


def test_rate_1_keeps_only_the_newest():
    newest = moments_of(3, 4, 100)
    assert_same(average_moments(moments_of(0, 1, 5), newest, 1.0), newest._replace(weight=doubles(6)))


# --- scale_of and popart_rescale --------------------------------------------------------------------------------------


def test_scale_is_the_clipped_deviation():
    seen = Moments(doubles(1, 2, 3, 4), doubles(0, 4, 1e14, 1e-10), doubles(1, 1, 1, 1))
    assert torch.equal(scale_of(seen).mean, seen.mean)
    assert scale_of(seen).std.tolist() == [1e-4, 2, 1e6, 1e-4]
    assert scale_of(seen, 1.0, 3.0).std.tolist() == [1, 2, 3, 1]
    assert scale_of(seen, 3.0, 3.0).std.tolist() == [3, 3, 3, 3]


def raw(weight: Tensor, bias: Tensor, units: Scale, h: Tensor) -> Tensor:
    """σ·(Wh + b) + μ in float64."""
    output = (weight.double() @ h.double()[..., None]).squeeze(-1) + bias.double()
    return units.std[..., None] * output + units.mean[..., None]


SHIFTS = [(0.0, 1.0), (0.5, 0.7), (-3.0, 20.0), (0.4, 0.001)]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_popart_keeps_every_raw_output_over_several_refreshes(dtype, bound):
    """Bug G49 and its cure: units that move under a head move its predictions, unless the head moves along.

    The bound is in units of the larger deviation of the two, for each of several refreshes in a row.
    """
    weight, bias, h = torch.randn(7, 5, dtype=dtype) / 3, torch.randn(7, dtype=dtype), torch.randn(13, 5)
    units = scale(2.0, 3.0)
    for mean, factor in SHIFTS:
        following = scale(mean, units.std.item() * factor)
        moved = popart_rescale(weight, bias, units, following)
        assert (moved[0].dtype, moved[1].dtype) == (dtype, dtype)
        gap = (raw(*moved, following, h) - raw(weight, bias, units, h)).abs().max()
        assert gap <= bound * max(units.std, following.std)
        weight, bias, units = *moved, following


def test_popart_by_hand_and_unmoved_units():
    weight, bias = doubles(1, 2)[:, None], doubles(3, 4)
    new_weight, new_bias = popart_rescale(weight, bias, scale(10, 2), scale(4, 8))
    assert (new_weight.flatten().tolist(), new_bias.tolist()) == ([0.25, 0.5], [1.5, 1.75])
    same = popart_rescale(weight, bias, scale(10, 2), scale(10, 2))
    assert torch.equal(same[0], weight)
    assert torch.equal(same[1], bias)


def test_popart_of_a_float32_head_is_computed_in_float64():
    weight, bias, units = torch.randn(7, 5), torch.randn(7), (scale(1e4, 3.7), scale(1e4 + 0.1, 0.3))
    precise = popart_rescale(weight.double(), bias.double(), *units)
    for found, expected in zip(popart_rescale(weight, bias, *units), precise, strict=True):
        assert torch.equal(found, expected.float())


def test_popart_of_stacked_heads_with_units_of_their_own():
    weight, bias, h = torch.randn(2, 7, 5).double(), torch.randn(2, 7).double(), torch.randn(2, 5).double()
    old, new = Scale(doubles(1, -5), doubles(2, 0.3)), Scale(doubles(0, 4), doubles(0.7, 11))
    assert_close(raw(*popart_rescale(weight, bias, old, new), new, h), raw(weight, bias, old, h), **TIGHT)


# --- gradients -------------------------------------------------------------------------------------------------------


def test_gradients():
    x, weights = torch.randn(5, 3, dtype=torch.float64), torch.rand(5, dtype=torch.float64)
    seen, more = batch_moments(torch.randn(7, 3)), batch_moments(torch.randn(9, 3))
    weight, bias = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, dtype=torch.float64)
    calls = [
        (lambda x: batch_moments(x, 0, weights)[:2], [x]),
        (lambda x: standardize(x, seen), [x]),
        (lambda m, v: merge_moments(seen._replace(mean=m, variance=v), more)[:2], list(more[:2])),
        (lambda m, v: average_moments(seen._replace(mean=m, variance=v), more, 0.3)[:2], list(more[:2])),
        (lambda m, v: tuple(scale_of(Moments(m, v, v))), list(more[:2])),
        (lambda w, b: popart_rescale(w, b, scale(1, 2), scale(0, 3)), [weight, bias]),
    ]
    for call, inputs in calls:
        assert torch.autograd.gradcheck(call, [x.clone().requires_grad_() for x in inputs])
