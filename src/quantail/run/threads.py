"""How many threads of the processor a run takes: so many, or as many as the first iterations show to be fastest.

Two threads on small tensors wait for each other and are slower than one; on large ones they are nearly twice as fast. That is
measured: after an iteration that warms up, each number is tried for `LOOKS` iterations, and the best of them counts.
"""

import os
from collections.abc import Mapping
from typing import NamedTuple

import torch

from quantail import ranks
from quantail.checkpoint import Checkpoint
from quantail.config import Config

LOOKS = 2
GAIN = 1.05  # more threads have to be so much faster: they take from others, and what is measured is noise in part
PARTS = ("time/collect_seconds", "time/estimate_seconds", "time/update_seconds")


class Trial(NamedTuple):
    """What is to be tried, iteration by iteration, and what was seen."""

    left: tuple[int, ...] = ()
    seen: tuple[tuple[int, float], ...] = ()  # threads and seconds


def planned(cores: int) -> Trial:
    """One iteration on one thread that does not count, then 1, 2, 4 ... and all cores."""
    numbers = sorted({*(2**i for i in range(cores.bit_length())), cores})
    return Trial((1, *(number for number in numbers if number <= cores for _ in range(LOOKS))))


def start(config: Config, saved: Checkpoint | None) -> Trial:
    """The threads with which a run begins, or goes on, and what is still to be tried.

    A run that goes on keeps its number, for sums depend on it; one that had not yet chosen begins to try again.
    """
    asked = config.run.threads
    trial = planned(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if isinstance(asked, int) or ranks.count() > 1 or (saved is not None and saved.iteration >= len(trial.left)):
        asked = 1 if isinstance(asked, str) else asked
        torch.set_num_threads(saved.threads if saved is not None else asked)
        return Trial()
    torch.set_num_threads(trial.left[0])
    return trial


def after(trial: Trial, metrics: Mapping[str, float]) -> tuple[Trial, str]:
    """The trial one iteration later, with the threads of the next one set; and what to say when it is over."""
    if not trial.left:
        return trial, ""
    seen = (*trial.seen, (trial.left[0], sum(metrics[part] for part in PARTS)))
    trial = Trial(trial.left[1:], seen)
    if trial.left:
        torch.set_num_threads(trial.left[0])
        return trial, ""
    best = best_of(seen[1:])
    torch.set_num_threads(best)
    told = ", ".join(f"{threads}: {seconds:.3g} s" for threads, seconds in fastest(seen[1:]).items())
    return trial, f"run.threads=auto took {best} from here on; an iteration took on {told}"


def best_of(seen: tuple[tuple[int, float], ...]) -> int:
    """The fewest threads that no larger number beats by `GAIN`."""
    times = fastest(seen)
    return next(number for number in times if all(times[number] <= GAIN * times[more] for more in times if more > number))


def fastest(seen: tuple[tuple[int, float], ...]) -> dict[int, float]:
    """The best seconds of each number, fewest threads first."""
    return {number: min(seconds for one, seconds in seen if one == number) for number, _ in sorted(seen)}
