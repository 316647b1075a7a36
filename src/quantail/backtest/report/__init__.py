"""The report: one HTML file that needs nothing else, a JSON file for programs, a Markdown file for a merge request.

    evidence = gather([Stage(course(env), [player])])
    write("runs/first", evidence, About(title="first"))     # report.html, report.json, report.md

The verdict comes first, in words; then what it rests on. No script, no font, nothing from the network: it can be mailed,
printed and read in ten years, on a phone or on a wide screen, in light and dark.
"""

import os
from pathlib import Path
from typing import NamedTuple

from quantail.backtest.evidence import Evidence
from quantail.backtest.report import agent, costs, equity, page, plain, risk, table
from quantail.backtest.report.about import About
from quantail.errors import InputError

__all__ = ["About", "Written", "html", "write"]

HTML, JSON, MARKDOWN = "report.html", "report.json", "report.md"


class Written(NamedTuple):
    """Where it lies."""

    html: Path
    json: Path
    markdown: Path


def write(folder: Path | str, evidence: Evidence, about: About | None = None) -> Written:
    """All three files into a folder, each whole or not at all."""
    place, about = Path(folder), about or About()
    made = Written(place / HTML, place / JSON, place / MARKDOWN)
    every = table.lines(evidence)
    texts = (html(evidence, about, every), plain.as_json(evidence, about, every), plain.as_markdown(evidence, about, every))
    try:
        place.mkdir(parents=True, exist_ok=True)
        for path, text in zip(made, texts, strict=True):
            draft = path.with_name(f".{path.name}.{os.getpid()}")
            draft.write_text(text, encoding="utf-8")
            draft.replace(path)
    except OSError as error:
        raise InputError(f"{place} cannot be written to ({error.strerror}); name a folder in which you may write") from error
    return made


def html(evidence: Evidence, about: About | None = None, every: list[table.Line] | None = None) -> str:
    """The page; `every` line of its table, if these are known already."""
    about = about or About()
    return page.whole(
        about.title,
        page.verdict_box(evidence, about),
        (
            page.Section("Figures", table.section(evidence, every)),
            page.Section("Equity", equity.section(evidence)),
            page.Section("Risk", risk.section(evidence)),
            page.Section("Costs", costs.section(evidence)),
            page.Section("Behaviour", agent.section(evidence)),
            page.Section("Training", agent.training(about)),
            page.Section("Data and settings", agent.origin(about)),
        ),
    )
