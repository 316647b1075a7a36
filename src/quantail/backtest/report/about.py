"""What a report says besides the evidence: where the agent, the data and the numbers come from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class About:
    """Plain values; what is empty is left out."""

    title: str = "Backtest"
    subtitle: str = ""  # one line: which agent, which market, which part of it
    notes: Sequence[str] = ()  # what a reader has to know before believing anything
    config: Mapping[str, Any] = field(default_factory=dict)  # all settings, nested
    card: Sequence[tuple[str, str]] = ()  # of the data: name, value
    versions: Mapping[str, Any] = field(default_factory=dict)
    log: Sequence[Mapping[str, Any]] = ()  # the lines of metrics.jsonl
    findings: Sequence[str] = ()  # what the doctor says of the training
