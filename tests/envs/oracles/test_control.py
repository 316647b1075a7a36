"""The regulator and Gârleanu-Pedersen against slow iterations, simulations and the figures of the papers."""

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from envs.play import check_mean, first_returns
from quantail.envs.oracles import LQR, GarleanuPedersen
from quantail.errors import ConfigError, InputError

FIRST = {"a": 1.0, "b": 1.0, "q": 1.0, "r": 0.1, "sd": 0.1, "gamma": 0.99}
SECOND = {"a": 1.1, "b": 0.5, "q": 1.0, "r": 1.0, "sd": 0.2, "gamma": 0.95}
SLOW = {"a": -0.4, "b": -2.0, "q": 3.0, "r": 0.02, "sd": 0.7, "gamma": 0.6}
IDLE = {"a": 0.8, "b": 0.0, "q": 2.0, "r": 0.5, "sd": 0.3, "gamma": 0.9}
STEEP = {"a": 3.0, "b": 0.1, "q": 0.5, "r": 4.0, "sd": 0.3, "gamma": 0.9}  # unstable by itself


@pytest.mark.parametrize(
    ("symbols", "price", "gain", "cost"),
    [(FIRST, 1.091530, 0.915298, 1.080615), (SECOND, 3.022524, 0.919329, 2.297118)],
)
def test_regulator_has_the_published_figures(symbols, price, gain, cost):
    env = LQR(1, **symbols)
    assert env.price() == pytest.approx(price, abs=5e-7)
    assert env.gain() == pytest.approx(gain, abs=5e-7)
    assert env.optimum() == pytest.approx(-cost, abs=5e-7)


@pytest.mark.parametrize("symbols", [FIRST, SECOND, SLOW, IDLE, STEEP])
def test_regulator_is_the_limit_of_riccatis_iteration(symbols):
    a, b, q, r, sd, gamma = symbols.values()
    price = constant = 0.0
    for _ in range(20_000):
        gain = gamma * a * b * price / (r + gamma * b * b * price)
        constant = gamma * (constant + price * sd * sd)
        price = q + r * gain**2 + gamma * price * (a - b * gain) ** 2
    env = LQR(1, **symbols, start_sd=0.7)
    assert env.price() == pytest.approx(price, rel=1e-10)
    assert env.gain() == pytest.approx(gain, rel=1e-10, abs=1e-12)
    assert env.optimum() == pytest.approx(-price * 0.49 - constant, rel=1e-10)


@pytest.mark.parametrize("symbols", [FIRST, SECOND, SLOW, STEEP])
def test_no_other_gain_is_better(symbols):
    env = LQR(1, **symbols, start_sd=0.3)
    best = env.gain()
    assert env.value(best) == pytest.approx(env.optimum(), rel=1e-10)
    for other in (best - 0.3, best - 1e-3, best + 1e-3, best + 0.3):
        assert env.value(other) < env.optimum()


def test_uncontrolled_growth_is_infinitely_bad():
    assert LQR(1, **SECOND).baseline("passive") == -math.inf
    assert LQR(1, **SLOW).baseline("passive") == LQR(1, **SLOW).value(0.0)


@pytest.mark.parametrize("gain", [None, 0.5])
def test_simulated_regulator(gain):
    env = LQR(4000, **SECOND, start_sd=0.5, horizon=None, dtype=torch.float64)
    policy = env.best_action if gain is None else lambda obs: -gain * obs
    check_mean(first_returns(env, policy, 400), env.optimum() if gain is None else env.value(gain))


def test_regulator_starts_where_it_is_told():
    state, _ = LQR(20_000, start_sd=0.5, dtype=torch.float64).reset(torch.randn(20_000, 1, dtype=torch.float64))
    assert float(state.core.x.std()) == pytest.approx(0.5, rel=0.03)


# --- Gârleanu-Pedersen ------------------------------------------------------------------------------------------------

OTHER = {"B": 0.7, "Phi": 0.6, "S": 2.5, "gamma": 1.7, "lam": 0.8, "rho": 0.05, "sd": 0.9}


def test_trading_has_the_published_figures():
    env = GarleanuPedersen(1)
    assert env.rate() == pytest.approx(0.354336, abs=5e-7)
    assert env.aim() == pytest.approx(0.652953, abs=5e-7)
    assert env.optimum() == pytest.approx(10.160070, abs=5e-7)
    assert env.rho * env.optimum() == pytest.approx(0.101601, abs=5e-7)
    assert env.baseline("myopic") == pytest.approx(8.405134, abs=5e-7)
    assert env.baseline("markowitz") == pytest.approx(-49.7549, abs=5e-5)
    assert env.baseline("passive") == 0


