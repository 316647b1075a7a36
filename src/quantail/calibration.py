"""Does what happens bear out what the critics predict? Their law of Z(o_t) beside the returns that did follow, rows alike.

Judged are the rows of a rollout's first half, whatever came after them: each has at least half a rollout ahead of it. Choosing
rows by how their episode went on, say those that were seen to end, would prefer short lives and make any critic look wrong. Of
a large rollout every k-th environment is enough.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from quantail.estimate import Estimates
from quantail.functional.laws import cell_means, interpolate_atoms, interpolate_quantiles, share_below
from quantail.functional.risk import cvar_from_categorical, cvar_of_samples
from quantail.nets.agent import Agent
from quantail.rollout import Rollout

LEVELS = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
TAIL = 0.05
JUDGED = 2**13  # rows at most: those of every k-th environment; sorting the laws of all would cost more than it tells


def calibration_metrics(agent: Agent, rollout: Rollout, estimates: Estimates, alpha: float) -> dict[str, Tensor]:
    """The tail that was predicted and the one that came true, and how much came true below each predicted quantile.

    `critic/realised_borrowed` is the mean weight, in what is called realised, of what the critic itself predicted where the
    rollout ended: near 1 nothing was tested. A scalar critic predicts no law.
    """
    rows = judged_rows(*rollout.reward.shape)
    weight, realised = rollout.value_weight[rows], estimates.realised[rows]
    total = weight.sum()
    found = {
        "critic/realised_borrowed": (torch.where(weight > 0, estimates.borrowed[rows], 0.0) * weight).sum() / total,
        "critic/cvar_realised": cvar_of_samples(realised.flatten(), alpha, weight.flatten()),
    }
    if agent.values.kind == "scalar":
        return found
    shares = share_below(predicted_quantiles(agent, estimates, rows), realised, weight)
    levels = on_device(LEVELS, shares.device)
    return (
        found
        | {"critic/cvar_predicted": predicted_cvar(agent, estimates, weight, alpha, rows)}
        | {f"critic/below_{level:g}": share for level, share in zip(LEVELS, shares, strict=True)}
        | {"critic/calibration_error": (shares - levels).abs().max()}
    )


def judged_rows(steps: int, envs: int) -> tuple[slice, slice]:
    """The first half of the time, in as many environments, evenly spread, as make `JUDGED` rows; one at least."""
    half = (steps + 1) // 2
    return slice(None, half), slice(None, None, max(1, -(-half * envs // JUDGED)))


def on_device(values: Sequence[float], device: torch.device) -> Tensor:
    """Numbers of ours, written there: a copy from the host is nothing that a captured graph can do."""
    return torch.cat([torch.full((1,), value, dtype=torch.float64, device=device) for value in values])


def predicted_quantiles(agent: Agent, estimates: Estimates, rows: tuple[slice, slice]) -> Tensor:
    """The rows' laws at `LEVELS`, [rows, B, K]."""
    law, levels = estimates.law, on_device(LEVELS, estimates.realised.device)
    if agent.values.kind == "categorical":
        return interpolate_atoms(law.masses[rows], law.locations, levels)
    return interpolate_quantiles(law.locations[rows], agent.values.levels, levels)


def predicted_cvar(agent: Agent, estimates: Estimates, weight: Tensor, alpha: float, rows: tuple[slice, slice]) -> Tensor:
    """CVaR of the mixture of the rows' laws, each by its weight [rows, B]. A mean of the rows' CVaRs would not be one."""
    law = estimates.law
    if agent.values.kind == "categorical":
        mixed = (law.masses[rows] * (weight / weight.sum())[..., None]).sum((0, 1))
        return cvar_from_categorical(mixed, law.locations, alpha)
    cells = cell_means(law.locations[rows], agent.values.levels, law.masses)
    masses = weight[..., None] * law.masses
    return cvar_of_samples(cells.flatten(), alpha, masses.flatten())
