"""What a policy did on a course, bar by bar, in one frozen record: all figures, verdicts and charts are made of it.

The same agent on the same course gives the same record, to the last bit. T periods, P paths, A assets, K levels.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from quantail.backtest import steps
from quantail.backtest.course import Course
from quantail.backtest.series import Floats, Times
from quantail.backtest.steps import Player
from quantail.calibration import LEVELS
from quantail.errors import InputError
from quantail.market.portfolio import COSTS, SEQUENCE

SEEN = 0.98  # of a discounted sum that must lie within the course for the sum to be judged
FACTORS = SEQUENCE["next_open"]

__all__ = ["Player", "Predicted", "Track", "play", "told", "told_returns"]


@dataclass(frozen=True, eq=False)
class Predicted:
    """What the critics said would follow, and what did: discounted sums of rewards."""

    levels: Floats  # [K]
    quantiles: NDArray[np.float32]  # [T, P, K]
    realised: Floats  # [T, P]
    judged: NDArray[np.bool_]  # [T, P] whether nearly all of the sum lies within the course
    gamma: float


@dataclass(frozen=True, eq=False)
class Track:
    """A policy on a course."""

    name: str
    times: Times  # [T] nanoseconds: when each period ended
    periods_per_year: float
    net: Floats  # [T, P] simple returns after all costs; 0 after a ruin, which ends a portfolio
    gross: Floats  # [T, P] by prices alone
    factors: Mapping[str, Floats]  # gap, cost, intrabar, financing ... -> [T, P]; their product is 1 + net
    costs: Mapping[str, Floats]  # fee, spread, impact, slippage -> [T, P] of the equity traded on; negative
    orders: Floats  # [T, P, A] what was asked for at the close before; NaN: nothing
    weights: Floats  # [T, P, A] of equity, at the end of each period
    turnover: Floats  # [T, P] Σ|traded| of equity: a swap counts twice
    prices: Floats  # [T + 1, P, A] closes; the first is that of the first decision
    ruined: NDArray[np.bool_]  # [P]
    predicted: Predicted | None = None

    @property
    def market(self) -> Floats:
        """[T, P] mean simple return of the assets, close to close."""
        moves: Floats = (self.prices[1:] / self.prices[:-1] - 1).mean(axis=-1)
        return moves

    @property
    def paths(self) -> int:
        """P."""
        return int(self.net.shape[1])


def play(course: Course, player: Player, name: str = "agent", *, deterministic: bool = True, seed: int = 0) -> Track:
    """Let an agent walk the course: with the mode of its policy, or with draws from it on a stream of their own.

    Its memory is warmed on the bars before, if the course has any; what it does there earns nothing and moves no money.
    """
    walk = steps.Walk(player, course.env, deterministic, seed)
    steps.check_fits(player, walk.env)
    memory = player.agent.initial_memory(walk.env.num_envs)
    if course.before is not None:
        ground = course.before.ground
        rows = int(ground.stops[0] - ground.starts[0])
        memory = steps.Walk(player, course.wrapped(course.before), deterministic, seed + 1).rows(memory, rows, True)[1]
    raw, _ = walk.rows(memory, course.periods, course.before is None)
    return _track(name, course, raw, _predicted(raw, player))


def told(course: Course, orders: Floats, name: str, cost_factor: float = 1.0) -> Track:
    """Let orders [T, P, A] walk it: weights of equity to hold from the next fill on, NaN for nothing."""
    market = course.told(1, course.at_cost(cost_factor))
    return _track(name, course, steps.told_rows(market, checked_orders(course, orders, 1)), None)


def told_returns(course: Course, orders: Floats, copies: int = 1, cost_factor: float = 1.0) -> dict[str, Floats]:
    """Many policies at once, in brief: orders [T, P·copies, A] -> net, turnover, leverage, cost, [T, P·copies] each.

    Column p·copies + i is policy i on path p. `leverage` is Σ|w| at the end of each period.
    """
    market = course.told(copies, course.at_cost(cost_factor))
    raw = steps.told_rows(market, checked_orders(course, orders, copies), ("equity", "turnover", "leverage", "cost"))
    return {"net": net_returns(raw["equity"], raw["first_equity"]), **{name: raw[name] for name in BRIEF}}


BRIEF = ("turnover", "leverage", "cost")


def checked_orders(course: Course, orders: Floats, copies: int) -> Floats:
    """Orders of the right shape, no infinite ones, within the leverage that the rules allow."""
    shape = (course.periods, course.paths * copies, course.market.assets)
    if orders.shape != shape or np.isinf(orders).any():
        raise InputError(
            f"orders are {list(orders.shape)}, some infinite: {bool(np.isinf(orders).any())}; needs {list(shape)}: periods, "
            "portfolios, assets, and NaN for nothing"
        )
    limit = course.market.rules.leverage
    size = np.abs(orders).sum(axis=-1, keepdims=True, where=~np.isnan(orders))
    within: Floats = orders * np.minimum(1.0, limit / np.maximum(size, limit))
    return within


def net_returns(equity: Floats, first: Floats) -> Floats:
    """E_t/E_{t−1} − 1, not below −1; 0 after a ruin: equity [T, B], first [B] -> [T, B]."""
    before = np.concatenate([first[None], equity[:-1]])
    net: Floats = np.maximum(np.divide(equity, before, out=np.ones_like(equity), where=before > 0) - 1, -1.0)
    return net


# --- parts ------------------------------------------------------------------------------------------------------------


def _track(name: str, course: Course, raw: dict[str, Any], predicted: Predicted | None) -> Track:
    factors = {part: raw[part] for part in FACTORS if part in raw}
    return Track(
        name=name,
        times=course.times,
        periods_per_year=course.periods_per_year,
        net=net_returns(raw["equity"], raw["first_equity"]),
        gross=raw["gap"] * raw["intrabar"] - 1,
        factors=factors,
        costs={part: raw[part] for part in COSTS if part in raw},
        orders=raw["orders"],
        weights=raw["weights"],
        turnover=raw["turnover"],
        prices=course.closes[course.first :],
        ruined=raw["terminated"].any(axis=0),
        predicted=predicted,
    )


def _predicted(raw: dict[str, Any], player: Player) -> Predicted | None:
    """Discounted sums of what did follow each row, beside what was said of them: G_t = r_t + γ·G_{t+1}."""
    if "said" not in raw:
        return None
    gamma = player.config.ppo.gamma
    reward = raw["reward"] * player.config.input.reward_scale
    realised = np.zeros_like(reward)
    ahead = np.zeros_like(reward[0])
    for t in range(len(reward) - 1, -1, -1):
        ahead = realised[t] = reward[t] + gamma * ahead
    left = len(reward) - np.arange(len(reward))
    seen = (1 - gamma**left >= SEEN)[:, None] | raw["terminated"].any(axis=0)
    judged = seen & ~raw["dead"]
    return Predicted(np.asarray(LEVELS), raw["said"].astype(np.float32), realised, judged, gamma)


def as_orders(course: Course, weights: torch.Tensor | Floats) -> Floats:
    """Weights [R, P·A] or [R, P, A] that were decided at the closes of all rows, as orders of the course: [T, P, A]."""
    array = np.asarray(weights, dtype=np.float64)
    array = array.reshape(len(array), course.paths, course.market.assets)
    orders: Floats = array[course.first : course.first + course.periods]
    return orders
