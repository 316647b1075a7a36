"""The mean-reverting signal against relative value iteration on a grid, simulation and published figures."""

import math

import numpy as np
import pytest
import torch
from scipy.special import ndtr

from envs.play import check_mean
from quantail.envs.oracles import OUSignal
from quantail.errors import InputError

GRID_ERROR = 1.5e-4  # the published gains come from a grid and are that much too high: sign(x) has an exact value to compare


@pytest.mark.parametrize(
    ("c", "threshold", "gain", "sign"),
    [(0.1, 0.0860, 0.77251, 0.76923), (0.5, 0.2889, 0.70229, 0.65440)],
)
def test_published_figures(c, threshold, gain, sign):
    env = OUSignal(1, rho=0.9, c=c)
    assert env.threshold() == pytest.approx(threshold, abs=5e-5)
    assert env.optimum() == pytest.approx(gain, abs=GRID_ERROR)
    assert env.baseline("sign") == pytest.approx(sign, abs=GRID_ERROR)
    assert env.baseline("free") == pytest.approx(0.79788, abs=5e-6)
    assert env.gain(0.2889 * 2) == pytest.approx(0.677, abs=5e-4) if c == 0.5 else True


@pytest.mark.parametrize(("rho", "c"), [(0.9, 0.5), (0.5, 0.2), (0.0, 0.3), (0.98, 0.7)])
def test_sign_policy_has_a_closed_form(rho, c):
    """x changes sign with probability arccos(rho)/π, and then pays 2c."""
    expected = math.sqrt(2 / math.pi) - 2 * c * math.acos(rho) / math.pi
    assert OUSignal(1, rho, c).baseline("sign") == pytest.approx(expected, abs=1e-12)


def value_iteration(rho, c, cells=401, reach=5.5):
    """Gain and threshold by relative value iteration over (x, q₋), three actions, x on a grid with exact cell masses."""
    grid = np.linspace(-reach, reach, cells)
    half = (grid[1] - grid[0]) / 2
    edges = np.concatenate([[-np.inf], grid[:-1] + half, [np.inf]])
    step = np.diff(ndtr((edges[None, :] - rho * grid[:, None]) / math.sqrt(1 - rho**2)), axis=1)
    positions = np.array([-1.0, 0.0, 1.0])
    value = np.zeros((cells, 3))
    for _ in range(3000):
        ahead = step @ value  # [x, q]
        options = positions[None, None, :] * grid[:, None, None] - c * np.abs(
            positions[None, None, :] - positions[None, :, None]
        )
        new = (options + ahead[:, None, :]).max(-1)
        change = new - value
        if np.ptp(change) < 1e-10:
            break
        value = new - new[cells // 2, 1]
    chosen = (options + ahead[:, None, :]).argmax(-1)
    flips = grid[chosen[:, 0] == 2].min()  # from short to long
    assert not (chosen[:, [0, 2]] == 1).any()  # never to flat
    return change.mean(), flips - half, half


@pytest.mark.parametrize(("rho", "c"), [(0.7, 0.4), (0.9, 0.5)])
def test_value_iteration_finds_the_same(rho, c):
    gain, threshold, half = value_iteration(rho, c)
    env = OUSignal(1, rho, c)
    assert env.threshold() == pytest.approx(threshold, abs=1.5 * half)
    assert env.optimum() == pytest.approx(gain, abs=3e-4)


@pytest.mark.parametrize(("rho", "c"), [(0.9, 0.5), (0.6, 1.5), (0.99, 0.05), (0.0, 0.4)])
def test_no_other_threshold_is_better(rho, c):
    env = OUSignal(1, rho, c)
    best = env.threshold()
    assert all(env.gain(best * factor) < env.optimum() for factor in (0.5, 0.95, 1.05, 1.5))


def test_free_trades_follow_the_sign():
    env = OUSignal(1, 0.9, 0.0)
    assert env.threshold() == pytest.approx(0.0, abs=1e-12)
    assert env.optimum() == pytest.approx(math.sqrt(2 / math.pi), abs=1e-12)


def long_run(env, policy, rows, burn_in=60):
    generator = torch.Generator().manual_seed(4)
    draw = lambda: torch.randn(env.num_envs, 1, generator=generator, dtype=torch.float64)  # noqa: E731
    state, obs = env.reset(draw())
    total = torch.zeros(env.num_envs, dtype=torch.float64)
    for t in range(rows):
        state, step = env.step(state, policy(obs), draw())
        obs = step.obs
        total += step.reward * (t >= burn_in)
    return total / (rows - burn_in)


@pytest.mark.parametrize("continuous", [True, False])
def test_simulated_best_policy(continuous):
    env = OUSignal(3000, rho=0.8, c=0.6, continuous=continuous, dtype=torch.float64)
    threshold = env.threshold()
    check_mean(long_run(env, lambda obs: env.policy(obs, threshold), 400), env.optimum())


def test_simulated_myopic_policy():
    env = OUSignal(3000, rho=0.8, c=0.6, dtype=torch.float64)
    check_mean(long_run(env, lambda obs: env.policy(obs, 0.6), 400), env.baseline("myopic"))


def test_best_action_holds_inside_the_band():
    env = OUSignal(1, 0.9, 0.5)
    obs = torch.tensor([[0.2, -1.0], [0.2, 1.0], [0.4, -1.0], [-0.4, 1.0], [-0.1, 0.0]])
    assert env.best_action(obs).tolist() == [0, 2, 2, 0, 0]
    assert OUSignal(1, 0.9, 0.5, continuous=True).best_action(obs)[:, 0].tolist() == [-1, 1, 1, -1, -1]


@pytest.mark.parametrize(("symbol", "bad"), [("rho", 1.0), ("rho", -0.1), ("c", -0.1), ("horizon", 0)])
def test_nonsense_is_refused_by_name(symbol, bad):
    with pytest.raises(InputError, match=rf"\b{symbol}\b"):
        OUSignal(1, **{symbol: bad})
