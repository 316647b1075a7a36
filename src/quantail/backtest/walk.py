"""Learning and being judged again and again, each time on bars that came later than what was learned from.

    learn = trained(config)                                            # or a function of yours: market, number -> Player
    plan = splits.walk_forward(rows=len(bars), train=1000, test=250, purge=60)
    evidence = forward(env, learn, plan)                               # one stitched curve, judged like any other

`forward` is what could have been done: nothing later is ever seen, features are measured in units of each training window, and
a memory is warmed on bars of the past alone. A `Player` in place of `learn` is walked as it is, without learning anew. `folds`
and `histories` learn on both sides of what they judge: they compare settings, and nobody could have traded them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from quantail.backtest.course import course, peeled
from quantail.backtest.evidence import Evidence, Stage, gather, joined
from quantail.backtest.splits import Combinations, Rows, Split
from quantail.backtest.track import Player, Track, play
from quantail.backtest.verdict import Asked
from quantail.config import Config
from quantail.envs.base import TensorEnv
from quantail.errors import InputError
from quantail.loop import train
from quantail.market.env import MarketEnv
from quantail.market.normalise import fit
from quantail.market.tape import Needs
from quantail.market.terms import Episode
from quantail.market.world import Ground, Recorded

Learn = Callable[[TensorEnv, int], Player]  # a market to learn in, and the number of the training -> what has learned

MEMORY = 256  # bars before a test in which a memory is warmed


@dataclass(frozen=True, eq=False)
class Pieces(Recorded):
    """Recorded bars of which some runs of rows are learned from: no episode leaves its run."""

    runs: tuple[range, ...] = ()

    def lay(self, needs: Needs, episode: Episode, dtype: torch.dtype, device: torch.device) -> Ground:
        """The bars once, and starts in each run that is long enough."""
        whole = super().lay(needs, replace(episode, length=1), dtype, device)
        warm = [range(max(run.start, self.features.warmup), run.stop) for run in self.runs]
        room = max(map(len, warm)) - 1
        if room < 1:
            raise InputError(f"the runs {self.runs} lie in the warm-up of {self.features.warmup} rows; needs longer ones")
        length = min(episode.length or room, room)
        starts = torch.cat([1 + torch.arange(run.start, run.stop - length, device=device) for run in warm if len(run) > length])
        return replace(whole, starts=starts, stops=starts + length, longest=length)


def trained(config: Config) -> Learn:
    """Learning by the settings of a run, without a folder: the same each time but for the bars."""

    def learn(env: TensorEnv, number: int) -> Player:
        *_, report = train(config, env)
        return Player(report.agent, report.carry.obs_moments, config, report.carry.scale)

    return learn


def forward(
    env: TensorEnv, learn: Learn | Player, plan: Sequence[Split], memory: int = MEMORY, asked: Asked | None = None
) -> Evidence:
    """Learn, leave a gap, be judged, move on; the tests' returns make one curve.

    env: a market of recorded bars; its terms are those of learning, and of judging all but starts and length. A `Player` walks
    the tests in one go, with its memory and its positions; one that learns anew begins each test with cash.
    """
    check_order(plan)
    if isinstance(learn, Player):
        rows = range(int(plan[0].test[0]), int(plan[-1].test[-1]) + 1)
        there = course(env, rows, memory)
        found = gather([Stage(there, [learn])], asked)
        begins = there.bars.end[[int(split.test[0]) for split in plan[1:]]]
        return replace(found, borders=begins.numpy())
    return gather([Stage(course(market, rows, memory), [player]) for market, rows, player in learned(env, learn, plan)], asked)


def folds(env: TensorEnv, learn: Learn, plan: Sequence[Split], memory: int = 0) -> Track:
    """Each fold judged once by who has learned from the others, as one record: of `splits.purged_kfold`."""
    return joined([play(course(market, rows, memory), player) for market, rows, player in learned(env, learn, plan)])


def histories(env: TensorEnv, learn: Learn, plan: Combinations, memory: int = 0) -> tuple[Track, ...]:
    """φ whole histories, each fold of each judged by who has not learned from it: of `splits.combinatorial`."""
    judged: dict[tuple[int, int], Track] = {}
    for i, (rows, tests) in enumerate(zip(plan.trains, plan.tests, strict=True)):
        market = learning(env, rows)
        player = learn(market, i)
        for fold in tests:
            judged[i, fold] = play(course(judging(env, market), stretch(env, plan.folds[fold]), memory), player)
    return tuple(joined([judged[int(i), fold] for fold, i in enumerate(path)]) for path in plan.paths)


# --- one training and its test ----------------------------------------------------------------------------------------


def learned(env: TensorEnv, learn: Learn, plan: Sequence[Split]) -> Iterator[tuple[TensorEnv, range, Player]]:
    """For each split the market to be judged in, the rows that are judged, and who has learned."""
    for i, split in enumerate(plan):
        market = learning(env, split.train)
        yield judging(env, market), stretch(env, split.test), learn(market, i)


def learning(env: TensorEnv, rows: Rows) -> TensorEnv:
    """The market with episodes in these rows alone, in units of these rows."""
    market, wrapped = peeled(env)
    world = of_record(market)
    runs = tuple(range(int(part[0]), int(part[-1]) + 1) for part in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1))
    units = None if world.units is None else fit(world.features, world.history, max(runs, key=len))
    if len(runs) == 1:
        inside = Recorded(world.history, world.features, world.tradable, runs[0], units)
    else:
        inside = Pieces(world.history, world.features, world.tradable, None, units, runs)
    return wrapped(like(market, inside, market.num_envs))


def judging(env: TensorEnv, learnt: TensorEnv) -> TensorEnv:
    """All bars of the market, in the units of what was learned from."""
    market, wrapped = peeled(env)
    whole = replace(of_record(market), within=None, units=peeled(learnt)[0].world.units)
    return wrapped(like(market, whole, 1))


def like(market: MarketEnv, world: Recorded, num_envs: int) -> MarketEnv:
    """The same terms on another part of the bars; episodes no longer than there is room."""
    episode = market.episode
    if world.within is not None:
        room = world.within.stop - 1 - max(world.within.start, world.features.warmup)
        episode = replace(episode, length=min(episode.length, room) if episode.length else 0)
    return MarketEnv(
        num_envs,
        world,
        costs=market.costs,
        rules=market.rules,
        reward=market.reward,
        episode=episode,
        dtype=market.dtype,
        device=market.device,
    )


def stretch(env: TensorEnv, rows: Rows) -> range:
    """The rows that are judged, from the first that can be: features must be warm at the close before."""
    warmup = of_record(peeled(env)[0]).features.warmup
    found = range(max(int(rows[0]), warmup + 1), int(rows[-1]) + 1)
    if len(found) < 2:
        raise InputError(f"rows {int(rows[0])} to {int(rows[-1])} lie in the warm-up of {warmup}; judge later ones")
    return found


def of_record(market: MarketEnv) -> Recorded:
    """Its bars; a synthetic market has no later and no earlier to be walked through."""
    if not isinstance(market.world, Recorded):
        raise InputError(f"the market is {type(market.world).__name__}; a walk needs recorded bars, in order of time")
    return market.world


def check_order(plan: Sequence[Split]) -> None:
    """What is learned from comes before what is judged, and tests follow each other."""
    if not plan:
        raise InputError("the plan holds no split; make one with splits.walk_forward")
    for i, split in enumerate(plan):
        if split.train[-1] >= split.test[0] or (i and split.test[0] != plan[i - 1].test[-1] + 1):
            raise InputError(
                f"split {i} learns up to row {split.train[-1]} and is judged from row {split.test[0]} on; needs tests behind "
                "what is learned from, one after the other, as splits.walk_forward makes them: see folds for others"
            )
