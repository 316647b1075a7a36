"""quantail train and quantail resume."""

from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from quantail import presets
from quantail.config import Config
from quantail.errors import ConfigError

if TYPE_CHECKING:
    from quantail.run import Outcome

# What ends a process by a signal gives 128 + its number; a run that was asked to stop did not fail, but is not done either.
STOPPED = 130
OPTION = "--env.options."
Option = bool | int | float | str


@dataclass(frozen=True)
class Train:
    """Train an agent into a folder of its own: settings, logs, checkpoints.

    Settings come from the preset, then from the file, then from the options here. Ctrl-C saves; `quantail resume DIR` goes on.
    """

    settings: Annotated[Config, tyro.conf.arg(name="")]
    run: Path
    """The folder; it must not hold a run already."""
    env: str = ""
    """A Gymnasium id, or quantail/NAME for a native environment, such as quantail/CartPole; short for --env.id."""
    preset: Annotated[
        str, tyro.conf.arg(help=f"Start from settings that are known to learn: {', '.join(presets.PRESETS)}.")
    ] = ""
    config: Path | None = None
    """Start from a YAML file of settings, such as the config.yaml of another run."""


def train(options: Train) -> int:
    """Train by the resolved settings."""
    from quantail.run import run

    config = options.settings
    if options.env:
        config = replace(config, env=replace(config.env, id=options.env))
    if not config.env.id:
        raise ConfigError("no environment is named; pass --env CartPole-v1, or --env quantail/CartPole for a native one")
    return told(run(config, options.run))


def defaults(words: Sequence[str]) -> Train:
    """What the options start from: the preset and the file that the words name."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--preset", default="")
    parser.add_argument("--config", type=Path)
    try:
        named, _ = parser.parse_known_args([word for word in words if word not in ("-h", "--help")])
    except Exception:  # tyro says what is wrong with the words, and better
        return Train(Config(), tyro.MISSING)
    start = presets.preset(named.preset) if named.preset else Config()
    if named.config is not None:
        from quantail.run import configfile

        start = configfile.read(named.config, start)
    options = {**start.env.options, **further(words, start.env.options)}
    return Train(replace(start, env=replace(start.env, options=options)), tyro.MISSING)


def further(words: Sequence[str], known: Mapping[str, Option]) -> dict[str, Option]:
    """Options of the environment, `--env.options.fee-bps 2`, that the preset or the file does not name: they may be set too."""
    found: dict[str, Option] = {}
    for word, value in pairwise([*words, ""]):
        if word.startswith(OPTION) and (name := word.removeprefix(OPTION).replace("-", "_")) not in known:
            found[name] = plain(value)
    return found


def plain(word: str) -> Option:
    """A word as the number that it is written as, if it is one; no word at all is a switch, which is off until it is named."""
    if not word or word.startswith("--"):
        return False
    for kind in (int, float):
        with suppress(ValueError):
            return kind(word)
    return word


def resume(folder: Annotated[Path, tyro.conf.Positional], total_timesteps: int | None = None) -> int:
    """Go on with a run as if it had never stopped.

    Args:
        folder: The folder that `quantail train --run` was given.
        total_timesteps: Make the run longer; schedules stretch with it.
    """
    from quantail.run import resume

    return told(resume(folder, total_timesteps=total_timesteps))


def told(outcome: "Outcome") -> int:
    """One line about how it ended."""
    from quantail import ranks

    best = f", best {outcome.judged.best:g} at {outcome.judged.best_env_steps} steps" if outcome.judged.best is not None else ""
    line = f"{outcome.status}: {outcome.env_steps} steps in {outcome.iteration} iterations{best}; in {outcome.folder}"
    cut = outcome.status == "interrupted"
    if ranks.writes():
        print(line + (f"; go on with: quantail resume {outcome.folder}" if cut else ""))
    return STOPPED if cut else 0
