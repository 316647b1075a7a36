"""What an agent is compared with: each by its own slow loop, all through the same market."""

import numpy as np
import pytest
import torch

from backtest.stages import course, random_orders, recorded, synthetic
from quantail.backtest import baselines, known
from quantail.backtest.track import as_orders, told
from quantail.market import policies
from quantail.market.env import MarketEnv
from quantail.market.presets import MARKETS
from quantail.market.terms import Rules


def test_every_baseline_walks_the_same_course():
    one = course(synthetic())
    found = baselines.rivals(one)
    assert {
        "buy & hold",
        "cash",
        "always -1",
        "always +1",
        "vol-target 15 %",
        "momentum 250",
        "reversal 5",
        "random, seed 9",
    } < set(found)
    assert any(name.startswith("Bayes filter") for name in found)
    assert all(rival.net.shape == (one.periods, 3) and rival.name == name for name, rival in found.items())
    assert not found["cash"].net.any()
    assert (found["random, seed 0"].net != found["random, seed 1"].net).any()


def test_buying_and_holding_is_the_price_less_one_entry():
    one = course(recorded(assets=1))
    found = baselines.walked(one, {"hold": baselines.held(one)})["hold"]
    bars = one.bars
    rate, fee = 3e-4, 7e-4
    price = float(bars.close[-1, 0] / bars.open[one.first + 1, 0])
    expected = price - rate - fee * (1 + rate)  # bought for all of the equity; what it cost is borrowed for nothing
    assert np.prod(1 + found.net[:, 0]) == pytest.approx(expected, rel=1e-12)
    assert (found.turnover[1:] == 0).all()
    assert found.cost[0, 0] == pytest.approx(rate + fee * (1 + rate), rel=1e-9)
    assert (found.cost[1:] == 0).all()


def test_several_assets_get_equal_parts():
    one = course(recorded(assets=3))
    orders = baselines.held(one)
    assert np.allclose(orders[0], 1 / 3)
    assert np.isnan(orders[1:]).all()
    names = baselines.constants(one)
    assert sorted(names) == ["always +1.5, 1/3 each", "always -1.5, 1/3 each"]
    assert np.allclose(names["always -1.5, 1/3 each"], -0.5)


@pytest.mark.parametrize(
    ("rules", "names"),
    [
        ({"actions": "grid", "levels": (-1.0, 0.0, 0.5, 1.0)}, ["always +0.5", "always +1", "always -1"]),
        ({"actions": "long_only"}, ["always +1"]),
        ({"actions": "tanh", "leverage": 2.0}, ["always +2", "always -2"]),
        ({"actions": "simplex"}, ["always +1"]),
    ],
)
def test_constant_actions_are_those_that_an_agent_has(rules, names):
    one = course(synthetic(**rules))
    assert sorted(baselines.constants(one)) == names
    assert (baselines.drawn(one, 0).min() < 0) == (len(names) > 1)


def test_rules_see_the_bars_before_the_course_and_none_that_come_later():
    one = course(recorded(rows=160, assets=2), range(100, 140))
    orders = baselines.ruled(one)["momentum 60"]
    close = one.bars.close.numpy()
    assert len(close) == 140
    for t in (0, 13, 39):
        row = 99 + t
        np.testing.assert_allclose(orders[t, 0], np.sign(close[row] / close[row - 60] - 1) / 2)
    flat = baselines.ruled(one)["momentum 60, long or flat"]
    np.testing.assert_allclose(flat, np.maximum(orders, 0))
    target = baselines.ruled(one)["vol-target 15 %"]
    sigma = np.diff(np.log(close[80:101]), axis=0)[:20].std(axis=0, ddof=1) * np.sqrt(one.periods_per_year)
    np.testing.assert_allclose(target[1, 0], np.minimum(0.15 / sigma, 1) / 2, rtol=1e-9)


