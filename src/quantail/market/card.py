"""A data card: where bars came from, how the file was read, what was found in it and what was done about it."""

import json
from dataclasses import asdict, dataclass
from typing import Any

TOUCHED = 20  # repaired rows that are listed in print; the record has all


@dataclass(frozen=True)
class Finding:
    """One rule, and where it was broken."""

    rule: str  # its name, as in `quantail.market.rules.RULES`
    count: int  # how many rows break it
    first: str  # the first of them, in words
    remedy: str  # what to do
    refused: bool  # strict loading refuses; otherwise it is worth knowing

    def __str__(self) -> str:
        return f"{self.rule}: {self.count} {'row' if self.count == 1 else 'rows'}, first {self.first}; {self.remedy}"


@dataclass(frozen=True)
class Touch:
    """One row that a repair touched."""

    place: str  # file and row
    rule: str
    action: str  # "dropped" or "masked"

    def __str__(self) -> str:
        return f"{self.place}: {self.action} ({self.rule})"


@dataclass(frozen=True)
class Card:
    """What a reader needs to believe a file, or not."""

    source: str  # path, or the kind of frame
    sha256: str  # of the source's bytes, in the order of its files
    symbols: tuple[str, ...]
    rows_read: int
    bars: int  # rows after loading
    start: str  # ISO 8601, UTC: the first open
    end: str  # the last end
    bar_seconds: float
    gaps: int  # places where at least one bar is missing between two others
    columns: tuple[tuple[str, str], ...]  # what we call it, what the file calls it
    notes: tuple[str, ...] = ()  # how stamps and units were understood
    findings: tuple[Finding, ...] = ()
    touched: tuple[Touch, ...] = ()  # each row that a repair touched

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "columns": dict(self.columns)}

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    def summary(self) -> list[str]:
        """A few lines: what was read as what, and what was found."""
        columns = ", ".join(f"{ours} = {theirs!r}" for ours, theirs in self.columns)
        what = f"{self.bars:,} bars of {self.bar_seconds:g} s, {len(self.symbols)} x {', '.join(self.symbols[:8])}"
        repaired = (
            [f"repaired {len(self.touched):,} rows, first {self.touched[0]}; card.touched has all"] if self.touched else []
        )
        lines = [f"{what}, {self.start} to {self.end}", columns, *self.notes, *map(str, self.findings), *repaired]
        return [f"{self.source}: {line}" for line in lines]

    def __str__(self) -> str:
        rows = (
            ("source", self.source),
            ("sha256", self.sha256),
            ("symbols", ", ".join(self.symbols)),
            ("rows read", f"{self.rows_read:,}"),
            ("bars", f"{self.bars:,} of {self.bar_seconds:g} s"),
            ("span", f"{self.start} to {self.end}"),
            ("gaps", f"{self.gaps:,}"),
            ("columns", ", ".join(f"{ours} = {theirs!r}" for ours, theirs in self.columns)),
            *(("read as", note) for note in self.notes),
            *(("refused" if one.refused else "found", str(one)) for one in self.findings),
            *(("touched", str(one)) for one in self.touched[:TOUCHED]),
            *((("touched", f"and {len(self.touched) - TOUCHED:,} more"),) if len(self.touched) > TOUCHED else ()),
        )
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)
