"""Selling a block: the published figures, dynamic programming by a loop, a numerical minimiser, and simulated money."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from envs.play import ODDS, first_returns
from quantail.envs.oracles import AlmgrenChriss
from quantail.errors import ConfigError, InputError

OTHER = {"X": 300.0, "T": 2.0, "N": 7, "s": 0.4, "gamma": 2e-4, "eta": 1.5e-3, "eps": 0.02, "lam": 5e-3}
TOY = {"X": 1.0, "T": 10.0, "N": 10, "s": 0.3, "gamma": 0.0, "eta": 0.1, "eps": 0.0, "lam": 1.0}


def test_published_figures():
    env = AlmgrenChriss(1)
    assert env.kappa() == pytest.approx(0.607076, abs=5e-7)
    assert env.schedule() == pytest.approx([1e6, 541956, 289854, 147897, 62142, 0], abs=0.5)
    assert env.cost(env.schedule()) == pytest.approx(911227, abs=0.5)
    assert math.sqrt(env.variance(env.schedule())) == pytest.approx(603431, abs=0.5)
    assert env.optimum() == pytest.approx(-1.27536e6, abs=5)
    assert env.baseline("twap") == pytest.approx(-1.7455e6, abs=50)
    assert env.baseline("sell_now") == pytest.approx(-2.5625e6, abs=50)
    assert AlmgrenChriss(1, lam=2e-6).optimum() == pytest.approx(-1.54458e6, abs=5)
    calm = AlmgrenChriss(1, lam=1e-7)
    assert calm.optimum() == pytest.approx(-762529, abs=0.5)
    assert calm.baseline("twap") == pytest.approx(-770800, abs=0.5)


def test_published_toy():
    env = AlmgrenChriss(1, **TOY)
    assert env.kappa() == pytest.approx(math.log(2.5), abs=1e-12)
    assert env.optimum() == pytest.approx(-0.06, abs=5e-8)
    assert env.baseline("twap") == pytest.approx(-0.2665, abs=5e-5)
    assert env.baseline("sell_now") == pytest.approx(-0.1, abs=1e-12)
    left = env.schedule()
    assert [1 - b / a for a, b in pairwise(left[:5])] == pytest.approx([0.6] * 4, abs=2e-3)


def value_by_recursion(env):
    """min U = a·X² + eps·X by going back from the deadline: what is left, x, costs a_j·x² + eps·x (Bellman's equation)."""
    tau = env.T / env.N
    impact, a = env.eta / tau - env.gamma / 2, None
    for _ in range(env.N):
        if a is None:
            a = env.gamma / 2 + impact  # all at once: gamma·(x − x/2)·x + impact·x²
            continue
        risk = env.lam * env.s**2 * tau + a
        # n = x − y sold: gamma·(x² − y²)/2 + impact·(x − y)² + risk·y², least at y = impact·x/(impact + risk − gamma/2)
        rest = risk - env.gamma / 2
        y = impact / (impact + rest)
        a = env.gamma / 2 + impact * (1 - y) ** 2 + rest * y**2
    return a * env.X**2 + env.eps * env.X


@pytest.mark.parametrize("symbols", [{}, OTHER, TOY, {**OTHER, "N": 1}, {**OTHER, "lam": 0.0}, {**OTHER, "lam": 1e3}])
def test_optimum_by_dynamic_programming(symbols):
    env = AlmgrenChriss(1, **symbols)
    assert env.optimum() == pytest.approx(-value_by_recursion(env), rel=1e-11)


def test_optimum_by_a_numerical_minimiser():
    env = AlmgrenChriss(1, **OTHER)
    found = minimize(lambda inner: env.utility([env.X, *inner, 0.0]) / 100, np.linspace(250, 50, 6), method="BFGS", tol=1e-10)
    assert env.schedule()[1:-1] == pytest.approx(list(found.x), abs=1e-3)
    assert env.optimum() == pytest.approx(-100 * found.fun, rel=1e-9)


def test_no_risk_is_equal_trades_and_no_patience_sells_now():
    calm, hasty = AlmgrenChriss(1, **{**OTHER, "lam": 0.0}), AlmgrenChriss(1, **{**OTHER, "lam": 1e9})
    assert calm.optimum() == pytest.approx(calm.baseline("twap"), rel=1e-12)
    assert hasty.optimum() == pytest.approx(hasty.baseline("sell_now"), rel=1e-6)
    assert AlmgrenChriss(1, **{**OTHER, "T": 1e4, "eta": 10.0}).schedule()[-2] >= 0  # sinh overflows


@pytest.mark.parametrize("symbols", [{}, OTHER, TOY])
def test_the_environment_charges_what_the_formula_says(symbols):
    """Rewards hold no luck: every policy's return is −U of what it leaves, for random schedules and for the best."""
    env = AlmgrenChriss(6, **symbols, dtype=torch.float64)
    share = torch.rand(env.N, 6, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    rows = iter(share)
    returns = first_returns(env, lambda obs: next(rows)[:, None], env.N)
    for b in range(6):
        left = [env.X]
        for j in range(env.N - 1):
            left.append(left[-1] * (1 - float(share[j, b])))
        assert float(returns[b]) == pytest.approx(-by_hand(env, [*left, 0.0]), rel=1e-10)
    best = first_returns(env, env.best_action, env.N)
    torch.testing.assert_close(best, torch.full_like(best, env.optimum()), rtol=1e-10, atol=0)


def by_hand(env, left):
    """Permanent impact moves the price of what is still held, temporary impact hits the trade (Almgren & Chriss 2000, § 1).

    Value at the start X·S₀; a trade of n at t_j gets S₀ − gamma·(sold before) − eps − (eta/τ)·n, and is charged lam·variance.
    """
    tau, sold, shortfall, variance = env.T / env.N, 0.0, 0.0, 0.0
    for x, after in pairwise(left):
        n = x - after
        shortfall += n * (env.gamma * sold + env.eps + env.eta / tau * n)
        sold += n
        variance += env.s**2 * tau * after**2
    return shortfall + env.lam * variance


def test_money_has_the_mean_and_variance_of_the_schedule():
    env = AlmgrenChriss(20_000, **OTHER, dtype=torch.float64)
    source = torch.Generator().manual_seed(5)
    state, obs = env.reset(torch.zeros(env.num_envs, 1))
    money = torch.zeros(env.num_envs, dtype=torch.float64)
    for j in range(env.N):
        noise = torch.randn(env.num_envs, 1, generator=source, dtype=torch.float64)
        state, step = env.step(state, env.best_action(obs), noise)
        money, obs = money + step.pnl, step.obs
        assert step.terminated.all() == step.terminated.any() == (j == env.N - 1)
    sd = math.sqrt(env.variance(env.schedule()))
    assert abs(float(money.mean()) + env.cost(env.schedule())) <= ODDS * sd / math.sqrt(env.num_envs)
    assert float(money.std()) == pytest.approx(sd, rel=ODDS / math.sqrt(2 * env.num_envs))


def test_what_is_seen():
    env = AlmgrenChriss(2, **OTHER, dtype=torch.float64)
    state, obs = env.reset(torch.zeros(2, 1))
    assert obs.tolist() == [[1.0, 1.0]] * 2
    _, step = env.step(state, torch.tensor([[0.25], [2.0]]), torch.zeros(2, 1))
    assert step.obs.tolist() == [[0.75, pytest.approx(6 / 7)], [0.0, pytest.approx(6 / 7)]]  # nobody sells more than there is


@pytest.mark.parametrize(
    ("symbol", "bad"),
    [("X", 0.0), ("T", -1.0), ("N", 0), ("s", -0.1), ("gamma", -1.0), ("eta", 0.0), ("eps", math.nan), ("lam", -1e-9)],
)
def test_nonsense_is_refused_by_name(symbol, bad):
    with pytest.raises(InputError, match=rf"\b{symbol}\b"):
        AlmgrenChriss(1, **{symbol: bad})


def test_impact_that_pays_for_haste_is_refused():
    with pytest.raises(ConfigError, match=r"eta=1e-07 is not above gamma·T/\(2N\)"):
        AlmgrenChriss(1, eta=1e-7)
