"""What happens to portfolios during one bar: the one place where money moves.

All in currency and float64: equity E and the value h of each holding (negative: short), B portfolios, A assets. A bar has
three instants, at which nothing or a trade happens, as `fill` says: the close that was seen, the open, the close:

    gap        h ← h·O'/C,  E ← E + Σ(h' − h)                old holdings, from the close seen to the open
    trade      h ← x,  E ← E − fee − spread − impact − slippage
    intrabar   h ← x·C'/O', E ← E + Σ(h' − h) + financing     by elapsed time, on what is held during the bar

with x = w·E before costs ("naive", as most do) or after ("exact", a fixed point). Then ΔE = gap − costs + intrabar + financing,
exactly. Source: definition; the fixed point contracts by the cost rate in each pass. `numbers.py` says what values may be.
"""

import functools
import operator
from typing import Any, NamedTuple

from quantail.market.costs import BP, Costs
from quantail.market.numbers import Numbers, Value
from quantail.market.terms import EXACT_PASSES, Rules


class Book(NamedTuple):
    """What portfolios own."""

    equity: Value  # [B]
    holdings: Value  # [B, A], or [B] of one asset; in currency


class Bar(NamedTuple):
    """What the market does from the close that was seen to the next; what the rules do not need may be None."""

    gap: Value  # [B, A] open / close before
    move: Value  # [B, A] close / open
    can: Value  # [B, A] bool: whether the asset trades at the fill
    low: Any = None  # [B, A] low / open
    high: Any = None  # [B, A] high / open
    years: Any = None  # [B] from close to close
    funding: Any = None  # [B, A] rate that falls due; > 0: longs pay
    impact: Any = None  # [B, A] ⅔·Y·σ_day/√ADV, so that impact is this times √|x|
    price: Any = None  # [B, A] at the fill
    closes: Any = None  # [B, A] bool: whether it trades between open and close, if `can` is about another bar


class Order(NamedTuple):
    """What is wanted."""

    weights: Value  # [B, A] of equity
    stay: Any = None  # [B, A] bool: leave this one as it is
    luck: Any = None  # [B, A] in [0, 1], of the slippage
    cost_factor: Any = None  # [B] of trading costs in this episode


class Flows(NamedTuple):
    """Where the change of equity came from, in currency; all together they are E' − E. [B] each, 0.0 of what cannot be."""

    traded: Value  # [B, A] x − h: no part of the change
    before: Value  # equity when the trade began: no part of the change
    gap: Value = 0.0
    fee: Value = 0.0
    spread: Value = 0.0
    impact: Value = 0.0
    slippage: Value = 0.0
    intrabar: Value = 0.0
    financing: Value = 0.0
    liquidation: Value = 0.0


class Desk(NamedTuple):
    """What is the same for every bar."""

    n: Numbers
    rules: Rules
    costs: Costs
    assets: int


def settle(desk: Desk, book: Book, bar: Bar, order: Order) -> tuple[Book, Flows]:
    """One bar from close to close."""
    fill = desk.rules.fill
    flows: dict[str, Value] = {}
    if fill == "same_close":
        book = trade(desk, book, bar, order, flows)
    book = carried(desk, book, bar.gap, flows, "gap")
    if desk.rules.maintenance:
        book, called = margin_call(desk, book, bar, flows)
        order = order._replace(stay=called if order.stay is None else order.stay | called)
    if fill == "next_open":
        book = trade(desk, book, bar, order, flows)
    book = held(desk, book, bar, flows)
    if fill == "next_close":
        book = trade(desk, book, bar, order, flows)
    return book, Flows(**flows)


def carried(desk: Desk, book: Book, relative: Value, flows: dict[str, Value], name: str) -> Book:
    """Holdings take a price relative."""
    after = book.holdings * relative
    gain = desk.n.total(after - book.holdings)
    flows[name] = gain
    return Book(book.equity + gain, after)


# --- trading ----------------------------------------------------------------------------------------------------------


def trade(desk: Desk, book: Book, bar: Bar, order: Order, flows: dict[str, Value]) -> Book:
    """Move to the weights that are wanted, as far as rules allow, and pay for it."""
    n = desk.n
    before = sized = n.at_least(book.equity, 0.0)
    for _ in range(EXACT_PASSES if desk.rules.sizing == "exact" else 1):
        traded = orders(desk, book.holdings, bar, order, sized)
        paid = charges(desk, traded, bar, order)
        sized = n.at_least(before - all_of(paid), 0.0)
    flows |= {name: -cost for name, cost in paid.items()}
    flows["traded"], flows["before"] = traded, before
    return Book(book.equity - all_of(paid), book.holdings + traded)


def orders(desk: Desk, holdings: Value, bar: Bar, order: Order, equity: Value) -> Value:
    """What is bought, per asset in currency: lots are cut towards 0; what is too small or not allowed does not happen."""
    n, rules = desk.n, desk.rules
    unit = n.spread(equity)
    wanted = order.weights * unit
    if rules.lot_size:
        lot = rules.lot_size * bar.price
        wanted = n.truncate(wanted / lot * (1 + 1e-12)) * lot
    traded = wanted - holdings
    allowed = bar.can if order.stay is None else bar.can & n.no(order.stay)
    if rules.band:
        allowed = allowed & (n.size(traded) >= rules.band * unit)
    if rules.min_notional:
        allowed = allowed & (n.size(traded) >= rules.min_notional)
    traded = traded * allowed
    if desk.assets == 1:
        return traded
    # What cannot be traded may leave too little room for the rest: that is cut, so that no trade breaks the limit.
    after = n.size(holdings + traded)
    free = n.total(after * allowed)
    room = n.at_least(rules.leverage * equity - (n.total(after) - free), 0.0)
    share = n.at_most(room * (1 + 1e-12) / n.at_least(free, 1e-9), 1.0)
    return ((holdings + traded) * n.spread(share) - holdings) * allowed


