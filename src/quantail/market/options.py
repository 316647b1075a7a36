"""The plain options of `quantail/Market`, as a config or a command line has them, sorted into the records they belong to.

Every field of `Rules`, `Costs`, `Reward` and `Episode` is an option; `docs/market.md` lists them all.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, NamedTuple

from quantail.errors import ConfigError
from quantail.market.costs import Costs, preset
from quantail.market.presets import MARKETS
from quantail.market.splits import Border
from quantail.market.terms import Episode, Reward, Rules
from quantail.settings import build, check_choice

Options = Mapping[str, bool | int | float | str]

PARTS = ("train", "validation", "test", "all")
PATH = "env.options."


@dataclass(frozen=True)
class MadeUp:
    """Paths of a synthetic market; see `world.Synthetic`. Validation and test are paths that no training ever draws."""

    source: str = "hidden_drift"
    seed: int = 0  # another seed is another market
    paths: int = 256
    bars: int = 512
    assets: int = 1
    every: int = 8
    overnight: float = 0.0

    def __post_init__(self) -> None:
        check_choice("source", self.source, tuple(MARKETS))


@dataclass(frozen=True)
class OnFile:
    """Recorded bars, how they are read (`load_bars`), and where their parts begin (`split_by_time`)."""

    data: str
    timezone: str = "UTC"
    adjusted: bool = False
    repair: bool = False
    allow: tuple[str, ...] = ()
    begin: Border = 0.0
    validation: Border = 0.7
    test: Border = 0.85
    end: Border = 1.0
    purge: int = 0
    embargo: int = 0
    normalise: bool = True  # features in units of the training window


class Asked(NamedTuple):
    """A market as its options describe it."""

    source: MadeUp | OnFile
    part: str
    costs: Costs
    rules: Rules
    reward: Reward
    episode: Episode


RENAMED = {"kind": "reward", "scale": "reward_scale", "rate": "reward_rate"}  # of `Reward`

# Option -> the record it belongs to, and its name there.
PLACES: Mapping[str, tuple[type, str]] = {
    **{one.name: (record, one.name) for record in (MadeUp, OnFile, Costs, Rules, Episode) for one in fields(record)},
    **{RENAMED.get(one.name, one.name): (Reward, one.name) for one in fields(Reward)},
    "shown": (Episode, "parts"),
}
NAMES = ("part", "costs", *(name for name in PLACES if name != "parts"))
SWITCHES = {
    one.name for record in (MadeUp, OnFile, Costs, Rules, Reward, Episode) for one in fields(record) if one.type is bool
}
SAID = {"yes": True, "true": True, "no": False, "false": False}
LISTS: Mapping[str, type] = {"levels": float, "allow": str, "shown": str}  # written with commas


def asked(options: Options) -> Asked:
    """Records from options; what is left out has its default, and what makes no sense one sentence."""
    given: dict[type, dict[str, Any]] = {record: {} for record in (MadeUp, OnFile, Costs, Rules, Reward, Episode)}
    for name, value in options.items():
        if name not in NAMES:
            close = get_close_matches(name, NAMES, n=1)
            hint = f"did you mean {close[0]}?" if close else f"it takes {', '.join(NAMES)}"
            raise ConfigError(f"{PATH}{name} is no option of quantail/Market; {hint}")
        if name in PLACES:
            record, field = PLACES[name]
            given[record][field] = listed(name, value) if name in LISTS else switched(name, value)
    part = str(options.get("part", "train"))
    check_choice(f"{PATH}part", part, PARTS)
    leverage = given[Rules].get("leverage", 1.0)
    if isinstance(leverage, float | int):
        given[Rules].setdefault("levels", [side * leverage for side in (-1.0, 0.0, 1.0)])
    return Asked(
        source_of(given[MadeUp], given[OnFile], part),
        part,
        built(Costs, {**vars(preset(str(options.get("costs", "default")))), **given[Costs]}),
        built(Rules, given[Rules]),
        built(Reward, {"scale": 100.0, **given[Reward]}),
        built(Episode, given[Episode]),
    )


def source_of(made_up: dict[str, Any], on_file: dict[str, Any], part: str) -> MadeUp | OnFile:
    """One of the two, never both."""
    if not on_file:
        if part == "all":
            raise ConfigError(f"{PATH}part='all' is of recorded bars; choose train, validation or test of a synthetic market")
        made: MadeUp = built(MadeUp, made_up)
        return made
    if "data" not in on_file:
        raise ConfigError(f"{PATH}{next(iter(on_file))} is about recorded bars and none are named; set {PATH}data too")
    if made_up:
        raise ConfigError(f"{PATH}{next(iter(made_up))} is about synthetic markets, {PATH}data names recorded bars; take one")
    read: OnFile = built(OnFile, on_file)
    return read


def built(record: type, values: dict[str, Any]) -> Any:
    """The record; where its own names are not those of the options, the error says whose they are."""
    try:
        return build(record, values, PATH)
    except ConfigError as error:
        if record in (Reward, Episode):
            raise ConfigError(f"the {record.__name__.lower()} of {PATH.rstrip('.')}: {error}") from error
        raise


def switched(name: str, value: bool | int | float | str) -> bool | int | float | str:
    """A command line says yes or no; of other options the value itself."""
    return SAID.get(value.lower(), value) if name in SWITCHES and isinstance(value, str) else value


def listed(name: str, value: bool | int | float | str) -> list[Any]:
    """'1,0,-1' as a list; a single value as a list of one."""
    words = [word.strip() for word in str(value).split(",") if word.strip()]
    try:
        return [LISTS[name](word) for word in words]
    except ValueError as error:
        raise ConfigError(f"{PATH}{name}={value!r}; needs numbers with commas between them, such as '1,0.5,-1'") from error
