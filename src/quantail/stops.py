"""When an update has gone far enough: the stop rules as a value on the device, which no step waits to read.

A batch whose KL alone is too large stops the update before its step; too many above the target in a row, or in an epoch,
stop it after. So do too many steps in a row that changed nothing. The first rule that speaks stands: later steps move nothing.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from quantail.config import KlConfig

RULES = ("", "absolute", "consecutive", "fraction", "patience")
GOES_ON, ABSOLUTE, CONSECUTIVE, FRACTION, PATIENCE = range(len(RULES))


class Stops(NamedTuple):
    """What the rules have seen so far, all 0-d."""

    rule: Tensor  # int64, place in RULES of the one that spoke; 0 while none has
    smooth: Tensor  # float64, of the KLs; NaN before the first
    streak: Tensor  # int64, batches in a row above the target
    above: Tensor  # int64, those of this epoch
    batches: Tensor  # int64, of this epoch
    void_steps: Tensor  # int64, steps in a row that changed nothing


def start_stops(device: torch.device, void_steps: int = 0) -> Stops:
    """Nothing seen in this update yet."""
    count = torch.zeros((), dtype=torch.int64, device=device)
    nothing = torch.full((), torch.nan, dtype=torch.float64, device=device)
    return Stops(count, nothing, count.clone(), count.clone(), count.clone(), torch.full_like(count, void_steps))


def before_step(stops: Stops, kl: Tensor, fine: Tensor, config: KlConfig) -> tuple[Stops, Tensor]:
    """One batch's KL looked at, and whether its step may be taken: not where a number is broken, nor after a stop."""
    counts, kl = (stops.rule == GOES_ON) & fine, kl.double()
    smooth = torch.where(stops.smooth.isnan(), kl, config.smoothing * stops.smooth + (1 - config.smoothing) * kl)
    stops = stops._replace(smooth=torch.where(counts, smooth, stops.smooth))
    if config.target is None:
        return stops, counts
    exceeds = smooth > config.target
    stops = stops._replace(
        rule=torch.where(counts & (kl > config.absolute_factor * config.target), ABSOLUTE, stops.rule),
        streak=torch.where(counts, torch.where(exceeds, stops.streak + 1, 0), stops.streak),
        above=stops.above + (counts & exceeds),
        batches=stops.batches + counts,
    )
    return stops, counts & (stops.rule == GOES_ON)


def after_step(stops: Stops, fine: Tensor, config: KlConfig, patience: int) -> Stops:
    """The rules that speak once the step is taken."""
    runs = stops.rule == GOES_ON
    void = torch.where(fine, 0, stops.void_steps + 1)
    stops = stops._replace(void_steps=torch.where(runs, void, stops.void_steps))
    rule = torch.where(runs & (stops.void_steps >= patience), PATIENCE, stops.rule)
    if config.consecutive:
        rule = torch.where((rule == GOES_ON) & (stops.streak >= config.consecutive), CONSECUTIVE, rule)
    return stops._replace(rule=rule)


def after_epoch(stops: Stops, config: KlConfig) -> Stops:
    """The rule that looks at a whole epoch; the next one counts anew."""
    often = stops.above > config.fraction * stops.batches
    rule = torch.where((stops.rule == GOES_ON) & often, FRACTION, stops.rule)
    return stops._replace(rule=rule, above=torch.zeros_like(stops.above), batches=torch.zeros_like(stops.batches))
