import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from market.ledger import ledger
from quantail.market.account import settle
from quantail.market.costs import Costs
from quantail.market.desk import Bar, Book, Desk, Order
from quantail.market.numbers import ARRAYS, FLOATS, MANY_ASSETS, ONE_ASSET
from quantail.market.terms import Rules

T, A, CASH = 60, 3, 1000.0
PARTS = ("overnight", "gap", "fee", "spread", "impact", "slippage", "intrabar", "financing", "liquidation")


def market(seed, assets=A, bars=T, sd=0.03):
    """Random bars [T, A] in float64: opens, closes, whether they trade, luck, years, funding."""
    g = torch.Generator().manual_seed(seed)
    draw = lambda: torch.randn(bars, assets, generator=g, dtype=torch.float64)  # noqa: E731
    close = 50 * (sd * draw()).cumsum(0).exp()
    opened = torch.cat([close[:1], close[:-1]]) * (0.3 * sd * draw()).exp()
    uniform = torch.rand(3, bars, assets, generator=g, dtype=torch.float64)
    return {
        "open": opened,
        "close": close,
        "can": uniform[0] > 0.2,
        "luck": uniform[1],
        "years": uniform[2, :, 0] / 50,
        "funding": 0.001 * draw(),
        "idle": uniform[2, :, 0] / 30,
        "idle_funding": 0.001 * draw(),
        "weights": (0.7 * torch.randn(bars, assets, generator=g, dtype=torch.float64)).tanh() / assets,
    }


def rows(m):
    """The same bars one by one, as plain numbers."""
    names = ("open", "close", "can", "luck", "years", "funding", "idle", "idle_funding")
    return [{name: m[name][t].tolist() for name in names} for t in range(len(m["close"]))]


def bar_at(m, t, rules, impact, pick=lambda x: x):
    fill = {"next_open": m["open"][t + 1], "next_close": m["close"][t + 1], "same_close": m["close"][t]}[rules.fill]
    values = {
        "gap": m["open"][t + 1] / m["close"][t],
        "move": m["close"][t + 1] / m["open"][t + 1],
        "can": m["can"][t + 1],
        "funding": m["funding"][t + 1],
        "idle_funding": m["idle_funding"][t + 1],
        "impact": torch.full_like(fill, impact),
        "price": fill,
    }
    return Bar(
        **{name: pick(value) for name, value in values.items()},
        years=float(m["years"][t + 1]),
        idle_years=float(m["idle"][t + 1]),
    )


def desk_of(rules, costs, assets, n=None):
    return Desk(n or (ONE_ASSET if assets == 1 else MANY_ASSETS), rules, costs, assets)


def played(m, rules, costs, impact=0.0):
    """Equity at every close of one portfolio, settled as a batch of two copies."""
    assets = m["close"].shape[1]
    pick = (lambda x: x[None].expand(2, -1)) if assets > 1 else (lambda x: x.expand(2))
    desk = desk_of(rules, costs, assets)
    zero = torch.zeros(2, *([assets] if assets > 1 else []), dtype=torch.float64)
    book, curve = Book(zero.flatten()[:2] + CASH, zero), []
    for t in range(len(m["close"]) - 1):
        order = Order(pick(m["weights"][t]), None, pick(m["luck"][t + 1]))
        before = book.equity
        book, flows = settle(desk, book, bar_at(m, t, rules, impact, pick), order)
        torch.testing.assert_close(sum(getattr(flows, name) for name in PARTS), book.equity - before, atol=1e-9, rtol=0)
        curve.append(float(book.equity[1]))
    return curve, book


COSTS = Costs(7.0, 3.0, 0.9, 4.0, 0.07, 0.05, 0.02)
PLAIN = {"fee": 7e-4, "spread": 3e-4, "slip": 4e-4, "impact": 2e-5, "borrow": 0.07, "debit": 0.05, "credit": 0.02}


@pytest.mark.filterwarnings("ignore:fill='same_close'")
@pytest.mark.parametrize("assets", [1, 3])
@pytest.mark.parametrize("fill", ["next_open", "next_close", "same_close"])
@pytest.mark.parametrize(
    ("rules", "plain"),
    [
        ({}, {}),
        ({"sizing": "exact"}, {"exact": True}),
        ({"band": 0.04}, {"band": 0.04}),
        ({"min_notional": 60.0}, {"least": 60.0}),
        ({"lot_size": 0.25}, {"lot": 0.25}),
    ],
)
def test_equity_is_that_of_a_book_kept_by_hand(assets, fill, rules, plain):
    """Every cost and every rule; units and cash in a loop, the exact size by bisection."""
    m = market(4, assets)
    curve, book = played(m, Rules(fill, **rules), COSTS, 2e-5)
    truth, units = ledger(rows(m), m["weights"].tolist(), fill, cash=CASH, **PLAIN, **plain)
    assert curve == pytest.approx(truth, rel=1e-9 if plain.get("exact") else 1e-11)
    held = book.holdings[1].reshape(-1) / m["close"][-1]
    assert held.tolist() == pytest.approx(units, rel=1e-8, abs=1e-10)
    assert sum(abs(q) for q in units) > 0.1


