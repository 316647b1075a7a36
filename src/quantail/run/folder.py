"""What lies in the folder of a run, and what a list of runs says about it.

config.yaml         the resolved settings
normalisation.json  units of the features, fitted on the training window, where there are such
environment.json    versions, machine, threads and code of every process that wrote here
metrics.jsonl       one line for each iteration
events.out.*        for TensorBoard
checkpoints/        step_000000012288.safetensors ..., best.safetensors
lock                who is writing
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from quantail.checkpoint import atomic, rotation
from quantail.checkpoint.rotation import BEST
from quantail.config import Config
from quantail.errors import QuantailError, RunError
from quantail.monitor.sinks import METRICS_FILE
from quantail.run import configfile
from quantail.run.lock import FILE as LOCK
from quantail.run.lock import is_written
from quantail.run.provenance import environment

CONFIG = "config.yaml"
NORMALISATION = "normalisation.json"
ENVIRONMENT = "environment.json"
CHECKPOINTS = "checkpoints"
TAIL = 1 << 16  # bytes in which the last line of a log surely lies


class Summary(NamedTuple):
    """A run in one line."""

    folder: Path
    env: str
    status: str  # running | finished | stopped
    env_steps: int
    total_timesteps: int
    reward: float | None  # mean return of the latest episodes
    best: float | None  # of the evaluations


def create(folder: Path) -> None:
    """The folder with room for checkpoints."""
    try:
        (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder} cannot be made ({error.strerror}); choose a folder in which you may write") from error


def forget_unused(folder: Path) -> None:
    """Remove a folder in which no run has begun, as far as it is empty but for our own places."""
    if not (folder / CONFIG).exists():
        with suppress(OSError):
            (folder / CHECKPOINTS).rmdir()
            (folder / LOCK).unlink(missing_ok=True)
            folder.rmdir()


def refuse_used(folder: Path) -> None:
    """A run never writes over another."""
    if (folder / CONFIG).exists() or rotation.listed(folder / CHECKPOINTS):
        raise RunError(f"{folder} already holds a run; go on with it (quantail resume {folder}), or choose another folder")


def refuse_empty(folder: Path) -> None:
    """There must be a run to go on with."""
    if not (folder / CONFIG).is_file():
        raise RunError(f"{folder} holds no run: there is no {CONFIG}; give the folder that quantail train --run was given")


def write_config(folder: Path, config: Config) -> None:
    """The resolved settings."""
    atomic.replace(folder / CONFIG, configfile.to_yaml(config).encode())


def write_fitted(folder: Path, fitted: Mapping[str, Any]) -> None:
    """What the environment took from its training window; checkpoints hold the same."""
    if "normalisation" in fitted:
        atomic.replace(folder / NORMALISATION, json.dumps(fitted["normalisation"], indent=2).encode())


def read_config(folder: Path) -> Config:
    """The settings of the run."""
    refuse_empty(folder)
    return configfile.read(folder / CONFIG)


def note_environment(folder: Path, env_steps: int) -> None:
    """Add this process to those that wrote here."""
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    _write_sessions(folder, [*sessions(folder), {"began": now, "env_steps": env_steps, **environment()}])


def note_stop(folder: Path, why: str) -> None:
    """Say of this process that it could not go on, for `quantail doctor`; where even that cannot be written, it is left."""
    *earlier, own = sessions(folder) or [{}]
    with suppress(OSError, QuantailError):
        _write_sessions(folder, [*earlier, {**own, "stopped": why}])


def sessions(folder: Path) -> list[dict[str, Any]]:
    """The processes that wrote here, the latest last."""
    try:
        found: list[dict[str, Any]] = json.loads((folder / ENVIRONMENT).read_text(encoding="utf-8"))["sessions"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return found


def _write_sessions(folder: Path, found: list[dict[str, Any]]) -> None:
    atomic.replace(folder / ENVIRONMENT, json.dumps({"sessions": found}, indent=2, ensure_ascii=False).encode())


def best_of(folder: Path) -> Path:
    """The best checkpoint, or the latest where nothing was evaluated."""
    best = folder / CHECKPOINTS / BEST
    return best if best.is_file() else latest_of(folder)


def latest_of(folder: Path) -> Path:
    """The latest checkpoint."""
    refuse_empty(folder)
    known = rotation.listed(folder / CHECKPOINTS)
    if not known:
        raise RunError(f"{folder} holds no checkpoint yet; go on with the run: quantail resume {folder}")
    return known[-1]


def chosen(folder: Path, checkpoint: str) -> Path:
    """The checkpoint that a word names, `best` or `latest`, or the file that it is."""
    words = {"best": best_of, "latest": latest_of}
    path = words[checkpoint](folder) if checkpoint in words else Path(checkpoint)
    if not path.is_file():
        raise RunError(f"--checkpoint {checkpoint} is neither best nor latest, nor a file; {folder / CHECKPOINTS} has them")
    return path


# --- a list of runs ---------------------------------------------------------------------------------------------------


def runs_below(root: Path) -> Iterator[Summary]:
    """Every run at or below a folder, by name; one that cannot be read is left to `resume` to explain."""
    for path in sorted(root.rglob(CONFIG)):
        try:
            yield summary(path.parent)
        except QuantailError:
            continue


def summary(folder: Path) -> Summary:
    """A run in one line, from its settings and the last line of its log."""
    config, row = read_config(folder), last_row(folder / METRICS_FILE)
    env_steps = int(row.get("env_steps", 0))
    done = "finished" if env_steps >= config.total_timesteps else "stopped"
    status = "running" if is_written(folder) else done
    reward, best = row.get("rollout/ep_rew_mean"), row.get("eval/best")
    return Summary(folder, config.env.id or "handed over", status, env_steps, config.total_timesteps, reward, best)


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