@pytest.mark.parametrize("symbols", [{}, OTHER, {**OTHER, "Phi": 1.0}, {**OTHER, "rho": 0.5, "lam": 20.0}])
def test_trading_is_the_limit_of_value_iteration(symbols):
    """V(x₋, f) = −a·x₋²/2 + b·x₋·f + c·f²/2 + d, one Bellman step at a time."""
    env = GarleanuPedersen(1, **symbols)
    discount, fade = 1 - env.rho, 1 - env.Phi
    a = b = c = d = 0.0
    for _ in range(5000):
        curve = discount * (env.gamma * env.S + a) + env.lam * env.S  # of the maximised quadratic −curve/2·x² + slope·x
        keep, follow = env.lam * env.S / curve, discount * (env.B + b * fade) / curve
        a, b, c, d = (
            env.lam * env.S * (1 - keep),
            env.lam * env.S * follow,
            discount * c * fade**2 + curve * follow**2,
            discount * (d + c * env.sd**2 / 2),
        )
    assert env.rate() == pytest.approx(1 - keep, rel=1e-9)
    assert env.rate() * env.aim() == pytest.approx(follow, rel=1e-9)
    assert env.optimum() == pytest.approx(c * env.sd**2 / (1 - fade**2) / 2 + d, rel=1e-9)


def test_no_other_linear_policy_is_better():
    env = GarleanuPedersen(1, **OTHER)
    found = minimize(
        lambda p: -env.value(*p), x0=np.array([0.5, 0.1]), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-13}
    )
    assert -found.fun == pytest.approx(env.optimum(), rel=1e-9)
    assert found.x == pytest.approx([1 - env.rate(), env.rate() * env.aim()], abs=1e-5)


def test_myopic_trades_best_for_one_step():
    """With the horizon of one step, from a known position, no x gives more than the myopic one; checked on the environment."""
    env = GarleanuPedersen(1, **OTHER, dtype=torch.float64)
    state, _ = env.reset(torch.ones(1, 1, dtype=torch.float64))
    state, step = env.step(state, torch.full((1, 1), 0.4, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64))
    x, f = step.obs[0]
    risk = (1 - env.rho) * env.gamma
    keep, follow = env.lam / (risk + env.lam), (1 - env.rho) * env.B / (risk + env.lam) / env.S
    reward = lambda action: float(env.step(state, action.reshape(1, 1), torch.zeros(1, 1))[1].reward)  # noqa: E731
    best = keep * x + follow * f
    assert max(reward(best - 1e-3), reward(best + 1e-3)) < reward(best)
    assert env.baseline("myopic") == env.value(keep, follow)


@pytest.mark.parametrize("name", ["optimum", "markowitz"])
def test_simulated_trading(name):
    env = GarleanuPedersen(3000, **{**OTHER, "rho": 0.1}, horizon=None, dtype=torch.float64)
    markowitz = lambda obs: env.B / (env.gamma * env.S) * obs[:, 1:]  # noqa: E731
    policy, truth = (env.best_action, env.optimum()) if name == "optimum" else (markowitz, env.baseline(name))
    check_mean(first_returns(env, policy, 250), truth)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("env", [LQR, GarleanuPedersen])
def test_unknown_baseline_is_refused(env):
    with pytest.raises(InputError, match="name='best'; needs one of"):
        env(1).baseline("best")


@pytest.mark.parametrize(
    ("env", "symbol", "bad"),
    [
        (LQR, "a", math.nan),
        (LQR, "b", "1"),
        (LQR, "q", 0.0),
        (LQR, "r", 0.0),
        (LQR, "sd", -0.1),
        (LQR, "gamma", 1.0),
        (LQR, "start_sd", -1.0),
        (LQR, "horizon", 0),
        (GarleanuPedersen, "B", math.inf),
        (GarleanuPedersen, "Phi", 0.0),
        (GarleanuPedersen, "S", 0.0),
        (GarleanuPedersen, "gamma", 0.0),
        (GarleanuPedersen, "lam", 0.0),
        (GarleanuPedersen, "rho", 1.0),
        (GarleanuPedersen, "sd", -1.0),
        (GarleanuPedersen, "horizon", -1),
    ],
)
def test_nonsense_is_refused_by_name(env, symbol, bad):
    with pytest.raises(InputError, match=rf"\b{symbol}\b"):
        env(1, **{symbol: bad})


def test_hopeless_regulator_is_refused():
    with pytest.raises(ConfigError, match="b=0 leaves"):
        LQR(1, a=1.2, b=0.0, gamma=0.95)