@pytest.mark.parametrize("assets", [1, 3])
def test_plain_numbers_and_tensors_keep_the_same_book(assets):
    """One text for all kinds of values: margin, rest, everything."""
    m, rules = market(5, assets, sd=0.15), Rules(band=0.02, maintenance=0.3, leverage=2.0, levels=(1.0,))
    low, high = (m["open"] * (1 + s * 0.2 * m["luck"]) for s in (-1, 1))
    kinds = []
    one = (lambda x: x.item()) if assets == 1 else (lambda x: x.numpy())
    many = (lambda x: x) if assets == 1 else (lambda x: x[None])
    for n, pick, zero in (
        (FLOATS if assets == 1 else ARRAYS, one, 0.0 if assets == 1 else torch.zeros(assets, dtype=torch.float64).numpy()),
        (None, many, torch.zeros((1, assets) if assets > 1 else 1, dtype=torch.float64)),
    ):
        desk, curve = desk_of(rules, COSTS, assets, n), []
        book = Book(CASH if n else torch.full((1,), CASH, dtype=torch.float64), zero)
        for t in range(T - 1):
            bar = bar_at(m, t, rules, 2e-5, pick)
            worst, best = (
                pick((x[t + 1] / m["open"][t + 1]).minimum(m["close"][t + 1] / m["open"][t + 1])) for x in (low, high)
            )
            bar = bar._replace(low=worst, high=best)
            book, _ = settle(desk, book, bar, Order(pick(2 * m["weights"][t]), None, pick(m["luck"][t + 1])))
            curve.append(float(book.equity))
        kinds.append(curve)
    assert kinds[0] == pytest.approx(kinds[1], rel=1e-12)


# --- identities -------------------------------------------------------------------------------------------------------

relative = st.floats(0.2, 5.0)
weight = st.floats(-3.0, 3.0)


@pytest.mark.property
@pytest.mark.filterwarnings("ignore:fill='same_close'")
@given(
    st.lists(st.tuples(relative, relative, weight, st.booleans()), min_size=1, max_size=6),
    st.sampled_from(["next_open", "next_close", "same_close"]),
    st.sampled_from(["naive", "exact"]),
    st.sampled_from([0.0, 0.2]),
)
def test_the_parts_are_all_of_the_change(path, fill, sizing, maintenance):
    """ΔE = gap − costs + intrabar + financing + liquidation, bar by bar, whatever happens."""
    rules = Rules(fill, sizing, leverage=3.0, levels=(1.0,), maintenance=maintenance)
    desk = Desk(FLOATS, rules, Costs(7.0, 3.0, borrow_per_year=0.1, debit_per_year=0.2, credit_per_year=0.1), 1)
    book = Book(1000.0, 0.0)
    for gap, move, wanted, can in path:
        bar = Bar(gap, move, can, min(1.0, move) * 0.9, max(1.0, move) * 1.1, 0.01, idle_years=0.02)
        after, flows = settle(desk, book, bar, Order(wanted))
        change = sum(getattr(flows, name) for name in PARTS)
        scale = abs(book.equity) + abs(after.equity) + abs(after.holdings)
        assert after.equity - book.equity == pytest.approx(change, abs=1e-9 * scale)
        if maintenance and can and fill == "next_open":
            assert after.equity >= -1e-9 * scale or after.holdings == 0.0
        if not can:
            assert after.holdings == pytest.approx(book.holdings * gap * move, rel=1e-12)
        book = after


@pytest.mark.property
@given(st.lists(relative, min_size=1, max_size=8), st.floats(0, 20), st.floats(0, 20))
def test_buying_and_holding_earns_the_price_ratio_less_one_entry(moves, fee_bps, half_spread_bps):
    """E_T/E_0 = (1 − k)·P_T/P_entry of w = 1 − k, k what buying costs: the exact size spends all."""
    costs = Costs(fee_bps, half_spread_bps)
    desk = Desk(FLOATS, Rules(sizing="exact"), costs, 1)
    book = Book(1000.0, 0.0)
    for i, move in enumerate(moves):
        book, _ = settle(desk, book, Bar(1.0, move, True), Order(1.0, i > 0))
    f, s = fee_bps * 1e-4, half_spread_bps * 1e-4
    assert book.equity == pytest.approx(1000 / (1 + s + f * (1 + s)) * math.prod(moves), rel=1e-9)


