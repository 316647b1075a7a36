"""quantail report, and the verdict of quantail evaluate."""

from pathlib import Path
from typing import Annotated, Literal

import tyro


def report(
    folder: Annotated[Path, tyro.conf.Positional],
    seeds: tuple[Path, ...] = (),
    checkpoint: str = "best",
    part: Literal["train", "validation", "test"] = "test",
    to: Path | None = None,
) -> int:
    """Judge a run's agent on bars that it has never seen, beside what it has to beat, and write report.html, .json and .md.

    The agent lives through the part once, after all costs; so do buy & hold, cash, momentum, its own weights in another order
    and others. Each agent that is judged on the same test bars is counted, and the more there are, the more it takes to be
    believed. Exits with 0 whatever the verdict is.

    Args:
        folder: The folder of a run in quantail/Market.
        seeds: Folders of runs that differ in their seed alone; they are judged together, and none is picked.
        checkpoint: best (the latest where nothing was evaluated), latest, or a file.
        part: Of the market's data; only the test is one.
        to: The folder to write to; that of the run if none is given.
    """
    from quantail.backtest import report as reports
    from quantail.run.judging import judged

    found = judged(folder, checkpoint, part, seeds)
    written = reports.write(to or folder, found.evidence, found.about)
    print("\n".join((str(found.evidence.verdict), *found.about.notes)))
    print(f"\n{written.html} ({written.html.stat().st_size / 1024:.0f} kB), {written.json.name}, {written.markdown.name}")
    return 0


def told(folder: Path, checkpoint: str, part: str, json: bool) -> int:
    """The verdict on the standard output."""
    from quantail.backtest.report.plain import as_json, as_markdown
    from quantail.run.judging import judged

    found = judged(folder, checkpoint, part)
    print((as_json if json else as_markdown)(found.evidence, found.about), end="")
    return 0
