"""From what an agent says to the weights it wants.

    grid         w = levels[a]; the last index is no level but "hold": nothing is traded, whatever the drift
    long_only    w = L·u, u in [0, 1]
    long_short   w = L·u, u in [-1, 1]
    tanh         w = L·tanh u
    simplex      w = L·softmax(u) without its last entry, which is cash

Each |w| is cut to `max_weight`. Of several assets, w is divided by max(1, Σ|w|/L): the projection along the ray onto the
leverage limit L; then the longs, or the shorts, that make |Σw| exceed `max_net` are scaled down together.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from quantail.market.numbers import Numbers, Value
from quantail.market.terms import Rules
from quantail.types import Box, Discrete, MultiDiscrete

LEAST = 1e-12  # of a weight: below it there is none


class Wanted(NamedTuple):
    """An action in words of the market."""

    weights: Value  # [B, A]
    stay: Value | None = None  # [B, A] bool


def action_space(rules: Rules, assets: int) -> Box | Discrete | MultiDiscrete:
    """What an agent may say."""
    if rules.actions == "grid":
        choices = len(rules.levels) + 1
        return Discrete(choices) if assets == 1 else MultiDiscrete((choices,) * assets)
    if rules.actions in ("tanh", "simplex"):
        return Box((assets + (rules.actions == "simplex"),), -math.inf, math.inf)
    return Box((assets,), 0.0 if rules.actions == "long_only" else -1.0, 1.0)


def sides(rules: Rules) -> tuple[float, float]:
    """Whether weights may be negative (-1 or 0) and positive (1 or 0)."""
    if rules.actions == "grid":
        return -float(min(rules.levels) < 0), float(max(rules.levels) > 0)
    return -float(rules.actions not in ("long_only", "simplex")), 1.0


def from_grid(n: Numbers, rules: Rules, levels: Tensor, action: Tensor) -> Wanted:
    """Indices [B] or [B, A]; `levels` holds one weight for each index, of "hold" any."""
    stay = action == len(rules.levels)
    weights = levels.index_select(0, action.reshape(-1)).view_as(action)
    return Wanted(limited(n, rules, weights), stay)


def from_box(n: Numbers, rules: Rules, action: Value) -> Wanted:
    """Real numbers: [B, A] (simplex [B, A + 1]); of one asset [B] (simplex [B, 2])."""
    if rules.actions == "simplex":
        return Wanted(limited(n, rules, n.shares(action) * rules.leverage))
    if rules.actions == "tanh":
        return Wanted(limited(n, rules, n.tanh(action) * rules.leverage))
    low = 0.0 if rules.actions == "long_only" else -1.0
    return Wanted(limited(n, rules, n.at_most(n.at_least(action, low), 1.0) * rules.leverage))


def limited(n: Numbers, rules: Rules, weights: Value) -> Value:
    """Each |w| ≤ its cap, Σ|w| ≤ L, |Σw| ≤ its limit; one asset's weight is within L already."""
    alone = n.total is n.spread
    cap = rules.cap(alone)
    if cap is not None:
        weights = n.within(weights, cap)
    if alone:
        return weights
    if rules.actions != "simplex":  # whose shares add up to 1
        weights = weights * n.spread(rules.leverage / n.at_least(n.total(n.size(weights)), rules.leverage))
    if rules.max_net is None:
        return weights
    longs, shorts = n.at_least(weights, 0.0), n.at_least(-weights, 0.0)
    long, short = n.total(longs), n.total(shorts)
    for_longs, for_shorts = (
        n.spread(n.at_most((other + rules.max_net) / n.at_least(own, LEAST), 1.0))
        for own, other in ((long, short), (short, long))
    )
    return longs * for_longs - shorts * for_shorts


def grid_masks(rules: Rules, device: torch.device) -> Tensor:
    """Which choices are allowed of an asset that may not trade, only "hold", and of one that may, all: [2, K] bool."""
    choices = len(rules.levels) + 1
    return torch.arange(choices, device=device) >= torch.tensor([[choices - 1], [0]], device=device)


def grid_mask(masks: Tensor, open_: Tensor) -> Tensor:
    """Which choices are allowed where these assets may trade: open_ [B] or [B, A] -> [B, ΣK] bool."""
    return masks.index_select(0, open_.reshape(-1).long()).view(len(open_), -1)
