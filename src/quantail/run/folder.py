"""What lies in the folder of a run.

config.yaml         the resolved settings
normalisation.json  units of the features, fitted on the training window, where there are such
environment.json    versions, machine, threads and code of every process that wrote here
metrics.jsonl       one line for each iteration
events.out.*        for TensorBoard
checkpoints/        step_000000012288.safetensors ..., best.safetensors
lock                who is writing
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from quantail.checkpoint import atomic, rotation
from quantail.checkpoint.rotation import BEST
from quantail.config import Config
from quantail.errors import QuantailError, RunError
from quantail.run import configfile
from quantail.run.lock import FILE as LOCK
from quantail.run.provenance import environment

CONFIG = "config.yaml"
NORMALISATION = "normalisation.json"
ENVIRONMENT = "environment.json"
CHECKPOINTS = "checkpoints"


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


def note_end(folder: Path, status: str) -> None:
    """Say of this process how its part of the run ended."""
    *earlier, own = sessions(folder) or [{}]
    _write_sessions(folder, [*earlier, {**own, "ended": status}])


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
