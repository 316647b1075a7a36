"""The one record that everything else is made of: by a ledger in plain numbers, and the same each time."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from backtest.stages import COSTS, course, player, random_orders, recorded, synthetic
from quantail.backtest import track
from quantail.backtest.track import play, told, told_returns
from quantail.config import CriticConfig, PpoConfig, RiskConfig
from quantail.envs.oracles import CartPole
from quantail.envs.running import ObserveGained
from quantail.errors import InputError
from quantail.market.env import MarketEnv
from quantail.market.series import Bars


def ledger(bars, orders, first):
    """Equity after each bar, one asset at a time, in currency."""
    equity, holdings, found = 100_000.0, np.zeros(orders.shape[-1]), []
    open_, close = bars.open.numpy(), bars.close.numpy()
    rate = COSTS.half_spread_bps * 1e-4
    for t, order in enumerate(orders):
        row = first + t
        for a in range(len(holdings)):  # the gap
            equity += holdings[a] * (open_[row + 1, a] / close[row, a] - 1)
            holdings[a] *= open_[row + 1, a] / close[row, a]
        before = equity
        for a, weight in enumerate(order):
            if not np.isnan(weight):
                traded = weight * before - holdings[a]
                paid = abs(traded) + rate * traded
                equity -= rate * abs(traded) + COSTS.fee_bps * 1e-4 * paid
                holdings[a] += traded
        for a in range(len(holdings)):
            equity += holdings[a] * (close[row + 1, a] / open_[row + 1, a] - 1)
            holdings[a] *= close[row + 1, a] / open_[row + 1, a]
        found.append(equity)
    return np.array(found)


def test_told_orders_earn_what_a_ledger_says():
    env = recorded()
    one = course(env)
    orders = random_orders(one)
    equity = ledger(env.world.history, orders[:, 0], one.first)
    found = told(one, orders, "random")
    np.testing.assert_allclose(np.cumprod(1 + found.net[:, 0]), equity / 100_000, rtol=1e-12)
    np.testing.assert_allclose(np.prod(list(found.factors.values()), axis=0), 1 + found.net, rtol=1e-12)
    assert found.times.tolist() == env.world.history.end[one.first + 1 :].tolist()
    assert (one.periods, one.first) == (90 - 1 - 6, 6)


def test_each_path_of_a_synthetic_market_is_walked_once_by_its_own_portfolio():
    env = synthetic()
    one = course(env)
    close = env.world.drawn(0, torch.device("cpu"))[0].close.numpy()
    np.testing.assert_allclose(one.closes[..., 0], close)
    found = told(one, np.full((one.periods, 3, 1), 1.0), "long")
    price = close[one.first + 1 :] / close[one.first : -1]
    np.testing.assert_allclose(found.net[1:], price[1:] - 1, atol=1e-6)  # what is left is the trade of the costs themselves
    np.testing.assert_allclose(found.market, price - 1, rtol=1e-12)


def test_many_policies_at_once_are_those_policies_one_by_one():
    one = course(synthetic())
    orders = np.stack([random_orders(one, seed) for seed in range(4)], axis=2)  # [T, P, K, A]
    found = told_returns(one, orders.reshape(one.periods, 12, 1), 4)
    for i in range(4):
        alone = told(one, orders[:, :, i], "one")
        np.testing.assert_array_equal(found["net"].reshape(-1, 3, 4)[..., i], alone.net)
        np.testing.assert_array_equal(found["turnover"].reshape(-1, 3, 4)[..., i], alone.turnover)
        np.testing.assert_allclose(found["leverage"].reshape(-1, 3, 4)[..., i], np.abs(alone.weights).sum(-1), rtol=1e-12)


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_same_agent_on_the_same_course_gives_the_same_record(deterministic):
    env = recorded()
    who = player(env)
    first, again = (play(course(env), who, deterministic=deterministic, seed=3) for _ in range(2))
    for name in ("net", "gross", "orders", "weights", "turnover", "prices"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    other = play(course(env), who, deterministic=deterministic, seed=4)
    assert (first.net == other.net).all() == deterministic


@pytest.mark.parametrize("rules", [{}, {"actions": "grid", "leverage": 1.0}])
def test_an_agents_orders_told_again_earn_the_same(rules):
    env = recorded(**rules)
    one = course(env)
    found = play(one, player(env))
    assert np.isnan(found.orders).any() == ("actions" in rules)  # "hold" is an order to do nothing
    assert np.ptp(found.net) > 0
    np.testing.assert_array_equal(told(one, found.orders, "again").net, found.net)


def test_a_memory_warmed_on_the_bars_before_is_that_of_one_who_was_there():
    env = recorded(parts=("features",))
    who = player(env)
    whole = play(course(env, range(20, 90)), who)
    warmed = play(course(env, range(47, 90), memory=27), who)
    cold = play(course(env, range(47, 90)), who)
    np.testing.assert_allclose(warmed.orders, whole.orders[27:], rtol=1e-12)
    assert np.abs(cold.orders - whole.orders[27:]).max() > 1e-3
    assert (warmed.net[0] != whole.net[27]).all()  # but it begins with cash, and has to buy


def test_nothing_that_comes_later_is_known():
    env = recorded(parts=("features", "weights", "return", "drawdown"))
    bars = env.world.history
    torn = {name: torch.cat([x[:60], x[60:] * 3]) for name, x in vars(bars).items() if name in ("open", "high", "low", "close")}
    other = MarketEnv(5, replace(env.world, history=Bars(**{**vars(bars), **torn})), **terms(env))
    who = player(env)
    first, second = play(course(env), who), play(course(other), who)
    known = 60 - 1 - 6  # returns up to the bar before row 60
    np.testing.assert_array_equal(first.net[:known], second.net[:known])
    np.testing.assert_array_equal(first.orders[: known + 1], second.orders[: known + 1])
    assert (first.net[known] != second.net[known]).any()


def terms(env):
    return {"costs": env.costs, "rules": env.rules, "reward": env.reward, "episode": env.episode}


def test_ruin_ends_a_portfolio_and_is_not_lived_again():
    env = recorded(assets=1, leverage=3.0, ruin=0.5)
    bars = env.world.history
    fallen = {
        name: torch.cat([x[:40], x[40:] * 0.7]) for name, x in vars(bars).items() if name in ("open", "high", "low", "close")
    }
    env = MarketEnv(5, replace(env.world, history=Bars(**{**vars(bars), **fallen})), **terms(env))
    one = course(env)
    found = told(one, np.full((one.periods, 1, 1), 3.0), "all in")
    end = 40 - 1 - one.first
    assert found.ruined.tolist() == [True]
    assert found.net[end, 0] < -0.5
    for values in (found.net, found.turnover, found.weights[..., 0], found.costs["fee"]):
        assert (values[end + 1 :] == 0).all()
        assert (values[:end] != 0).any()
    assert np.isnan(found.orders[end + 1 :]).all()
    assert found.net.min() >= -1


def test_costs_may_be_multiplied_and_the_gross_return_has_none():
    one = course(recorded(assets=1))
    orders = random_orders(one)
    free, usual, double = (told(one, orders, "", factor) for factor in (0.0, 1.0, 2.0))
    np.testing.assert_allclose(free.net, free.gross, atol=1e-15)
    assert double.costs["fee"].sum() == pytest.approx(2 * usual.costs["fee"].sum(), rel=1e-2)
    assert double.net.sum() < usual.net.sum() < free.net.sum()


@pytest.mark.parametrize("kind", ["quantile", "categorical"])
def test_what_was_predicted_stands_beside_what_followed(kind):
    env = synthetic()
    who = player(env, critic=CriticConfig(kind=kind), ppo=PpoConfig(gamma=0.9))
    found = play(course(env), who)
    said = found.predicted
    reward = np.log1p(found.net) * 100.0
    for t in (0, 57, len(reward) - 1):
        expected = sum(0.9**k * reward[t + k] for k in range(len(reward) - t))
        np.testing.assert_allclose(said.realised[t], expected, rtol=1e-5)
    assert said.judged.sum(axis=0).tolist() == [len(reward) - 37] * 3  # 0.9³⁸ < 0.02 ≤ 0.9³⁷
    assert (np.diff(said.quantiles, axis=-1) >= 0).all()
    assert said.quantiles.shape == (len(reward), 3, len(said.levels))


def test_without_a_scale_or_a_law_nothing_is_predicted():
    env = synthetic()
    assert play(course(env), player(env, scale=False)).predicted is None
    assert play(course(env), player(env, critic=CriticConfig(kind="scalar"))).predicted is None


def test_an_agent_that_saw_what_it_gained_sees_it_here():
    inner = recorded(parts=("features", "weights"))
    env = ObserveGained(inner, 5)
    who = player(env, risk=RiskConfig(horizon="window", window=5))
    found = play(course(env), who)
    assert np.ptp(found.net) > 0
    with pytest.raises(InputError, match="environments, 9"):
        play(course(inner), who)


def test_what_cannot_be_judged_is_refused():
    env = recorded()
    with pytest.raises(InputError, match="CartPole is no market"):
        course(CartPole(3))
    with pytest.raises(InputError, match="needs rows from 7 to 90"):
        course(env, range(6, 30))
    with pytest.raises(InputError, match="judged whole"):
        course(synthetic(), range(80, 100))
    with pytest.raises(InputError, match="has 1 periods"):
        course(env, range(30, 31))
    with pytest.raises(InputError, match=r"needs \[83, 1, 2\]"):
        told(course(env), np.zeros((5, 1, 2)), "")
    with pytest.raises(InputError, match="infinite: True"):
        told(course(env), np.full((83, 1, 2), np.inf), "")


def test_orders_beyond_the_leverage_are_cut_to_it():
    one = course(recorded())
    found = track.checked_orders(one, np.full((83, 1, 2), 6.0), 1)
    np.testing.assert_allclose(found, 0.75)
    within = np.full((83, 1, 2), -0.2)
    np.testing.assert_array_equal(track.checked_orders(one, within, 1), within)
