"""What comes in from an environment: numbers that are not finite become 0 and are told of, real parts are standardised."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from quantail.config import InputConfig
from quantail.functional.checks import free_to_look
from quantail.functional.moments import standardize
from quantail.trees import tree_map
from quantail.types import Moments, Observation, Step

ObservationMoments = Mapping[str, Moments]  # by part; the one part of a plain observation is ""


def standardize_observation(obs: Observation, moments: ObservationMoments, config: InputConfig) -> Observation:
    """Real parts in units of what was seen before this rollout; images and choices as they are."""
    if not config.normalize_observations:
        return obs
    if isinstance(obs, Tensor):
        return standardize(obs, moments[""], config.clip_observations) if "" in moments else obs
    return {
        name: standardize(part, moments[name], config.clip_observations) if name in moments else part
        for name, part in obs.items()
    }


def finite(step: Step) -> tuple[Tensor, Tensor, Observation, Tensor]:
    """Reward, pnl and observation with zeros for what is not finite, and which of the three were bad, [B, 3]."""
    if surely_finite(step):  # copies, as below: an environment may write over what it handed out
        reward = step.reward.clone()
        pnl = reward if step.pnl is None else step.pnl.clone()
        return reward, pnl, tree_map(torch.clone, step.obs), reward.new_zeros(len(reward), 3, dtype=torch.bool)
    obs, bad_obs = zero_bad(step.obs)
    bad_reward = ~step.reward.isfinite()
    reward = torch.where(bad_reward, 0.0, step.reward)
    bad_pnl = torch.zeros_like(bad_reward) if step.pnl is None else ~step.pnl.isfinite()
    pnl = reward if step.pnl is None else torch.where(bad_pnl, 0.0, step.pnl)
    return reward, pnl, obs, torch.stack([bad_reward, bad_pnl, bad_obs], -1)


def surely_finite(step: Step) -> bool:
    """Whether reward, pnl and observation are finite, where looking costs nothing; a sum that is has no other terms, and one
    that overflows leaves it open.
    """
    if not free_to_look(step.reward):
        return False
    told = [step.reward, *real_parts(step.obs).values(), *([] if step.pnl is None else [step.pnl])]
    return all(math.isfinite(float(part.sum())) for part in told)


def zero_bad(obs: Observation) -> tuple[Observation, Tensor]:
    """An observation with zeros where it is not finite, and which rows had any of those, [B]."""
    parts = real_parts(obs)
    rows = next(iter(obs.values())) if isinstance(obs, Mapping) else obs
    bad = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    for part in parts.values():
        bad = bad | ~part.isfinite().flatten(1).all(-1)
    return tree_map(lambda x: torch.where(x.isfinite(), x, 0.0) if x.is_floating_point() else x, obs), bad


def real_parts(obs: Observation) -> dict[str, Tensor]:
    """The parts of an observation that are real numbers, by name."""
    parts = obs.items() if isinstance(obs, Mapping) else [("", obs)]
    return {name: part for name, part in parts if part.is_floating_point()}


def bad_final(step: Step, bad_obs: Tensor) -> Tensor:
    """Which rows were cut off at an observation that is not finite: their bootstrap would be made up, [B]."""
    reached = bad_obs if step.final_obs is None else zero_bad(step.final_obs)[1]
    return reached & step.truncated & ~step.terminated
