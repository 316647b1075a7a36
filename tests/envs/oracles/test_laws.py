"""Known return laws against enumeration, scipy, slow sums, and simulated returns."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from envs.play import ODDS, check_mean, first_returns
from quantail.envs.oracles import AR1Sum, CoinSum, GaussianSum, GeometricSum
from quantail.errors import ConfigError, InputError

LAWS = {
    "uniform": lambda n=1, **where: CoinSum(n, **where),
    "cantor": lambda n=1, **where: CoinSum(n, gamma=1 / 3, p=0.4, **where),
    "gaussian": lambda n=1, **where: GaussianSum(n, mu=-0.3, sd=0.7, gamma=0.8, **where),
    "ar1": lambda n=1, **where: AR1Sum(n, rho=0.6, sd=1.3, gamma=0.7, **where),
    "ar1 that swings": lambda n=1, **where: AR1Sum(n, rho=-0.8, sd=0.5, gamma=0.6, **where),
    "geometric": lambda n=1, **where: GeometricSum(n, p=0.3, gamma=0.7, **where),
    "counting": lambda n=1, **where: GeometricSum(n, p=0.35, **where),
}
every = pytest.mark.parametrize("make", LAWS.values(), ids=LAWS.keys())


def test_published_figures():
    uniform = CoinSum(1, gamma=0.5)
    for alpha in (0.01, 0.05, 0.1, 0.25, 1.0):
        assert uniform.cvar(alpha) == pytest.approx(alpha, abs=1e-12)
        u = torch.tensor([alpha / 1.01], dtype=torch.float64)
        assert float(uniform.quantile(u)) == pytest.approx(2 * alpha / 1.01, abs=1e-12)
    sums = GaussianSum(1)
    assert sums.moments() == pytest.approx((10.0, 7.088812), abs=5e-7)
    assert sums.cvar(0.05) == pytest.approx(-4.622183, abs=5e-7)
    assert sums.cvar(0.1) == pytest.approx(-2.440747, abs=5e-7)
    assert AR1Sum(1).given(1.0) == pytest.approx((6.896552, 20.982310), abs=5e-7)
    counts = GeometricSum(1)
    assert counts.optimum() == pytest.approx(10.0, abs=1e-12)
    assert [counts.cvar(alpha) for alpha in (0.05, 0.1)] == pytest.approx([1.0, 1.0], abs=1e-12)
    assert counts.cvar(0.25) == pytest.approx(1.84, abs=1e-12)


# --- enumeration ------------------------------------------------------------------------------------------------------


def enumerated(gamma, p, coins=18):
    """Every outcome of so many coins with the mean of the rest: values in order, chances, and how far off they may be."""
    rest = gamma**coins * p / (1 - gamma)
    values, chances = np.array([rest]), np.array([1.0])
    for k in range(coins):
        values = np.concatenate([values, values + gamma**k])
        chances = np.concatenate([chances * (1 - p), chances * p])
    order = values.argsort(kind="stable")
    return values[order], chances[order], gamma**coins / (1 - gamma) + 1e-11


def tail_mean(values, chances, alpha):
    """Mean of the worst α, outcome by outcome: Σ x·min(chance, what is left of α)/α."""
    before = np.concatenate([[0.0], chances.cumsum()[:-1]])
    return float((values * np.clip(alpha - before, 0.0, chances)).sum() / alpha)


@pytest.mark.parametrize(("gamma", "p"), [(0.5, 0.5), (1 / 3, 0.5), (0.4, 0.3), (0.5, 0.8), (0.2, 0.9)])
def test_sums_of_coins_by_enumeration(gamma, p):
    env = CoinSum(1, gamma=gamma, p=p)
    values, chances, error = enumerated(gamma, p)
    for alpha in (0.003, 0.05, 0.31, 0.5, 0.77, 1.0):
        assert env.cvar(alpha) == pytest.approx(tail_mean(values, chances, alpha), abs=error)
    u = torch.tensor([0.001, 0.123, 0.4567, 0.61803, 0.987], dtype=torch.float64)
    theirs = values[np.searchsorted(chances.cumsum(), u.numpy())]
    np.testing.assert_allclose(env.quantile(u).numpy(), theirs, atol=error)


@pytest.mark.parametrize(("p", "gamma"), [(0.1, 1.0), (0.35, 1.0), (0.3, 0.7), (0.05, 0.99), (0.9, 0.2)])
def test_geometric_sums_by_enumeration(p, gamma):
    env = GeometricSum(1, p=p, gamma=gamma)
    n = np.arange(1, int(60 / p))
    values, chances = np.array([sum(gamma**k for k in range(int(i))) for i in n]), p * (1 - p) ** (n - 1)
    for alpha in (0.003, 0.05, 0.1, 0.31, 0.5, 0.77, 0.999, 1.0):
        assert env.cvar(alpha) == pytest.approx(tail_mean(values, chances, alpha), rel=1e-10)
    u = torch.tensor([0.001, 0.123, 0.4567, 0.61803, 0.987], dtype=torch.float64)
    theirs = values[np.searchsorted(chances.cumsum(), u.numpy())]
    np.testing.assert_allclose(env.quantile(u).numpy(), theirs, rtol=1e-12)


def test_a_level_that_is_an_atoms_edge_belongs_to_the_atom():
    """P(n ≤ 2) = 1 − 0.9² = 0.19 is reached with n = 2, not 3, rounding or not."""
    u = torch.tensor([0.1, 0.19, 0.271], dtype=torch.float64)
    assert GeometricSum(1, p=0.1).quantile(u).tolist() == [1.0, 2.0, 3.0]


@every
def test_the_tail_mean_is_the_integral_of_the_quantile(make):
    """CVaR_α = 1/α ∫₀^α F⁻¹, on a fine midpoint grid; α = 1 is the mean and the optimum."""
    env = make()
    for alpha in (0.05, 0.4, 0.9):
        u = alpha * (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
        assert env.cvar(alpha) == pytest.approx(float(env.quantile(u).mean()), abs=2e-4)
    assert env.optimum() == env.cvar(1.0)
    levels = env.quantile(torch.linspace(0.01, 0.99, 99, dtype=torch.float64))
    assert (levels.diff() >= 0).all()


# --- normal laws ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rho", "sd", "gamma"), [(0.9, 1.0, 0.95), (0.6, 1.3, 0.7), (-0.8, 0.5, 0.6), (0.0, 2.0, 0.9)])
def test_variance_of_a_path_by_a_loop_over_its_shocks(rho, sd, gamma):
    """Shock k reaches x_t, t > k, by ρ^(t−1−k); x₀ reaches all of them."""
    env, rows = AR1Sum(1, rho=rho, sd=sd, gamma=gamma), 900
    reach = [sum(gamma**t * rho ** (t - 1 - k) for t in range(k + 1, min(k + 400, rows))) for k in range(rows - 1)]
    mean, deviation = env.given(1.7)
    assert mean == pytest.approx(1.7 * sum((gamma * rho) ** t for t in range(rows)), rel=1e-10)
    assert deviation == pytest.approx(sd * math.sqrt(sum(r * r for r in reach)), rel=1e-10)
    start = sd / math.sqrt(1 - rho**2)
    whole = math.hypot(deviation, start * sum((gamma * rho) ** t for t in range(rows)))
    assert env.moments() == pytest.approx((0.0, whole), rel=1e-10)


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.25, 0.9])
def test_tail_means_of_normal_laws_by_quadrature(alpha):
    for env, law in (
        (LAWS["gaussian"](), norm(-0.3 / 0.2, 0.7 / math.sqrt(1 - 0.64))),
        (LAWS["ar1"](), norm(0.0, LAWS["ar1"]().moments()[1])),
    ):
        tail = quad(lambda x, law=law: x * law.pdf(x), law.ppf(1e-17), law.ppf(alpha), epsabs=1e-13)[0] / alpha
        assert env.cvar(alpha) == pytest.approx(tail, abs=1e-9)
        u = torch.tensor([alpha], dtype=torch.float64)
        assert float(env.quantile(u)) == pytest.approx(law.ppf(alpha), rel=1e-12)
    env = LAWS["ar1"]()
    given = norm(*env.given(-0.4))
    tail = quad(lambda x: x * given.pdf(x), given.ppf(1e-17), given.ppf(alpha), epsabs=1e-13)[0] / alpha
    assert env.cvar_given(-0.4, alpha) == pytest.approx(tail, abs=1e-9)


# --- simulation -------------------------------------------------------------------------------------------------------


@every
def test_simulated_returns_follow_the_law(make):
    """Mean by z-score; the whole law by Kolmogorov's distance, on levels that no atom straddles."""
    env = make(20_000, dtype=torch.float64)
    returns = first_returns(env, lambda obs: torch.zeros(env.num_envs, dtype=torch.int64), 150)
    check_mean(returns, env.optimum())
    levels = torch.linspace(0.02, 0.98, 49, dtype=torch.float64)
    points = env.quantile(levels)
    for u, x in zip(levels.tolist(), points.tolist(), strict=True):
        reached, below = float((returns <= x + 1e-9).double().mean()), float((returns < x - 1e-9).double().mean())
        slack = ODDS * math.sqrt(u * (1 - u) / len(returns)) + 1e-12
        assert below - slack <= u <= reached + slack  # F(x−) ≤ u ≤ F(x)


