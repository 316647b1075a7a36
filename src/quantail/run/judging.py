"""From the folder of a run to what may be said of its agent: the held-out part of its market, lived through once, and judged.

Whoever is judged on held-out bars is counted (`run.looks`): the best of many is less than it seems. The same agent once more is
no new look.
"""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from quantail import checkpoint as checkpoints
from quantail.backtest.course import Course, course
from quantail.backtest.differences import ratio
from quantail.backtest.evidence import Evidence, Stage, gather
from quantail.backtest.report.about import About
from quantail.backtest.track import Player
from quantail.backtest.verdict import Asked, judge
from quantail.checkpoint import Checkpoint
from quantail.errors import RunError
from quantail.market.env import MarketEnv
from quantail.market.make import NAME, on_part
from quantail.market.world import Recorded
from quantail.monitor.health import replay
from quantail.monitor.sinks import METRICS_FILE, read_rows
from quantail.nets.agent import Agent
from quantail.registry import observed
from quantail.run import folder as folders
from quantail.run.looks import counted, hold_out
from quantail.types import Scale

WARM = 256  # bars before the part in which a memory is warmed
LOG = logging.getLogger("quantail.run")


class Judgement(NamedTuple):
    """What was found, and what it is about."""

    evidence: Evidence
    about: About


def judged(folder: Path, checkpoint: str = "best", part: str = "test", seeds: Sequence[Path] = ()) -> Judgement:
    """Play the run's agent, and those of other `seeds` of it, on a part of its market, and judge them together."""
    paths = [folders.chosen(one, checkpoint) for one in (folder, *seeds)]
    saved = [checkpoints.read(path) for path in paths]
    first = saved[0]
    check_alike(saved)
    players = [player_of(one) for one in saved]
    digests = [digest(player.agent) for player in players]
    check_different(paths, digests)
    there, before = stretch(first, part), torch.get_num_threads()
    torch.set_num_threads(first.threads)  # on which sums depend
    try:
        evidence = gather([Stage(there, players)], asked_of(first, there, part))
    finally:
        torch.set_num_threads(before)
    if part == "test":
        seen = counted(hold_out(folder, there, first.config), " ".join(digests), sharpe_of(evidence))
        asked = replace(evidence.asked, trials=seen.trials, trial_sharpes=seen.sharpes)
        verdict = judge(evidence.tracks, evidence.rivals, evidence.shuffles, asked)
        evidence = replace(evidence, asked=asked, verdict=verdict)
    return Judgement(evidence, about(folder, paths[0], first, there, part))


def stretch(saved: Checkpoint, part: str) -> Course:
    """The part as a course, as the agent has learned to see it."""
    config = saved.config
    if config.env.id != NAME:
        raise RunError(
            f"the run is of {config.env.id or 'an environment that was handed over'}, and only a market has a verdict; "
            f"needs env.id={NAME}: see quantail evaluate for the return of episodes, or judge it in Python (docs/evaluation.md)"
        )
    env = on_part(config.env.options, part, saved.fitted)
    seen = observed(env, config.risk)
    checkpoints.check_environment(saved, seen, any_number=True)
    return course(seen, memory=WARM if isinstance(env.world, Recorded) else 0)


def player_of(saved: Checkpoint) -> Player:
    """The agent with all that it needs."""
    scale = Scale(**saved.state["carry"]["scale"])
    return Player(checkpoints.restore_agent(saved), saved.observation_moments, saved.config, scale)


def asked_of(saved: Checkpoint, there: Course, part: str) -> Asked:
    """What the verdict has to know; on bars that an agent was made or chosen by nothing is claimed."""
    episode = there.market.episode.horizon
    seen = f"These are the bars of the {part} part: they have helped to make or to choose this agent, and prove nothing."
    warning = "" if part == "test" else seen
    return Asked(risk=saved.config.risk, episode=min(episode, there.periods), warning=warning)


