"""What an agent has to be compared with: simple policies, each through the same market with the same costs.

Each is a rule that turns the closes of all rows, those before the course included, into orders; row t uses closes up to t.
Rules for one asset are applied to each of several, with an A-th of the equity. Beside them stand the agent's own weights in
another order: what luck with the same exposure, the same turnover and the same holding times would have earned.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from quantail.backtest.course import Course
from quantail.backtest.known import strongest
from quantail.backtest.series import Floats
from quantail.backtest.track import Track, as_orders, told_returns
from quantail.market import policies
from quantail.market.actions import sides

HOLD, CASH = "buy & hold", "cash"
MOMENTUM = (20, 60, 120, 250)  # bars looked back
RANDOM = 10  # seeds of the policy that draws -1, 0 or 1 anew in each bar
PORTFOLIOS = 2048  # of which shuffled orders are carried out, at least so many over all paths; never fewer than LEAST each
LEAST_SHUFFLES = 4
MOST_SHUFFLES = 200

Rule = Callable[[Tensor, float], Tensor]  # closes [R, N], bars per year -> weights [R, N] in [-1, 1], or more


@dataclass(frozen=True, eq=False)
class Rival:
    """A policy on the course, in brief."""

    name: str
    net: Floats  # [T, P] simple returns after all costs
    turnover: Floats  # [T, P] Σ|traded| of equity
    exposure: Floats  # [T, P] Σ|w| at the end of each period
    cost: Floats  # [T, P] share of equity that trading took


def momentum_of(bars: int, flat: bool) -> Rule:
    """With the sign of the return over the last bars; long or flat, if it may not go short."""

    def rule(close: Tensor, year: float) -> Tensor:
        weights = policies.momentum(close, bars)
        return weights.clamp(min=0.0) if flat else weights

    return rule


RULES: Mapping[str, Rule] = {
    "vol-target 15 %": policies.vol_target,
    **{f"momentum {n}": momentum_of(n, flat=False) for n in MOMENTUM},
    **{f"momentum {n}, long or flat": momentum_of(n, flat=True) for n in MOMENTUM},
    "reversal 5": lambda close, year: policies.reversal(close),
}


def rivals(course: Course, seed: int = 0) -> dict[str, Rival]:
    """Every baseline by name; those of a market whose truth is known with the strongest policies in it."""
    orders = {HOLD: held(course), CASH: np.zeros(shape_of(course)), **constants(course), **ruled(course)}
    orders |= {f"random, seed {i}": drawn(course, seed + i) for i in range(RANDOM)}
    orders |= {known.name: as_orders(course, known.weights) for known in strongest(course)}
    return walked(course, orders)


def walked(course: Course, orders: Mapping[str, Floats]) -> dict[str, Rival]:
    """All of these orders [T, P, A] carried out side by side."""
    together = np.stack(list(orders.values()), axis=2)  # [T, P, K, A]
    periods, paths, count, assets = together.shape
    found = told_returns(course, together.reshape(periods, paths * count, assets), count)
    each = {part: values.reshape(periods, paths, count) for part, values in found.items()}
    return {
        name: Rival(
            name,
            net=each["net"][..., i].copy(),
            turnover=each["turnover"][..., i].copy(),
            exposure=each["leverage"][..., i].copy(),
            cost=1 - each["cost"][..., i],
        )
        for i, name in enumerate(orders)
    }


def shape_of(course: Course) -> tuple[int, int, int]:
    """[T, P, A]."""
    return course.periods, course.paths, course.market.assets


# --- rules ------------------------------------------------------------------------------------------------------------


def held(course: Course) -> Floats:
    """Everything at once, an A-th of the equity in each asset, and never again."""
    orders = np.full(shape_of(course), np.nan)
    orders[0] = min(1.0, course.market.rules.leverage) / course.market.assets
    return orders


def constants(course: Course) -> dict[str, Floats]:
    """Every weight that an agent could ask for again and again: the levels of a grid, else −1 and 1; of several assets 1/N."""
    rules, assets = course.market.rules, course.market.assets
    levels = set(rules.levels) if rules.actions == "grid" else {rules.leverage, rules.leverage * sides(rules)[0]}
    return {
        f"always {level:+g}" + (f", 1/{assets} each" if assets > 1 else ""): np.full(shape_of(course), level / assets)
        for level in sorted(levels - {0.0})
    }


def ruled(course: Course) -> dict[str, Floats]:
    """What `RULES` make of the closes."""
    closes, assets = course.closes, course.market.assets
    flat = torch.from_numpy(closes.reshape(len(closes), -1))
    made = {name: rule(flat, course.periods_per_year) for name, rule in RULES.items()}
    return {name: as_orders(course, weights / assets) for name, weights in made.items()}


def drawn(course: Course, seed: int) -> Floats:
    """−1, 0 or 1 anew in each bar for each asset; 0 or 1 where an agent could not go short either."""
    low, high = sides(course.market.rules)
    luck = np.random.default_rng([seed, 11]).integers(round(low), round(high) + 1, shape_of(course))
    return luck / course.market.assets


# --- the agent's own weights, in another order ------------------------------------------------------------------------


def shuffled(course: Course, track: Track, seed: int = 0) -> Floats:
    """Net returns of the agent's own orders in another order: [T, P, S].

    Each path's orders are cut once at a random row, and the later part comes first: the same weights, held as long and traded
    as often, in other bars. Whoever earns no more than this has timed nothing. Cutting them into many pieces would add trades,
    and let costs pass for skill.
    """
    periods, paths, assets = shape_of(course)
    count = int(np.clip(PORTFOLIOS // paths, LEAST_SHUFFLES, MOST_SHUFFLES))
    cuts = np.random.default_rng([seed, 12]).integers(1, periods, (paths, count))
    rows = (np.arange(periods)[:, None, None] + cuts) % periods  # [T, P, S]
    settled = whole_orders(track)
    orders = np.where(
        (rows == cuts)[..., None], settled[rows, np.arange(paths)[:, None]], track.orders[rows, np.arange(paths)[:, None]]
    )
    found = told_returns(course, orders.reshape(periods, paths * count, assets), count)
    return found["net"].reshape(periods, paths, count)


def whole_orders(track: Track) -> Floats:
    """The orders with what was held in place of "nothing to be done": how one may begin in the middle of them."""
    before = np.concatenate([np.zeros_like(track.weights[:1]), track.weights[:-1]])
    return np.where(np.isnan(track.orders), before, track.orders)