def test_another_order_has_the_same_weights_held_as_long():
    one = course(synthetic())
    found = told(one, random_orders(one), "agent")
    nets = baselines.shuffled(one, found, seed=5)
    cuts = np.random.default_rng([5, 12]).integers(1, one.periods, (3, nets.shape[2]))
    assert nets.shape == (one.periods, 3, 200)
    for path, i in ((0, 0), (2, 199), (1, 77)):
        cut = cuts[path, i]
        orders = np.full((one.periods, 3, 1), np.nan)
        own = found.orders[:, path].copy()
        if np.isnan(own[cut]):
            own[cut] = found.weights[cut - 1, path]
        orders[:, path] = np.concatenate([own[cut:], found.orders[:cut, path]])
        again = told(one, orders, "by hand")
        np.testing.assert_allclose(nets[:, path, i], again.net[:, path], rtol=1e-12, atol=1e-15)


def test_who_never_moves_has_no_other_order():
    one = course(synthetic())
    found = told(one, np.ones((one.periods, 3, 1)), "always long")
    nets = baselines.shuffled(one, found)
    np.testing.assert_allclose(nets, np.broadcast_to(found.net[..., None], nets.shape), atol=1e-15)


@pytest.mark.parametrize("market", ["hidden_drift", "bull_bear"])
def test_the_filters_are_chosen_on_other_paths_and_each_is_the_strongest_there(market):
    one = course(synthetic(market, paths=48, bars=1600))
    sharp, grown = known.strongest(one)
    rivals = baselines.walked(
        one,
        {
            **{best.name: as_orders(one, best.weights) for best in (sharp, grown)},
            "hold": baselines.held(one),
            **baselines.ruled(one),
        },
    )
    growth = {name: float(np.log1p(rival.net).mean()) for name, rival in rivals.items()}
    ratio = {name: float((rival.net.mean(0) / rival.net.std(0)).mean()) for name, rival in rivals.items()}
    assert max(growth, key=growth.get) == grown.name
    assert max(ratio, key=ratio.get) == sharp.name
    assert sharp.name.startswith("Bayes filter for Sharpe ratio, scale")
    other = course(synthetic(market, paths=48, bars=1600, seed=8))
    assert len(known.strongest(other)) == 2


def test_what_is_tried_is_each_policy_alone():
    """All side by side in one tensor, and any of them picked out of it, against one policy at a time."""
    view = 0.3 * torch.randn(40, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    names, tried = known.tries(view, -0.5, 2.0)
    each = tried.view(40, len(names), 3)
    assert len(set(names)) == len(names) == len(known.SCALES) * len(known.BANDS) + len(known.DOUBTS)
    for i, name in enumerate(names):
        alone = known.tries(view, -0.5, 2.0, [i])
        assert alone[0] == [name]
        assert torch.equal(alone[1], each[:, i])
    i = names.index("scale 4, band 0.25")
    by_hand = (4 * view).clamp(-0.5, 2.0)
    for t in range(1, 40):
        by_hand[t] = torch.where((by_hand[t] - by_hand[t - 1]).abs() < 0.5, by_hand[t - 1], by_hand[t])
    assert torch.equal(each[:, i], by_hand)
    i = names.index("doubt 0.12")
    assert torch.equal(each[:, i], (2.0 * policies.sign_with_band(view, 0.12)).clamp(-0.5, 2.0))


def test_a_band_is_only_left_for_a_large_enough_step():
    aim = torch.randn(50, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    band = torch.tensor([0.0, 0.3, 0.6, 0.9, 1.2, 2.0], dtype=torch.float64)
    found = known.banded(aim, band)
    for column in range(6):
        held = float(aim[0, column])
        for t in range(1, 50):
            held = float(aim[t, column]) if abs(float(aim[t, column]) - held) >= float(band[column]) else held
            assert float(found[t, column]) == held
    same = policies.scaled_with_band(aim, 1.0, 0.6, 10.0)
    assert torch.equal(found[:, 2], same[:, 2])


def test_no_filter_where_the_truth_is_not_known():
    assert known.strongest(course(recorded())) == []
    assert known.strongest(course(synthetic("gbm"))) == []
    wide = MarketEnv(2, baselines_world(assets=2), rules=Rules())
    assert known.strongest(course(wide)) == []


def baselines_world(assets):
    from quantail.market.world import Synthetic

    return Synthetic(MARKETS["hidden_drift"](), paths=2, bars=400, assets=assets)
