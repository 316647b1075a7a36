"""One row of an episode, the same for tensors and for plain numbers: a bar settled, rewarded, shown and told."""

from typing import Any, NamedTuple

from quantail.market import rewards
from quantail.market.account import all_of, settle
from quantail.market.desk import Bar, Book, Desk, Flows, Order
from quantail.market.numbers import Value
from quantail.market.terms import Episode, Reward

# In which order a bar changes equity, by the clock.
SEQUENCE = {
    "next_open": ("overnight", "gap", "cost", "intrabar", "financing", "liquidation"),
    "same_close": ("cost", "overnight", "gap", "intrabar", "financing", "liquidation"),
    "next_close": ("overnight", "gap", "intrabar", "financing", "liquidation", "cost"),
}
COSTS = ("fee", "spread", "impact", "slippage")
FARTHEST = 10.0  # times the leverage: drift makes more of a weight only where next to nothing is left


class Portfolio(NamedTuple):
    """The state: where each portfolio is in its data, and what it owns. What no rule asks for stays as it began."""

    row: Value  # [B] int64 of the tape
    stop: Value  # [B] int64: the row at which the episode is cut off
    done: Value  # [B] bool: the step before finished the episode, so the next row starts a new one
    equity: Value  # [B] float64
    holdings: Value  # [B, A] float64, or [B] of one asset
    peak: Value  # [B] float64, the highest equity so far
    wait: Value  # [B, A] int64, or [B]: bars until the asset may be traded again
    episodes: Value  # [B] int64 begun before this one
    cost_factor: Value  # [B] float64
    mean: Value  # [B] float64, and
    square: Value  # [B] float64: memory of a differential reward


class Lived(NamedTuple):
    """What one bar did."""

    after: Portfolio
    reward: Value  # [B]
    growth: Value  # [B] ln(E'/E)
    terminated: Value  # [B] bool
    truncated: Value  # [B] bool
    open: Value  # [B, A] bool: which assets could be traded
    flows: Flows


class Terms(NamedTuple):
    """What an environment was asked for, beside its rules and costs."""

    reward: Reward
    episode: Episode
    longest: int  # rows of an episode, of which the time that is left is a share
    financed: bool  # whether anything is paid for holding
    waited: bool = False  # whether also between two bars


def live(desk: Desk, terms: Terms, begun: Portfolio, bar: Bar, order: Order) -> Lived:
    """From one row to the next."""
    n, rules, reward = desk.n, desk.rules, terms.reward
    open_ = bar.can
    if rules.cooldown:
        resting = begun.wait > 0
        order = order._replace(stay=resting if order.stay is None else resting | order.stay)
        open_ = open_ & n.no(resting)
    book, flows = settle(desk, Book(begun.equity, begun.holdings), bar, order)
    growth = rewards.log_growth(n, book.equity, begun.equity)
    peak = n.larger(begun.peak, book.equity)
    terminated = book.equity <= rules.ruin * terms.episode.equity
    change = rewards.Earned(growth, growth, terminated)
    if reward.kind == "drawdown":
        change = change._replace(deeper=begun.equity / begun.peak - book.equity / peak)
    elif reward.kind not in ("log_return", "mean_variance"):
        change = change._replace(simple=book.equity / begun.equity - 1, market=bar.market)
    earned, memory = rewards.rewarded(n, reward, change, rewards.Memory(begun.mean, begun.square))
    after = begun._replace(
        row=begun.row + 1,
        equity=book.equity,
        holdings=book.holdings,
        peak=peak,
        mean=memory.mean,
        square=memory.square,
    )
    if rules.cooldown:
        after = after._replace(wait=n.larger((flows.traded != 0) * rules.cooldown, n.at_least(begun.wait - 1, 0)))
    truncated = (after.row >= begun.stop) & n.no(terminated)
    return Lived(after, earned, growth, terminated, truncated, open_, flows)


def own_columns(desk: Desk, terms: Terms) -> int:
    """Columns of an observation that the portfolio fills."""
    parts = terms.episode.parts
    wide = desk.assets * (1 + (desk.rules.cooldown > 0)) if "weights" in parts else 0
    return wide + sum(part in parts for part in ("return", "drawdown", "time")) + 2 * terms.reward.remembers


def own_view(desk: Desk, terms: Terms, state: Portfolio) -> list[Value]:
    """Those columns, [B] each: weights, bars to wait, log return so far, drawdown, time left, memory of the reward."""
    n, parts = desk.n, terms.episode.parts
    columns: list[Value] = []
    if "weights" in parts:
        columns += n.each(weights(desk, state))
        if desk.rules.cooldown:
            columns += n.each(n.real(state.wait) / desk.rules.cooldown)
    if "return" in parts:
        columns.append(rewards.log_growth(n, state.equity, terms.episode.equity))
    if "drawdown" in parts:
        columns.append(state.equity / state.peak - 1)
    if "time" in parts:
        left = n.real(state.stop - state.row) / terms.longest
        columns.append(n.at_most(left, 1.0) if terms.episode.horizon else left)
    if terms.reward.remembers:
        columns += [state.mean / n.root(state.square), 0.5 * n.log(state.square)]
    return columns


def weights(desk: Desk, state: Portfolio) -> Value:
    """Holdings as shares of equity, [B, A] or [B] of one asset."""
    return desk.n.share(state.holdings, desk.n.spread(state.equity), farthest(desk))


def farthest(desk: Desk) -> float:
    """What a share of equity is at most: where next to nothing is left, it says no more."""
    return FARTHEST * desk.rules.leverage


def told(desk: Desk, terms: Terms, begun: Portfolio, lived: Lived) -> dict[str, Value]:
    """Every factor of the equity change; the parts of the cost, of the equity traded on; turnover, leverage, equity."""
    n, costs, flows = desk.n, desk.costs, lived.flows
    there = {"impact": costs.impact_y, "slippage": costs.slippage_bps, "financing": terms.financed}
    there |= {"liquidation": desk.rules.maintenance, "overnight": terms.waited}
    parts = [name for name in COSTS if there.get(name, True)]
    factors: dict[str, Value] = {}
    value: Any = begun.equity
    for name in SEQUENCE[desk.rules.fill]:
        if there.get(name, True):
            paid = all_of({part: getattr(flows, part) for part in parts}) if name == "cost" else getattr(flows, name)
            after = value + paid
            factors[name], value = n.ratio(after, value), after
    equity, most = lived.after.equity, farthest(desk)
    of_before = n.inverse(flows.before)
    factors |= {name: n.within(getattr(flows, name) * of_before, most) for name in parts}
    factors["turnover"] = n.within(n.total(n.size(flows.traded)) * of_before, most)
    factors["leverage"] = n.share(n.total(n.size(lived.after.holdings)), equity, most)
    factors["equity"] = equity
    return factors
