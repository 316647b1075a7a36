"""What no trade may do, what happens to those who owe too much, and assets that exist no more."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from market.scenes import actions_of, bars_of, env_of, features_of, noise_of, play
from quantail.errors import ConfigError
from quantail.market.account import settle
from quantail.market.actions import limited
from quantail.market.costs import Costs
from quantail.market.desk import Bar, Book, Desk, Order
from quantail.market.env import MarketEnv
from quantail.market.numbers import ARRAYS, FLOATS, MANY_ASSETS
from quantail.market.orders import orders
from quantail.market.rewards import Earned, Memory, rewarded
from quantail.market.series import Bars
from quantail.market.single import SingleMarket
from quantail.market.terms import Episode, Reward, Rules

EQUITY = 1000.0


# --- limits -----------------------------------------------------------------------------------------------------------

lots = st.integers(-40, 40)
asset = st.tuples(lots, st.floats(-1, 1), st.sampled_from([2.0, 5.0, 7.5]), st.booleans(), st.floats(0, 400))


@pytest.mark.property
@given(
    st.lists(asset, min_size=3, max_size=3),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([0.0, 30.0]),
    st.sampled_from([0.0, 0.05]),
    st.sampled_from([None, 0.4]),
    st.sampled_from([None, 0.0, 0.25]),
    st.booleans(),
    st.sampled_from([ARRAYS, MANY_ASSETS]),
)
def test_after_every_trade_all_limits_hold_at_once(assets, lot, least, band, cap, net, volumes, n):
    """Lots, smallest amounts, volume, and no limit passed that was not passed before: checked on the positions, one by one."""
    rules = Rules(actions="long_short", lot_size=lot, min_notional=least, band=band, max_weight=cap, max_net=net)
    held, weights, price, can, most = (np.array(x) for x in zip(*assets, strict=True))
    holdings = held * price
    wanted = limited(ARRAYS, rules, weights)
    assert np.abs(wanted).sum() <= 1 + 1e-12
    assert np.abs(wanted).max() <= (cap or 1) + 1e-12
    assert net is None or abs(wanted.sum()) <= net + 1e-12
    bar = Bar(1.0, 1.0, can, price=price, most=most if volumes else None)
    if n is MANY_ASSETS:
        bar = Bar(*(x if x is None else torch.as_tensor(x)[None] if np.ndim(x) else x for x in bar))
        given_ = torch.tensor(holdings)[None], torch.tensor(wanted)[None], torch.tensor([EQUITY])
    else:
        given_ = holdings, wanted, EQUITY
    traded = np.asarray(orders(Desk(n, rules, Costs(), 3), given_[0], bar, Order(given_[1]), given_[2])).reshape(-1)
    after, moved = holdings + traded, np.abs(traded) > 1e-9
    assert not (moved & ~can).any()
    assert (np.abs(traded)[moved] >= max(least, band * EQUITY) - 1e-6).all() or volumes
    assert (np.abs(traded)[moved] >= least - 1e-6).all()
    assert not volumes or (np.abs(traded) <= most + 1e-9).all()
    assert not lot or np.abs(after / price - np.round(after / price)).max() < 1e-6
    limit = lambda x, bound: x(after) <= max(bound, x(holdings)) + 1e-6  # noqa: E731
    assert limit(lambda h: np.abs(h).sum(), EQUITY)
    assert cap is None or (np.abs(after) <= np.maximum(cap * EQUITY, np.abs(holdings)) + 1e-6).all()
    assert net is None or limit(lambda h: abs(h.sum()), net * EQUITY)
    if not moved.any() and can.all() and net is None and not (lot or least or band or volumes):
        assert np.abs(wanted * EQUITY - holdings).max() < 1e-6  # nothing is refused that could be done


def test_the_cut_for_want_of_room_is_in_whole_lots_and_shrinks_as_asked():
    """600 stuck and 300 sold, so there is room for 400 of the 7 × 50 and 3 × 100 that are wanted: 4 × 50 and 1 × 100."""
    desk = Desk(ARRAYS, Rules(lot_size=1.0), Costs(0, 0), 4)
    bar = Bar(1.0, 1.0, np.array([False, True, True, True]), price=np.array([6.0, 50.0, 100.0, 100.0]))
    order = Order(np.array([0.0, 0.35, 0.35, 0.0]))
    traded = orders(desk, np.array([600.0, 0.0, 0.0, 300.0]), bar, order, 1000.0)
    assert traded.tolist() == pytest.approx([0.0, 200.0, 100.0, -300.0])
    odd = orders(desk, np.array([630.0, 0.0, 0.0, 300.0]), bar, order, 1000.0)
    assert odd.tolist() == pytest.approx([0.0, 150.0, 100.0, -300.0])  # 370/650 of 350 and 300: 199 and 171


def test_the_net_position_is_held_by_fewer_buys_and_an_order_that_cannot_be_is_refused():
    """The short leg cannot be traded: of 600 to buy, 250. Where closing a short leaves no room for another: nothing."""
    desk = Desk(ARRAYS, Rules(max_net=0.25), Costs(0, 0), 3)
    stuck = Bar(1.0, 1.0, np.array([True, False, True]))
    traded = orders(desk, np.zeros(3), stuck, Order(np.array([0.6, -0.5, 0.0])), 1000.0)
    assert traded.tolist() == pytest.approx([250.0, 0.0, 0.0])
    traded = orders(desk, np.zeros(3), stuck, Order(np.array([-0.6, 0.5, 0.0])), 1000.0)
    assert traded.tolist() == pytest.approx([-250.0, 0.0, 0.0])
    order = Order(np.array([0.0, 0.0, -0.7]))  # 900 of the second are stuck: net 200 would become 800
    assert orders(desk, np.array([-700.0, 900.0, 0.0]), stuck, order, 1000.0).tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(("limits", "worth"), [({"max_weight": 0.3}, 300.0), ({"max_net": 0.2}, 200.0), ({}, 900.0)])
def test_orders_from_elsewhere_have_the_same_caps(limits, worth):
    """A backtest hands over weights that were no actions."""
    assert orders(Desk(FLOATS, Rules(**limits), Costs(), 1), 0.0, Bar(1.0, 1.0, True), Order(-0.9), 1000.0) == -worth
    many = Desk(ARRAYS, Rules(**limits), Costs(), 2)
    bought = orders(many, np.zeros(2), Bar(1.0, 1.0, np.array([True, True])), Order(np.array([0.9, 0.0])), 1000.0)
    assert bought.tolist() == pytest.approx([worth, 0.0])


def test_one_asset_has_its_cap_and_its_share_of_the_volume():
    bars = bars_of(2, volume=True)
    env = env_of(1, bars, rules=Rules(max_weight=0.6, max_participation=0.01), episode=Episode(length=8), costs="free")
    _, rows = play(env, torch.full((8, 1), 2), noise_of(env, 9))
    held = 0.0
    for state, step in rows:
        t = int(state.row) - 1
        held *= float(bars.open[t + 1, 0] / bars.close[t, 0])
        most = 0.01 * float(bars.volume[t + 1, 0] * bars.open[t + 1, 0])
        before = float(state.equity * step.info["gap"])
        traded = float(step.info["turnover"]) * before
        assert traded == pytest.approx(min(most, abs(0.6 * before - held)), rel=1e-9)
        held = (held + math.copysign(traded, 0.6 * before - held)) * float(bars.close[t + 1, 0] / bars.open[t + 1, 0])
    with pytest.raises(ConfigError, match=r"max_participation=0\.01 needs volumes"):
        env_of(1, rules=Rules(max_participation=0.01))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"max_weight": 0.0}, "max_weight=0.0"),
        ({"max_weight": 1.5}, "max_weight=1.5"),
        ({"max_net": -0.1}, "max_net=-0.1"),
        ({"max_participation": 1.1}, "max_participation=1.1"),
        ({"delisted_after": -1}, "delisted_after=-1; needs a whole number of bars"),
        ({"delisted_after": True}, "delisted_after=True; needs a whole number of bars"),
        ({"cooldown": 1.5}, "cooldown=1.5; needs a whole number of bars"),
        ({"band": "0.1"}, "band='0.1' is str; needs a number"),
        ({"ruin": False}, "ruin=False is bool; needs a number"),
        ({"delisted_after": 3, "haircut": 1.1}, "haircut=1.1"),
        ({"haircut": 0.3}, "is of assets that are delisted"),
    ],
)
def test_limits_that_are_none_are_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        Rules(**options)


# --- assets that exist no more ----------------------------------------------------------------------------------------


def test_what_is_delisted_is_cash_at_its_last_price_less_the_haircut():
    """Held long or short from the start, no bar from row 6 on: after three rows without one, closed at 70 % of its price."""
    bars = bars_of(1, bars=14, assets=2)
    valid = bars.valid.clone()
    valid[6:, 1] = False
    close = torch.where(valid, bars.close, bars.close[5])
    bars = Bars(**{**vars(bars), "valid": valid, "close": close})
    for side in (2, 0):
        env = MarketEnv(1, bars, features_of(bars, warmup=0), costs="free",
            rules=Rules(levels=(-0.5, 0.0, 0.5), ruin=0.0, delisted_after=3, haircut=0.3), episode=Episode(0))  # fmt: skip
        actions = torch.tensor([[1, side], *[[3, 3]] * 11])[:, None]
        _, rows = play(env, actions, noise_of(env, 13))
        bought = (side - 1) * 0.5 * 1e5 / float(bars.open[1, 1])
        for t, (_, step) in enumerate(rows, 1):
            price = float(bars.close[min(t, 5), 1]) * (0.7 if t >= 8 else 1.0)
            assert float(step.info["equity"]) == pytest.approx(1e5 + bought * (price - float(bars.open[1, 1])), rel=1e-12)
            assert (float(step.info["leverage"]) == 0) == (t >= 8)
    never = replace(env.rules, delisted_after=0, haircut=0.0)
    _, rows = play(MarketEnv(1, bars, features_of(bars, warmup=0), rules=never, episode=Episode(0)), actions, noise_of(env, 13))
    assert float(rows[-1][1].info["leverage"]) > 0.4


def test_the_benchmark_is_the_mean_of_what_exists():
    """Excess over the assets that have a bar; a delisting counts once, in full."""
    bars = bars_of(3, bars=30, assets=3, gaps=0.5)
    rules = Rules(delisted_after=2, haircut=0.2)
    env = env_of(1, bars, rules=rules, reward=Reward("excess"), episode=Episode(0), dtype=torch.float64)
    _, rows = play(env, torch.ones(26, 1, 3, dtype=torch.int64), noise_of(env, 27))
    fewer = 0
    for state, step in rows:
        t = int(state.row)
        gains = []
        for i in range(3):
            since = next((k for k in range(t + 1) if bool(bars.valid[t - k, i])), None)
            known = t > 0 and float(bars.close[t - 1, i]) > 0
            if since == 0 and known:
                gains.append(float(bars.close[t, i] / bars.close[t - 1, i]) - 1)
            elif since == 2:
                gains.append(-0.2)
        fewer += len(gains) < 3
        assert float(step.reward) == pytest.approx(-(sum(gains) / max(1, len(gains))), rel=1e-9, abs=1e-12)
    assert fewer > 10


# --- margin -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [FLOATS, ARRAYS])
def test_a_liquidation_costs_what_any_trade_costs(n):
    """Fee on what is paid, spread, impact, slippage and the episode's factor: at the open, and inside the bar."""
    costs = Costs(10.0, 20.0, 0.5, 30.0)
    desk = Desk(n, Rules(leverage=5.0, maintenance=0.05, levels=(1.0,)), costs, 1 if n is FLOATS else 2)
    pick = (lambda x: x) if n is FLOATS else (lambda x: np.array([x, 0.0]))
    factor, luck, impact = 1.5, 0.4, 1e-4

    def bill(size):
        worse = 1.5 * (20e-4 + 30e-4 * luck + impact * math.sqrt(size))
        return size * worse + 1.5 * 10e-4 * size * (1 - worse)

    order = Order(pick(0.0), None, pick(luck), factor)
    ones = pick(1.0) if n is FLOATS else np.ones(2)
    can = True if n is FLOATS else np.array([True, True])
    bar = Bar(0.7 * ones, ones, can, ones, ones, impact=impact * ones)
    book, flows = settle(desk, Book(100.0, pick(500.0)), bar, order)  # the gap leaves −50 of 350
    assert float(flows.liquidation) == pytest.approx(-bill(350.0), rel=1e-12)
    assert float(book.equity) == pytest.approx(-50 - bill(350.0), rel=1e-12)
    held = Order(pick(0.0), True if n is FLOATS else np.array([True, True]), pick(luck), factor)
    bar = Bar(ones, ones, can, 0.7 * ones, ones, impact=impact * ones)
    _, flows = settle(desk, Book(100.0, pick(500.0)), bar, held)  # closed where 100 − x = 0.05·(500 − x)
    sold = 500 - (100 - 25) / 0.95
    assert float(flows.liquidation) == pytest.approx(-bill(sold), rel=1e-9)


