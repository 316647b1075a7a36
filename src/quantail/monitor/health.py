"""What is wrong with a run: figures of iterations in, findings out, each said once with how often and since when.

`Health` is a value: `examine` takes one and an iteration, and gives the next. Fed with the lines of a run's `metrics.jsonl` it
is what the running run knew, so a resumed run forgets nothing and `quantail doctor FOLDER` sees what the console showed.
"""

import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from quantail.monitor.looks import WINDOW, Past, Row
from quantail.monitor.rules import BROKEN, GRAVITIES, RULES, WARNING

LATELY = 10  # iterations since which a finding has not been seen before it counts as over


class Finding(NamedTuple):
    """One thing that is, or was, wrong."""

    name: str  # of a rule, or "" for what only the loop knows how to say
    gravity: str
    seen: str  # latest, in words and numbers
    means: str
    advice: str
    since: int  # environment steps when it was first seen
    until: int  # environment steps when it was last seen
    iterations: int  # in which it was seen
    last: int  # the last of them


class Health(NamedTuple):
    """What is known of a run so far."""

    iteration: int = -1
    env_steps: int = 0
    past: Past = Past({}, ())
    streaks: Mapping[str, tuple[int, int]] = {}  # rule -> since which environment steps, for how many iterations in a row
    findings: Mapping[str, Finding] = {}  # by name, or by the pattern of what the loop said

    def now(self) -> list[Finding]:
        """What is wrong lately, gravest first."""
        return _sorted(finding for finding in self.findings.values() if finding.last > self.iteration - LATELY)

    def before(self) -> list[Finding]:
        """What was wrong once, gravest first."""
        return _sorted(finding for finding in self.findings.values() if finding.last <= self.iteration - LATELY)

    def broken(self) -> bool:
        """Whether nothing good can come of going on like this."""
        return any(finding.gravity == BROKEN for finding in self.now())


def examine(health: Health, iteration: int, env_steps: int, row: Row, told: Sequence[str] = ()) -> Health:
    """The health after one more iteration: its figures, and what the loop itself found in it."""
    row = {name: value for name, value in row.items() if math.isfinite(value)}  # as a log keeps them
    past = Past(health.past.first or row, (*health.past.window, row)[-WINDOW:])
    streaks: dict[str, tuple[int, int]] = {}
    findings = dict(health.findings)
    sights = {name: seen for name, rule in RULES.items() if (seen := rule.look(row, past))}
    said = {key_of(sentence): sentence for sentence in told}
    for name in {**sights, **said}:
        since, count = health.streaks.get(name, (env_steps, 0))
        if name in sights:
            streaks[name] = (since, count + 1)
        if name in said:  # at once: the loop does not tell what may pass
            findings[name] = _again(findings.get(name), name, said[name], env_steps, 1, (iteration, env_steps))
        elif count + 1 >= RULES[name].patience:
            new = count + 1 if count + 1 == RULES[name].patience else 1  # patience at its end counts what it has seen
            findings[name] = _again(findings.get(name), name, sights[name], since, new, (iteration, env_steps))
    return Health(iteration, env_steps, past, streaks, findings)


def replay(rows: Iterable[Mapping[str, Any]]) -> Health:
    """The health of a run from the lines of its log."""
    health = Health()
    for row in rows:
        figures = {name: value for name, value in row.items() if isinstance(value, float | int)}
        health = examine(health, row["iteration"], row["env_steps"], figures, row.get("findings", ()))
    return health


def stopped(health: Health, why: str) -> Health:
    """The health of a run that broke off by itself, in an iteration that was not logged."""
    at = (health.env_steps, health.env_steps, 1, health.iteration)
    advice = "do what it says; then go on from the last good checkpoint with quantail resume"
    finding = Finding("stopped", BROKEN, why, "training could not go on", advice, *at)
    return health._replace(findings={**health.findings, "stopped": finding})


def key_of(sentence: str) -> str:
    """Under which name something that the loop says is counted: a rule's, or the words without their numbers."""
    for rule in RULES.values():
        if rule.told and re.search(rule.told, sentence):
            return rule.name
    return re.sub(r"\[[^]]*\]|[-+]?\d[\d.,]*(e[-+]?\d+)?%?", "#", sentence)


def as_text(health: Health, width: int = 100) -> str:
    """The findings for a reader: what is wrong now, gravest first, then what was."""
    now, before = health.now(), health.before()
    head = f"{health.iteration + 1:,} iterations, {health.env_steps:,} environment steps: "
    if not now and not before:
        return f"{head}nothing is wrong"
    counts = ", ".join(f"{sum(one.gravity == kind for one in now)} {kind}" for kind in GRAVITIES)
    parts = [f"{head}{counts}", *(_paragraph(one, width) for one in now)]
    if before:
        parts += ["what was wrong before, and is over:", *(_paragraph(one, width) for one in before)]
    return "\n\n".join(parts)


def as_plain(health: Health) -> list[dict[str, Any]]:
    """The findings for a program, gravest first; `now` says whether they still hold."""
    lately = set(health.now())
    return [finding._asdict() | {"now": finding in lately} for finding in (*health.now(), *health.before())]


def _again(known: Finding | None, key: str, seen: str, since: int, count: int, at: tuple[int, int]) -> Finding:
    """A finding seen once more, or for the first time."""
    iteration, env_steps = at
    if known is not None:
        return known._replace(seen=seen, iterations=known.iterations + count, last=iteration, until=env_steps)
    rule = RULES.get(key)
    name, gravity, means, advice = (key, rule.gravity, rule.means, rule.advice) if rule else ("", WARNING, "", "")
    return Finding(name, gravity, seen, means, advice, since, env_steps, count, iteration)


def _paragraph(finding: Finding, width: int) -> str:
    """What is seen, since when, what it means, what to do."""
    label = f"{finding.gravity}: {finding.name}: " if finding.name else f"{finding.gravity}: "
    when = f"since step {finding.since:,}" if finding.since < finding.until else f"at step {finding.since:,}"
    often = f"{finding.iterations:,} iterations" if finding.iterations > 1 else "once"
    last = f", last at step {finding.until:,}" if finding.since < finding.until else ""
    lines = [f"{label}{finding.seen} ({often}, {when}{last})"]
    lines += [f"means: {finding.means}"] if finding.means else []
    lines += [f"try: {finding.advice}"] if finding.advice else []
    return "\n".join(
        textwrap.fill(line, width, initial_indent="  " if i else "", subsequent_indent="    ") for i, line in enumerate(lines)
    )


def _sorted(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda one: (GRAVITIES.index(one.gravity), -one.iterations, one.since))
