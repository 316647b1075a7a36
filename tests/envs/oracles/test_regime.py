"""Hidden regimes: the optimum against published figures, a histogram filter and simulated Bayes traders."""

import math

import numpy as np
import pytest
import torch
from scipy.special import ndtr

from envs.play import check_mean, first_returns
from quantail.envs.oracles import HiddenRegime
from quantail.errors import InputError

MONTE_CARLO = 4.5 * 3e-4  # the published figures are simulated


def test_published_figures():
    env = HiddenRegime(1, m=0.5, p=0.02)
    assert env.optimum() == pytest.approx(0.37495, abs=MONTE_CARLO)
    assert env.baseline("memoryless") == pytest.approx(0.18367, abs=MONTE_CARLO)
    assert env.baseline("informed") == pytest.approx(0.480, abs=1e-12)


def histogram_optimum(m, p, horizon=None, cells=1201):
    """Per-step optimum by pushing a histogram of the belief π = P(drift up) through Bayes' rule, joint with the true sign."""
    grid = np.linspace(-12, 12, cells)  # log-odds
    up = 1 / (1 + np.exp(-grid))
    ahead = (1 - p) * up + p * (1 - up)
    prior = np.log(ahead / (1 - ahead))
    edges = np.append(grid - (grid[1] - grid[0]) / 2, np.inf)
    edges[0] = -np.inf
    kernels = []
    for sign in (1, -1):  # log-odds after a return drawn under this sign
        distance = (edges[:, None] - prior[None, :] - 2 * m * m * sign) / (2 * m)
        kernels.append(np.diff(ndtr(distance), axis=0))
    law = np.zeros((2, cells))  # joint with the sign in force; before the first return ℓ = 0
    law[:, cells // 2] = 0.5
    rewards = []
    for t in range(horizon or 2000):
        mixed = law if t == 0 else np.stack([(1 - p) * law[0] + p * law[1], (1 - p) * law[1] + p * law[0]])
        if t == 0:
            shift = [np.diff(ndtr((edges - 2 * m * m * sign) / (2 * m))) for sign in (1, -1)]
            law = 0.5 * np.stack(shift)
        else:
            law = np.stack([kernels[0] @ mixed[0], kernels[1] @ mixed[1]])
        rewards.append(m * abs(1 - 2 * p) * (law * np.sign(grid) * np.array([[1], [-1]])).sum())
        if horizon is None and t > 20 and abs(rewards[-1] - rewards[-2]) < 1e-12:
            break
    return np.mean(rewards) if horizon else rewards[-1]


@pytest.mark.parametrize(("m", "p"), [(0.8, 0.2), (0.3, 0.05)])
@pytest.mark.parametrize("horizon", [None, 7])
def test_optimum_by_histogram_filter(m, p, horizon):
    assert HiddenRegime(1, m, p, horizon).optimum() == pytest.approx(histogram_optimum(m, p, horizon), abs=2e-5)


def test_switches_more_likely_than_not_are_as_good_as_rare_ones():
    """p and 1 − p: the sign of the forecast turns, its strength is the same."""
    assert HiddenRegime(1, 0.6, 0.9).optimum() == pytest.approx(HiddenRegime(1, 0.6, 0.1).optimum(), rel=1e-9)


def test_first_step_knows_one_return():
    env = HiddenRegime(1, 0.7, 0.1, horizon=1)
    assert env.optimum() == pytest.approx(env.baseline("memoryless"), rel=1e-12)


def test_long_episodes_come_near_the_long_run():
    assert HiddenRegime(1, horizon=4000).optimum() == pytest.approx(HiddenRegime(1).optimum(), abs=2e-4)


def test_extremes():
    assert HiddenRegime(1, 0.5, 0.5).optimum() == pytest.approx(0.0, abs=1e-12)
    assert HiddenRegime(1, 4.0, 0.1).optimum() == pytest.approx(4.0 * 0.8, rel=2e-4)


def test_optimum_lies_between_its_baselines():
    for m, p in ((0.05, 0.001), (0.5, 0.02), (2.0, 0.3), (0.2, 0.7)):
        env = HiddenRegime(1, m, p)
        assert env.baseline("memoryless") < env.optimum() < env.baseline("informed")


def bayes_trader(env):
    """A policy with memory: log-odds carried in the closure."""
    belief = torch.zeros(env.num_envs, dtype=torch.float64)

    def policy(obs):
        nonlocal belief
        belief = env.updated(belief, obs)
        return env.best_action(belief)

    return policy


@pytest.mark.parametrize("p", [0.06, 0.85])
def test_simulated_bayes_trader(p):
    env = HiddenRegime(6000, 0.7, p, horizon=40, dtype=torch.float64)
    check_mean(first_returns(env, bayes_trader(env), 40) / 40, env.optimum())


def test_simulated_memoryless_trader():
    env = HiddenRegime(6000, 0.7, 0.1, horizon=30, dtype=torch.float64)
    check_mean(first_returns(env, torch.sign, 30) / 30, env.baseline("memoryless"))


def test_belief_is_bayes_rule():
    """Two returns, by summing over the four paths of the sign."""
    m, p, first, second = 0.4, 0.15, 0.9, -0.3
    like = lambda r, s: math.exp(-((r - m * s) ** 2) / 2)  # noqa: E731
    joint = {(s, t): 0.5 * like(first, s) * ((1 - p) if s == t else p) * like(second, t) for s in (1, -1) for t in (1, -1)}
    odds = (joint[1, 1] + joint[-1, 1]) / (joint[1, -1] + joint[-1, -1])
    env = HiddenRegime(1, m, p)
    belief = torch.zeros(1, dtype=torch.float64)
    for r in (first, second):
        belief = env.updated(belief, torch.tensor([[r]], dtype=torch.float64))
    assert float(belief) == pytest.approx(math.log(odds), rel=1e-12)


def test_reward_is_the_next_return():
    env = HiddenRegime(5, dtype=torch.float64)
    state, _ = env.reset(torch.randn(5, 2, dtype=torch.float64))
    action = torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None]
    _, step = env.step(state, action, torch.randn(5, 2, dtype=torch.float64))
    torch.testing.assert_close(step.reward, (action * step.obs)[:, 0], rtol=0, atol=0)


@pytest.mark.parametrize(("symbol", "bad"), [("m", 0.0), ("p", 0.0), ("p", 1.0), ("m", math.nan), ("horizon", 0)])
def test_nonsense_is_refused_by_name(symbol, bad):
    with pytest.raises(InputError, match=rf"\b{symbol}\b"):
        HiddenRegime(1, **{symbol: bad})