def test_what_was_liquidated_in_a_bar_is_not_bought_back_at_its_close():
    """Five times long, the bar touches −30 % and closes where it opened: with next_close the order for that close is void."""
    desk = Desk(FLOATS, Rules("next_close", leverage=5.0, maintenance=0.05, levels=(1.0,)), Costs(0, 0), 1)
    book, flows = settle(desk, Book(100.0, 500.0), Bar(1.0, 1.0, True, 0.7, 1.0), Order(5.0))
    assert (book.holdings, flows.traded) == (0.0, 0.0)
    book, _ = settle(desk, book, Bar(1.0, 1.0, True, 1.0, 1.0), Order(5.0))
    assert book.holdings == pytest.approx(5 * book.equity)


# --- a weekend cannot be dodged ---------------------------------------------------------------------------------------


def test_who_holds_over_a_weekend_pays_for_it_and_who_comes_after_does_not():
    """Friday's holder who sells at Monday's open pays two days; Monday's buyer pays Monday."""
    day = 86_400 * 10**9
    bars = bars_of(0, bars=5)
    flat = {name: torch.full((5, 1), 50.0, dtype=torch.float64) for name in ("open", "high", "low", "close")}
    time = torch.tensor([2, 3, 6, 7, 8]) * day  # Thursday, Friday, Monday, ...
    bars = Bars(**{**vars(bars), **flat, "time": time})
    costs = Costs(0.0, 0.0, borrow_per_year=0.3655)
    env = MarketEnv(1, bars, features_of(bars, warmup=0), costs=costs, episode=Episode(0), dtype=torch.float64)
    per_day = 0.3655 / 365.25
    for actions, days in (([0, 1, 1, 1], [1, 2, 0, 0]), ([1, 0, 1, 1], [0, 1, 0, 0]), ([0, 3, 1, 1], [1, 3, 0, 0])):
        _, rows = play(env, torch.tensor(actions)[:, None], noise_of(env, 5))
        paid = [1 - float(s.info["overnight"] * s.info["financing"]) for _, s in rows]
        assert paid == pytest.approx([n * per_day for n in days], rel=2e-2, abs=1e-12)
        product = math.prod(
            float(math.prod(s.info[f] for f in ("overnight", "gap", "cost", "intrabar", "financing"))) for _, s in rows
        )
        assert float(rows[-1][1].info["equity"]) == pytest.approx(1e5 * product, rel=1e-12)


