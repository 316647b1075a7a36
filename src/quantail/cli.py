"""The command line: parse, call, print. It decides nothing, and without a verb to run it imports no torch.

A verb is a row of `VERBS`: the function that runs it takes the options as typed parameters, prints the answer and
returns the exit code. 0: fine. 1: the verb ran and its answer is bad. 2: it could not run, and one sentence says why.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from quantail.monitor.install import Check


class Verb(NamedTuple):
    """Where the function lives, and one line for --help."""

    module: str
    function: str
    summary: str


VERBS = {
    "doctor": Verb("quantail.cli", "doctor", "say what is wrong with a run, or whether this installation is healthy"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    match words[:1]:
        case ["--version"]:
            from quantail import __version__

            print(f"quantail {__version__}")
            return 0
        case ["-h" | "--help"]:
            print(usage())
            return 0
        case []:
            print(usage(), file=sys.stderr)
            return 2
        case [verb] if verb in VERBS:
            return call(verb, words[1:])
    return unknown(words[0])


def usage() -> str:
    """The help page, from the table alone."""
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {name:<{width}}  {verb.summary}" for name, verb in VERBS.items())
    return (
        "usage: quantail [--help] [--version] VERB ...\n\n"
        "Trading agents that learn the whole distribution of their returns and keep a tail-risk limit.\n\n"
        f"verbs:\n{verbs}\n\n"
        "Each verb explains its options: quantail VERB --help"
    )


def unknown(verb: str) -> int:
    """Say which word was meant, if one is close."""
    from difflib import get_close_matches

    close = get_close_matches(verb, VERBS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"the verbs are {', '.join(VERBS)}."
    print(f"quantail: {verb!r} is no verb of quantail; {hint} Try quantail --help", file=sys.stderr)
    return 2


def call(name: str, words: Sequence[str]) -> int:
    """Let the verb's signature parse its options, then run it; an error raised on purpose becomes one sentence."""
    from importlib import import_module

    import tyro

    from quantail.errors import QuantailError

    verb = VERBS[name]
    function: Any = getattr(import_module(verb.module), verb.function)
    try:
        return int(tyro.cli(function, args=words, prog=f"quantail {name}", config=(tyro.conf.FlagCreatePairsOff,)))
    except QuantailError as error:
        print(f"quantail {name}: {error}", file=sys.stderr)
        return 2


def doctor(folder: Path | None = None, /, *, json: bool = False) -> int:
    """Say what is wrong with a run; without a folder, whether this installation is healthy: versions, devices, packages,
    and three answers known in closed form.

    Args:
        folder: Of a run, or its metrics.jsonl.
        json: Print JSON instead of text.
    """
    if folder is not None:
        return examine_run(folder, json)
    from quantail.monitor.install import examine

    checks = examine()
    print(as_json(checks) if json else as_table(checks))
    return 0 if all(check.ok for check in checks) else 1


def examine_run(folder: Path, json: bool) -> int:
    """What the figures of a run show to be wrong, gravest first; 1 where something is broken now."""
    from shutil import get_terminal_size

    from quantail.monitor.health import as_plain, as_text, replay
    from quantail.monitor.sinks import METRICS_FILE, read_rows

    health = replay(read_rows(folder if folder.is_file() else folder / METRICS_FILE))
    print(dump(as_plain(health)) if json else as_text(health, min(get_terminal_size().columns, 120)))
    return int(health.broken())


def as_table(checks: Sequence["Check"]) -> str:
    """Aligned columns: verdict, name, what was seen and what is needed."""
    width = max(len(check.name) for check in checks)
    lines = [f"{'ok' if check.ok else 'FAILED':<6}  {check.name:<{width}}  {check.seen}" for check in checks]
    lines = [line + (check.needed and f" (needs {check.needed})") for line, check in zip(lines, checks, strict=True)]
    failed = sum(not check.ok for check in checks)
    verdict = f"{failed} of {len(checks)} checks failed" if failed else f"all {len(checks)} checks passed"
    return "\n".join([*lines, "", verdict])


def as_json(checks: Sequence["Check"]) -> str:
    """The same records for a program to read."""
    from dataclasses import asdict

    return dump([asdict(check) for check in checks])


def dump(values: object) -> str:
    """JSON for a program, and for a reader."""
    import json

    return json.dumps(values, indent=2, ensure_ascii=False)