def check_alike(saved: Sequence[Checkpoint]) -> None:
    """Seeds of one training differ in their seed, and in nothing else that is learned from."""
    plain = [replace(one.config, seed=0, run=saved[0].config.run) for one in saved]
    for other, config in zip(saved[1:], plain[1:], strict=True):
        if config != plain[0]:
            ours, theirs = plain[0].to_dict(), config.to_dict()
            names = ", ".join(name for name in ours if ours[name] != theirs[name])
            raise RunError(f"{other.name} was trained otherwise ({names}); seeds of one training differ in `seed` alone")


def check_different(paths: Sequence[Path], digests: Sequence[str]) -> None:
    """One agent is one seed, however often it is named."""
    for i, one in enumerate(digests):
        if one in digests[:i]:
            same = paths[digests.index(one)]
            raise RunError(f"{paths[i]} holds the same agent as {same}, and one agent is one seed; name each of them once")


def digest(agent: Agent) -> str:
    """Which agent it is."""
    found = hashlib.sha256()
    for name, value in sorted(agent.state_dict().items()):
        found.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()[:16]


def sharpe_of(evidence: Evidence) -> float:
    """Per period, the mean over seeds; 0 where nothing moved."""
    found = [ratio(track.net, 1.0) for track in evidence.tracks]
    mean = sum(found) / len(found)
    return mean if mean == mean else 0.0


# --- what it is about -------------------------------------------------------------------------------------------------


def about(folder: Path, path: Path, saved: Checkpoint, there: Course, part: str) -> About:
    """Where agent, data and numbers come from."""
    config, log = saved.config, folder / METRICS_FILE
    lines = list(read_rows(log)) if log.is_file() else []
    health = replay(lines)
    options = config.env.options
    source = options.get("data") or options.get("source", "hidden_drift")
    return About(
        title=folder.resolve().name,
        subtitle=f"{source}, {part} part; {path.name} after {saved.env_steps:,} steps",
        notes=notes(there),
        config=config.to_dict(),
        card=card(there, part),
        versions=(folders.sessions(folder) or [{}])[-1],
        log=lines,
        findings=[f"{one.seen}: {one.means}; {one.advice}" for one in health.findings.values()],
    )


def notes(there: Course) -> tuple[str, ...]:
    """What has to be known before anything is believed."""
    said = []
    episode = there.market.episode
    drifting = [name for name in ("return", "drawdown") if name in episode.parts]
    if drifting and episode.horizon and there.periods > episode.horizon:
        said.append(
            f"The agent sees its {' and '.join(drifting)} since the start. It has learned in episodes of {episode.horizon} "
            f"bars and is judged on {there.periods}: what it sees then may lie beyond what it knows (`shown` leaves them out)."
        )
    return tuple(said)


def card(there: Course, part: str) -> list[tuple[str, str]]:
    """The data in a few lines."""
    bars, market = there.bars, there.market
    times = there.times.astype("datetime64[ns]").astype("datetime64[s]")
    kept = [
        ("bars judged", f"{there.periods:,} of the {part} part, {times[0]} to {times[-1]}"),
        ("paths, assets", f"{there.paths}, {market.assets}"),
        ("bars a year", f"{there.periods_per_year:,.1f}"),
        ("costs", told(asdict(market.costs))),
        ("rules", told(asdict(market.rules))),
    ]
    found = bars.card.to_dict() if bars.card is not None else {}
    kept += [(name, str(found[name])) for name in ("source", "sha256", "start", "end", "rows_read", "gaps") if name in found]
    kept += [("found in the data", str(one)) for one in (bars.card.findings if bars.card is not None else ())]
    return [*kept, *synthetic(market)]


def synthetic(market: MarketEnv) -> list[tuple[str, str]]:
    """Of a market that was made up."""
    model = getattr(market.world, "model", None)
    return [] if model is None else [("made up by", repr(model)), ("seed of the paths", str(vars(market.world)["seed"]))]


def told(values: dict[str, Any]) -> str:
    """The settings that are not 0 or nothing."""
    return ", ".join(
        f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items() if value
    )