# --- rewards ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["excess", "sharpe", "downside"])
@pytest.mark.parametrize("n", [FLOATS, ARRAYS])
def test_ruin_is_never_good_news(kind, n):
    """All else fell more, the mean was below 0: the figures themselves are above 0, or thousands; finite and −10 at most."""
    memory = Memory(-0.3, 0.1 if kind == "sharpe" else 0.09)
    for simple in (-0.4, -0.9, -7.0):
        figure, _ = rewarded(n, Reward(kind, 2.0), Earned(-5.0, simple, False, -0.95 if simple > -1 else -1.0), memory)
        ruined, after = rewarded(n, Reward(kind, 2.0), Earned(-5.0, simple, True, -0.95 if simple > -1 else -1.0), memory)
        assert float(figure) > -20 or float(ruined) == float(figure)
        assert -1e4 < float(ruined) <= -20.0
        assert math.isfinite(after.mean)
        assert math.isfinite(after.square)
    for memory_of_gains in (memory, Memory(0.3, memory.square)):  # to owe six times as much is not worse than to have nothing
        nothing, owed = (rewarded(n, Reward(kind), Earned(-10.0, r, True), memory_of_gains) for r in (-1.0, -7.0))
        assert nothing == owed
    good, _ = rewarded(n, Reward(kind), Earned(-2.3, -0.9, False, -0.95), memory)
    assert float(good) > 0


