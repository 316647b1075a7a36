"""What lies on a trader's desk: the book, the bar that comes, the order for it, where money went, and the rules.

B portfolios, A assets; `numbers.py` says what values may be.
"""

from typing import Any, NamedTuple

from quantail.market.costs import Costs
from quantail.market.numbers import Numbers, Value
from quantail.market.terms import Rules


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
    years: Any = None  # [B] of the bar
    funding: Any = None  # [B, A] rate that falls due; > 0: longs pay
    impact: Any = None  # [B, A] ⅔·Y·σ_day/√ADV, so that impact is this times √|x|
    price: Any = None  # [B, A] at the fill
    closes: Any = None  # [B, A] bool: whether it trades between open and close, if `can` is about another bar
    most: Any = None  # [B, A] of currency: no trade is larger
    gone: Any = None  # [B, A] bool: the asset exists no more, and the gap leads to the price at which it went
    idle_years: Any = None  # [B] from the close that was seen to the open; `years` then begin there
    idle_funding: Any = None  # [B, A] rate that falls due meanwhile
    market: Any = None  # [B] mean return of the assets that have a bar


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
    overnight: Value = 0.0
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
