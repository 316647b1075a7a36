"""What is audited: bars, what is seen in them, and the rules by which they are traded."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from quantail.envs.base import TensorEnv
from quantail.errors import InputError
from quantail.market.costs import Costs
from quantail.market.env import MarketEnv
from quantail.market.features import Function, functions_of, unproved
from quantail.market.series import Bars, Features
from quantail.market.terms import Episode, Reward, Rules
from quantail.streams import Stream, generator, normal

SHORT, LONG, HOLD = 0, 2, 3  # choices of `GRID`
GRID = (-1.0, 0.0, 1.0)
LEAST = 200  # bars below which there is nothing to find


@dataclass(frozen=True, eq=False)
class Subject:
    """A market as somebody means to use it."""

    bars: Bars
    functions: Mapping[str, Function] = field(default_factory=functions_of)
    costs: Costs = field(default_factory=Costs)
    rules: Rules = field(default_factory=Rules)
    reward: Reward = field(default_factory=Reward)
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.bars) < LEAST:
            raise InputError(f"{len(self.bars)} bars are too few to audit; needs at least {LEAST}: give more history")

    def env(self, bars: Bars, features: Features, num_envs: int, length: int = 0) -> MarketEnv:
        """Their market, with episodes that all begin at the first row that is warm."""
        terms: dict[str, Any] = {"costs": self.costs, "rules": self.rules, "reward": self.reward}
        return MarketEnv(num_envs, bars, features, **terms, episode=Episode(length, starts="fixed"))

    def noise(self, env: TensorEnv, rows: int, stream: int = 0) -> Tensor:
        """The luck of so many rows and of the reset before them: [rows + 1, B, noise_dim]."""
        return normal((rows + 1, env.num_envs, env.noise_dim), generator(self.seed, Stream.PLAY, stream, env.device))


def alone(bars: Bars, asset: int, most: int = 4000) -> Bars:
    """The last valid bars of one asset, closed up: a market in which nothing is missing."""
    rows = bars.valid[:, asset].nonzero()[:, 0][-most:]
    if len(rows) < LEAST:
        raise InputError(f"{bars.symbols[asset]} has {len(rows)} valid bars; needs at least {LEAST} to be audited")
    columns: dict[str, Any] = {
        name: None if getattr(bars, name) is None else getattr(bars, name)[rows][:, [asset]].clone()
        for name in ("open", "high", "low", "close", "valid", "volume", "funding")
    }
    return replace(bars, time=bars.time[rows], symbols=(bars.symbols[asset],), **columns)


def blank(bars: Bars) -> Features:
    """Nothing worth seeing: for questions about money alone."""
    return Features(torch.zeros(len(bars), len(bars.symbols), 1), ("nothing",), 0)


def seen(subject: Subject, bars: Bars) -> Features:
    """The features of a subject on other bars."""
    return unproved(subject.functions, bars)
