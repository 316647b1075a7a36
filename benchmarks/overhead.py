"""What watching costs: `python benchmarks/overhead.py [--case NAME] [--steps N] [--json FILE]`.

Two runs of the same training go side by side in one process, an iteration of one, then the same iteration of the other: the
bare one throws its reports away, the watched one hands them to every sink of a default run (JSON lines, TensorBoard) and to the
console, live in a terminal of its own. The order changes every iteration. What is reported: the ratio of their times, on the
wall and of the processor (threads of the sinks included), and the share of the calls of each sink, both of the processor's time
and of the wall's (waiting for the disk included). The promise is 1 % for all of them together; run it on a quiet machine,
because whatever disturbs a call counts against it.
"""

import argparse
import json
import os
import pty
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TextIO
from unittest.mock import patch

import learning
from quantail.loop import Report, train
from quantail.monitor import console
from quantail.monitor.console import ConsoleSink
from quantail.monitor.sinks import METRICS_FILE, JsonlSink, Sink, TensorBoardSink

PROMISED_PERCENT = 1.0
WARM_UP = 2  # iterations that do not count: the first of a process load what the others have


def measure(name: str, steps: int, folder: Path) -> dict[str, float]:
    """Seconds of both runs, and of each sink."""
    case = learning.CASES[name]
    config = replace(case.config, total_timesteps=steps)
    bare, watched = (train(config, case.env(case.copies)) for _ in range(2))
    clock = StopClock()
    with ExitStack() as stack:
        stack.enter_context(patch.object(console, "time", clock))
        sinks = {
            "json lines": stack.enter_context(closing(JsonlSink(folder / METRICS_FILE))),
            "tensorboard": stack.enter_context(closing(TensorBoardSink(folder))),
            "console": stack.enter_context(closing(ConsoleSink(steps, name, file=terminal(stack)))),
        }
        spent = dict.fromkeys(sinks, Times(0.0, 0.0))
        rows: list[tuple[Times, Times]] = []
        for i in range(10**9):  # until both runs are over
            watch_first = i % 2 == 1
            marks = [Times.now()]
            for turn in range(2):
                watching = (turn == 0) == watch_first
                clock.run(watching)
                report = follow(watched, sinks, spent) if watching else next(bare, None)
                marks.append(Times.now())
            if report is None:
                break
            pair = (marks[1] - marks[0], marks[2] - marks[1])
            rows.append(pair[::-1] if watch_first else pair)
    plain, with_sinks = (Times(*map(sum, zip(*column, strict=True))) for column in zip(*rows[WARM_UP:], strict=True))
    of_wall = {f"{sink}, % of wall": 100 * times.wall / plain.wall for sink, times in spent.items()}
    of_processor = {f"{sink}, % of processor": 100 * times.processor / plain.processor for sink, times in spent.items()}
    return {
        "iterations": float(len(rows)),
        "bare, seconds": plain.wall,
        "watched / bare, wall": with_sinks.wall / plain.wall,
        "watched / bare, processor": with_sinks.processor / plain.processor,
        **of_processor,
        **of_wall,
        "all sinks, % of processor": sum(of_processor.values()),
        "all sinks, % of wall": sum(of_wall.values()),
    }


class StopClock:
    """The console's clock, on which pictures have their share: it only runs while the watched run does."""

    def __init__(self) -> None:
        self.passed, self.since, self.running = 0.0, time.perf_counter(), False

    def run(self, running: bool) -> None:
        self.passed, self.since, self.running = self.perf_counter(), time.perf_counter(), running

    def perf_counter(self) -> float:
        return self.passed + (time.perf_counter() - self.since if self.running else 0.0)


class Times(NamedTuple):
    """Seconds on the wall, and of the processor."""

    wall: float
    processor: float

    @classmethod
    def now(cls) -> "Times":
        return cls(time.perf_counter(), time.process_time())

    def __add__(self, other: "Times") -> "Times":  # type: ignore[override]
        return Times(self.wall + other.wall, self.processor + other.processor)

    def __sub__(self, other: "Times") -> "Times":
        return Times(self.wall - other.wall, self.processor - other.processor)


def follow(reports: object, sinks: dict[str, Sink], spent: "dict[str, Times]") -> Report | None:
    """An iteration, and what every sink makes of it."""
    report: Report | None = next(reports, None)  # type: ignore[call-overload]
    if report is not None:
        for name, sink in sinks.items():
            began = Times.now()
            sink(report)
            if report.iteration >= WARM_UP:
                spent[name] += Times.now() - began
    return report


def terminal(stack: ExitStack) -> TextIO:
    """A terminal that another process reads, 100 columns wide."""
    os.environ.update(COLUMNS="100", LINES="50", TERM="xterm-256color")
    master, slave = pty.openpty()
    reader = subprocess.Popen(["cat"], stdin=master, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    stack.callback(reader.kill)
    os.close(master)
    return stack.enter_context(os.fdopen(slave, "w", encoding="utf-8"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; fail where the promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="lqr", choices=sorted(learning.CASES))
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(asked.case, asked.steps, Path(folder))
    for name, value in found.items():
        print(f"{name:<28} {value:10.3f}")
    if asked.json:
        asked.json.write_text(json.dumps({"case": asked.case, "steps": asked.steps, **found}, indent=2) + "\n")
    return int(found["all sinks, % of wall"] > PROMISED_PERCENT)


if __name__ == "__main__":
    sys.exit(main())
