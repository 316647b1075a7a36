"""What happens to portfolios during one bar: the one place where money moves.

All in currency and float64: equity E and the value h of each holding (negative: short), B portfolios, A assets. A bar has
three instants, at which nothing or a trade happens, as `fill` says: the close that was seen, the open, the close:

    overnight  E ← E + financing                             by the time from the close seen to the open, on old holdings
    gap        h ← h·O'/C,  E ← E + Σ(h' − h)                on old holdings; what exists no more is cash from here on
    trade      h ← x,  E ← E − fee − spread − impact − slippage
    intrabar   h ← x·C'/O', E ← E + Σ(h' − h) + financing     by elapsed time, on what is held during the bar

with x = w·E before costs ("naive", as most do) or after ("exact", a fixed point), within limits (`orders.py`). Then ΔE =
overnight + gap − costs + intrabar + financing, exactly. Source: definition; the fixed point contracts by the cost rate in each
pass. `numbers.py` says what values may be.
"""

import functools
import operator
from typing import Any

from quantail.market.costs import BP
from quantail.market.desk import Bar, Book, Desk, Flows, Order
from quantail.market.numbers import Value
from quantail.market.orders import orders
from quantail.market.terms import EXACT_PASSES


def settle(desk: Desk, book: Book, bar: Bar, order: Order) -> tuple[Book, Flows]:
    """One bar from close to close."""
    fill, n = desk.rules.fill, desk.n
    flows: dict[str, Value] = {}
    if fill == "same_close":
        book = trade(desk, book, bar, order, flows)
    book = waited(desk, book, bar, flows)
    book = carried(desk, book, bar.gap, flows, "gap")
    if bar.gone is not None:
        book = Book(book.equity, book.holdings * n.no(bar.gone))
    if desk.rules.maintenance:
        book, called = margin_call(desk, book, bar, order, flows)
        order = staying(order, called)
    if fill == "next_open":
        book = trade(desk, book, bar, order, flows)
    book, closed = held(desk, book, bar, order, flows)
    if fill == "next_close":
        book = trade(desk, book, bar, order if closed is None else staying(order, closed), flows)
    return book, Flows(**flows)


def staying(order: Order, where: Value) -> Order:
    """The order without those assets: what was closed for want of margin is not bought back in the same bar."""
    return order._replace(stay=where if order.stay is None else order.stay | where)


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
    before = n.at_least(book.equity, 0.0)
    traded = orders(desk, book.holdings, bar, order, before)
    paid = charges(desk, traded, bar, order)
    cost = all_of(paid)
    for _ in range(EXACT_PASSES - 1 if desk.rules.sizing == "exact" else 0):
        traded = orders(desk, book.holdings, bar, order, n.at_least(before - cost, 0.0))
        paid = charges(desk, traded, bar, order)
        cost = all_of(paid)
    flows |= {name: -part for name, part in paid.items()}
    flows["traded"], flows["before"] = traded, before
    return Book(book.equity - cost, book.holdings + traded)


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


def waited(desk: Desk, book: Book, bar: Bar, flows: dict[str, Value]) -> Book:
    """From the close seen to the open: who holds over a weekend pays for it, and who buys after it does not."""
    financing = financed(desk, book, bar.idle_years, bar.idle_funding)
    if financing is None:
        return book
    flows["overnight"] = financing
    return Book(book.equity + financing, book.holdings)


def held(desk: Desk, book: Book, bar: Bar, order: Order, flows: dict[str, Value]) -> tuple[Book, Value | None]:
    """From open to close: prices move, positions are financed; where margin fails on the way they are closed, [B, A] where."""
    financing = financed(desk, book, bar.years, bar.funding)
    after = carried(desk, book, bar.move, flows, "intrabar")
    if financing is not None:
        flows["financing"] = financing
        after = Book(after.equity + financing, after.holdings)
    return liquidated(desk, book, after, bar, order, flows) if desk.rules.maintenance else (after, None)


def financed(desk: Desk, book: Book, years: Any, funding: Any) -> Value | None:
    """Interest and funding on what is held, [B]: r⁺·cash⁺ − r⁻·cash⁻ − borrow·shorts, each by elapsed time, − Σ h·funding."""
    n, costs = desk.n, desk.costs
    yearly: Value = 0.0
    if years is not None and (costs.credit_per_year or costs.debit_per_year):
        cash = book.equity - n.total(book.holdings)
        yearly = costs.credit_per_year * n.at_least(cash, 0.0) + costs.debit_per_year * n.at_most(cash, 0.0)
    if years is not None and costs.borrow_per_year:
        yearly = yearly + costs.borrow_per_year * n.total(n.at_most(book.holdings, 0.0))
    gain = yearly * years if years is not None else None
    if funding is None:
        return gain
    paid = n.total(book.holdings * funding)
    return -paid if gain is None else gain - paid


# --- margin -----------------------------------------------------------------------------------------------------------


def closable(bar: Bar) -> Value:
    """Which assets have a market during the bar."""
    return bar.can if bar.closes is None else bar.closes


def margin_call(desk: Desk, book: Book, bar: Bar, order: Order, flows: dict[str, Value]) -> tuple[Book, Value]:
    """Close what trades at the open where equity is below the margin: a price that gapped through never traded before it.

    It costs what any trade costs. What has no market stays, and is tested again in the next bar; until margin is there again,
    nothing new is bought.
    """
    n = desk.n
    called = n.spread(book.equity < desk.rules.maintenance * n.total(n.size(book.holdings)))
    closed = called & closable(bar)
    cost = all_of(charges(desk, -book.holdings * closed, bar, order))
    flows["liquidation"] = -cost
    return Book(book.equity - cost, book.holdings * n.no(closed)), called


def liquidated(desk: Desk, begin: Book, end: Book, bar: Bar, order: Order, flows: dict[str, Value]) -> tuple[Book, Value]:
    """Where the worst prices of the bar, all at once, break the margin, what trades is closed at the price where they do.

    With loss L from open to worst and gross G there, G + ΔG: E − λL = m(G + λΔG) gives λ = (E − mG)/(L + mΔG) of the way. For
    one long bought with leverage l at P that is P·(1 − 1/l)/(1 − m). It costs what any trade costs. What has no market stays
    to the close. Financing of the bar is due all the same. Also: in which portfolios, [B, A].
    """
    n, m = desk.n, desk.rules.maintenance
    low, high = begin.holdings * bar.low, begin.holdings * bar.high
    worst = n.where(begin.holdings > 0, low, high)
    losses, sizes = begin.holdings - worst, n.size(begin.holdings)
    loss, gross = n.total(losses), n.total(sizes)
    more = n.total(n.size(worst)) - gross
    hit = n.spread(begin.equity - loss < m * (gross + more))
    way = n.at_most(n.at_least((begin.equity - m * gross) / n.at_least(loss + m * more, 1e-9), 0.0), 1.0)
    closed = hit & closable(bar)
    sold = begin.holdings - n.spread(way) * losses
    cost = all_of(charges(desk, -sold * closed, bar, order))
    lost = n.total(n.where(closed, -n.spread(way) * losses, end.holdings - begin.holdings))
    change = lost - flows["intrabar"] - cost
    flows["intrabar"], flows["liquidation"] = lost, flows["liquidation"] - cost
    return Book(end.equity + change, end.holdings * n.no(closed)), hit
