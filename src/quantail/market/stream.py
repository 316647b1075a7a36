"""A market that is told its bars one by one: the same `MarketEnv`, on a tape of three rows that is written anew for each bar.

Row 0 is no time at all, row 1 the bar before, row 2 the bar that is over now. A step settles what was decided at row 1 and
shows what is seen at row 2: nothing of the accounting is written twice, so nothing of it can differ.
"""

from dataclasses import dataclass, fields, replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantail.errors import ConfigError
from quantail.market.env import MarketEnv
from quantail.market.normalise import Normalisation
from quantail.market.portfolio import Portfolio, weights
from quantail.market.series import NANOSECONDS, Bars, Features
from quantail.market.tape import RISK_BARS, Needs, Tape, tape, volume_rows
from quantail.market.terms import Episode
from quantail.market.world import Ground, Recorded, World

BEFORE, NOW = 1, 2
ENDLESS = 1 << 40  # bars: an episode that nobody ends


@dataclass(frozen=True, eq=False)
class Line(World):
    """Bars that are still to come; `blank` holds two of their kind, with the columns that they will have."""

    blank: Bars
    names: tuple[str, ...]
    units: Normalisation | None = None
    per_day: float = 0.0

    @property
    def assets(self) -> int:  # type: ignore[override]
        """How many there are."""
        return len(self.blank.symbols)

    def lay(self, needs: Needs, episode: Episode, dtype: torch.dtype, device: torch.device) -> Ground:
        """Two rows without content."""
        width = len(self.names) if "features" in episode.parts else 0
        nothing = Features(torch.zeros(2, self.assets, width), self.names[:width], 0)
        empty = tape(self.blank, nothing, needs)
        row = torch.tensor([NOW])
        return Ground(replace(empty, seen=empty.seen.to(dtype)), row, row + (episode.length or ENDLESS), episode.length or 1, 2)


class StreamEnv(MarketEnv):
    """One portfolio on a line of bars, with the terms of another market; `ends_in`: bars until its end, 0 for none."""

    def __init__(self, like: MarketEnv, line: Line, ends_in: int = 0) -> None:
        episode = like.episode
        super().__init__(
            1,
            line,
            costs=replace(like.costs, randomized_from=1.0, randomized_to=1.0),
            rules=like.rules,
            reward=like.reward,
            episode=replace(
                episode,
                length=ends_in,
                starts="fixed",
                random_position=False,
                horizon=episode.horizon or episode.length or (0 if ends_in else ENDLESS),
            ),
            dtype=like.dtype,
        )
        if isinstance(like.world, Recorded) and like.world.tradable is not None:
            raise ConfigError("the market has a calendar (tradable), which bars that come one by one do not tell; leave it out")

    def _needs(self) -> Needs:
        return replace(super()._needs(), per_day=cast(Line, self.world).per_day)

    @property
    def rows_needed(self) -> int:
        """Of bars up to now, so that costs and the first reward know their past."""
        rows = [RISK_BARS if self.reward.remembers else 0, self.rules.delisted_after]
        if self.costs.impact_y:
            rows.append(volume_rows(cast(Line, self.world).per_day))
        return 2 + max(rows)

    def show(self, bars: Bars, seen: NDArray[np.float64]) -> None:
        """Write the last bar and what is seen in it, [A, F]: from the next reset or step on it is now."""
        written, line = self.ground.tape, cast(Line, self.world)
        told = tape(bars, Features(torch.zeros(len(bars), len(bars.symbols), 0), (), 0), self._needs())
        for one in fields(Tape):
            there, rows = getattr(written, one.name), getattr(told, one.name)
            if there is not None and one.name != "seen":
                there[BEFORE:] = 0 if rows is None else rows[-2:]
        if "features" in self.episode.parts:
            features = Features(torch.from_numpy(seen[None]).float(), line.names, 0)
            values = (features if line.units is None else line.units.apply(features)).values.reshape(-1)
            written.seen[NOW, : len(values)] = values.to(written.seen.dtype)

    def moved_on(self, state: Portfolio) -> Portfolio:
        """The state before the next bar: what was now is the bar before, and there is one bar less to come."""
        return state._replace(row=torch.full_like(state.row, BEFORE), stop=state.stop - 1)

    def asked_for(self, state: Portfolio, action: Tensor) -> NDArray[np.float64]:
        """What an action asks for, [A] of equity; where it asks to leave an asset as it is, what is held of that."""
        asked = self.orders(action)[0].numpy()
        return np.where(np.isnan(asked), self.held(state), asked)

    def held(self, state: Portfolio) -> NDArray[np.float64]:
        """The weights that the portfolio has, [A]."""
        return np.asarray(weights(self.desk, state).reshape(-1).numpy())


def blank(symbols: tuple[str, ...], bar_seconds: float, volume: bool, funding: bool) -> Bars:
    """Two bars of a kind in which nothing happens, with time between them: a tape of them has all columns there can be."""
    ones = torch.ones(2, len(symbols), dtype=torch.float64)
    time = torch.tensor([0, round((86400 + bar_seconds) * NANOSECONDS)])
    prices = (ones, ones.clone(), ones.clone(), ones.clone())
    known = torch.ones_like(ones, dtype=torch.bool)
    return Bars(time, *prices, known, symbols, bar_seconds, ones if volume else None, ones * 0 if funding else None)
