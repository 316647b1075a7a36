"""vtrace, judged by the paper's sums, hand-worked rows, gae, and the fixed point of a bandit."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from oracles import returns as oracle
from oracles.rollouts import perfect_rollout, random_rollout
from quantail.functional.returns import gae, vtrace

MODES = ("next_step", "same_step", "explicit")


def estimate(log_ratio, rollout, gamma, lam=1.0, rho_max=1.0, c_max=1.0):
    *rows, valid, final_values = rollout
    return vtrace(log_ratio, *rows, gamma, lam, rho_max, c_max, valid=valid, final_values=final_values)


@pytest.mark.property
@given(
    shape=st.sampled_from([(1,), (1, 1), (2, 3), (5, 2, 3)]),
    seed=st.integers(0, 10**6),
    ends=st.sampled_from([0.0, 0.25, 1.0]),
    mode=st.sampled_from(MODES),
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
    lam=st.sampled_from([0.0, 0.7, 1.0]),
    caps=st.sampled_from([(1.0, 1.0), (2.0, 0.5), (0.5, 2.0), (1e9, 1e9)]),
)
def test_equals_the_sums_of_the_paper(shape, seed, ends, mode, gamma, lam, caps):
    rollout = random_rollout(shape, seed, ends=ends, mode=mode)
    ratio = torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3 + 0.1
    found = estimate(ratio.log(), rollout, gamma, lam, *caps)
    for result, expected in zip(found, oracle.vtrace(ratio, rollout, gamma, lam, *caps), strict=True):
        assert_close(result, expected, rtol=1e-11, atol=1e-12)


# Worked by hand: γ = λ = ½, ρ̄ = 1½, c̄ = 1, ratios 2 ½ 4, rewards 1 2 3, values 1 2 4 8: δ = 1 2 3, ρ = 1½ ½ 1½, c = ½ ¼ ½.
# Ends at the middle row: δ₁ = 2 + ½·4 − 2 where truncated, 2 + 0 − 2 where terminated, and the last row is not valid.
@pytest.mark.parametrize(
    ("terminated", "truncated", "targets", "advantages"),
    [
        (False, False, [2.890625, 3.5625, 8.5], [2.0859375, 1.5625, 4.5]),
        (False, True, [2.75, 3.0, 4.0], [1.875, 1.0, 0.0]),
        (True, False, [2.5, 2.0, 4.0], [1.5, 0.0, 0.0]),
        (True, True, [2.5, 2.0, 4.0], [1.5, 0.0, 0.0]),
    ],
)
def test_hand_worked_rows(terminated, truncated, targets, advantages):
    numbers = lambda *x: torch.tensor(x, dtype=torch.float64)  # noqa: E731
    middle = torch.tensor([False, True, False])
    rows = (numbers(1, 2, 3), numbers(1, 2, 4, 8), middle & terminated, middle & truncated)
    found = vtrace(numbers(2, 0.5, 4).log(), *rows, 0.5, 0.5, 1.5, 1.0)
    assert_close(found, (numbers(*targets), numbers(*advantages)), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("caps", [(), (1.0, 1.0), (3.0, 5.0)])
def test_on_policy_it_is_gae(mode, caps):
    rollout = random_rollout((11, 3), seed=1, mode=mode)
    targets, advantages = estimate(torch.zeros(11, 3, dtype=torch.float64), rollout, 0.9, 0.8, *caps)
    *rows, valid, final_values = rollout
    expected = gae(*rows, 0.9, 0.8, valid=valid, final_values=final_values)
    assert_close((advantages, targets), expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(("rho_max", "value"), [(0.5, 0.7143), (1.0, 0.8333), (1.8, 0.9)])
def test_the_fixed_point_is_the_value_of_the_truncated_policy(rho_max, value):
    """A bandit with Q = [1, 0], data of μ = [.5, .5], target π = [.9, .1]: V settles at the value of π_ρ̄ ∝ min(ρ̄μ, π)."""
    behaviour, target = torch.tensor([0.5, 0.5]).double(), torch.tensor([0.9, 0.1]).double()
    rewards, ends = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.ones(1, 2, dtype=torch.bool)
    log_ratio = (target / behaviour).log()[None]
    estimated = torch.zeros((), dtype=torch.float64)
    for _ in range(200):
        targets, advantages = vtrace(log_ratio, rewards, estimated.expand(2, 2), ends, ~ends, 0.9, rho_max=rho_max)
        estimated = (behaviour * targets[0]).sum()
    truncated = torch.minimum(rho_max * behaviour, target)
    assert estimated.item() == pytest.approx((truncated[0] / truncated.sum()).item(), abs=1e-12)
    assert estimated.item() == pytest.approx(value, abs=5e-5)
    assert (behaviour * advantages[0]).sum().item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_perfect_values_leave_no_advantage_whatever_the_ratios(mode):
    rollout = perfect_rollout(mode, steps=19, envs=23, gamma=0.95, seed=2)
    log_ratio = torch.randn(19, 23, dtype=torch.float64)
    _, advantages = estimate(log_ratio, rollout, 0.95, 0.9, 2.0, 1.5)
    assert_close(advantages, torch.zeros_like(advantages), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_ratio_that_overflows_counts_as_its_cap_and_one_that_vanishes_as_nothing(dtype):
    rollout = random_rollout((5, 2), seed=3, ends=0.0)
    rollout = rollout._replace(rewards=rollout.rewards.to(dtype), values=rollout.values.to(dtype))
    huge = torch.full((5, 2), 1e4, dtype=dtype)
    at_cap = torch.full_like(huge, math.log(2))
    assert_close(estimate(huge, rollout, 0.9, 0.8, 2.0, 2.0), estimate(at_cap, rollout, 0.9, 0.8, 2.0, 2.0))
    targets, advantages = estimate(-huge, rollout, 0.9, 0.8)
    assert torch.equal(targets, rollout.values[:-1])
    assert (advantages == 0).all()


@pytest.mark.parametrize("garbage", [math.nan, 1e30])
def test_garbage_where_nobody_may_look_changes_no_bit(garbage):
    clean = random_rollout((11, 3), seed=4, mode="same_step")._replace(valid=torch.rand(11, 3) < 0.7)
    log_ratio = torch.randn(11, 3, dtype=torch.float64)
    dirty = clean._replace(
        rewards=torch.where(clean.valid, clean.rewards, garbage),
        final_values=torch.where(clean.truncated & ~clean.terminated, clean.final_values, garbage),
    )
    kept = estimate(log_ratio, clean, 0.9, 0.8)
    for expected, found in zip(kept, estimate(torch.where(clean.valid, log_ratio, garbage), dirty, 0.9, 0.8), strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("mode", MODES)
def test_gradients(mode):
    rollout = random_rollout((4, 2), seed=5, mode=mode)
    log_ratio = torch.tensor([-0.5, 0.2, 1.5, -1.0, 0.9, -0.1, 0.4, 1.2], dtype=torch.float64).reshape(4, 2)  # none at a cap
    inputs = [x for x in (log_ratio, rollout.rewards, rollout.values, rollout.final_values) if x is not None]

    def both(log_ratio, rewards, values, final_values=None):
        changed = rollout._replace(rewards=rewards, values=values, final_values=final_values)
        return estimate(log_ratio, changed, 0.9, 0.8, 2.0, 1.5)

    assert torch.autograd.gradcheck(both, [x.requires_grad_() for x in inputs])
