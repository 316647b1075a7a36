"""How far long work has come and how long it will take, where somebody watches; in a pipe not a byte is written.

    for fold in track(folds, "folds"): ...      # folds  3/8 ███████──────────── 0:07 left

One line on the error stream, drawn over itself a few times a second and wiped at the end: what a program prints stays clean.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TextIO, TypeVar

from quantail.monitor.shown import duration

T = TypeVar("T")

FRAME_SECONDS = 0.1  # the least between two drawings
SILENT_SECONDS = 0.5  # what is over before that needs no line
BAR = 24
WIPE = "\r\x1b[K"


def watched(file: TextIO | None = None) -> bool:
    """Whether a line can be drawn over itself there: a terminal that is not a dumb one."""
    file = file or sys.stderr
    return file.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def track(
    items: Iterable[T],
    what: str,
    total: int | None = None,
    *,
    file: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[T]:
    """The items one after the other, and a line that says how far they are; `total` where they do not know their number."""
    file = file or sys.stderr
    if not watched(file):
        yield from items
        return
    total = total if total is not None else len(items) if isinstance(items, Sized) else None
    began = drawn = clock()
    shown = False
    try:
        for done, item in enumerate(items):
            now = clock()
            if now - began >= SILENT_SECONDS and (not shown or now - drawn >= FRAME_SECONDS):
                text = line(what, done, total, now - began)
                file.write(WIPE + text[: shutil.get_terminal_size().columns - 1])
                file.flush()
                drawn, shown = now, True
            yield item
    finally:  # also where the caller breaks off, or an item fails: the line does not stay behind
        if shown:
            file.write(WIPE)
            file.flush()


def line(what: str, done: int, total: int | None, seconds: float) -> str:
    """What is shown: how many of how many, a bar, and the time left if all take as long as those so far."""
    if not total:
        return f"{what}  {done:,}  {duration(seconds)}"
    full = BAR * min(done, total) // total
    left = f"{duration(seconds / done * (total - done))} left" if done else "? left"
    return f"{what}  {done:,}/{total:,} {'█' * full}{'─' * (BAR - full)} {left}"
