"""quantail evaluate and quantail runs."""

import json as jsons
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from quantail.errors import RunError

if TYPE_CHECKING:
    from quantail.run.listing import Summary


def evaluate(
    folder: Annotated[Path, tyro.conf.Positional],
    checkpoint: str = "best",
    rows: int | None = None,
    seed: int | None = None,
    stochastic: bool = False,
    part: Literal["train", "validation", "test"] = "validation",
    verdict: bool = False,
    json: bool = False,
) -> int:
    """Play with a saved agent; nothing learns, and the same seed gives the same numbers.

    With --verdict a market's agent lives through the whole part once, beside its baselines, and is judged: the words and the
    table of `quantail report`, which looks at the test part, without its files.

    Args:
        folder: The folder of a run.
        checkpoint: best (the latest where nothing was evaluated), latest, or a file.
        rows: Of the evaluation, in each environment; those of the run's settings if none are given.
        seed: Of the evaluation; that of the run's settings if none is given.
        stochastic: Draw actions from the policy instead of taking its mode.
        part: Of a market's data, unless the run's settings name one.
        verdict: Of a market: judge the agent beside its baselines, after all costs.
        json: Print JSON instead of a table.
    """
    if verdict:
        from quantail.cli.report import told

        if rows is not None or seed is not None or stochastic:
            raise RunError("--verdict is of the whole part, and shows both modes; leave out --rows, --seed and --stochastic")
        return told(folder, checkpoint, part, json)
    from quantail.checkpoint import check_environment, read, restore_agent
    from quantail.monitor.progress import track
    from quantail.registry import make
    from quantail.run import folder as folders
    from quantail.run import validation

    path = folders.chosen(folder, checkpoint)
    saved = read(path)
    asked = saved.config.run
    wished = replace(
        asked,
        evaluate_rows=asked.evaluate_rows if rows is None else rows,
        evaluate_seed=asked.evaluate_seed if seed is None else seed,
        deterministic=asked.deterministic and not stochastic,
    )
    config = replace(saved.config, run=wished)
    env = make(config.env, asked.evaluate_envs, config.risk, part, saved.fitted)
    try:
        check_environment(saved, env, any_number=True)
        found = validation.evaluate(
            env, restore_agent(saved), saved.observation_moments, config, lambda rows: track(rows, "rows")
        )
    finally:
        env.close()
    print(jsons.dumps({"checkpoint": str(path), **found}, indent=2) if json else as_lines(path, found))
    return 0


def runs(
    root: Annotated[Path, tyro.conf.Positional] = Path("runs"),
    csv: bool = False,
    json: bool = False,
) -> int:
    """List and compare the runs below a folder: how they stand, how well they did, how long it took, and the settings in
    which they differ.

    Args:
        root: The folder to look in.
        csv: Print comma-separated values instead of a table, a column for each setting that differs.
        json: Print JSON instead of a table.
    """
    from quantail.run.listing import differing, runs_below

    if not root.is_dir():
        raise RunError(f"there is no folder {root}; name the one that holds your runs")
    found = list(runs_below(root))
    names = differing(found)
    if json:
        plain = [{**one._asdict(), "folder": str(one.folder), "settings": chosen(one, names)} for one in found]
        print(jsons.dumps(plain, indent=2))
    elif csv:
        print(as_csv(found, names), end="")
    else:
        print(as_table(found, names) if found else f"no runs below {root}")
    return 0


def chosen(one: "Summary", names: "Sequence[str]") -> dict[str, Any]:
    """Some settings of a run."""
    return {name: one.settings.get(name) for name in names}


def as_csv(found: "Sequence[Summary]", names: "Sequence[str]") -> str:
    """A line for each run."""
    from csv import DictWriter
    from io import StringIO

    text = StringIO()
    columns = [name for name in type(found[0])._fields if name != "settings"] if found else []
    writer = DictWriter(text, [*columns, *names], lineterminator="\n")
    writer.writeheader()
    for one in found:
        writer.writerow({name: getattr(one, name) for name in columns} | chosen(one, names))
    return text.getvalue()


def as_lines(path: Path, found: dict[str, float]) -> str:
    """A figure on each line."""
    width = max(map(len, found))
    return "\n".join([f"checkpoint {path}", *(f"{name:<{width}}  {value:g}" for name, value in found.items())])


def as_table(found: "Sequence[Summary]", names: "Sequence[str]") -> str:
    """Aligned columns, then what differs."""
    from quantail.monitor.shown import duration

    rows = [("folder", "environment", "status", "steps", "of", "return", "best", "time", "differs in")]
    rows += [
        (
            str(one.folder),
            one.env,
            one.status,
            str(one.env_steps),
            str(one.total_timesteps),
            number(one.reward),
            number(one.best),
            duration(one.seconds),
            " ".join(f"{name}={value}" for name, value in chosen(one, names).items()),
        )
        for one in found
    ]
    columns = list(zip(*rows, strict=True))[: None if names else -1]
    widths = [max(map(len, column)) for column in columns]
    lines = zip(*columns, strict=True)
    return "\n".join("  ".join(f"{word:<{width}}" for word, width in zip(row, widths, strict=True)).rstrip() for row in lines)


def number(value: float | None) -> str:
    """A figure, if there is one."""
    return "-" if value is None else f"{value:.4g}"
