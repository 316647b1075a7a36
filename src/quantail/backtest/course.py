"""Where a policy is judged: a stretch of a market, lived through once, from cash at its beginning to its last bar.

Every policy walks the same course: same bars, same fills, same costs. One that decides for itself gets observations
(`Course.env`), one whose decisions are known is told them (`Course.told`). Decisions at rows d … d + T − 1 earn the T returns
of the rows after them; what lies before row d may be known, and may have warmed a memory, but earns nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from quantail.backtest.series import Floats, Times
from quantail.envs.base import TensorEnv
from quantail.envs.running import ObserveGained
from quantail.errors import InputError
from quantail.market.actions import Wanted, limited
from quantail.market.costs import Costs, scaled
from quantail.market.env import MarketEnv
from quantail.market.series import Bars
from quantail.market.world import Recorded, Synthetic, World
from quantail.types import Box

LEAST = 2  # periods


class Told(MarketEnv):
    """A market that is told weights of equity [B, A] in place of actions; NaN leaves an asset as it is."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.action_space = Box((self.assets,))

    def first_mask(self, state: Any) -> None:
        """Nobody chooses here."""
        return None

    def _wanted(self, action: Tensor) -> Wanted:
        """The orders, as one asset or several have them, within what an agent may hold."""
        orders = action[:, 0] if self.assets == 1 else action
        capped = self.rules.max_weight is not None or self.rules.max_net is not None
        weights = orders.nan_to_num(0.0)
        return Wanted(limited(self.desk.n, self.rules, weights) if capped else weights, orders.isnan())


@dataclass(frozen=True, eq=False)
class Course:
    """A stretch of T periods of P paths with A assets each."""

    market: MarketEnv  # P portfolios that begin with cash at the close of row d
    wrapped: Callable[[MarketEnv], TensorEnv]  # what the agent sees beside
    before: MarketEnv | None  # the bars up to row d, in which a memory may be warmed
    bars: Bars  # [R, P·A] up to the last row, those before the stretch included
    first: int  # row d

    @property
    def env(self) -> TensorEnv:
        """The market as an agent sees it."""
        return self.wrapped(self.market)

    @property
    def periods(self) -> int:
        """T."""
        return len(self.bars) - 1 - self.first

    @property
    def paths(self) -> int:
        """P."""
        return self.market.num_envs

    @property
    def times(self) -> Times:
        """When each period ends, [T] nanoseconds."""
        stamps: Times = self.bars.end[self.first + 1 :].cpu().numpy()
        return stamps

    @property
    def periods_per_year(self) -> float:
        """Of these bars, the ones before included: a short stretch alone is at the mercy of its weekends."""
        return self.bars.bars_per_year

    @property
    def closes(self) -> Floats:
        """[R, P, A] the last price known at each row; that of the first bar before it is known."""
        close = self.bars.close.cpu().numpy().astype(np.float64)
        close = close.reshape(len(close), self.paths, -1)
        return forward_filled(close)

    def told(self, copies: int = 1, costs: Costs | None = None) -> Told:
        """The same stretch for policies whose orders are known: path p is that of portfolios p·copies … (p + 1)·copies − 1."""
        one = self.market
        return Told(
            self.paths * copies,
            one.world,
            costs=costs or one.costs,
            rules=one.rules,
            reward=replace(one.reward, kind="log_return"),
            episode=replace(one.episode, parts=("weights",)),
        )

    def at_cost(self, factor: float) -> Costs:
        """Its costs, the trading ones times a factor."""
        return scaled(self.market.costs, factor)


def course(env: TensorEnv, rows: range | None = None, memory: int = 0) -> Course:
    """The stretch in which the returns of these rows are earned; of all rows if none are named.

    env: a `MarketEnv`, or one wrapped to show what was gained. Its starts and length do not matter, nor how many portfolios it
    has. `rows` and `memory`, so many rows before the first decision in which a memory is warmed, are for recorded bars.
    """
    market, wrapped = peeled(env)
    world = market.world
    if isinstance(world, Recorded):
        return recorded(market, world, wrapped, rows, memory)
    if not isinstance(world, Synthetic):
        raise InputError(f"the market is a {type(world).__name__}; needs Recorded or Synthetic bars to be judged in")
    if rows is not None or memory:
        raise InputError(f"rows={rows}, memory={memory} of a synthetic market; it is judged whole: leave them out")
    drawn, _ = world.drawn(0, market.device)
    whole = along(market, world, world.paths)
    first = int(whole.ground.starts[0]) - 1
    enough(len(drawn) - 1 - first)
    return Course(whole, wrapped, None, drawn, first)


def recorded(
    market: MarketEnv, world: Recorded, wrapped: Callable[[MarketEnv], TensorEnv], rows: range | None, memory: int
) -> Course:
    """A stretch of bars that happened."""
    warmup, inside = world.features.warmup, world.within or range(len(world.history))
    rows = range(max(warmup, inside.start) + 1, inside.stop) if rows is None else rows
    first = rows.start - 1
    if rows.step != 1 or not warmup <= first or rows.stop > len(world.history):
        raise InputError(
            f"rows {rows.start} to {rows.stop} are to be judged of {len(world.history)} bars whose features are warm from row "
            f"{warmup} on; needs rows from {warmup + 1} to {len(world.history)}, one after the other"
        )
    enough(len(rows))
    begin = max(first - memory, warmup)
    before = along(market, replace(world, within=range(begin, first + 1)), 1) if begin < first else None
    whole = along(market, replace(world, within=range(first, rows.stop)), 1)
    return Course(whole, wrapped, before, world.history.rows(0, rows.stop), first)


def along(market: MarketEnv, world: World, paths: int) -> MarketEnv:
    """The market's terms over a whole stretch, once: fixed start, cash, the same costs for all.

    Time left is shown as it was in training, as a share of an episode there.
    """
    episode = market.episode
    return MarketEnv(
        paths,
        world,
        costs=replace(market.costs, randomized_from=1.0, randomized_to=1.0),
        rules=market.rules,
        reward=market.reward,
        episode=replace(episode, length=0, starts="fixed", random_position=False, horizon=episode.horizon or episode.length),
        dtype=market.dtype,
        device=market.device,
    )


def peeled(env: TensorEnv) -> tuple[MarketEnv, Callable[[MarketEnv], TensorEnv]]:
    """The market inside, and how to wrap another like it."""
    if isinstance(env, MarketEnv):
        return env, lambda market: market
    if isinstance(env, ObserveGained) and isinstance(env.env, MarketEnv):
        window = env.window_rows
        return env.env, lambda market: ObserveGained(market, window)
    raise InputError(f"{type(env).__name__} is no market; an honest backtest needs a MarketEnv, whose every cost is known")


def enough(periods: int) -> None:
    """A stretch must be lived in."""
    if periods < LEAST:
        raise InputError(f"the stretch has {periods} periods; needs at least {LEAST}: give more bars")


def forward_filled(prices: Floats) -> Floats:
    """[R, P, A] with the last number where there is none, the first one in front of it."""
    known = np.isfinite(prices) & (prices > 0)
    row = np.where(known, np.arange(len(prices))[:, None, None], 0)
    row = np.maximum.accumulate(row)
    row = np.maximum(row, known.argmax(axis=0))
    filled: Floats = np.take_along_axis(prices, row, axis=0)
    return filled