def all_of(paid: dict[str, Value]) -> Value:
    """The sum of what there is."""
    return functools.reduce(operator.add, paid.values())


def charges(desk: Desk, traded: Value, bar: Bar, order: Order) -> dict[str, Value]:
    """What a trade costs, [B] each: concession·|x|, and the fee on what was paid, |x| + x·concession for a trade of x."""
    n, costs = desk.n, desk.costs
    size = n.size(traded)
    whole = n.total(size)
    factor = 1.0 if order.cost_factor is None else order.cost_factor
    per_asset = factor if order.cost_factor is None else n.spread(order.cost_factor)
    parts: dict[str, Value] = {"spread": costs.half_spread_bps * BP * factor * whole}
    paid = n.total(traded) * (costs.half_spread_bps * BP * factor)
    if costs.impact_y:
        rate = bar.impact * n.root(size) * per_asset
        parts["impact"] = n.total(rate * size)
        paid = paid + n.total(rate * traded)
    if costs.slippage_bps:
        rate = costs.slippage_bps * BP * order.luck * per_asset
        parts["slippage"] = n.total(rate * size)
        paid = paid + n.total(rate * traded)
    parts["fee"] = costs.fee_bps * BP * factor * (whole + paid)
    return parts


# --- holding ----------------------------------------------------------------------------------------------------------


def held(desk: Desk, book: Book, bar: Bar, flows: dict[str, Value]) -> Book:
    """From open to close: prices move, positions are financed, and where margin fails on the way they are closed."""
    financing = financed(desk, book, bar)
    after = carried(desk, book, bar.move, flows, "intrabar")
    if financing is not None:
        flows["financing"] = financing
        after = Book(after.equity + financing, after.holdings)
    return after if not desk.rules.maintenance else liquidated(desk, book, after, bar, flows)


def financed(desk: Desk, book: Book, bar: Bar) -> Value | None:
    """Interest and funding on what is held, [B]: r⁺·cash⁺ − r⁻·cash⁻ − borrow·shorts, each by elapsed time, − Σ h·funding."""
    n, costs = desk.n, desk.costs
    yearly: Value = 0.0
    if costs.credit_per_year or costs.debit_per_year:
        cash = book.equity - n.total(book.holdings)
        yearly = costs.credit_per_year * n.at_least(cash, 0.0) + costs.debit_per_year * n.at_most(cash, 0.0)
    if costs.borrow_per_year:
        yearly = yearly + costs.borrow_per_year * n.total(n.at_most(book.holdings, 0.0))
    gain = yearly * bar.years if bar.years is not None else None
    if bar.funding is None:
        return gain
    paid = n.total(book.holdings * bar.funding)
    return -paid if gain is None else gain - paid


def closing_rate(costs: Costs) -> float:
    """What closing costs, as a share of the position."""
    return costs.one_way_bps * BP


def closable(bar: Bar) -> Value:
    """Which assets have a market during the bar."""
    return bar.can if bar.closes is None else bar.closes


def margin_call(desk: Desk, book: Book, bar: Bar, flows: dict[str, Value]) -> tuple[Book, Value]:
    """Close what trades at the open where equity is below the margin: a price that gapped through never traded before it.

    What has no market stays, and is tested again in the next bar; until margin is there again, nothing new is bought.
    """
    n = desk.n
    size = n.size(book.holdings)
    called = n.spread(book.equity < desk.rules.maintenance * n.total(size))
    closed = called & closable(bar)
    cost = n.total(size * closed) * closing_rate(desk.costs)
    flows["liquidation"] = -cost
    return Book(book.equity - cost, book.holdings * n.no(closed)), called


def liquidated(desk: Desk, begin: Book, end: Book, bar: Bar, flows: dict[str, Value]) -> Book:
    """Where the worst prices of the bar, all at once, break the margin, what trades is closed at the price where they do.

    With loss L from open to worst and gross G there, G + ΔG: E − λL = m(G + λΔG) gives λ = (E − mG)/(L + mΔG) of the way. For
    one long bought with leverage l at P that is P·(1 − 1/l)/(1 − m). What has no market stays to the close. Financing of the
    bar is due all the same.
    """
    n, m = desk.n, desk.rules.maintenance
    low, high = begin.holdings * bar.low, begin.holdings * bar.high
    worst = n.where(begin.holdings > 0, low, high)
    losses, sizes = begin.holdings - worst, n.size(begin.holdings)
    loss, gross = n.total(losses), n.total(sizes)
    more = n.total(n.size(worst)) - gross
    hit = begin.equity - loss < m * (gross + more)
    way = n.at_most(n.at_least((begin.equity - m * gross) / n.at_least(loss + m * more, 1e-9), 0.0), 1.0)
    closed = n.spread(hit) & closable(bar)
    sold = sizes + n.spread(way) * (n.size(worst) - sizes)
    cost = n.total(sold * closed) * closing_rate(desk.costs)
    lost = n.total(n.where(closed, -n.spread(way) * losses, end.holdings - begin.holdings))
    change = lost - flows["intrabar"] - cost
    flows["intrabar"], flows["liquidation"] = lost, flows["liquidation"] - cost
    return Book(end.equity + change, end.holdings * n.no(closed))