def test_a_growing_drawdown_costs_its_square():
    """r − η·(Δd)², where the drawdown grew, from the path of equity alone."""
    bars = bars_of(4, sd=0.1)
    env = env_of(
        6, bars, reward=Reward("drawdown", 3.0, drawdown_aversion=7.0), episode=Episode(length=30), dtype=torch.float64
    )
    _, rows = play(env, actions_of(env, 30), noise_of(env, 31))
    peak, equity = np.full(6, 1e5), np.full(6, 1e5)
    charged = 0
    for _, step in rows:
        now = step.info["equity"].numpy()
        before, peak = 1 - equity / peak, np.maximum(peak, now)
        grew = np.maximum(0.0, 1 - now / peak - before)
        truth = 3 * (np.log(now / equity) - 7 * grew**2)
        assert step.reward.tolist() == pytest.approx(truth, rel=1e-9, abs=1e-12)
        charged += int((grew > 0).sum())
        equity = now
    assert charged > 20
    with pytest.raises(ConfigError, match="depends on the drawdown so far"):
        env_of(2, reward=Reward("drawdown"), episode=Episode(parts=("weights",)))


# --- figures of those who have next to nothing ------------------------------------------------------------------------


@pytest.mark.parametrize("assets", [1, 2])
def test_weights_are_bounded_where_equity_is_next_to_nothing(assets):
    """A short of 1 at 100, the market at 200 less a hair: a millionth of a cent is left, and the weight is −10, not −10¹²."""
    price = torch.full((4, assets), 100.0, dtype=torch.float64)
    price[3] = 200.0 - 1e-9
    bars = replace(bars_of(0, bars=4, assets=assets), open=price.clone(), high=price + 1, low=price - 1, close=price)
    begin = price.clone()
    begin[3] = 100.0
    bars = replace(bars, open=begin, low=begin - 1)
    options = {
        "rules": Rules(ruin=0.0, levels=(-1.0 / assets,)),
        "costs": "free",
        "episode": Episode(0),
        "dtype": torch.float64,
    }
    short = torch.zeros(1, dtype=torch.int64) if assets == 1 else torch.zeros(1, assets, dtype=torch.int64)
    env = MarketEnv(1, bars, features_of(bars, warmup=0), **options)
    _, rows = play(env, torch.stack([short] * 3), noise_of(env, 4))
    step = rows[-1][1]
    assert 0 < float(step.info["equity"]) < 1e-5
    assert step.obs[0, 2 * assets : 3 * assets].tolist() == [-10.0] * assets
    assert float(step.info["leverage"]) == 10.0
    plain = SingleMarket(bars, features=features_of(bars, warmup=0), **options)
    plain.reset(seed=0)
    for _ in range(3):
        obs, _, _, _, infos = plain.step(0 if assets == 1 else np.zeros(assets, dtype=np.int64))
    assert obs[2 * assets : 3 * assets].tolist() == [-10.0] * assets
    assert infos["leverage"] == 10.0
