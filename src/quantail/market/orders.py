"""From the weights that are wanted to what is bought: within lots, smallest amounts, the market's volume, and limits.

No trade carries a portfolio beyond a limit: after it, Σ|h| ≤ max(L·E, Σ|h| before), and so for |Σh| and each |h|; drift may.
What cannot be traded, or is too small to be, may leave too little room for the rest: then positions grow only by the share
for which there is room, and shrink as was asked. Lots and smallest amounts hold after that too. Source: definition.
"""

from quantail.market.desk import Bar, Desk, Order
from quantail.market.numbers import Numbers, Value
from quantail.market.terms import Rules

ROUNDING = 1e-12  # relative: what is a whole lot but for the last digits is one
SLACK = 1e-7  # of a lot, in differences of positions
LEAST = 1e-9  # of currency: below it nothing is left to share


def orders(desk: Desk, holdings: Value, bar: Bar, order: Order, equity: Value) -> Value:
    """What is bought, per asset in currency; lots are cut towards 0."""
    n, rules = desk.n, desk.rules
    unit = n.spread(equity)
    cap = rules.cap(desk.assets == 1)
    wanted = (order.weights if cap is None else n.within(order.weights, cap)) * unit
    lot = rules.lot_size * bar.price if rules.lot_size else None
    if lot is not None:
        wanted = n.truncate(wanted / lot * (1 + ROUNDING)) * lot
    traded = wanted - holdings
    allowed = bar.can if order.stay is None else bar.can & n.no(order.stay)
    traded = traded * (allowed & large(n, rules, traded, unit) if rules.band or rules.min_notional else allowed)
    if bar.most is not None:
        most = bar.most if lot is None else n.truncate(bar.most / lot * (1 + ROUNDING)) * lot
        traded = n.larger(-n.larger(-traded, -most), -most)
        traded = traded if not rules.min_notional else traded * (n.size(traded) >= rules.min_notional)
    if desk.assets == 1:
        return traded
    if rules.max_net is not None:
        traded = balanced(n, rules.max_net * equity, holdings, traded, lot)
    traded = grown(n, rules.leverage * equity, holdings, traded, lot)
    if rules.band or rules.min_notional:
        traded = traded * large(n, rules, traded, unit)
    return traded if rules.max_net is None else within(n, rules.max_net * equity, holdings, traded)


def large(n: Numbers, rules: Rules, traded: Value, unit: Value) -> Value:
    """Whether a trade is worth making: not inside the band, not below the smallest amount."""
    enough = n.size(traded) >= rules.band * unit
    return enough & (n.size(traded) >= rules.min_notional) if rules.min_notional else enough


def grown(n: Numbers, limit: Value, holdings: Value, traded: Value, lot: Value | None) -> Value:
    """Positions grow by the share for which there is room below the limit [B] of Σ|h|, once others have shrunk as asked."""
    after = holdings + traded
    if n.known(n.total(n.size(after)) <= limit):
        return traded
    growth = n.at_least(n.size(after) - n.size(holdings), 0.0)
    room = n.at_least(limit - n.total(n.size(after) - growth), 0.0)
    share = n.spread(n.at_most(room * (1 + ROUNDING) / n.at_least(n.total(growth), LEAST), 1.0))
    kept = growth * share
    if lot is not None:
        kept = n.where(share < 1.0, n.truncate(kept / lot + SLACK) * lot, kept)
    return traded - ((after > 0) * 2.0 - 1.0) * (growth - kept)


def balanced(n: Numbers, limit: Value, holdings: Value, traded: Value, lot: Value | None) -> Value:
    """Fewer buys where Σh would lie above the limit [B], fewer sales where below its negative."""
    net = n.total(holdings + traded)
    for side in (1.0, -1.0):
        part = n.at_least(side * traded, 0.0)
        over = n.at_least(side * net - limit, 0.0)
        share = n.spread(n.at_least(1.0 - over / n.at_least(n.total(part), LEAST), 0.0))
        kept = part * share
        if lot is not None:
            kept = n.where(share < 1.0, n.truncate(kept / lot + SLACK) * lot, kept)
        traded = traded - side * (part - kept)
    return traded


def within(n: Numbers, limit: Value, holdings: Value, traded: Value) -> Value:
    """Nothing at all where |Σh| would still lie beyond its limit, and farther out than it is: such an order is refused."""
    before, after = n.size(n.total(holdings)), n.size(n.total(holdings + traded))
    return traded * n.spread((after <= limit * (1 + 1e-9)) | (after <= before))