def test_episodes_of_the_autoregression_start_in_its_long_run():
    env = AR1Sum(50_000, rho=0.6, sd=1.3, dtype=torch.float64)
    noise = torch.randn(50_000, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    state, obs = env.reset(noise)
    assert float(obs.std()) == pytest.approx(1.3 / 0.8, rel=ODDS / math.sqrt(100_000))
    _, step = env.step(state, torch.zeros(50_000, dtype=torch.int64), noise.flip(0))
    torch.testing.assert_close(step.reward, obs[:, 0], rtol=0, atol=0)
    torch.testing.assert_close(step.obs, 0.6 * obs + 1.3 * noise.flip(0), rtol=1e-12, atol=1e-12)


@every
def test_actions_do_not_matter(make):
    env = make(9, dtype=torch.float64)
    noise = torch.randn(9, 1, dtype=torch.float64)
    state, obs = env.reset(noise)
    rewards = [env.step(state, action.expand(9), noise)[1].reward for action in (torch.tensor(0), torch.tensor(1))]
    assert torch.equal(*rewards)
    assert env.best_action(obs).shape == (9,)


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "symbol", "bad"),
    [
        (CoinSum, "gamma", -0.1),
        (CoinSum, "p", 0.0),
        (CoinSum, "p", 1.0),
        (GaussianSum, "mu", math.inf),
        (GaussianSum, "sd", -1.0),
        (GaussianSum, "gamma", 1.0),
        (AR1Sum, "rho", 1.0),
        (AR1Sum, "sd", math.nan),
        (AR1Sum, "gamma", 1.0),
        (GeometricSum, "p", 0.0),
        (GeometricSum, "gamma", 0.0),
    ],
)
def test_nonsense_is_refused_by_name(kind, symbol, bad):
    with pytest.raises(InputError, match=rf"\b{symbol}\b"):
        kind(1, **{symbol: bad})


@pytest.mark.parametrize(("make", "alpha"), list(itertools.product(LAWS.values(), (0.0, 1.1, math.nan))))
def test_a_level_outside_the_unit_interval_is_refused(make, alpha):
    with pytest.raises(InputError, match="alpha"):
        make().cvar(alpha)


def test_a_law_of_coins_that_nobody_knows_is_refused():
    with pytest.raises(ConfigError, match=r"gamma=0.6: above 1/2"):
        CoinSum(1, gamma=0.6)
    with pytest.raises(InputError, match="alpha"):
        AR1Sum(1).cvar_given(0.0, 0.0)
