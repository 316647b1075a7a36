"""Where the bars of an environment come from: recorded ones, or synthetic ones that are made anew while training goes on."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from quantail.errors import ConfigError, InputError
from quantail.market import presets
from quantail.market.candles import Candles, bar_seconds, block_bootstrap, simulate
from quantail.market.features import compute
from quantail.market.normalise import Normalisation
from quantail.market.series import Bars, Features
from quantail.market.synthetic import Model
from quantail.market.tape import Needs, Tape, check_same_bars, moved, tape
from quantail.market.terms import Episode
from quantail.settings import check_choice, check_counts, check_within

MARKET_STREAMS = {"train": 20, "validation": 21, "test": 22}  # apart from every stream of training, and from each other


@dataclass(frozen=True, eq=False)
class Ground:
    """A tape, and where on it an episode may begin and has to end."""

    tape: Tape
    starts: Tensor  # [S] int64 rows
    stops: Tensor  # [S] int64 rows at which an episode that began there is cut off
    longest: int
    span: int  # rows of a path
    born: Tensor | None = None  # [P] int64: in which generation each path was made; none of recorded bars

    def saved(self) -> dict[str, Tensor]:
        """What a resume has to know of it."""
        return {} if self.born is None else {"born": self.born}


class World(ABC):
    """A source of bars of one or several assets; `units`: what its features are measured in, where they were fitted."""

    assets: int
    units: Normalisation | None = None

    @abstractmethod
    def lay(self, needs: Needs, episode: Episode, dtype: torch.dtype, device: torch.device) -> Ground:
        """Bars and features laid out as these rules need them."""

    def renew(self, ground: Ground, running: Tensor, row: Tensor, iteration: int) -> None:
        """Make new bars where no episode is running, if this is the time for it; recorded bars stay."""
        return None

    def restore(self, ground: Ground, saved: Mapping[str, Tensor]) -> None:
        """Lay down again what `saved` tells."""
        if saved:
            raise InputError(f"saved holds {sorted(saved)} of a synthetic market, but these bars are recorded; use that market")


def grounded(laid: Tape, first: int, bars: int, paths: int, episode: Episode, dtype: torch.dtype) -> Ground:
    """Where episodes may start: from the row `first` on, and so that their whole length fits in."""
    length = episode.length or bars - 1 - first
    last = bars - 1 - length
    if length < 1 or last < first:
        raise ConfigError(
            f"episodes of {episode.length or 'all'} bars that start at row {first} or later need {first + max(length, 1) + 1} "
            f"bars, there are {bars}; shorten the episode or give more bars"
        )
    device = laid.gap.device
    within = torch.arange(first, last + 1, device=device)
    starts = (1 + bars * torch.arange(paths, device=device)[:, None] + within).flatten()
    laid = replace(laid, seen=laid.seen.to(dtype))
    return Ground(laid, starts, starts + length, length, bars)


@dataclass(frozen=True, eq=False)
class Recorded(World):
    """Bars that happened, with what is seen in them; `tradable` [T, A] is the calendar: when trading is possible at all.

    Episodes stay `within` these rows, all if none are given. What lies before them is known (it warms features up), what
    comes after is not even laid out. `units` are those of the training window: features are measured in them.
    """

    history: Bars
    features: Features
    tradable: Tensor | None = None
    within: range | None = None
    units: Normalisation | None = None

    def __post_init__(self) -> None:
        check_same_bars(self.history, self.features)
        if self.within is not None and not 0 <= self.within.start < self.within.stop <= len(self.history):
            raise InputError(f"within={self.within} of {len(self.history)} bars; needs rows of these bars")

    @property
    def assets(self) -> int:  # type: ignore[override]
        """How many there are."""
        return len(self.history.symbols)

    def lay(self, needs: Needs, episode: Episode, dtype: torch.dtype, device: torch.device) -> Ground:
        """Laid out once."""
        rows = range(len(self.history)) if self.within is None else self.within
        bars, seen = self.history.rows(0, rows.stop), self.features.rows(0, rows.stop)
        if "features" not in episode.parts:
            seen = nothing_seen(bars, seen.warmup)
        elif self.units is not None:
            seen = self.units.apply(seen)
        calendar = None if self.tradable is None else self.tradable[: rows.stop]
        laid = moved(tape(bars, seen, needs, tradable=calendar), device)
        return grounded(laid, max(rows.start, seen.warmup), len(bars), 1, episode, dtype)


@dataclass(frozen=True, eq=False)
class Synthetic(World):
    """P paths of a model, or of resampled bars; every `every` iterations those in which no episode runs are made anew.

    Generation g is drawn from (seed, g), whatever was drawn before: a resumed run has the same paths. Other seeds are other
    markets, and so are the parts "validation" and "test", which no training draws whatever its seed. Not renewed unless
    training asks: an environment that is only played keeps its paths.
    """

    model: Model | Bars
    paths: int = 256
    bars: int = 512
    assets: int = 1  # of a path, independent of each other
    seed: int = 0
    part: str = "train"
    every: int = 8
    overnight: float = 0.0
    mean_block: float = 20.0  # of resampled bars
    features: Callable[[Bars], Features] | None = None  # what is seen; the plain set if none

    def __post_init__(self) -> None:
        check_counts(paths=self.paths, bars=self.bars, assets=self.assets, every=self.every)
        check_choice("part", self.part, tuple(MARKET_STREAMS))
        check_within("overnight", self.overnight, 0.0, 1.0, high_open=True)
        check_within("mean_block", self.mean_block, 1.0)

    def drawn(self, generation: int, device: torch.device) -> tuple[Bars, Candles]:
        """The bars of a generation, [T, P·A], those of a path side by side."""
        key = (MARKET_STREAMS[self.part], generation)
        word = np.random.SeedSequence(self.seed, spawn_key=key).generate_state(1, np.uint64)[0]
        source = torch.Generator(device).manual_seed(int(word >> np.uint64(1)))
        width = self.paths * self.assets
        if isinstance(self.model, Bars):
            made = block_bootstrap(self.model, self.bars, width, self.mean_block, source)
            return made.bars(self.model.bar_seconds), made
        made = simulate(self.model, self.bars, width, source, self.overnight)
        return made.bars(bar_seconds(self.model)), made

    def taped(self, needs: Needs, episode: Episode, device: torch.device, generation: int) -> tuple[Tape, int]:
        """The tape of a generation, and the warm-up of its features."""
        bars, made = self.drawn(generation, device)
        seen = plain_features(bars, made.signal) if self.features is None else self.features(bars)
        warmup = seen.warmup
        seen = seen if "features" in episode.parts else nothing_seen(bars, warmup)
        return moved(tape(bars, seen, needs, self.paths), device), warmup

    def lay(self, needs: Needs, episode: Episode, dtype: torch.dtype, device: torch.device) -> Ground:
        """The first generation."""
        laid, warmup = self.taped(needs, episode, device, 0)
        ground = grounded(laid, warmup, self.bars, self.paths, episode, dtype)
        born = torch.zeros(self.paths, dtype=torch.int64, device=device)
        again = lambda generation: self.taped(needs, episode, device, generation)[0]  # noqa: E731
        return Grown(**{one.name: getattr(ground, one.name) for one in fields(Ground)} | {"born": born}, again=again)

    def renew(self, ground: Ground, running: Tensor, row: Tensor, iteration: int) -> None:
        """A new generation, in place, of every path in which no episode runs."""
        if iteration % self.every == 0 and iteration > 0:
            path = (row - 1).div(ground.span, rounding_mode="floor")
            used = torch.zeros(self.paths, dtype=torch.int64, device=row.device).index_add_(0, path, running.long())
            cast(Grown, ground).lay_over(iteration // self.every, used == 0)

    def restore(self, ground: Ground, saved: Mapping[str, Tensor]) -> None:
        """Every path as it was drawn in its generation."""
        if set(saved) != {"born"} or saved["born"].shape != (self.paths,):
            raise InputError(f"saved holds {sorted(saved)}; needs 'born' of {self.paths} paths: load what this market saved")
        born = saved["born"].to(cast(Tensor, ground.born).device)
        for generation in sorted(set(born.tolist())):
            cast(Grown, ground).lay_over(int(generation), born == generation)


@dataclass(frozen=True, eq=False)
class Grown(Ground):
    """Ground that can be laid again."""

    again: Callable[[int], Tape] = lambda generation: _never(generation)

    def lay_over(self, generation: int, where: Tensor) -> None:
        """The paths of a generation in place of those that are there, where the mask [P] says so."""
        fresh = self.again(generation)
        for one in fields(Tape):
            there, new = vars(self.tape)[one.name], vars(fresh)[one.name]
            if there is not None:
                old, made = (x[1:].view(len(where), self.span, *x.shape[1:]) for x in (there, new.to(there.dtype)))
                old.copy_(torch.where(where.view(-1, *[1] * (old.ndim - 1)), made, old))
        cast(Tensor, self.born).masked_fill_(where, generation)


def _never(generation: int) -> Tape:
    raise InputError(f"generation {generation} is asked of ground that cannot be laid again")


# --- what is seen without asking for more ------------------------------------------------------------------------------

PLAIN = (1, 5, 20, 60)


def plain_features(bars: Bars, signal: Tensor | None = None) -> Features:
    """Log returns over 1, 5, 20 and 60 bars, each in units of 1 %·√bars, and the signal where there is one."""
    log_price = bars.close.log()
    seen = [torch.zeros_like(log_price) for _ in PLAIN]
    for column, back in zip(seen, PLAIN, strict=True):
        if back < len(bars):
            column[back:] = (log_price[back:] - log_price[:-back]) * (100 / back**0.5)
    names = tuple(f"return_{back}" for back in PLAIN)
    if signal is not None:
        seen, names = [*seen, signal.double()], (*names, "signal")
    return Features(torch.stack(seen, -1).float(), names, min(max(PLAIN), len(bars) - 1))


def nothing_seen(bars: Bars, warmup: int) -> Features:
    """No feature at all, after the same warm-up."""
    return Features(torch.zeros(len(bars), len(bars.symbols), 0), (), warmup)


def world_of(source: Bars | str | World, features: Features | None) -> World:
    """The world that a user names, hands over, or describes by bars and features."""
    if isinstance(source, Bars):
        return Recorded(source, compute(source) if features is None else features)
    if features is not None:
        raise ConfigError(
            "features are those of recorded bars; of a synthetic market, pass Synthetic(model, features=function)"
        )
    if isinstance(source, World):
        return source
    check_choice("source", source, tuple(presets.MARKETS))
    return Synthetic(presets.MARKETS[source]())
