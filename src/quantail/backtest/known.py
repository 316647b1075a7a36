"""The strongest policy that is known in a market whose truth is known: the Bayes filter, its size and patience searched.

The filter knows the market's parameters and sees only closes. Its position is proportional to the drift that it expects, and
moved only by a least step; both numbers are chosen on paths of their own, of the training part and another seed, for the
greatest growth after costs. So no test path has helped to choose them.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from quantail.backtest.course import Course
from quantail.market import policies
from quantail.market.actions import sides
from quantail.market.synthetic import BullBear, HiddenDrift
from quantail.market.world import Synthetic

SEARCH_PATHS = 48
SEARCH_BARS = 2520
SCALES = (
    1.0,
    2.0,
    3.0,
    4.0,
    6.0,
    8.0,
    12.0,
    20.0,
    40.0,
    1e6,
)  # weight per expected drift of 100 % a year; the last is all or nothing
BANDS = (0.0, 0.1, 0.25, 0.5, 1.0, 1.5)
SEED_APART = 1_000_003  # from the seed of the course to that of the search


class Known(NamedTuple):
    """A policy as weights."""

    name: str
    weights: Tensor  # [R, P]


def strongest(course: Course) -> Known | None:
    """The filter of the course's market, searched; none where the truth is not known, or of several assets."""
    world = course.market.world
    if not isinstance(world, Synthetic) or not isinstance(world.model, HiddenDrift | BullBear) or world.assets > 1:
        return None
    rules, cost = course.market.rules, course.market.costs.one_way_bps
    apart = replace(world, paths=SEARCH_PATHS, bars=SEARCH_BARS, seed=world.seed + SEED_APART, part="train")
    drawn, _ = apart.drawn(0, torch.device("cpu"))
    low, high = (side * rules.leverage for side in sides(rules))
    scale, band = (part.ravel() for part in torch.meshgrid(torch.tensor(SCALES), torch.tensor(BANDS), indexing="ij"))
    close = drawn.close.repeat(1, len(scale))  # [R, P·K], the paths of one try side by side
    view = view_of(world.model, drawn.close)[:, None] * scale[:, None]
    tried = banded(view.flatten(1).clamp(low, high), (band * rules.leverage).repeat_interleave(SEARCH_PATHS))
    growth = policies.net_returns(tried, close, cost).clamp(min=-0.99).log1p().mean(0).view(len(scale), -1).mean(1)
    best = int(growth.argmax())
    closes = torch.from_numpy(course.closes[..., 0])
    aim = (view_of(world.model, closes) * float(scale[best])).clamp(low, high)
    weights = banded(aim, band[best] * rules.leverage)
    return Known(f"Bayes filter, scale {scale[best]:g}, band {band[best]:g}", weights)


def view_of(model: HiddenDrift | BullBear, close: Tensor) -> Tensor:
    """The drift that the filter expects after each close: [R, P] -> [R, P]."""
    if isinstance(model, HiddenDrift):
        return policies.expected_drift(model, policies.hidden_drift_odds(model, close.double()))
    return policies.expected_drift(model, policies.bull_bear_odds(model, close.double()))


def banded(aim: Tensor, band: Tensor) -> Tensor:
    """Moved to the aim [R, N] only where it is at least `band` [N] away: [R, N] -> [R, N]."""
    weights = aim.clone()
    for t in range(1, len(aim)):
        torch.where((aim[t] - weights[t - 1]).abs() < band, weights[t - 1], aim[t], out=weights[t])
    return weights