@pytest.mark.parametrize(("held", "target"), [(0.0, 1.0), (0.9, 0.2), (0.3, -0.8), (-0.5, 0.6), (0.6, 0.6)])
def test_the_exact_size_solves_its_equation(held, target):
    """V' = (V ± c·h)/(1 ± c·w): buying and selling one asset, in closed form."""
    c, value = 0.0011, 1000.0
    desk = Desk(FLOATS, Rules(sizing="exact"), Costs(11.0, 0.0), 1)
    book, _ = settle(desk, Book(value, held * value), Bar(1.0, 1.0, True), Order(target))
    sign = 1 if target >= held else -1
    assert book.equity == pytest.approx((value + sign * c * held * value) / (1 + sign * c * target), rel=1e-13)
    assert book.holdings == pytest.approx(target * book.equity, rel=1e-13, abs=1e-9)


def test_without_costs_the_mirror_image_earns_the_mirror_image():
    """Turned weights in turned returns, 1 − (r − 1): the same gains with the same sign, bar by bar."""
    m = market(6, 1)
    free, rules = Costs(0.0, 0.0), Rules()
    desk = Desk(FLOATS, rules, free, 1)
    here, there = Book(1000.0, 0.0), Book(1000.0, 0.0)
    for t in range(T - 1):
        gap, move, w = (
            float(x) for x in (m["open"][t + 1] / m["close"][t], m["close"][t + 1] / m["open"][t + 1], m["weights"][t])
        )
        here, a = settle(desk, Book(here.equity, 0.0), Bar(gap, move, True), Order(w))
        there, b = settle(desk, Book(there.equity, 0.0), Bar(2 - gap, 2 - move, True), Order(-w))
        assert b.intrabar == pytest.approx(a.intrabar, rel=1e-12)
    assert there.equity == pytest.approx(here.equity, rel=1e-12)


def test_a_round_trip_of_prices_without_costs_gives_everything_back():
    """Held through a path and the same path backwards, equity is what it was."""
    desk = Desk(FLOATS, Rules(), Costs(0.0, 0.0), 1)
    for side in (1.0, -0.5):
        book, _ = settle(desk, Book(1000.0, 0.0), Bar(1.0, 1.0, True), Order(side))
        moves = [1.1, 0.7, 1.3, 0.95]
        for move in (*moves, *(1 / move for move in reversed(moves))):
            book, _ = settle(desk, book, Bar(1.0, move, True), Order(0.0, True))
        assert book.equity == pytest.approx(1000.0, rel=1e-13)


# --- limits -----------------------------------------------------------------------------------------------------------


def test_what_cannot_be_traded_leaves_less_room_for_the_rest():
    """Half of the equity is stuck in one asset: of the 2 × 0.5 that are wanted besides, half is bought."""
    desk = Desk(MANY_ASSETS, Rules(), Costs(0.0, 0.0), 3)
    book = Book(torch.tensor([1000.0], dtype=torch.float64), torch.tensor([[-500.0, 0.0, 0.0]], dtype=torch.float64))
    can = torch.tensor([[False, True, True]])
    one = torch.ones(1, 3, dtype=torch.float64)
    book, _ = settle(desk, book, Bar(one, one, can), Order(torch.tensor([[0.0, 0.5, -0.5]], dtype=torch.float64)))
    assert book.holdings[0].tolist() == pytest.approx([-500.0, 250.0, -250.0])


@pytest.mark.parametrize("side", [1, -1])
@pytest.mark.parametrize("leverage", [2.0, 5.0])
def test_one_asset_is_liquidated_at_its_liquidation_price(side, leverage):
    """P·(1 − 1/l)/(1 − m) for a long, P·(1 + 1/l)/(1 + m) for a short: one bar just above survives, one just below does not."""
    m = 0.05
    desk = Desk(FLOATS, Rules(leverage=leverage, maintenance=m, levels=(1.0,)), Costs(0.0, 0.0), 1)
    price = (1 - side / leverage) / (1 - side * m)
    for beyond in (-1e-9, 1e-9):
        reached = price * (1 - side * beyond)
        bar = Bar(1.0, 1.0, True, min(1.0, reached), max(1.0, reached))
        book, flows = settle(desk, Book(100.0, 0.0), bar, Order(side * leverage))
        if beyond > 0:
            assert book.holdings == 0.0
            assert book.equity == pytest.approx(m * leverage * 100 * price, rel=1e-6)
            assert flows.intrabar == pytest.approx(book.equity - 100)
        else:
            assert (book.equity, book.holdings) == (100.0, side * leverage * 100)


