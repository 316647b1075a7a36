"""The same as JSON for programs, and as Markdown for people in a hurry."""

import json
import math
from dataclasses import asdict
from typing import Any

from quantail.backtest.evidence import Evidence
from quantail.backtest.report.about import About
from quantail.backtest.report.costs import waterfall
from quantail.backtest.report.table import HEAD, Line, cells, lines

VERSION = 1  # of the layout of report.json


def as_json(evidence: Evidence, about: About, every: list[Line] | None = None) -> str:
    """Everything but the curves; a number that does not exist is null."""
    gross, steps = waterfall(evidence.tracks[0])
    first = evidence.tracks[0]
    found = {
        "version": VERSION,
        "title": about.title,
        "subtitle": about.subtitle,
        "notes": list(about.notes),
        "verdict": asdict(evidence.verdict),
        "asked": asdict(evidence.asked),
        "policies": [one._asdict() for one in every or lines(evidence)],
        "costs": {"gross": gross, **steps},
        "periods": len(first.times),
        "paths": first.paths,
        "periods_per_year": first.periods_per_year,
        "from": iso(int(first.times[0])),
        "to": iso(int(first.times[-1])),
        "config": about.config,
        "data": [list(pair) for pair in about.card],
        "versions": about.versions,
        "findings": list(about.findings),
    }
    return json.dumps(known(found), indent=2, ensure_ascii=False, default=str) + "\n"


def as_markdown(evidence: Evidence, about: About, every: list[Line] | None = None) -> str:
    """Verdict and table."""
    found = evidence.verdict
    said = "\n".join(f"* {one}" for one in (*found.sentences, *about.notes))
    head = "| " + " | ".join(name or "policy" for name in HEAD) + " |\n" + "| --- " * len(HEAD) + "|\n"
    body = "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in cells(one)) + " |" for one in every or lines(evidence)
    )
    subtitle = f"{about.subtitle}\n\n" if about.subtitle else ""
    return f"# {about.title}\n\n{subtitle}**{found.headline}**\n\n{said}\n\n{head}{body}\n"


def known(value: Any) -> Any:
    """Plain values, in which NaN and infinities, which JSON does not have, are None."""
    if isinstance(value, dict):
        return {str(name): known(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [known(one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def iso(nanoseconds: int) -> str:
    """A moment, UTC."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(nanoseconds // 1_000_000_000, UTC).isoformat()
