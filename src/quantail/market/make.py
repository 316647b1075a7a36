"""`quantail/Market` by plain options, as a config or the command line has them: to train in, and to be judged in.

    env = market(num_envs, **config.env.options)                    # what is trained in; the registry calls this
    env = on_part(config.env.options, "test", checkpoint.fitted)    # the whole test, once, in the units of training

`fitted` is what an environment took from its training window (`MarketEnv.fitted`): a run keeps it in `normalisation.json`
and in each checkpoint. Whoever plays a saved agent hands it over; nothing but the training window is ever fitted on.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from quantail.errors import InputError
from quantail.market.costs import scaled
from quantail.market.env import MarketEnv
from quantail.market.features import functions_of, unproved
from quantail.market.normalise import Normalisation, fit
from quantail.market.options import Asked, MadeUp, OnFile, Options, asked
from quantail.market.presets import MARKETS
from quantail.market.rules import moment
from quantail.market.series import Bars, Features
from quantail.market.splits import Splits, split_by_time
from quantail.market.world import Recorded, Synthetic, World

NAME = "quantail/Market"
Fitted = Mapping[str, Any]


def market(num_envs: int, fitted: Fitted | None = None, **options: bool | int | float | str) -> MarketEnv:
    """Episodes on a part of the data, the training window if no other `part` is named; on another, no longer than that is."""
    wish = asked(options)
    world = world_of(wish, fitted)
    episode = wish.episode
    if wish.part != "train" and isinstance(world, Recorded) and world.within is not None:
        episode = replace(episode, length=min(episode.length, len(world.within) - 1))
    return MarketEnv(num_envs, world, costs=wish.costs, rules=wish.rules, reward=wish.reward, episode=episode)


def on_part(
    options: Options, part: str = "test", fitted: Fitted | None = None, num_envs: int | None = None, cost_factor: float = 1.0
) -> MarketEnv:
    """All of a part as one episode that begins at its first row, to judge an agent in; nothing about it is random but slippage.

    Args:
        options: Those of the run, `config.env.options`.
        part: train, validation, test, or (of recorded bars) all.
        fitted: `fitted` of the run's environment or checkpoint: the units the agent knows. None: fitted anew, on the training
            window of these options.
        num_envs: Portfolios side by side. Recorded bars need one, which is the default; a synthetic market has one for each of
            its held-out paths.
        cost_factor: Of all trading costs, for the lines at 0, 1, 2 and 4 times the cost.

    Time left is shown as in training, where an episode was shorter: as a share of its `length`, at most 1.
    """
    wish = asked({**options, "part": part})
    trained = wish.episode
    episode = replace(trained, length=0, starts="fixed", random_position=False, horizon=trained.horizon or trained.length)
    costs = scaled(replace(wish.costs, randomized_from=1.0, randomized_to=1.0), cost_factor)
    count = num_envs or (wish.source.paths if isinstance(wish.source, MadeUp) else 1)
    return MarketEnv(count, world_of(wish, fitted), costs=costs, rules=wish.rules, reward=wish.reward, episode=episode)


def world_of(wish: Asked, fitted: Fitted | None = None) -> World:
    """The source of bars that options describe, in the units of training."""
    if isinstance(wish.source, MadeUp):
        return synthetic(wish.source, wish.part)
    return recorded(wish.source, wish.part, fitted)


def synthetic(source: MadeUp, part: str) -> Synthetic:
    """Paths of a model by name."""
    made = {name: value for name, value in vars(source).items() if name != "source"}
    return Synthetic(MARKETS[source.source](), part=part, **made)


def recorded(source: OnFile, part: str, fitted: Fitted | None) -> Recorded:
    """A part of the bars in a file, with the default features."""
    read = history(source, aloud=part == "train")
    rows = rows_of(read.splits, part)
    units = units_of(source, read, part, fitted) if source.normalise else None
    return Recorded(read.bars, read.features, within=rows, units=units)


# --- recorded bars ----------------------------------------------------------------------------------------------------


class History(NamedTuple):
    """What a file holds."""

    bars: Bars
    features: Features  # the default set; each is proved causal where it is tested
    splits: Splits


def history(source: OnFile, aloud: bool = True) -> History:
    """Bars read and judged, features computed, parts found; aloud: what was understood of the file is told."""
    from quantail.market.bars import load_bars, tell  # pandas: only who reads a file needs it

    bars = load_bars(
        source.data,
        timezone=source.timezone,
        mode="repair" if source.repair else "strict",
        allow=source.allow,
        adjusted=source.adjusted,
        echo=tell if aloud else lambda line: None,
    )
    splits = split_by_time(
        bars,
        source.validation,
        source.test,
        purge=source.purge,
        embargo=source.embargo,
        begin=source.begin,
        end=source.end,
    )
    return History(bars, unproved(functions_of(), bars), splits)


def rows_of(splits: Splits, part: str) -> range:
    """The rows of a part; "all" is from where training begins to where the test ends."""
    rows = range(splits.train.start, splits.test.stop) if part == "all" else splits._asdict()[part]
    if len(rows) < 2:
        raise InputError(f"the part {part!r} has {len(rows)} bars; move the borders (validation, test) so that it has some")
    return rows


def units_of(source: OnFile, read: History, part: str, fitted: Fitted | None) -> Normalisation:
    """The units of the training window: those that were fitted there, or fitted now; refused where the windows differ."""
    fresh = fit(read.features, read.bars, read.splits.train)
    if not fitted or "normalisation" not in fitted:
        return fresh
    known = Normalisation.from_dict(fitted["normalisation"])
    begins = moment(int(read.bars.time[rows_of(read.splits, part).start]))
    if part in ("validation", "test"):
        if begins < known.until:
            raise InputError(
                f"{part} of {source.data} begins {begins} and the agent was trained on bars up to {known.until}; "
                "move the borders behind that"
            )
    elif known.until and (known.since, known.until) != (fresh.since, fresh.until):
        raise InputError(
            f"the training window of {source.data} is {fresh.since} to {fresh.until}, the agent's was {known.since} to "
            f"{known.until}; give the same bars and borders"
        )
    return known
