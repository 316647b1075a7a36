"""What an agent sees of a bar, from a window of bars alone: the very functions of training, on as many as they remember."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from quantail.errors import InputError
from quantail.market.candles import simulate
from quantail.market.env import MarketEnv
from quantail.market.features import NAMES, Function, evaluated, functions_of
from quantail.market.normalise import Normalisation
from quantail.market.series import Bars, Features
from quantail.market.synthetic import Garch
from quantail.market.world import Recorded, Synthetic, plain_features

Array = NDArray[np.float64]

WINDOWS = (512, 1024, 2048, 4096)  # not below what `market.features.FORGOTTEN` says
CUTS = 6  # rows at which a window is compared with all that was before
SAME = 1e-13  # of a value and 1: the noise of sums in another order
PROBE_ROWS = 3 * WINDOWS[-1] // 2


class Sight(NamedTuple):
    """What is seen: bars -> [T, A, F], NaN where it is not known yet, or where the asset has no bar."""

    look: Callable[[Bars], Array]
    names: tuple[str, ...]
    units: Normalisation | None  # in which an agent sees it


def sight_of(market: MarketEnv, functions: Mapping[str, Function] | None = None) -> Sight:
    """What the agents of a market see; functions: the user's own, by the names under which the market has them."""
    world = market.world
    if isinstance(world, Synthetic):
        made = world.features or plain_features
        known = made(probe(world.assets, 3600.0, PROBE_ROWS // 8))
        return Sight(lambda bars: _settled(made, bars, known), known.names, world.units)
    names = world.features.names if isinstance(world, Recorded) else ()
    own = dict(functions or {})
    unknown = [name for name in names if name not in NAMES and name not in own]
    if unknown or not names:
        raise InputError(
            f"the market shows {', '.join(map(repr, unknown)) or 'features'} and their functions are not known; hand them "
            "over: functions={name: function}"
        )
    chosen = {name: (functions_of([name]) | own)[name] if name in NAMES else own[name] for name in names}
    return Sight(lambda bars: _stacked(chosen, bars), names, world.units)


def _stacked(functions: Mapping[str, Function], bars: Bars) -> Array:
    """Named features side by side."""
    return np.stack([evaluated(name, function, bars) for name, function in functions.items()], axis=-1)


def _settled(made: Callable[[Bars], Features], bars: Bars, known: Features) -> Array:
    """What makes features whole, with NaN in as many rows at the beginning as it is not warm on any other bars."""
    if len(bars) <= known.warmup:  # it might say that fewer are enough, of so few
        return np.full((len(bars), len(bars.symbols), len(known.names)), np.nan)
    values = made(bars).values.double().numpy()
    values[: known.warmup] = np.nan
    return values


def remembered(sight: Sight, assets: int, bar_seconds: float) -> int:
    """How many bars tell as much as all of them: measured on made-up bars, at several rows, for all features together."""
    bars = probe(assets, bar_seconds, PROBE_ROWS)
    whole = sight.look(bars)
    worst = ""
    for rows in WINDOWS:
        cuts = np.linspace(WINDOWS[-1], PROBE_ROWS, CUTS).astype(int)
        gaps = np.stack([_gap(sight.look(bars.rows(cut - rows, cut))[-1], whole[cut - 1]) for cut in cuts.tolist()])
        if gaps.max() <= SAME:
            return rows
        worst = sight.names[int(gaps.max((0, 1)).argmax())]
    raise InputError(
        f"feature {worst!r} remembers more than {WINDOWS[-1]} bars, so that a window cannot tell it; let it look back over a "
        "fixed number of bars"
    )


def _gap(part: Array, whole: Array) -> Array:
    """How far two rows are apart, in units of the value and 1; what only one of them knows is far: [A, F]."""
    same = np.isnan(part) & np.isnan(whole)
    gap = np.where(same, 0.0, np.abs(part - whole) / (1 + np.abs(whole)))
    return np.where(np.isnan(gap), np.inf, gap)


def probe(assets: int, bar_seconds: float, rows: int) -> Bars:
    """Made-up bars, the same each time."""
    made = simulate(Garch(), rows, assets, torch.Generator().manual_seed(0), overnight=0.2)
    return made.bars(bar_seconds)
