"""The controller of the Lagrange multiplier: against plain floats, and what its docstring promises."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oracles import risk as oracle
from quantail.functional.risk import PidGains, PidState, pid_start, pid_step


def run(violations, gains: PidGains, delay: int = 10) -> tuple[list[float], list[PidState]]:
    """The multipliers and the states of a run."""
    state, multipliers, states = pid_start(delay), [], []
    for violation in violations:
        state, multiplier = pid_step(state, torch.tensor(violation, dtype=torch.float64), gains)
        multipliers.append(multiplier.item())
        states.append(state)
    return multipliers, states


def gains_of(proportional=0.0, integral=0.0, derivative=0.0, smoothing=0.0, cap=100.0) -> PidGains:
    return PidGains(proportional, integral, derivative, smoothing, cap)


@pytest.mark.property
@given(
    seed=st.integers(0, 10**6),
    gains=st.sampled_from([PidGains(), gains_of(0.5, 0.3, 2.0, 0.9, 1.5), gains_of(0.0, 0.7, 1.0, 0.3, 0.4), gains_of(3.0)]),
    delay=st.sampled_from([1, 2, 10]),
    drift=st.sampled_from([-0.3, 0.0, 0.5]),
)
def test_multipliers_against_plain_floats(seed, gains, delay, drift):
    violations = (np.random.default_rng(seed).normal(size=200) + drift).tolist()
    expected = oracle.pid(violations, *gains, delay)
    np.testing.assert_allclose(run(violations, gains, delay)[0], expected, rtol=0, atol=1e-12)


def test_first_steps_by_hand():
    """k_i alone adds up; k_p alone follows the average; k_d alone sees the rise over two steps and no fall."""
    violations = [1.0, 3.0, -2.0, 5.0]
    assert run(violations, gains_of(integral=0.5))[0] == [0.5, 2.0, 1.0, 3.5]
    assert run(violations, gains_of(proportional=2.0, smoothing=0.5))[0] == [2.0, 4.0, 0.0, 5.0]
    assert run(violations, gains_of(derivative=1.0), delay=2)[0] == [0.0, 2.0, 0.0, 2.0]


def test_a_kept_limit_costs_nothing():
    multipliers, states = run([-0.1, -3.0, -0.5], PidGains())
    assert multipliers == [0, 0, 0]
    assert states[-1].integral == 0


@pytest.mark.parametrize(
    "gains", [gains_of(0.1, 0.5, 0.1, 0.9, 4.0), gains_of(integral=0.5, cap=4.0), gains_of(2.0, 1.0, 0.0, 0.5, 4.0)]
)
def test_no_wind_up_at_a_limit_that_cannot_be_kept(gains):
    multipliers, states = run([1.0] * 300 + [-1.0] * 20, gains)
    integrals = [state.integral.item() for state in states]
    assert max(multipliers) == multipliers[299] == 4.0
    assert max(integrals) <= 4.0
    assert len(set(integrals[100:300])) == 1  # it rests while the multiplier stands at the cap
    assert integrals[300] < integrals[299]  # and falls at once when the violation turns
    assert multipliers[300] < 4.0
    assert multipliers[-1] == 0


def test_the_integral_rests_only_at_the_cap_and_only_upwards():
    """With P alone above the cap the integral stays where it was; a negative violation still lowers it."""
    state = PidState(torch.tensor(1.0), torch.full((3,), 9.0), torch.tensor(5.0))
    gains = gains_of(proportional=1.0, integral=0.5, smoothing=0.9, cap=4.0)
    up, multiplier = pid_step(state, torch.tensor(2.0), gains)
    down, _ = pid_step(state, torch.tensor(-1.0), gains)
    assert (up.integral, multiplier, down.integral) == (1.0, 4.0, 0.5)


def test_the_average_starts_at_the_first_violation():
    """Started at 0, the first multipliers would be 20 times too small and D would see a rise that never was."""
    multipliers, states = run([2.0, 2.0, 2.0], gains_of(proportional=1.0, derivative=5.0, smoothing=0.95), delay=4)
    assert multipliers == pytest.approx([2.0, 2.0, 2.0], abs=1e-12)
    assert states[0].smoothed.tolist() == [2.0] * 5
    assert [state.steps.item() for state in states] == [1, 2, 3]


def test_a_step_leaves_the_old_state_alone():
    start = pid_start(2)
    kept = [field.clone() for field in start]
    pid_step(start, torch.tensor(1.0, dtype=torch.float64), PidGains())
    assert all(torch.equal(*pair) for pair in zip(start, kept, strict=True))


def test_the_start_has_the_asked_shape_and_dtype():
    state = pid_start(4, dtype=torch.float32)
    assert [tuple(field.shape) for field in state] == [(), (5,), ()]
    assert {field.dtype for field in state} == {torch.float32}
    assert all((field == 0).all() for field in state)
    assert {field.dtype for field in pid_start()} == {torch.float64}
    assert pid_start().smoothed.shape == (11,)
    state, multiplier = pid_step(state, torch.tensor(1.0), PidGains())
    assert {field.dtype for field in (*state, multiplier)} == {torch.float32}
