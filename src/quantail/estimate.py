"""From a rollout to what is learned from it: advantages, value targets, and the rows of a batch."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from quantail.config import Config, CriticConfig
from quantail.functional.categorical import pool_categorical, project
from quantail.functional.laws import Distribution
from quantail.functional.returns import normalize_advantages
from quantail.kernels.quantile import pool_quantiles
from quantail.kernels.returns import distributional_targets, gae
from quantail.nets.agent import Agent, Memory
from quantail.ranks import drawn, own, total, whole
from quantail.risk import RiskState, charges, minding
from quantail.rollout import Rollout
from quantail.streams import uniform
from quantail.trees import tree_map
from quantail.types import Law, Observation, Scale

LEAST_CLIP = 1e-3  # standard deviations: a bound that something brought to 0 since would leave nothing to learn


class Batch(NamedTuple):
    """Rows to learn from: a whole rollout, or the part of one optimizer step. L rows of time, S sequences."""

    obs: Observation  # [L, S, ...]
    start: Tensor  # [L, S] bool
    action: Tensor  # [L, S, ...]
    log_prob: Tensor  # [L, S]
    policy: Any  # parameters of the old action law, [L, S, ...] each
    action_mask: Tensor | None  # [L, S, ΣK]
    advantage: Tensor  # [L, S] normalised
    target: Tensor  # [L, S, M] particles in the critics' scale, or [L, S, N] probabilities
    policy_weight: Tensor  # [L, S]
    value_weight: Tensor  # [L, S]
    critics: Tensor | None = None  # [L, S, C, N] what they said in the rollout, where that holds them back
    cost_target: Tensor | None = None  # [L, S] in the cost critic's scale
    memory: Memory = ()  # before the first row, in what a loss term is given; elsewhere not here


class Estimates(NamedTuple):
    """What a rollout says in raw units, for the statistics and the return normaliser."""

    law: Law  # of what follows each row, as all critics together predict it: [T+1, B, N], or [N] where rows share it
    realised: (
        Tensor  # [T, B] what did follow, to its end or to a draw from the law where the rollout, or a time limit, cut it off
    )
    borrowed: Tensor  # [T, B] the weight of that draw: 0 if the row's episode was seen to its end

    values: Tensor  # [T+1, B]
    advantages: Tensor  # [T, B] before normalisation
    returns: Tensor  # [T, B]
    particles: Tensor  # [T, B, M]
    cost_advantages: Tensor | None = None  # [T, B] of the charges for risk
    cost_returns: Tensor | None = None  # [T, B]


def estimate(
    rollout: Rollout, agent: Agent, scale: Scale, source: torch.Generator, config: Config, risk: RiskState | None = None
) -> tuple[Batch, Estimates]:
    """Advantages and value targets of a rollout, all in the scale it was collected in. `source` draws the levels.

    `risk` is what is known of the outcomes, the rollout's own included, where their tail is minded.
    """
    ppo, critic = config.ppo, config.critic
    law = pooled_law(agent, rollout.critics, scale, critic)
    final_law = None if rollout.final_critics is None else pooled_law(agent, rollout.final_critics, scale, critic)
    values = law_mean(law)
    final_values = None if final_law is None else law_mean(final_law)
    ends = (rollout.terminated, rollout.truncated, ppo.gamma, ppo.gae_lambda)
    advantages, returns = gae(rollout.reward, values, *ends, valid=rollout.valid, final_values=final_values)
    particles = returns[..., None]
    if critic.targets == "distributional" and critic.kind != "scalar":
        noise = (drawn(uniform, (*returns.shape, critic.particles), source, 1) for _ in range(2))
        particles = distributional_targets(rollout.reward, law, *ends, *noise, valid=rollout.valid, final_law=final_law)
    realised, borrowed = realise(rollout, law, final_law, source, ppo.gamma)
    magnitude, wanted = torch.maximum(values[:-1].abs(), returns.abs()), advantages
    cost_advantages, cost_returns = None, None
    if risk is not None and len(rollout.costs):
        cost_advantages, cost_returns = cost_estimates(rollout, risk, config)
        cost_magnitude = torch.maximum((cost_returns - cost_advantages).abs(), cost_returns.abs())
        wanted, magnitude = (
            minding(mine, its, risk, config) for mine, its in ((advantages, cost_advantages), (magnitude, -cost_magnitude))
        )
    batch = Batch(
        obs=tree_map(lambda x: x[:-1], rollout.obs),
        start=rollout.start[:-1],
        action=rollout.action,
        log_prob=rollout.log_prob,
        policy=rollout.policy,
        action_mask=rollout.action_mask,
        advantage=normalised(wanted, rollout.policy_weight, magnitude, ppo.normalize_advantage),
        target=_target(agent, particles, scale, critic),
        policy_weight=rollout.policy_weight,
        value_weight=rollout.value_weight,
        critics=None if critic.clip == "off" else rollout.critics[:, :-1].movedim(0, -2),
        cost_target=None if cost_returns is None or risk is None else into(cost_returns, risk.scale),
    )
    found = Estimates(law, realised, borrowed, values, advantages, returns, particles, cost_advantages, cost_returns)
    return batch, found


def normalised(advantages: Tensor, weight: Tensor, magnitude: Tensor, mode: str) -> Tensor:
    """`normalize_advantages` over the environments of all processes that train together."""
    every, weights, sizes = (whole(x, 1) for x in (advantages, weight, magnitude))
    return own(normalize_advantages(every, mode, weights=weights, magnitude=sizes), 1)


def cost_estimates(rollout: Rollout, risk: RiskState, config: Config) -> tuple[Tensor, Tensor]:
    """Advantages and returns of the charges for risk, raw: [T, B] each, by the cost critic's own estimation.

    An episode's one charge falls due at its end, whatever ended it: nothing is discounted, and nothing lies beyond. Those of
    steps and windows go on beyond a time limit, as rewards do.
    """
    charge = charges(risk, rollout.outcome, config.risk).to(rollout.reward.dtype)
    values, lam = out_of(rollout.costs[0], risk.scale), config.ppo.gae_lambda
    if config.risk.ratio:
        final = None if rollout.final_costs is None else out_of(rollout.final_costs[0], risk.scale)
        ends = (rollout.terminated, rollout.truncated, config.ppo.gamma, lam)
        advantages, returns = gae(charge, values, *ends, valid=rollout.valid, final_values=final)
    else:
        done = rollout.terminated | rollout.truncated
        advantages, returns = gae(charge, values, done, torch.zeros_like(done), 1.0, lam, valid=rollout.valid)
    unknown = risk.nu.isnan()  # before the first outcome nothing is charged, and what the critic says is made up
    return torch.where(unknown, 0.0, advantages), torch.where(unknown, values[:-1], returns)


def into(raw: Tensor, scale: Scale) -> Tensor:
    """Raw numbers in the units of a critic."""
    return ((raw - scale.mean) / scale.std).to(raw.dtype)


def out_of(said: Tensor, scale: Scale) -> Tensor:
    """What a critic says, in raw units."""
    return (said * scale.std + scale.mean).to(said.dtype)


def realise(rollout: Rollout, law: Law, final_law: Law | None, source: torch.Generator, gamma: float) -> tuple[Tensor, Tensor]:
    """What did follow each row, and how much of it is no fact: [T, B] each.

    Σ γᵏ·r_{t+k} up to a termination; where a time limit or the rollout's end comes first, plus γⁿ·z, z a draw from the law
    predicted there. A mean in place of the draw would make the tail too thin, leaving such rows out would prefer short lives.
    """
    reward, ends = rollout.reward, (rollout.terminated, rollout.truncated, gamma, 1.0)
    noise = drawn(uniform, (*reward.shape, 1), source, 1)
    never = torch.zeros_like(noise)  # below λ = 1: always on to the next row
    whole = distributional_targets(reward, law, *ends, never, noise, valid=rollout.valid, final_law=final_law)
    ones = torch.ones_like(rollout.start, dtype=reward.dtype)
    final = None if final_law is None else ones[:-1]
    borrowed = gae(torch.zeros_like(reward), ones, *ends, valid=rollout.valid, final_values=final)[1]
    return whole[..., 0], borrowed


def distribution(agent: Agent, critics: Tensor, scale: Scale, config: CriticConfig) -> Distribution:
    """What all critics [C, ..., N] together predict, in raw units, to be read."""
    law = pooled_law(agent, critics, scale, config)
    return Distribution(*law, taus=agent.values.levels if config.kind == "quantile" else None)


def pooled_law(agent: Agent, critics: Tensor, scale: Scale, config: CriticConfig) -> Law:
    """The law, in raw units, that all critics [C, ..., N] together stand for."""
    law = agent.values.law(critics)
    locations = out_of(law.locations, scale).to(critics.dtype)
    if config.kind == "categorical":
        return Law(locations, pool_categorical(law.masses, locations, config.twin_reduce))
    return Law(pool_quantiles(locations, config.twin_reduce, law.masses), law.masses)


def law_mean(law: Law) -> Tensor:
    """Mean of each row of a law."""
    return (law.locations * law.masses).sum(-1)


def outside_share(particles: Tensor, scale: Scale, weight: Tensor, width: float | Tensor) -> Tensor:
    """Share of the target particles [T, B, M], by weight [T, B], beyond the atoms ±width of a critic; NaN without any."""
    outside = ((particles - scale.mean) / scale.std).abs() > width
    return total((outside.double().mean(-1) * weight).sum()) / total(weight.sum())


def _target(agent: Agent, particles: Tensor, scale: Scale, config: CriticConfig) -> Tensor:
    """Particles in the critics' scale; for a categorical critic as probabilities, projected this once."""
    scaled = into(particles, scale)
    if config.ret_clip is not None:
        bound = max(config.ret_clip, LEAST_CLIP)
        scaled = scaled.clamp(-bound, bound)
    if config.kind != "categorical":
        return scaled
    shares = torch.full_like(scaled, 1 / scaled.shape[-1])
    return project(shares, scaled, agent.values.atoms)
