"""Kelly and Merton against published figures, grid searches and simulation."""

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import minimize_scalar

from envs.play import check_mean, first_returns
from quantail.envs.oracles import Kelly, Merton
from quantail.errors import InputError

OTHER_COIN = {"p": 0.3, "odds": 4.0, "rounds": 3}
OTHER_ASSET = {"mu": 0.12, "r": 0.03, "s": 0.55, "dt": 0.4, "max_fraction": 0.9, "rounds": 4}


def test_published_figures():
    coin = Kelly(1, p=0.55)
    assert coin.best_fraction() == pytest.approx(0.1, abs=1e-12)
    assert coin.optimum() == pytest.approx(0.005008, abs=5e-7)
    assert coin.baseline("half") / coin.optimum() == pytest.approx(0.749, abs=5e-4)
    assert coin.baseline("double") == pytest.approx(-0.000138, abs=5e-7)
    asset = Merton(1, mu=0.05, r=0.01, s=0.3)
    assert asset.best_fraction() == pytest.approx(0.44434, abs=5e-6)
    assert asset.optimum() == pytest.approx(0.00157322, abs=5e-9)
    assert 12 * asset.optimum() == pytest.approx(0.018879, abs=5e-7)
    assert 12 * asset.baseline("cash") == pytest.approx(0.010, abs=1e-12)
    assert 12 * asset.baseline("all_in") == pytest.approx(0.005, abs=1e-12)


@pytest.mark.parametrize("p", [0.3, 0.55, 0.99, 1.0, 0.1, 0.0])
def test_coin_by_grid_search(p):
    fractions = np.linspace(0, 0.97, 970_001)
    growth = p * np.log(1 + 4.0 * fractions) + (1 - p) * np.log(1 - fractions)
    coin = Kelly(1, p=p, odds=4.0, max_fraction=0.97)
    assert coin.best_fraction() == pytest.approx(fractions[growth.argmax()], abs=2e-6)
    assert coin.optimum() == pytest.approx(growth.max(), abs=1e-11)


@pytest.mark.parametrize("change", [{}, {"mu": 0.9}, {"mu": -0.2}, {"s": 0.05, "dt": 1.0}])
def test_asset_by_another_integral(change):
    symbols = {**OTHER_ASSET, **change}
    mu, r, s, dt, top, _ = symbols.values()

    def growth(f):
        gross = lambda z: (1 - f) * math.exp(r * dt) + f * math.exp((mu - s * s / 2) * dt + s * math.sqrt(dt) * z)  # noqa: E731
        return quad(lambda z: math.log(gross(z)) * math.exp(-z * z / 2) / math.sqrt(2 * math.pi), -12, 12, epsabs=1e-13)[0]

    asset = Merton(1, **symbols)
    best = minimize_scalar(lambda f: -growth(f), bounds=(0, top), method="bounded", options={"xatol": 1e-9})
    top_growth, top_fraction = max((growth(f), f) for f in (0.0, float(best.x), top))  # the best may lie at an end
    assert asset.best_fraction() == pytest.approx(top_fraction, abs=1e-5)
    assert asset.optimum() == pytest.approx(top_growth, abs=1e-9)
    assert asset.growth(0.37) == pytest.approx(growth(0.37), abs=1e-11)


def test_fine_steps_approach_mertons_share():
    assert Merton(1, dt=1e-5).best_fraction() == pytest.approx(0.04 / 0.09, abs=1e-5)


@pytest.mark.parametrize(
    "make",
    [lambda: Kelly(40_000, **OTHER_COIN, dtype=torch.float64), lambda: Merton(40_000, **OTHER_ASSET, dtype=torch.float64)],
)
def test_simulated_best_share(make):
    env = make()
    check_mean(first_returns(env, env.best_action, env.rounds) / env.rounds, env.optimum())


def test_last_round_ends_the_episode():
    env = Kelly(2, rounds=3)
    state, _ = env.reset(torch.zeros(2, 1))
    for t in range(3):
        state, step = env.step(state, torch.zeros(2, 1), torch.zeros(2, 1))
        assert step.terminated.tolist() == [t == 2] * 2
        assert step.obs[:, 0].tolist() == pytest.approx([(t + 1) / 3] * 2)


def test_stake_beyond_the_limit_is_the_limit():
    env = Kelly(1, max_fraction=0.4, dtype=torch.float64)
    state, _ = env.reset(torch.zeros(1, 1))
    _, step = env.step(state, torch.full((1, 1), 7.0), torch.full((1, 1), 3.0))
    assert float(step.reward) == pytest.approx(math.log(0.6), rel=1e-12)


@pytest.mark.parametrize(
    ("env", "symbol", "bad"),
    [
        (Kelly, "p", 1.1),
        (Kelly, "odds", 0.0),
        (Kelly, "max_fraction", 1.0),
        (Kelly, "rounds", 0),
        (Merton, "mu", math.nan),
        (Merton, "r", math.inf),
        (Merton, "s", 0.0),
        (Merton, "dt", 0.0),
        (Merton, "max_fraction", 1.1),
        (Merton, "rounds", 1.5),
    ],
)
def test_nonsense_is_refused_by_name(env, symbol, bad):
    with pytest.raises(InputError, match=rf"\b{symbol}\b"):
        env(1, **{symbol: bad})
