"""A run in the terminal: live where there is one, else a plain line now and then.

The picture is drawn between two iterations, by the training process itself, and takes no more than 0.4 % of its time: after a
frame that took 8 ms there is none for two seconds.
"""

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TextIO

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from quantail.monitor.health import Finding, Health
from quantail.monitor.shown import PHASES, Shown, duration, number, often, plain_line, sentence, thinned_once

if TYPE_CHECKING:
    from quantail.loop import Report

SHARE = 0.004  # of the time that pictures may take
FRAME_SECONDS = 0.25  # the least between two
SHOWN_FINDINGS = 6

# Colours that can be read on black and on white.
QUIET, BAR = "grey50", "steel_blue"
PHASE_STYLES = dict(zip(PHASES, ("steel_blue", "dark_orange3", "dark_cyan", "grey50"), strict=True))
GRAVITY_STYLES = {"broken": "bold red", "warning": "dark_orange3", "note": "steel_blue"}


class ConsoleSink:
    """The sink that shows a run. `health` and `returns` are what was known of it before, when it is resumed."""

    def __init__(
        self,
        total_timesteps: int,
        title: str = "",
        health: Health | None = None,
        returns: Sequence[float] = (),
        *,
        file: TextIO | None = None,
        interval: float = 10.0,  # seconds between two plain lines
    ) -> None:
        self.console = Console(file=file or sys.stdout, highlight=False)
        self.shown = Shown(title, total_timesteps, health or Health(), returns=thinned_once(returns))
        self.told = set(self.shown.health.findings)
        self.interval, self.due, self.written = interval, -math.inf, -1
        self.live: Live | None = None
        if draws(self.console):
            self.live = Live(console=self.console, auto_refresh=False)

    def __call__(self, report: "Report") -> None:
        self.shown = self.shown.after(report)
        now = time.perf_counter()
        if self.live is None:
            self._tell_findings()
        if now < self.due:
            return
        if self.live is None:
            self._progress_line()
            self.due = now + self.interval
        else:
            self._draw()
            cost = time.perf_counter() - now
            self.due = now + max(FRAME_SECONDS, cost / SHARE)

    def sync(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """The last picture stays; a plain record ends with what was wrong, and how often."""
        if not self.shown.paces:
            return
        if self.live is not None:
            self._draw()
            self.live.stop()
        else:
            self._progress_line()
            for finding in (*self.shown.health.now(), *self.shown.health.before()):
                self._line(f"finding: {sentence(finding)}, {often(finding)}")
        self.shown = self.shown._replace(paces=())

    def _draw(self) -> None:
        if self.live is not None:
            self.live.start()
            self.live.update(picture(self.shown), refresh=True)

    def _tell_findings(self) -> None:
        """Each finding once, when it comes up."""
        for key, finding in self.shown.health.findings.items():
            if key not in self.told:
                self.told.add(key)
                advice = f"; try: {finding.advice}" if finding.advice else ""
                self._line(f"finding: {sentence(finding)}, since step {finding.since:,}{advice}")

    def _progress_line(self) -> None:
        """Where the run is, unless that was the last thing said."""
        if self.shown.env_steps != self.written:
            self.written = self.shown.env_steps
            self._line(plain_line(self.shown))

    def _line(self, text: str) -> None:
        known = text.encode(self.console.encoding, "replace").decode(self.console.encoding)
        self.console.file.write(f"{known}\n")
        self.console.file.flush()


def draws(console: Console) -> bool:
    """Whether a picture can be drawn over itself there: a terminal, or a notebook, that has the characters for it."""
    moves = console.is_jupyter or (console.is_terminal and not console.is_dumb_terminal)
    return moves and console.encoding.startswith("utf")


# --- the live picture -------------------------------------------------------------------------------------------------


def picture(shown: Shown) -> RenderableType:
    """Progress, time, key figures, findings; as wide as the terminal, whatever that is."""
    parts: list[RenderableType] = [progress(shown)]
    if shares := shown.phase_shares():
        parts += [Text(), Bar({PHASE_STYLES[name]: share for name, share in shares.items()})]
        parts += [Text.assemble(*((f"{name} {share:.0%}   ", PHASE_STYLES[name]) for name, share in shares.items()))]
    if len(shown.returns) > 1:
        parts += [Text(), Trend(shown.returns)]
    parts += [Text(), Figures([figures(*group) for group in shown.groups()])]
    now = shown.health.now()[:SHOWN_FINDINGS]
    if now:
        parts += [Text(), findings(now)]
    if hidden := len(shown.health.findings) - len(now):
        parts.append(Text(f"{hidden} more that are over, or less grave: quantail doctor FOLDER", QUIET))
    return Group(*parts)


def progress(shown: Shown) -> RenderableType:
    """Title, bar, steps, speed, time left."""
    head = Table.grid(expand=True, padding=(0, 1))
    head.add_column(ratio=1, no_wrap=True, overflow="crop")
    head.add_column(justify="right", no_wrap=True)
    head.add_row(Text(shown.title or "quantail", "bold"), Text(f"{shown.done:.0%}", "bold"))
    line = Text(f"{shown.env_steps:,} of {shown.total_timesteps:,} steps", no_wrap=True, overflow="crop")
    if math.isfinite(shown.steps_per_second):
        line.append(f"   {number(shown.steps_per_second)} steps/s   {duration(shown.seconds_left)} left", QUIET)
    return Group(head, Bar({BAR: shown.done, QUIET: 1 - shown.done}, "━╌"), line)


class Bar:
    """A bar over the whole width, in coloured parts; `marks` draws them one after the other, the last one all that follow."""

    def __init__(self, shares: Mapping[str, float], marks: str = "▄") -> None:
        self.shares, self.marks = shares, marks

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        drawn, total = Text(no_wrap=True, overflow="crop"), 0.0
        for i, (style, share) in enumerate(self.shares.items()):
            total += share
            drawn.append(self.marks[min(i, len(self.marks) - 1)] * (round(total * options.max_width) - len(drawn)), style)
        yield drawn


class Trend:
    """The mean return of episodes since the run began: where it was, how it went, where it is."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = values

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        steps = "▁▂▃▄▅▆▇█"
        low, high = min(self.values), max(self.values)
        begin, end = number(self.values[0]), number(self.values[-1])
        width = max(min(options.max_width - len(begin) - len(end) - 9, 60), 1)
        curve = ""
        for i in range(width):
            value = self.values[i * (len(self.values) - 1) // max(width - 1, 1)]
            curve += steps[min(int((value - low) / (high - low) * len(steps)), len(steps) - 1)] if high > low else steps[0]
        yield Text.assemble(("return ", QUIET), begin, " ", (curve, BAR), " ", (end, "bold"), no_wrap=True, overflow="crop")


class Figures:
    """Groups side by side, as many as fit; four are two and two rather than three and one."""

    def __init__(self, groups: Sequence[Table]) -> None:
        self.groups = groups

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        fit = max(1, min(options.max_width // 26, len(self.groups)))
        rows = math.ceil(len(self.groups) / fit)
        per_row = math.ceil(len(self.groups) / rows) if self.groups else 1
        table = Table.grid(padding=(0, 4, 0, 0))
        for start in range(0, len(self.groups), per_row):
            if start:
                table.add_row()
            table.add_row(*self.groups[start : start + per_row])
        yield table


def figures(group: str, rows: Sequence[tuple[str, str, str]]) -> Table:
    """A group of key figures, labels left and numbers right."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style=QUIET, min_width=12, no_wrap=True)
    table.add_column(justify="right", min_width=8, no_wrap=True)
    table.add_row(Text(group, "bold"), "")
    for label, _, value in rows:
        table.add_row(label, value)
    return table


def findings(found: Sequence[Finding]) -> Table:
    """How grave, what is seen, how often and since when; below it what to do."""
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column()
    for finding in found:
        text = Text.assemble((f"{finding.name}: " if finding.name else "", "bold"), finding.seen)
        text.append(f" ({often(finding)})", QUIET)
        if finding.advice:
            text.append(f"\n{finding.advice}", QUIET)
        table.add_row(Text(finding.gravity, GRAVITY_STYLES[finding.gravity]), text)
    return table
