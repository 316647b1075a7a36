"""The position under a CVaR limit against closed forms, scipy and large samples."""

import math

import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

from envs.play import check_mean, first_returns
from quantail.envs.oracles import CVaRPosition
from quantail.errors import ConfigError, InputError
from quantail.functional.risk import cvar_of_samples

OTHER = {"mu": 0.05, "s": 0.2, "alpha": 0.1, "limit": 0.04, "cost": 0.03}


@pytest.mark.parametrize(("alpha", "k"), [(0.01, 2.665214), (0.05, 2.062713), (0.1, 1.754983), (0.25, 1.271106)])
def test_tail_of_the_normal_law(alpha, k):
    assert CVaRPosition(1, mu=0.0, s=1.0, alpha=alpha).tail_loss(1.0) == pytest.approx(k, abs=5e-7)


@pytest.mark.parametrize(
    ("symbols", "position", "reward", "multiplier"),
    [
        ({"limit": 0.1, "cost": 0.0}, 0.536851, 0.010737, 0.107370),
        ({"limit": 0.05, "cost": 0.02, "cost_in_risk": False}, 0.268426, 0.003927, 0.049728),
        ({"limit": 0.02, "cost": 0.02, "cost_in_risk": False}, 0.107370, 0.001917, 0.084314),
        ({"limit": 0.5, "cost": 0.02}, 0.5, 0.005, 0.0),
    ],
)
def test_published_figures(symbols, position, reward, multiplier):
    env = CVaRPosition(1, mu=0.02, s=0.1, alpha=0.05, **symbols)
    assert env.optimal_position() == pytest.approx(position, abs=5e-7)
    assert env.optimum() == pytest.approx(reward, abs=5e-7)
    assert env.multiplier() == pytest.approx(multiplier, abs=5e-7)


def test_published_figures_with_the_cost_inside():
    env = CVaRPosition(1, mu=0.02, s=0.1, alpha=0.05, limit=0.05, cost=0.02)
    assert env.optimal_position() == pytest.approx(0.26111, abs=5e-6)
    assert env.tail_loss(0.5) == pytest.approx(0.098, abs=5e-4)
    assert 0.2488 <= env.optimal_position(0.05) <= 0.2490  # what a score-function Lagrangian reached


def mixture_tail_loss(env, position, policy_sd):
    """−CVaR of the mixture by adaptive quadrature over the position, VaR by Brent: another road to the same number."""
    charged = env.cost if env.cost_in_risk else 0.0

    def over_positions(g):
        inner = lambda z: g(position + policy_sd * z) * norm.pdf(z)  # noqa: E731
        zero = -position / policy_sd  # the law degenerates where the position is 0
        return quad(inner, -10, 10, points=[zero] if abs(zero) < 10 else None, epsabs=1e-12, limit=300)[0]

    mean, sd = (lambda w: w * env.mu - charged * w * w), (lambda w: abs(w) * env.s + 1e-300)
    nu = brentq(lambda x: over_positions(lambda w: norm.cdf((x - mean(w)) / sd(w))) - env.alpha, -3, 3, xtol=1e-13)
    short = lambda w: (nu - mean(w)) * norm.cdf((nu - mean(w)) / sd(w)) + sd(w) * norm.pdf((nu - mean(w)) / sd(w))  # noqa: E731
    return over_positions(short) / env.alpha - nu


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize(("position", "policy_sd"), [(0.3, 0.05), (0.1, 0.08)])
def test_tail_of_a_policy_that_draws(inside, position, policy_sd):
    env = CVaRPosition(1, **OTHER, cost_in_risk=inside)
    assert env.tail_loss(position, policy_sd) == pytest.approx(mixture_tail_loss(env, position, policy_sd), abs=1e-7)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("policy_sd", [0.0, 0.04])
