"""Files that are either the old ones or the new ones, whenever the power goes."""

import errno
import os
from pathlib import Path

from quantail.errors import CheckpointError

TEMPORARY = ".tmp"


def replace(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: under a temporary name beside it, on the disk, renamed, the folder on the disk.

    What was there before is there until the rename, whatever fails.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        try:
            write(temporary, data)
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)
    except OSError as error:
        what = error.strerror or str(error)
        raise CheckpointError(
            f"{path} could not be written ({what}); what was there before is untouched: free some space, or check the folder"
        ) from error


def write(path: Path, data: bytes) -> None:
    """A new file with this content, on the disk when this returns."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_CLOEXEC", 0), 0o666)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(file, left) :]
        os.fsync(file)
    finally:
        os.close(file)


def sync_folder(folder: Path) -> None:
    """Put the names in a folder on the disk, where the system can do that."""
    if os.name == "nt":
        return  # folders cannot be opened there; a rename is journaled
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems know no fsync of a folder
            raise
    finally:
        os.close(file)


def sweep(folder: Path) -> None:
    """Remove what a killed process left half written; only for who knows that nobody else writes here."""
    for stale in folder.glob(f".*{TEMPORARY}"):
        stale.unlink(missing_ok=True)