def test_a_gap_through_the_liquidation_price_fills_at_the_open():
    """Five times long, the market opens 30 % lower: equity is −50 %, not the 5 % that margin would have kept; no new trade."""
    desk = Desk(FLOATS, Rules(leverage=5.0, maintenance=0.05, levels=(1.0,)), Costs(10.0, 0.0), 1)
    book, flows = settle(desk, Book(100.0, 500.0), Bar(0.7, 1.2, True, 1.0, 1.2), Order(1.0))
    assert (book.holdings, flows.traded, flows.intrabar) == (0.0, 0.0, 0.0)
    assert book.equity == pytest.approx(100 - 150 - 350 * 0.001)


def test_deeper_crashes_never_cost_less():
    """Equity after a liquidation falls with the depth of the gap."""
    desk = Desk(FLOATS, Rules(leverage=5.0, maintenance=0.05, levels=(1.0,)), Costs(10.0, 5.0), 1)
    ends = [
        settle(desk, Book(100.0, 500.0), Bar(gap, 1.0, True, 0.9, 1.0), Order(5.0))[0].equity for gap in (1, 0.9, 0.8, 0.7, 0.4)
    ]
    assert all(a > b for a, b in itertools.pairwise(ends))


def test_what_has_no_market_is_not_closed_but_tested_again():
    """The gap breaks the margin where nobody trades: 500·0.7·1.2 = 420 stay; in the next bar 20 < 5 % of it, and it goes."""
    desk = Desk(FLOATS, Rules(leverage=5.0, maintenance=0.05, levels=(1.0,)), Costs(10.0, 0.0), 1)
    for here in ({"can": False}, {"can": True, "closes": False}):
        book, flows = settle(desk, Book(100.0, 500.0), Bar(0.7, 1.2, low=0.5, high=1.2, **here), Order(0.0, True))
        assert (book.equity, book.holdings, flows.liquidation) == (pytest.approx(20.0), pytest.approx(420.0), 0.0)
    book, flows = settle(desk, book, Bar(1.0, 1.0, True, 1.0, 1.0), Order(1.0))
    assert (book.holdings, flows.traded) == (0.0, 0.0)
    assert book.equity == pytest.approx(20 - 0.42)


@pytest.mark.parametrize("n", [ARRAYS, MANY_ASSETS])
def test_of_two_assets_the_one_with_a_market_is_closed(n):
    """100 of equity, 200 in each; worst −40 and −50, m = 0.1: λ = (100 − 40)/(90 − 9) of the way; the other goes on to 220."""
    desk = Desk(n, Rules(leverage=4.0, maintenance=0.1, levels=(1.0,)), Costs(10.0, 0.0), 2)
    pick = (lambda x: torch.tensor([x])) if n is MANY_ASSETS else (lambda x: torch.tensor(x).numpy())
    double = lambda *x: pick([float(one) for one in x])  # noqa: E731
    equity = torch.tensor([100.0], dtype=torch.float64) if n is MANY_ASSETS else 100.0
    bar = Bar(double(1, 1), double(1, 1.1), pick([True, False]), double(0.8, 0.75), double(1, 1.1))
    book, flows = settle(desk, Book(equity, double(200, 200)), bar, Order(double(0, 0), pick([True, True])))
    lost = 40 * 60 / 81
    assert book.holdings.reshape(-1).tolist() == pytest.approx([0.0, 220.0], rel=1e-6)
    assert float(flows.intrabar) == pytest.approx(20 - lost, rel=1e-6)
    assert float(flows.liquidation) == pytest.approx(-(200 - lost) * 0.001, rel=1e-6)
    assert float(book.equity) == pytest.approx(120 - lost - (200 - lost) * 0.001, rel=1e-6)


@pytest.mark.parametrize("sizing", ["naive", "exact"])
def test_ruined_portfolios_buy_nothing(sizing):
    """Equity below zero: everything that is wanted is closed."""
    desk = Desk(FLOATS, Rules(sizing=sizing), Costs(), 1)
    book, _ = settle(desk, Book(-10.0, 100.0), Bar(1.0, 1.0, True), Order(1.0))
    assert book.holdings == 0.0
