"""gae and lambda_return, judged by forward sums, hand-worked rows, and episodes whose values are perfect."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from oracles import returns as oracle
from oracles.rollouts import Rollout, perfect_rollout, random_rollout
from quantail.functional.returns import distributional_targets, gae, lambda_return
from quantail.types import Law

MODES = ("next_step", "same_step", "explicit")
TIGHT = {"rtol": 1e-12, "atol": 1e-12}


def estimate(rollout: Rollout, gamma: float, lam: float) -> tuple[torch.Tensor, torch.Tensor]:
    *rows, valid, final_values = rollout
    return gae(*rows, gamma, lam, valid=valid, final_values=final_values)


def flags(*rows: int, steps: int = 3) -> torch.Tensor:
    return torch.tensor([t in rows for t in range(steps)])


@pytest.mark.property
@given(
    shape=st.sampled_from([(1,), (1, 1), (2, 3), (5, 2, 3), (7, 3)]),
    seed=st.integers(0, 10**6),
    ends=st.sampled_from([0.0, 0.25, 1.0]),
    mode=st.sampled_from(MODES),
    scale=st.sampled_from([1e-30, 1.0, 1e30]),
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
    lam=st.sampled_from([0.0, 0.7, 1.0]),
)
def test_equals_the_forward_sums_of_the_papers(shape, seed, ends, mode, scale, gamma, lam):
    rollout = random_rollout(shape, seed, ends=ends, mode=mode, scale=scale)
    advantages, returns = estimate(rollout, gamma, lam)
    assert_close(advantages, oracle.advantages(rollout, gamma, lam), rtol=1e-11, atol=1e-12 * scale)
    assert_close(returns, oracle.lambda_returns(rollout, gamma, lam), rtol=1e-11, atol=1e-12 * scale)
    *rows, valid, final_values = rollout
    assert torch.equal(lambda_return(*rows, gamma, lam, valid=valid, final_values=final_values), returns)


# Worked by hand: γ = λ = ½, rewards 1 2 3, values 1 2 4 8, so δ = 1 2 3 where nothing ends. A final value is 6.
HAND = [
    ("nothing ends", (), (), None, [1.6875, 2.75, 3.0]),
    ("same step, truncated", (), (1,), 6.0, [1.75, 3.0, 3.0]),
    ("same step, terminated", (1,), (), 6.0, [1.0, 0.0, 3.0]),
    ("same step, both: terminated wins", (1,), (1,), 6.0, [1.0, 0.0, 3.0]),
    ("same step, truncated on the last row", (), (2,), 6.0, [1.625, 2.5, 2.0]),
    ("same step, two ends in a row", (1,), (0,), 6.0, [3.0, 0.0, 3.0]),
    ("next step, truncated", (), (1,), None, [1.5, 2.0, 0.0]),
    ("next step, terminated", (1,), (), None, [1.0, 0.0, 0.0]),
    ("next step, terminated on the last row", (2,), (), None, [1.4375, 1.75, -1.0]),
    ("next step, both: terminated wins", (1,), (1,), None, [1.0, 0.0, 0.0]),
    ("next step, an end on an ignored row", (1,), (0,), None, [1.0, 0.0, 0.0]),
]


@pytest.mark.parametrize(
    ("terminated", "truncated", "final", "expected"), [row[1:] for row in HAND], ids=[row[0] for row in HAND]
)
def test_hand_worked_rows(terminated, truncated, final, expected):
    values = torch.tensor([1.0, 2, 4, 8], dtype=torch.float64)
    final_values = None if final is None else torch.full((3,), final, dtype=torch.float64)
    rewards = torch.tensor([1.0, 2, 3], dtype=torch.float64)
    advantages, returns = gae(rewards, values, flags(*terminated), flags(*truncated), 0.5, 0.5, final_values=final_values)
    assert advantages.tolist() == expected
    assert returns.tolist() == (advantages + values[:3]).tolist()


@pytest.mark.parametrize("mode", ["next_step", "same_step", "disabled"])
def test_perfect_values_leave_no_advantage(mode):
    rollout = perfect_rollout(mode, steps=23, envs=41, gamma=0.97, seed=1)
    ended = rollout.terminated | rollout.truncated
    assert (rollout.terminated[-1].any(), rollout.truncated[-1].any(), (~ended[-1]).any()) == (True, True, True)
    advantages, returns = estimate(rollout, 0.97, 0.9)
    assert_close(advantages, torch.zeros_like(advantages), rtol=0, atol=1e-12)
    assert torch.equal(returns.isnan(), rollout.values[:-1].isnan())


@pytest.mark.parametrize("invalid", [None, (2,)])
def test_truncation_with_constant_value_gives_no_advantage(invalid):
    rewards, values = torch.tensor([1.0, 1, 0, 1], dtype=torch.float64), torch.full((5,), 100.0, dtype=torch.float64)
    valid = None if invalid is None else ~flags(*invalid, steps=4)
    advantages, _ = gae(rewards, values, flags(steps=4), flags(1, steps=4), 0.99, 0.95, valid=valid)
    assert_close(advantages, torch.zeros(4, dtype=torch.float64), rtol=0, atol=1e-13)


def test_a_missing_bootstrap_would_cost_99_and_decay_by_9405():
    steps = 6
    rewards, values = torch.ones(steps, dtype=torch.float64), torch.full((steps + 1,), 100.0, dtype=torch.float64)
    lost, _ = gae(rewards, values, flags(5, steps=steps), flags(steps=steps), 0.99, 0.95)
    assert_close(lost, -99 * 0.9405 ** torch.arange(steps - 1.0, -1, -1, dtype=torch.float64), **TIGHT)


@pytest.mark.parametrize("mode", ["next_step", "same_step"])
def test_a_truncated_episode_learns_nothing_from_the_next_one(mode):
    """Bug G46: three rows of zeros, truncated, became 2.35, 2.50, 2.66 because the next episode earned 1 per step."""
    zeros, ones = torch.zeros(3, dtype=torch.float64), torch.ones(5, dtype=torch.float64)
    rewards, values = torch.cat([zeros, ones]), torch.zeros(9, dtype=torch.float64)
    final_values = torch.zeros(8, dtype=torch.float64) if mode == "same_step" else None
    advantages, _ = gae(rewards, values, flags(steps=8), flags(2, steps=8), 0.99, 0.95, final_values=final_values)
    assert advantages[:3].tolist() == [0, 0, 0]
    assert (advantages[4:] > 0).all()


@pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e30])
def test_garbage_where_nobody_may_look_changes_no_bit(garbage):
    clean = random_rollout((11, 3), seed=2, mode="same_step")
    valid = torch.rand(clean.rewards.shape) < 0.7
    kept = estimate(clean._replace(valid=valid), 0.9, 0.8)
    dirty = clean._replace(
        valid=valid,
        rewards=torch.where(valid, clean.rewards, garbage),
        final_values=torch.where(clean.truncated & ~clean.terminated, clean.final_values, garbage),
    )
    for expected, found in zip(kept, estimate(dirty, 0.9, 0.8), strict=True):
        assert torch.equal(found, expected)


def test_garbage_after_a_termination_is_not_read():
    values = torch.tensor([1.0, 2, math.nan, 8], dtype=torch.float64)
    advantages, returns = gae(torch.ones(3, dtype=torch.float64), values, flags(1), flags(), 0.5, 0.5)
    assert advantages.tolist() == [0.75, -1.0, 0.0]
    assert returns[:2].tolist() == [1.75, 1.0]


def test_given_valid_overrides_what_the_flags_say():
    rollout = random_rollout((9, 2), seed=3)
    everything = torch.ones_like(rollout.terminated)
    advantages, _ = estimate(rollout._replace(valid=everything), 0.9, 0.8)
    assert_close(advantages, oracle.advantages(rollout._replace(valid=everything), 0.9, 0.8), **TIGHT)
    assert (advantages != 0).all()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.float32])
def test_masks_may_be_numbers(dtype):
    rollout = random_rollout((7, 3), seed=4, mode="explicit")
    numbers = rollout._replace(**{name: getattr(rollout, name).to(dtype) for name in ("terminated", "truncated", "valid")})
    for expected, found in zip(estimate(rollout, 0.9, 0.8), estimate(numbers, 0.9, 0.8), strict=True):
        assert torch.equal(found, expected)


def test_float32_stays_float32():
    rollout = random_rollout((7, 3), seed=5)
    advantages, returns = gae(rollout.rewards.float(), rollout.values.float(), rollout.terminated, rollout.truncated, 0.9, 0.8)
    assert (advantages.dtype, returns.dtype) == (torch.float32, torch.float32)


@pytest.mark.parametrize("mode", MODES)
def test_gradients(mode):
    rollout = random_rollout((5, 2), seed=6, mode=mode)
    inputs = [x for x in (rollout.rewards, rollout.values, rollout.final_values) if x is not None]

    def both(rewards, values, final_values=None):
        return estimate(rollout._replace(rewards=rewards, values=values, final_values=final_values), 0.9, 0.8)

    assert torch.autograd.gradcheck(both, [x.requires_grad_() for x in inputs])


@pytest.mark.parametrize(
    ("gamma", "lam", "share"), [(0.95, 0.9, 0.60), (0.99, 0.95, 0.41), (0.99, 0.0, 0.14), (0.999, 0.99, 0.30)]
)
def test_the_lambda_return_knows_only_a_share_of_the_spread(gamma, lam, share):
    """Independent rewards of variance 1: the exact standard deviation of y_0 over that of the return, by its gradient."""
    steps = 4000
    rewards = torch.zeros(steps, dtype=torch.float64, requires_grad=True)
    zeros = torch.zeros(steps + 1, dtype=torch.float64)
    lambda_return(rewards, zeros, flags(steps=steps), flags(steps=steps), gamma, lam)[0].backward()
    spread = rewards.grad.square().sum().sqrt().item() * math.sqrt(1 - gamma**2)
    assert spread == pytest.approx(math.sqrt((1 - gamma**2) / (1 - (gamma * lam) ** 2)), rel=1e-10)
    assert spread == pytest.approx(share, abs=0.006)


def test_particles_keep_the_whole_spread_that_the_lambda_return_loses():
    """γ = .95, λ = .9, normal rewards: 4000 paths give each variance within 4.5 standard errors (odds 7e-6), √(2/n) each."""
    steps, paths, gamma, lam = 90, 4000, 0.95, 0.9
    noise = torch.Generator().manual_seed(7)
    std = 1 / math.sqrt(1 - gamma**2)
    rewards = torch.randn(steps, paths, generator=noise, dtype=torch.float64)
    uniform = torch.rand(2, steps, paths, 1, generator=noise, dtype=torch.float64)
    law = Law(torch.tensor([-std, std], dtype=torch.float64), torch.tensor([0.5, 0.5], dtype=torch.float64))
    never = torch.zeros(steps, paths, dtype=torch.bool)
    particles = distributional_targets(rewards, law, never, never, gamma, lam, *uniform)[0].squeeze(-1)
    scalar = lambda_return(rewards, torch.zeros(steps + 1, paths, dtype=torch.float64), never, never, gamma, lam)[0]
    bound = 4.5 * math.sqrt(2 / paths)
    assert particles.square().mean().item() * (1 - gamma**2) == pytest.approx(1, rel=bound)
    assert scalar.square().mean().item() * (1 - gamma**2) == pytest.approx(0.60**2, rel=bound + 0.02)
