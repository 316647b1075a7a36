"""The strongest policies that are known in a market whose truth is known: the Bayes filter, its size and patience searched.

The filter knows the market's parameters and sees only closes. Its position is proportional to the drift that it expects, and
moved only by a least step; or it is all of one side, changed only where the drift it expects is beyond a doubt. What is best
depends on what is asked for: growth wants full positions, a Sharpe ratio smaller ones where little is known. So both are
searched, after costs, on paths of their own: of the training part and another seed. No test path has helped to choose them.
"""

from collections.abc import Sequence
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
# Weight per expected drift of 100 % a year; the last is all or nothing.
SCALES = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 20.0, 40.0, 1e6)
BANDS = (0.0, 0.1, 0.25, 0.5, 1.0, 1.5)
DOUBTS = (0.02, 0.04, 0.06, 0.08, 0.12, 0.16)  # expected drift a year, below which a full position stays as it is
FIGURES = ("Sharpe ratio", "growth")
NAME = "Bayes filter for "  # the figure
SEED_APART = 1_000_003  # from the seed of the course to that of the search


class Known(NamedTuple):
    """A policy as weights."""

    name: str
    weights: Tensor  # [R, P]


def strongest(course: Course) -> list[Known]:
    """The filters of the course's market, one for each of `FIGURES`; none where the truth is not known, or of many assets."""
    world = course.market.world
    if not isinstance(world, Synthetic) or not isinstance(world.model, HiddenDrift | BullBear) or world.assets > 1:
        return []
    rules, cost = course.market.rules, course.market.costs.one_way_bps
    low, high = (side * rules.leverage for side in sides(rules))
    apart = replace(world, paths=SEARCH_PATHS, bars=SEARCH_BARS, seed=world.seed + SEED_APART, part="train")
    drawn, _ = apart.drawn(0, torch.device("cpu"))
    names, tried = tries(view_of(world.model, drawn.close), low, high)
    net = policies.net_returns(tried, drawn.close.repeat(1, len(names)), cost).clamp(min=-0.99)
    scores = (policies.sharpe(net, 1.0), net.log1p().mean(0))
    view = view_of(world.model, torch.from_numpy(course.closes[..., 0]))
    found = []
    for figure, score in zip(FIGURES, scores, strict=True):
        mean = score.view(len(names), -1).mean(1)  # NaN: one that never moves has no ratio
        best = int(mean.nan_to_num(-torch.inf).argmax())
        found.append(Known(f"{NAME}{figure}, {names[best]}", tries(view, low, high, [best])[1]))
    return found


def tries(view: Tensor, low: float, high: float, chosen: Sequence[int] | None = None) -> tuple[list[str], Tensor]:
    """All that is tried on a view [R, P], or what is chosen of it: names [K], and weights [R, K·P], paths of one together."""
    sized = [(f"scale {scale:g}, band {band:g}", scale, band) for scale in SCALES for band in BANDS]
    names = [*(name for name, _, _ in sized), *(f"doubt {doubt:g}" for doubt in DOUBTS)]
    wanted, paths = range(len(names)) if chosen is None else chosen, view.shape[1]
    numbers = [sized[i] for i in wanted if i < len(sized)]
    scale, band = (torch.tensor([row[j] for row in numbers], dtype=view.dtype) for j in (1, 2))
    doubt = torch.tensor([DOUBTS[i - len(sized)] for i in wanted if i >= len(sized)], dtype=view.dtype)
    parts = []
    if len(scale):
        aim = (view[:, None] * scale[:, None]).flatten(1).clamp(low, high)
        parts.append(banded(aim, (band * high).repeat_interleave(paths)))
    if len(doubt):
        sides_of = policies.sign_with_band(view.repeat(1, len(doubt)), doubt.repeat_interleave(paths))
        parts.append((sides_of * high).clamp(low, high))
    return [names[i] for i in wanted], torch.cat(parts, 1)


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
