"""Learning rates: how they run over training, how they answer the KL, and that the one that is set is the one that is used."""

import math

import torch
from torch import Tensor

from quantail.config import KlRateConfig, OptimConfig, ScheduleConfig

CRITIC = "critic"  # the name of the parameter group of what belongs to the critics alone


def scheduled(start: float, schedule: ScheduleConfig, done: float) -> float:
    """A value by the share of training done: the warm-up's ramp times the schedule over the rest; never below the floor.

    With d the share of the rest: linear 1 − d; cosine ½(1 + cos πd); one_cycle rises by half a cosine from `cycle_start` to 1
    at `cycle_peak` and falls by another to 0   (Smith 2018, as torch's OneCycleLR has it).
    """
    rest, ramp = done, 1.0
    if schedule.warmup:
        risen = min(done / schedule.warmup, 1.0)
        ramp = schedule.warmup_start + (1 - schedule.warmup_start) * risen
        rest = max(done - schedule.warmup, 0.0) / (1 - schedule.warmup)
    peak = schedule.cycle_peak
    match schedule.kind:
        case "linear":
            shape = 1 - rest
        case "cosine":
            shape = half_cosine(rest)
        case "one_cycle" if rest < peak:
            shape = 1 - (1 - schedule.cycle_start) * half_cosine(rest / peak)
        case "one_cycle":
            shape = half_cosine((rest - peak) / (1 - peak))
        case _:
            shape = 1.0
    return max(start * ramp * shape, min(schedule.floor, start))


def half_cosine(share: float) -> float:
    """From 1 to 0."""
    return 0.5 * (1 + math.cos(math.pi * share))


def answered(factor: float, kl: float, target: float | None, config: KlRateConfig) -> float:
    """The next factor of the rate: smaller after a large KL, larger after a small one; a KL of 0 or NaN says nothing."""
    if target is None or config.factor == 1.0 or not kl > 0:
        return factor
    if kl > config.band * target:
        factor /= config.factor
    elif kl < target / config.band:
        factor *= config.factor
    return min(max(factor, 1 / config.limit), config.limit)


def set_rates(optimizer: torch.optim.Optimizer, rate: float | Tensor, config: OptimConfig) -> None:
    """Every group goes at this rate, the critics' at theirs in proportion; a rate on a device stays where it is."""
    critic = config.learning_rate if config.critic_learning_rate is None else config.critic_learning_rate
    for group in optimizer.param_groups:
        wanted = rate * critic / config.learning_rate if group.get("name") == CRITIC else rate
        if isinstance(group["lr"], Tensor):
            group["lr"].copy_(torch.as_tensor(wanted))
        else:
            group["lr"] = float(wanted)
