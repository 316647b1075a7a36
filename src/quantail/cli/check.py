"""quantail check: does anything leak, does the money add up?"""

import importlib.util
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from quantail.errors import InputError

if TYPE_CHECKING:
    from quantail.audit.subject import Subject
    from quantail.market.features import Function
    from quantail.market.options import Options
    from quantail.market.series import Bars


def check(
    path: Annotated[Path, tyro.conf.Positional],
    features: Path | None = None,
    config: Path | None = None,
    costs: str = "default",
    actions: str = "grid",
    leverage: float = 1.0,
    band: float = 0.0,
    timezone: str = "UTC",
    repair: bool = False,
    json: bool = False,
) -> int:
    """Ask seven questions to your bars, features and rules whose answers are known: prefix invariance, future scramble,
    one-bar lag, oracle feature, null market, invariances, check_env. Exits with 1 where an answer is wrong.

    Args:
        path: Of the bars: a file, or a folder of files.
        features: A Python file; each function in it that takes one argument, the bars, is a feature beside the default ones.
        config: A YAML file of settings, such as the config.yaml of a run; its env.options say how to trade.
        costs: A preset, where no config is given: default, free, crypto_spot, perps, us_stocks, fx.
        actions: grid, long_only, long_short, tanh or simplex, where no config is given.
        leverage: The most that is held, where no config is given.
        band: No trade where a weight would change by less, where no config is given.
        timezone: Of times that carry no zone.
        repair: Drop, sort or mask rows that break a rule; without it they are refused.
        json: Print JSON instead of a table.
    """
    from quantail.audit import audit
    from quantail.cli.doctor import as_json, as_table
    from quantail.market.bars import load_bars

    bars = load_bars(path, timezone=timezone, mode="repair" if repair else "strict")
    options: Options = {"costs": costs, "actions": actions, "leverage": leverage, "band": band}
    subject = subject_of(bars, options_in(config) if config else options, functions_in(features) if features else {})
    checks = audit(subject)
    print(as_json(checks) if json else as_table(checks))
    return 0 if all(one.ok for one in checks) else 1


def subject_of(bars: "Bars", options: "Options", extra: dict[str, "Function"]) -> "Subject":
    """The market as these options would make it, on these bars."""
    from quantail.audit.subject import Subject
    from quantail.market.features import functions_of
    from quantail.market.options import asked

    wish = asked(options)
    return Subject(bars, functions_of(extra=extra), wish.costs, wish.rules, wish.reward)


def options_in(path: Path) -> "Options":
    """How a config trades."""
    from quantail.config import Config
    from quantail.run.configfile import read

    return read(path, Config()).env.options


def functions_in(path: Path) -> dict[str, "Function"]:
    """The functions of a Python file that take the bars and nothing else."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise InputError(f"{path} is no Python file; needs one with functions that take the bars")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # it is the user's file: whatever it raises, say where
        raise InputError(f"{path} cannot be read ({type(error).__name__}: {error}); correct it") from error
    found: dict[str, Function] = {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }
    found = {name: value for name, value in found.items() if len(inspect.signature(value).parameters) == 1}
    if not found:
        raise InputError(f"{path} has no function that takes one argument; needs functions such as `def range(bars): ...`")
    return found
