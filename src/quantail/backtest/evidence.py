"""All that is to be known of an agent before anything is said about it: gathered once, on one course or on several in a row.

Beside the agent's own record stand what it would have been at other costs, one bar too late, with draws from its policy, and in
a market in which nothing can be known; the baselines; and its weights in another order. Of several stretches, as a walk forward
has them, each is lived through by itself, from cash to its end, and the returns are joined: to begin anew has its price.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np

from quantail.backtest import baselines
from quantail.backtest.baselines import Rival
from quantail.backtest.course import Course
from quantail.backtest.null import null_course
from quantail.backtest.series import Floats, Times
from quantail.backtest.steps import Player
from quantail.backtest.track import Predicted, Track, play, told
from quantail.backtest.verdict import Asked, Verdict, judge
from quantail.errors import InputError

MULTIPLES = (0.0, 1.0, 2.0, 4.0)  # of the trading costs
R = TypeVar("R", Track, Rival)


class Stage(NamedTuple):
    """A stretch, and who walks it: the seeds of one training, in the same order on every stretch."""

    course: Course
    players: Sequence[Player]


@dataclass(frozen=True, eq=False)
class Evidence:
    """What was gathered; N stretches joined to T periods of P paths."""

    tracks: tuple[Track, ...]  # of each seed, the mode of its policy
    sampled: Track  # of the first seed, draws from it
    rivals: Mapping[str, Rival]
    shuffles: tuple[Floats, ...]  # [T, P, S] of each seed
    at_costs: Mapping[float, Floats]  # multiple of the trading costs -> net returns [T, P] of the first seed's orders
    late: Floats  # [T, P] net returns of the first seed's orders, one bar too late
    null: Track | None  # the first seed where nothing can be known; None where such a market cannot be made
    borders: Times  # [N - 1] where stretches meet, nanoseconds
    asked: Asked
    verdict: Verdict


def gather(stages: Sequence[Stage], asked: Asked | None = None, seed: int = 0) -> Evidence:
    """Let everybody walk every stretch, and judge."""
    check_stages(stages)
    asked = asked or Asked()
    first = stages[0].course.market
    if first.rules.warning not in asked.warning:
        asked = replace(asked, warning=f"{first.rules.warning} {asked.warning}".strip())
    found = [_on(stage, seed) for stage in stages]
    tracks = tuple(joined(one.tracks[i] for one in found) for i in range(len(stages[0].players)))
    rivals = {name: joined(one.rivals[name] for one in found if name in one.rivals) for name in found[0].rivals}
    shuffles = tuple(np.concatenate([one.shuffles[i] for one in found]) for i in range(len(tracks)))
    empty = null_course(stages[-1].course)
    return Evidence(
        tracks=tracks,
        sampled=joined(one.sampled for one in found),
        rivals=rivals,
        shuffles=shuffles,
        at_costs={factor: np.concatenate([one.at_costs[factor] for one in found]) for factor in MULTIPLES},
        late=np.concatenate([one.late for one in found]),
        null=None if empty is None else play(empty, stages[-1].players[0], "null market", seed=seed),
        borders=np.array([stage.course.times[0] for stage in stages[1:]], dtype=np.int64),
        asked=asked,
        verdict=judge(tracks, rivals, shuffles, asked),
    )


class _Found(NamedTuple):
    """On one stretch."""

    tracks: tuple[Track, ...]
    sampled: Track
    rivals: Mapping[str, Rival]
    shuffles: tuple[Floats, ...]
    at_costs: Mapping[float, Floats]
    late: Floats


def _on(stage: Stage, seed: int) -> _Found:
    course, players = stage
    tracks = tuple(play(course, player, f"seed {i}" if i else "agent", seed=seed) for i, player in enumerate(players))
    orders = tracks[0].orders
    late = np.concatenate([np.full_like(orders[:1], np.nan), orders[:-1]])
    return _Found(
        tracks,
        play(course, players[0], "agent, drawn", deterministic=False, seed=seed),
        baselines.rivals(course, seed),
        tuple(baselines.shuffled(course, track, seed) for track in tracks),
        {factor: tracks[0].net if factor == 1.0 else told(course, orders, "", factor).net for factor in MULTIPLES},
        told(course, late, "one bar late").net,
    )


# --- joining stretches ------------------------------------------------------------------------------------------------


def joined(parts: Iterable[R]) -> R:
    """Records of stretches that follow each other, as one. Only the first entry of `prices` is kept."""
    every = list(parts)
    first = every[0]
    if len(every) == 1:
        return first
    changed = {}
    for name, value in vars(first).items():
        values = [vars(one)[name] for one in every]
        if name == "ruined":
            changed[name] = np.any(values, axis=0)
        elif name == "prices":
            changed[name] = linked(values)
        elif isinstance(value, np.ndarray):
            changed[name] = np.concatenate(values)
        elif isinstance(value, Mapping):
            changed[name] = {part: np.concatenate([one[part] for one in values]) for part in value}
        elif isinstance(value, Predicted):
            changed[name] = predictions(values)
    return replace(first, **changed)


def linked(prices: Sequence[Floats]) -> Floats:
    """Prices [T_i + 1, P, A] as one curve: each moved to where the one before has ended, so that nothing moves in between."""
    whole = prices[0]
    for part in prices[1:]:
        whole = np.concatenate([whole, part[1:] * (whole[-1] / part[0])])
    return whole


def predictions(parts: Sequence[Predicted]) -> Predicted:
    """What was said on all stretches."""
    rows = {name: np.concatenate([vars(one)[name] for one in parts]) for name in ("quantiles", "realised", "judged")}
    return Predicted(parts[0].levels, **rows, gamma=parts[0].gamma)


def check_stages(stages: Sequence[Stage]) -> None:
    """Stretches in order of time, with the same number of paths and seeds."""
    if not stages or not all(stage.players for stage in stages):
        raise InputError(f"{len(stages)} stretches, some without an agent; needs at least one with one")
    counts = {(len(stage.players), stage.course.paths, stage.course.market.assets) for stage in stages}
    if len(counts) > 1:
        raise InputError(f"stretches differ in (seeds, paths, assets): {sorted(counts)}; needs the same on all of them")
    for before, after in pairwise(stages):
        if after.course.times[0] <= before.course.times[-1]:
            raise InputError("a stretch begins before the one before it has ended; give them in order of time")
