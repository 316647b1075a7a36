"""The units the critics speak in: set by the first rollout, moved after each update, and what is said stays as it was."""

from typing import cast

import torch
from torch import Tensor

from quantail import ranks
from quantail.config import Config, CriticConfig
from quantail.estimate import cost_estimates, outside_share
from quantail.functional.moments import (
    average_moments,
    batch_moments,
    finite_moments,
    limit_scale,
    merge_moments,
    pool_moments,
    scale_of,
)
from quantail.kernels.returns import gae
from quantail.nets.agent import Agent
from quantail.nets.values import CostHead
from quantail.risk import RiskState
from quantail.rollout import Carry, Rollout
from quantail.types import Moments, Scale

STD_FLOOR = 1e-8  # a return of minute bars moves by 1e-5: whatever moves at all is a unit
ROUNDING = 1e-5  # of the mean: float32 numbers that differ by less are equal, and no unit
OUTGROWN = 0.005  # of the targets outside a categorical critic's atoms, and these move


def first_scale(carry: Carry, rollout: Rollout, config: Config) -> Carry:
    """The scale of the very first iteration: that of the rollout's discounted rewards, nothing being known of values yet.

    What the critics said in this rollout is read in it from now on: their values are those of a critic in the right units.
    """
    if not config.critic.normalize_returns:
        return carry
    nothing = torch.zeros_like(rollout.start, dtype=rollout.reward.dtype)
    _, sums = gae(rollout.reward, nothing, rollout.terminated, rollout.truncated, config.ppo.gamma, 1.0, valid=rollout.valid)
    carry = with_seen(carry, of_all_ranks(batch_moments(sums, (0, 1), rollout.value_weight)), config.critic)
    return carry._replace(scale=scale_of_returns(carry.return_moments))


def first_cost_scale(carry: Carry, rollout: Rollout, config: Config) -> Carry:
    """The scale of the cost critic in the iteration of the first outcome: that of the charges alone; later as it is."""
    if not len(rollout.costs):
        return carry
    nothing = torch.zeros_like(rollout.start, dtype=rollout.reward.dtype)
    untold = rollout._replace(costs=nothing[None], final_costs=None if rollout.final_costs is None else nothing[None, :-1])
    state = carry.risk
    begun = with_charges_seen(state, rollout, cost_estimates(untold, state, config)[1], config)
    fresh = state.moments.weight == 0
    moments = Moments(*(torch.where(fresh, x, old) for x, old in zip(begun.moments, state.moments, strict=True)))
    scale = Scale(*(torch.where(fresh, x, old) for x, old in zip(begun.scale, state.scale, strict=True)))
    return carry._replace(risk=state._replace(moments=moments, scale=scale))


def renewed(
    carry: Carry, rollout: Rollout, particles: Tensor, config: Config, rests: bool, cost_returns: Tensor | None = None
) -> Carry:
    """The carry with what was seen in its statistics, and the scales they give: not yet in force, for `adopt` to bring them in.

    `rests`: the scale stays as it is, as `frozen` has it.
    """
    if cost_returns is not None:
        carry = carry._replace(risk=with_charges_seen(carry.risk, rollout, cost_returns, config))
    observed = {
        name: merge_moments(known, finite_moments(of_all_ranks(rollout.raw_moments[name])))
        for name, known in carry.obs_moments.items()
    }
    carry = carry._replace(obs_moments=observed)
    if not config.critic.normalize_returns:
        return carry
    carry = with_seen(carry, of_all_ranks(batch_moments(particles, (0, 1, 2), rollout.value_weight)), config.critic)
    return carry._replace(scale=carry.scale if rests else next_scale(carry, rollout, particles, config.critic))


def adopt(before: Carry, after: Carry, agent: Agent) -> Carry:
    """The carry after a renewal, the heads changed so as to say the same in its units (PopArt)."""
    agent.values.rescale_(before.scale, after.scale)
    for head in agent.costs:
        cast(CostHead, head).rescale_(before.risk.scale, after.risk.scale)
    return after


def of_all_ranks(moments: Moments) -> Moments:
    """What was seen by all processes that train together."""
    return moments if ranks.count() == 1 else pool_moments(Moments(*(ranks.whole(x[..., None], -1) for x in moments)))


def with_charges_seen(state: RiskState, rollout: Rollout, returns: Tensor, config: Config) -> RiskState:
    """The state with one more iteration's charges in the scale of their critic; before the first outcome there are none."""
    weight = rollout.value_weight * ~state.nu.isnan()
    seen = finite_moments(of_all_ranks(batch_moments(returns, (0, 1), weight)))
    moments = average_moments(state.moments, seen, config.critic.return_rate)
    new = scale_of_returns(moments)
    known = moments.weight > 0
    scale = Scale(*(torch.where(known, x, old) for x, old in zip(new, state.scale, strict=True)))
    return state._replace(moments=moments, scale=scale)


def with_seen(carry: Carry, seen: Moments, config: CriticConfig) -> Carry:
    """The carry with one more iteration's moments in the average, or in the window; what is not finite was not seen."""
    seen = finite_moments(seen)
    if not config.return_window:
        return carry._replace(return_moments=average_moments(carry.return_moments, seen, config.return_rate))
    counts = seen.weight > 0
    kept = (torch.where(counts, torch.cat([old[1:], x[None]]), old) for old, x in zip(carry.return_history, seen, strict=True))
    history = Moments(*kept)
    return carry._replace(return_history=history, return_moments=pool_moments(history))


def next_scale(carry: Carry, rollout: Rollout, particles: Tensor, config: CriticConfig) -> Scale:
    """The scale of the moments, as far as it may move: not the atoms of a critic that they still suit."""
    new = scale_of_returns(carry.return_moments)
    if config.return_max_step is not None:
        new = limit_scale(carry.scale, new, config.return_max_step)
    if config.kind != "categorical":
        return new
    moves = outside_share(particles, carry.scale, rollout.value_weight, config.support_width) > OUTGROWN
    return Scale(*(torch.where(moves, x, old) for x, old in zip(new, carry.scale, strict=True)))


def frozen(iterations: int, lost: int, config: CriticConfig) -> bool:
    """Whether the scale rests after so many iterations; `lost` in a row, in which the critic explained less than nothing."""
    thawed = 0 < config.return_thaw <= lost
    return 0 < config.return_freeze < iterations and not thawed


def scale_of_returns(moments: Moments) -> Scale:
    """The scale of moments that may be those of equal numbers."""
    scale = scale_of(moments, STD_FLOOR)
    return scale._replace(std=torch.maximum(scale.std, ROUNDING * scale.mean.abs()))


def scale_figures(before: Carry, after: Carry, config: Config) -> dict[str, Tensor]:
    """What a renewal saw and does: how far the returns have drifted from their scale, and whether it follows."""
    if not config.critic.normalize_returns:
        return {}
    old, new, seen = before.scale, after.scale, after.return_moments
    moved = ((new.mean != old.mean) | (new.std != old.std)).double()
    found = {
        "norm/return_drift": (seen.mean - old.mean).abs() / old.std,
        "norm/return_growth": seen.variance.sqrt() / old.std,
        "norm/return_moved": moved,
    }
    return found | ({"norm/reanchored": moved} if config.critic.kind == "categorical" else {})
