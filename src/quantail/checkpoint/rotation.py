"""The checkpoints of a run in their folder: the latest few by their steps, and the best."""

from pathlib import Path
from typing import NamedTuple

from quantail.checkpoint import Checkpoint, read
from quantail.checkpoint.store import NewerFormat
from quantail.errors import CheckpointError

BEST = "best.safetensors"


class Found(NamedTuple):
    """The newest checkpoint that can be read, and what was wrong with those after it."""

    checkpoint: Checkpoint | None
    notes: tuple[str, ...]


def path_of(folder: Path, env_steps: int) -> Path:
    """Where the checkpoint of so many environment steps lies; the names sort as the steps do."""
    return folder / f"step_{env_steps:012d}.safetensors"


def listed(folder: Path) -> list[Path]:
    """The checkpoints of a run, oldest first; the best is not among them."""
    return sorted(folder.glob("step_*.safetensors"))


def newest(folder: Path) -> Found:
    """The newest checkpoint that is whole. Where there are some and none can be read, that is an error; where a later
    Quantail wrote the newest, too: going on from an older one would throw away what was logged since.
    """
    notes: list[str] = []
    for path in reversed(listed(folder)):
        try:
            return Found(read(path), tuple(notes))
        except NewerFormat:
            raise
        except CheckpointError as error:
            notes.append(str(error))
    if notes:
        raise CheckpointError(f"no checkpoint in {folder} can be read: {'; '.join(notes)}")
    return Found(None, ())


def prune(folder: Path, keep: int) -> None:
    """Remove all but the latest few."""
    for path in listed(folder)[:-keep]:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise CheckpointError(f"{path} could not be removed ({error.strerror}); check who may write in {folder}") from error
