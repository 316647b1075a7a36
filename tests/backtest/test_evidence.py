"""What is gathered of an agent: each part by the road that a user would take by hand, and stretches joined without a seam."""

import math

import numpy as np
import pytest
import torch

from backtest.stages import course, player, recorded, synthetic
from market.worlds import bars_of
from quantail.backtest.baselines import CASH, HOLD
from quantail.backtest.evidence import Stage, gather, joined
from quantail.backtest.null import null_course
from quantail.backtest.track import play, told
from quantail.backtest.verdict import Asked
from quantail.errors import InputError
from quantail.market.env import MarketEnv
from quantail.market.features import functions_of, unproved
from quantail.market.terms import Episode, Rules
from quantail.market.world import Recorded, Synthetic


@pytest.fixture(scope="module")
def found():
    env = synthetic(paths=2, bars=160)
    one = course(env)
    players = [player(env), player(env, seed=1)]
    return one, players, gather([Stage(one, players)])


def test_each_part_is_what_it_says(found):
    one, players, evidence = found
    first = play(one, players[0])
    np.testing.assert_array_equal(evidence.tracks[0].net, first.net)
    np.testing.assert_array_equal(evidence.tracks[1].net, play(one, players[1]).net)
    np.testing.assert_array_equal(evidence.sampled.net, play(one, players[0], deterministic=False).net)
    np.testing.assert_array_equal(evidence.at_costs[1.0], first.net)
    np.testing.assert_array_equal(evidence.at_costs[4.0], told(one, first.orders, "", 4.0).net)
    np.testing.assert_allclose(evidence.at_costs[0.0], told(one, first.orders, "", 0.0).gross, atol=1e-15)
    assert len(evidence.shuffles) == 2
    assert len(evidence.borders) == 0
    assert evidence.verdict.seeds == 2


def test_late_orders_are_the_same_orders_a_bar_later(found):
    one, _, evidence = found
    orders = evidence.tracks[0].orders
    shifted = np.full_like(orders, np.nan)
    for t in range(1, len(orders)):
        shifted[t] = orders[t - 1]
    np.testing.assert_array_equal(evidence.late, told(one, shifted, "").net)
    assert (evidence.late != evidence.tracks[0].net).any()


def test_where_nothing_can_be_known_nothing_is_earned_before_costs(found):
    one, players, evidence = found
    empty = null_course(one)
    assert (empty.periods, empty.paths) == (one.periods, 2)
    assert empty.market.costs == one.market.costs
    log = np.diff(np.log(empty.closes[..., 0]), axis=0)
    assert log.std() == pytest.approx(np.diff(np.log(one.closes), axis=0).std(), rel=0.15)
    np.testing.assert_array_equal(evidence.null.net, play(empty, players[0]).net)


def real(rows=420):
    """Bars of one asset with a strong drift, seen by default features."""
    bars = bars_of(rows, 1, 3)
    trend = torch.exp(0.004 * torch.arange(rows, dtype=torch.float64))[:, None]
    prices = {name: vars(bars)[name] * trend for name in ("open", "high", "low", "close")}
    bars = type(bars)(**{**vars(bars), **prices})
    at_low, at_high = (torch.arange(rows)[:, None] % 3 == i for i in (0, 1))  # as real bars often do
    close = torch.where(at_low, bars.low, torch.where(at_high, bars.high, bars.close))
    bars = type(bars)(**{**vars(bars), "close": close})
    features = unproved(functions_of(), bars)
    return MarketEnv(3, Recorded(bars, features), rules=Rules(actions="tanh"), episode=Episode(length=20, parts=("features",)))


def test_real_candles_in_random_order_have_no_drift_and_look_like_candles():
    env = real()
    one = course(env)
    empty = null_course(one)
    assert empty.periods == one.periods
    assert empty.market.observation_space == env.observation_space
    log = np.diff(np.log(empty.closes[..., 0]), axis=0)
    error = log.std() / math.sqrt(log.size)
    assert abs(log.mean()) < 4 * error
    drift = np.diff(np.log(one.closes[..., 0]), axis=0)
    assert abs(drift.mean()) > 4 * drift.std() / math.sqrt(drift.size)
    kept = np.sort(np.unique(np.round(log, 9)))
    own = np.round(np.sort((drift - drift.mean()).ravel()), 9)
    assert np.isin(kept, own).mean() > 0.95  # each is one of the bars, less the drift


@pytest.mark.parametrize("market", ["signal", "assets"])
def test_no_null_market_where_its_bars_would_look_otherwise(market):
    """A signal that is seen, and features that cannot be computed anew, have no null market."""
    env = synthetic("signal") if market == "signal" else recorded()
    assert null_course(course(env)) is None


def test_stretches_joined_are_lived_one_after_the_other():
    env = recorded(assets=1, parts=("features",))
    stretches = [range(10, 40), range(40, 63), range(63, 90)]
    players = [player(env, seed) for seed in range(3)]
    stages = [Stage(course(env, rows), [one]) for rows, one in zip(stretches, players, strict=True)]
    evidence = gather(stages)
    alone = [play(course(env, rows), one) for rows, one in zip(stretches, players, strict=True)]
    np.testing.assert_array_equal(evidence.tracks[0].net, np.concatenate([one.net for one in alone]))
    np.testing.assert_array_equal(evidence.tracks[0].times, np.concatenate([one.times for one in alone]))
    assert evidence.borders.tolist() == [int(alone[1].times[0]), int(alone[2].times[0])]
    whole = course(env, range(10, 90))
    np.testing.assert_allclose(evidence.tracks[0].market, play(whole, players[0]).market, rtol=1e-9)
    assert evidence.tracks[0].prices.shape == (81, 1, 1)
    assert evidence.rivals[CASH].net.shape == (80, 1)
    entries = (evidence.rivals[HOLD].turnover > 0.5).ravel()
    assert np.flatnonzero(entries).tolist() == [0, 30, 53]  # each stretch begins with cash and buys anew
    assert len(evidence.tracks[0].predicted.realised) == 80


def test_one_stretch_is_not_copied():
    env = synthetic(paths=2, bars=120)
    one = play(course(env), player(env))
    assert joined([one]) is one


def test_a_fill_that_nobody_can_have_reaches_the_verdict():
    with pytest.warns(UserWarning, match="cannot be done"):
        rules = Rules(actions="long_short", fill="same_close")
    env = MarketEnv(2, Synthetic(synthetic().world.model, paths=2, bars=150), rules=rules, episode=Episode(length=20))
    evidence = gather([Stage(course(env), [player(env)])], Asked())
    assert "cannot be done" in evidence.verdict.sentences[0]
    assert not evidence.verdict.skill


def test_what_does_not_follow_is_refused():
    env = recorded(assets=1)
    who = player(env)
    with pytest.raises(InputError, match="at least one"):
        gather([])
    with pytest.raises(InputError, match="in order of time"):
        gather([Stage(course(env, range(40, 60)), [who]), Stage(course(env, range(10, 40)), [who])])
    with pytest.raises(InputError, match="differ in"):
        gather([Stage(course(env, range(10, 40)), [who]), Stage(course(env, range(40, 60)), [who, who])])
