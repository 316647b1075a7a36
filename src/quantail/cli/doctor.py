"""quantail doctor: what is wrong with a run, and whether this installation is healthy."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quantail.errors import InputError

if TYPE_CHECKING:
    from quantail.monitor.install import Check


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

    from quantail.monitor.health import as_plain, as_text, replay, stopped
    from quantail.monitor.sinks import METRICS_FILE, read_rows
    from quantail.run.folder import sessions

    path = folder if folder.is_file() else folder / METRICS_FILE
    health = replay(read_rows(path))
    if why := (sessions(path.parent) or [{}])[-1].get("stopped", ""):
        health = stopped(health, why)
    elif health.iteration < 0:
        raise InputError(f"{path} holds no iteration yet; ask again when the first is over")
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
