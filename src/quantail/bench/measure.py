"""Training for a few iterations, and what the best of them took."""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch

from quantail.bench.ceilings import Ceilings, ceilings, clock
from quantail.bench.scene import Sizes, config_of, market_of
from quantail.bench.work import work_of
from quantail.loop import Report, make_agent, train

PHASES = ("collect", "estimate", "update")


class Phase(NamedTuple):
    """One part of an iteration."""

    seconds: float
    roofline: float  # share of what the machine does at best
    flops: float
    bytes: float


class Measured(NamedTuple):
    """How fast these sizes train."""

    sizes: Sizes
    steps_per_second: float  # valid rows, the whole iteration counted
    phases: dict[str, Phase]
    ceilings: Ceilings

    @property
    def roofline(self) -> float:
        """Of collecting and learning together."""
        both = [self.phases[name] for name in ("collect", "update")]
        return sum(one.roofline * one.seconds for one in both) / sum(one.seconds for one in both)


def measure(sizes: Sizes, iterations: int = 4, device: torch.device | str = "cpu", known: Ceilings | None = None) -> Measured:
    """The best of so many iterations after one that warms up."""
    device = torch.device(device)
    config, env = config_of(sizes), market_of(sizes, device)
    reports = train(config, env)
    env_steps = next(reports).env_steps
    found = []
    for _ in range(iterations):
        seconds, parts, steps = timed(reports, clock(device))
        found.append((seconds / (steps - env_steps), parts))
        env_steps = steps
    best, parts = min(found, key=lambda one: one[0])
    limits = known or ceilings(device)
    work = work_of(sizes, make_agent(config, env))
    phases = {
        name: Phase(seconds, limits.seconds(work[name]) / seconds, work[name].flops, work[name].bytes)
        for name, seconds in parts.items()
    }
    return Measured(sizes, 1 / best, phases, limits)


def timed(reports: Iterator[Report], now: Callable[[], float]) -> tuple[float, dict[str, float], int]:
    """An iteration: its seconds by this clock, those of each phase, steps so far.

    The phases are told in seconds of the wall; they are taken as shares of it, so that a busy machine does not count.
    """
    began, wall = now(), time.perf_counter()
    report = next(reports)
    seconds, whole = now() - began, time.perf_counter() - wall
    return seconds, {name: seconds * report.metrics[f"time/{name}_seconds"] / whole for name in PHASES}, report.env_steps
