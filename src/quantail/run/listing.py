"""Runs side by side: how each stands, how well it did, how long it took, and in which settings they differ."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from quantail.errors import QuantailError
from quantail.monitor.sinks import METRICS_FILE, read_rows
from quantail.run.folder import CONFIG, read_config, sessions
from quantail.run.lock import is_written

TAIL = 1 << 16  # bytes in which the last line of a log surely lies
FAILED, BROKEN_OFF = "failed", "broken off"
PLACES = ("total_timesteps", "env.id", "run.sinks", "run.threads")  # what a list says anyway, or what changes no agent


class Summary(NamedTuple):
    """A run in one line."""

    folder: Path
    env: str
    status: str  # running, finished, stopped early, interrupted, failed, or broken off without a word
    env_steps: int
    total_timesteps: int
    reward: float | None  # mean return of the latest episodes
    best: float | None  # of the evaluations
    seconds: float  # of training, in all processes that wrote here
    settings: Mapping[str, Any]  # every setting by its path


def runs_below(root: Path) -> Iterator[Summary]:
    """Every run at or below a folder, by name; one that cannot be read is left to `resume` to explain."""
    for path in sorted(root.rglob(CONFIG)):
        try:
            yield summary(path.parent)
        except QuantailError:
            continue


def summary(folder: Path) -> Summary:
    """A run in one line, from its settings, its log and what its processes noted."""
    config, row = read_config(folder), last_row(folder / METRICS_FILE)
    env_steps = int(row.get("env_steps", 0))
    reward, best = row.get("rollout/ep_rew_mean"), row.get("eval/best")
    return Summary(
        folder,
        config.env.id or "handed over",
        status_of(folder, env_steps >= config.total_timesteps),
        env_steps,
        config.total_timesteps,
        reward,
        best,
        seconds_of(folder, row),
        flat(config.to_dict()),
    )


def status_of(folder: Path, whole: bool) -> str:
    """How the last process left it, or that one is at work."""
    if is_written(folder):
        return "running"
    last = (sessions(folder) or [{}])[-1]
    if "stopped" in last:
        return FAILED
    return str(last.get("ended") or ("finished" if whole else BROKEN_OFF))


def seconds_of(folder: Path, last: Mapping[str, Any]) -> float:
    """Of training: each process counts from its own beginning, so where there were several, the whole log is read."""
    name = "time/time_elapsed"
    if len(sessions(folder)) < 2:
        return float(last.get(name) or 0.0)
    total = before = 0.0
    for row in read_rows(folder / METRICS_FILE):
        now = float(row.get(name) or 0.0)
        total, before = total + (now - before if now >= before else now), now
    return total


def differing(found: Sequence[Summary]) -> list[str]:
    """The settings that are not alike in all runs, in the order of the config."""
    names = dict.fromkeys(name for one in found for name in one.settings)
    return [
        name
        for name in names
        if name not in PLACES and len({json.dumps(one.settings.get(name), sort_keys=True) for one in found}) > 1
    ]


def flat(settings: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Nested settings by their paths: `optim.learning_rate`."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        found |= flat(value, f"{path}{name}.") if isinstance(value, dict) else {f"{path}{name}": value}
    return found


def last_row(path: Path) -> dict[str, Any]:
    """The last whole line of a log; nothing where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            lines = file.read().split(b"\n")[:-1]
            row: dict[str, Any] = json.loads(lines[-1])
            return row
    except (OSError, IndexError, ValueError):
        return {}
