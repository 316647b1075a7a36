"""One writer for each folder: a lock that dies with its process.

The system's own lock on the file decides. What the file says about its writer is for messages, and for two cases in which the
system cannot tell: a file system without locks, and processes that a dead writer left behind.
"""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from quantail.errors import RunError

FILE = "lock"


class Writer(NamedTuple):
    """A process that writes, or wrote, into a folder."""

    pid: int
    host: str
    started: str  # when the process began: a number may come back, this does not

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@contextmanager
def locked(folder: Path) -> Iterator[str]:
    """Hold the folder; yields a note about a writer that died, or nothing."""
    try:
        file = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o666)
    except OSError as error:
        raise RunError(f"{folder} cannot be written ({error.strerror}); choose a folder in which you may write") from error
    try:
        before = writer_of(folder)
        if not is_free(file, before):
            raise RunError(f"{before or 'another process'} is writing into {folder}; wait for it, or choose another folder")
        with suppress(OSError):  # a full disk: the lock holds all the same, and the first checkpoint says what is wrong
            os.ftruncate(file, 0)
            os.pwrite(file, json.dumps(me()._asdict()).encode(), 0)
        try:
            yield "" if before is None else f"{before} was writing into {folder} and is gone; going on in its place"
        finally:
            os.ftruncate(file, 0)
    finally:
        os.close(file)


def is_written(folder: Path) -> bool:
    """Whether a living process writes into the folder now."""
    try:
        file = os.open(folder / FILE, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not is_free(file, writer_of(folder))
    finally:
        os.close(file)


def is_free(file: int, writer: Writer | None) -> bool:
    """Whether nobody else holds the lock; it is ours then until the file is closed."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:  # held; perhaps only by what a dead writer's environments left behind
        return writer is not None and writer.host == socket.gethostname() and not lives(writer)
    except (ImportError, OSError):  # no locks here: believe what the file says
        return writer is None or (writer.host == socket.gethostname() and not lives(writer))


def me() -> Writer:
    """This process."""
    return Writer(os.getpid(), socket.gethostname(), started(os.getpid()))


def lives(writer: Writer) -> bool:
    """Whether that very process of this machine still runs."""
    try:
        os.kill(writer.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return started(writer.pid) == writer.started


def started(pid: int) -> str:
    """When a process began, in the system's own units; empty where the system does not say, or where it is gone."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if state == "Z" else rest[18]  # a zombie writes no more


def writer_of(folder: Path) -> Writer | None:
    """Who the file names; nobody where it is empty, missing or no lock of ours."""
    try:
        return Writer(**json.loads((folder / FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
