"""A book kept by hand: units and cash, one portfolio, plain loops. It knows nothing of relatives, tapes or tensors."""

import math


def ledger(bars, weights, fill="next_open", exact=False, cash=1000.0, **terms):
    """Equity at every close, and units at the end.

    bars: dicts of open, close, can, luck, funding (per asset), years; idle and idle_funding are those before the open.
    """
    order = {"next_open": ("wait", "trade", "finance"), "same_close": ("trade", "wait", "finance")}
    units, curve = [0.0] * len(bars[0]["close"]), []
    for now, then, wanted in zip(bars, bars[1:], weights, strict=False):
        at = {"next_open": then["open"], "next_close": then["close"], "same_close": now["close"]}[fill]
        for event in order.get(fill, ("wait", "finance", "trade")):
            if event == "wait":
                cash += financing(units, cash, now["close"], then.get("idle", 0.0), then.get("idle_funding", [0.0] * 9), terms)
                continue
            if event == "finance":
                cash += financing(units, cash, then["open"], then["years"], then["funding"], terms)
                continue
            value = cash + worth(units, at)
            high, low = value, 0.0
            while exact and high - low > 1e-13 * value:  # what is left after costs, by halving
                middle = (low + high) / 2
                left = value - bill(orders(units, at, wanted, then, middle, terms), at, then, terms)
                low, high = (middle, high) if left > middle else (low, middle)
            traded = orders(units, at, wanted, then, high, terms)
            cash -= bill(traded, at, then, terms) + worth(traded, at)
            units = [q + x for q, x in zip(units, traded, strict=True)]
        curve.append(cash + worth(units, then["close"]))
    return curve, units


def worth(units, prices):
    return sum(q * p for q, p in zip(units, prices, strict=True))


def orders(units, prices, weights, bar, size, terms):
    """Units to buy, so that each asset is worth its weight of `size`."""
    found = []
    for q, p, w, can in zip(units, prices, weights, bar["can"], strict=True):
        wanted = w * size / p
        if terms.get("lot"):
            wanted = math.trunc(round(wanted / terms["lot"], 9)) * terms["lot"]
        small = abs(wanted - q) * p < max(terms.get("band", 0.0) * size, terms.get("least", 0.0))
        found.append(0.0 if small or not can else wanted - q)
    return found


def bill(traded, prices, bar, terms):
    """What is paid beyond the mid price: buyers pay more, sellers get less, and the fee is on that."""
    total = 0.0
    for x, p, u in zip(traded, prices, bar["luck"], strict=True):
        worse = terms.get("spread", 0.0) + terms.get("slip", 0.0) * u + terms.get("impact", 0.0) * math.sqrt(abs(x) * p)
        paid = p * (1 + worse) if x > 0 else p * (1 - worse)
        total += x * paid - x * p + terms.get("fee", 0.0) * abs(x) * paid
    return total


def financing(units, cash, prices, years, funding, terms):
    """Interest on cash and on shorts by elapsed time, and funding."""
    values = [q * p for q, p in zip(units, prices, strict=True)]
    interest = terms.get("credit", 0.0) * max(cash, 0.0) + terms.get("debit", 0.0) * min(cash, 0.0)
    interest += terms.get("borrow", 0.0) * sum(min(v, 0.0) for v in values)
    return interest * years - sum(v * f for v, f in zip(values, funding, strict=False))