def test_best_position_by_search(inside, policy_sd):
    """Penalised search over the position, with tail losses that the tests above and below confirm."""
    env = CVaRPosition(1, **OTHER, cost_in_risk=inside)
    penalised = lambda m: -env.reward(m, policy_sd) + 100 * max(env.tail_loss(m, policy_sd) - env.limit, 0.0)  # noqa: E731
    found = minimize_scalar(penalised, bounds=(0, 2), method="bounded", options={"xatol": 1e-10})
    assert env.optimal_position(policy_sd) == pytest.approx(found.x, abs=1e-6)
    assert env.optimum(policy_sd) == pytest.approx(env.reward(found.x, policy_sd), abs=1e-7)
    assert env.tail_loss(env.optimal_position(policy_sd), policy_sd) == pytest.approx(env.limit, abs=1e-12)


def test_closed_form_with_the_cost_inside():
    """cost·w² + (k·s − mu)·w = limit."""
    env = CVaRPosition(1, **OTHER)
    line = norm.pdf(norm.ppf(env.alpha)) / env.alpha * env.s - env.mu
    root = (-line + math.sqrt(line**2 + 4 * env.cost * env.limit)) / (2 * env.cost)
    assert env.optimal_position() == pytest.approx(root, abs=1e-12)


@pytest.mark.parametrize("policy_sd", [0.0, 0.03])
def test_multiplier_is_the_gain_per_unit_of_limit(policy_sd):
    lower, upper = (CVaRPosition(1, **{**OTHER, "limit": 0.04 + h}).optimum(policy_sd) for h in (-1e-5, 1e-5))
    assert CVaRPosition(1, **OTHER).multiplier(policy_sd) == pytest.approx((upper - lower) / 2e-5, rel=1e-5)


def test_falling_asset_is_sold_short():
    rising, falling = CVaRPosition(1, **OTHER), CVaRPosition(1, **{**OTHER, "mu": -0.05})
    assert falling.optimal_position(0.02) == pytest.approx(-rising.optimal_position(0.02), abs=1e-12)
    assert falling.multiplier(0.02) == pytest.approx(rising.multiplier(0.02), rel=1e-9)
    assert CVaRPosition(1, **{**OTHER, "mu": 0.0}).optimal_position() == 0.0


def test_small_positions_have_no_limit_when_gains_outweigh_the_tail():
    env = CVaRPosition(1, mu=0.5, s=0.1, alpha=0.25, limit=0.0, cost=0.1, cost_in_risk=False)
    assert env.optimal_position() == pytest.approx(2.5, abs=1e-12)
    assert CVaRPosition(1, mu=0.5, s=0.1, alpha=0.25, max_position=3.0).optimal_position() == 3.0


@pytest.mark.parametrize("inside", [True, False])
def test_simulated_policy_keeps_the_limit(inside):
    env = CVaRPosition(100_000, **OTHER, cost_in_risk=inside, dtype=torch.float64)
    best = env.optimal_position(0.04)
    generator = torch.Generator().manual_seed(5)
    drawn = best + 0.04 * torch.randn(env.num_envs, 1, generator=generator, dtype=torch.float64)
    check_mean(first_returns(env, lambda obs: drawn, 1), env.optimum(0.04))
    state, _ = env.reset(torch.zeros(env.num_envs, 1))
    _, step = env.step(state, drawn, torch.randn(env.num_envs, 1, generator=generator, dtype=torch.float64))
    x = step.pnl
    error = float((x.quantile(0.1) - x).clamp_min(0).std()) / 0.1 / math.sqrt(len(x))
    assert float(cvar_of_samples(x, 0.1)) == pytest.approx(-env.limit, abs=4.5 * error)


def test_limit_that_noise_alone_breaks_is_refused():
    with pytest.raises(ConfigError, match=r"limit=0.001 cannot be kept with policy_sd=0.3"):
        CVaRPosition(1, **{**OTHER, "limit": 0.001}).optimum(0.3)


@pytest.mark.parametrize(
    ("symbol", "bad"),
    [
        ("mu", math.nan),
        ("s", 0.0),
        ("alpha", 0.0),
        ("alpha", 1.0),
        ("limit", -0.1),
        ("cost", -1.0),
        ("max_position", 0.0),
    ],
)
def test_nonsense_is_refused_by_name(symbol, bad):
    with pytest.raises(InputError, match=rf"\b{symbol}\b"):
        CVaRPosition(1, **{symbol: bad})
    with pytest.raises(InputError, match="policy_sd"):
        CVaRPosition(1).optimal_position(-0.1)
