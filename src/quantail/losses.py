"""The loss of a batch: policy, entropy, cloning, KL penalty and critics, each a weighted mean over the whole step."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quantail.config import Config, CriticConfig
from quantail.estimate import Batch
from quantail.functional.categorical import categorical_loss, clip_categorical
from quantail.functional.policy import LOG_RATIO_BOUND, awr_loss, clamp_log_ratio, clipped_surrogate
from quantail.functional.quantile import clip_quantiles
from quantail.kernels.quantile import quantile_huber_loss
from quantail.nets.agent import Agent, Memory
from quantail.trees import tree_map


class Knobs(NamedTuple):
    """Quantities that change during training: 0-d tensors, so that captured graphs obey schedules."""

    learning_rate: Tensor
    clip: Tensor
    entropy_coef: Tensor
    clone_coef: Tensor
    kl_penalty: Tensor
    value_clip: Tensor  # 1 where predictions are held near the rollout's, 0 where not, or not yet


# A mean over rows, weighted by the batch's `policy_weight`, that is added to the loss. The batch's rows may begin with some
# of weight 0 that only warm up the memory: `agent.unroll(batch.obs, batch.memory, batch.start)` replays them all.
LossTerm = Callable[[Agent, Batch, Knobs], Tensor]


class Part(NamedTuple):
    """The rows of one micro-batch, and the weight of the whole optimizer step they are a part of."""

    rows: Batch  # [L, S, ...], burn-in rows included
    memory: Memory  # before the first of them
    burn_in: int  # so many first rows only warm up the memory
    policy_total: Tensor  # scalar
    value_total: Tensor  # scalar
    dropout: Tensor | None = None
    entropy_noise: Tensor | None = None  # [draws, L, S, A] of the rows after the burn-in

    def policy_mean(self, per_row: Tensor) -> Tensor:
        """These rows' share of the step's mean, by `policy_weight`."""
        return weighted_sum(per_row, self.rows.policy_weight[self.burn_in :]) / self.policy_total

    def value_mean(self, per_row: Tensor) -> Tensor:
        """These rows' share of the step's mean, by `value_weight`."""
        return weighted_sum(per_row, self.rows.value_weight[self.burn_in :]) / self.value_total


def batch_loss(
    agent: Agent, part: Part, knobs: Knobs, config: Config, loss_terms: Sequence[LossTerm] = ()
) -> tuple[Tensor, dict[str, Tensor]]:
    """This part's share of the step's loss, and of the statistics that go with it (weighted sums over totals)."""
    rows = part.rows
    outputs, _ = agent.unroll(rows.obs, part.memory, rows.start, rows.action_mask, dropout=part.dropout)
    rows, policy = (tree_map(lambda x: x[part.burn_in :], one) if part.burn_in else one for one in (rows, outputs.policy))
    loss, stats = policy_loss(agent, part, rows, policy, knobs, config)
    value, of_critics = value_loss(agent, part, rows, outputs.critics[:, part.burn_in :], knobs, config.critic)
    loss = loss + config.critic.vf_coef * value
    stats |= of_critics
    if rows.cost_target is not None:
        stats["cost_loss"] = part.value_mean((outputs.costs[0, part.burn_in :] - rows.cost_target).square())
        loss = loss + config.critic.vf_coef * stats["cost_loss"]
    share = (rows.policy_weight.sum() / part.policy_total).detach()
    for i, term in enumerate(loss_terms):
        stats[f"term_{i}"] = share * term(agent, _for_terms(part), knobs)
        loss = loss + stats[f"term_{i}"]
    return loss, {name: figure.detach() for name, figure in stats.items()}


def policy_loss(
    agent: Agent, part: Part, rows: Batch, policy: Any, knobs: Knobs, config: Config
) -> tuple[Tensor, dict[str, Tensor]]:
    """Surrogate, entropy bonus, KL penalty and cloning. What never weighs anything in this run is only measured."""
    log_prob = agent.policy.log_prob(policy, rows.action)
    raw_log_ratio = torch.where(rows.policy_weight > 0, log_prob - rows.log_prob, 0.0)
    log_ratio = clamp_log_ratio(raw_log_ratio, mode=config.ppo.log_ratio_clamp)
    surrogate = part.policy_mean(clipped_surrogate(log_ratio, rows.advantage, knobs.clip))
    with torch.set_grad_enabled(torch.is_grad_enabled() and config.entropy.used):
        entropies = agent.policy.entropy(policy, part.entropy_noise)
        entropy = part.policy_mean(entropies)
    with torch.set_grad_enabled(torch.is_grad_enabled() and config.kl.penalized):
        kl = part.policy_mean(agent.policy.kl(rows.policy, policy))
    loss, clone = surrogate, torch.zeros_like(surrogate)
    if config.entropy.used:
        loss = loss - knobs.entropy_coef * entropy
    if config.kl.penalized:
        loss = loss + knobs.kl_penalty * kl
    if config.clone.used:
        clone = part.policy_mean(awr_loss(log_prob, rows.advantage, config.clone.beta, config.clone.max_weight))
        loss = loss + knobs.clone_coef * clone
    counts = rows.policy_weight > 0
    return loss, {
        "policy_gradient_loss": surrogate,
        "entropy": entropy,
        "kl": kl,
        "clone_loss": clone,
        "entropy_min": torch.where(counts, entropies, torch.inf).amin(),
        "entropy_max": torch.where(counts, entropies, -torch.inf).amax(),
        **ratio_statistics(raw_log_ratio.detach(), knobs, part.policy_mean),
    }


def ratio_statistics(log_ratio: Tensor, knobs: Knobs, mean: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """How far the policy has moved, before anything is clamped: what is not finite is counted, and 0 in the rest."""
    like, finite = log_ratio.dtype, log_ratio.isfinite()
    known = torch.where(finite, log_ratio, 0.0)
    return {
        "clip_fraction": mean((log_ratio.expm1().abs() > knobs.clip).to(like)),
        "log_ratio_mean": mean(known),
        "log_ratio_clamped": mean((log_ratio.abs() > LOG_RATIO_BOUND).to(like)),
        "log_ratio_max": known.abs().max(),
        "log_ratio_not_finite": (~finite).sum().to(like),
    }


def value_loss(
    agent: Agent, part: Part, rows: Batch, critics: Tensor, knobs: Knobs, config: CriticConfig
) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean over the critics [C, L, S, N] of each one's own loss, and what clipping does to it."""
    plain = torch.stack([critic_loss(agent, critic, rows.target, config) for critic in critics])
    clipped = plain
    if rows.critics is not None:
        old = rows.critics.movedim(-2, 0)
        near = torch.stack([clipped_loss(agent, *pair, rows.target, config) for pair in zip(critics, old, strict=True)])
        clipped = torch.where(knobs.value_clip > 0, near, plain)
    per_critic = torch.stack([part.value_mean(one) for one in torch.maximum(plain, clipped)])
    rounding = 16 * torch.finfo(plain.dtype).eps * plain.detach().abs()
    return per_critic.mean(), {
        **{f"value_loss_{i}": one for i, one in enumerate(per_critic)},
        "value_loss": per_critic.mean(),
        "value_loss_unclipped": part.value_mean(plain.detach().mean(0)),
        "value_loss_clipped": part.value_mean(clipped.detach().mean(0)),
        "value_clip_active": part.value_mean((clipped > plain + rounding).to(plain.dtype).mean(0)),
    }


def critic_loss(agent: Agent, critic: Tensor, target: Tensor, config: CriticConfig) -> Tensor:
    """Loss per row of one critic [..., N], so scaled that `vf_coef` means the same for every kind."""
    if config.kind == "categorical":
        return categorical_loss(critic, target) / math.log(config.size)
    if config.kind == "scalar":
        return (critic[..., 0] - target.mean(-1)).square()
    loss = quantile_huber_loss(critic, target, agent.values.taus, config.kappa)
    return loss / config.kappa if config.kappa > 0 else loss


def clipped_loss(agent: Agent, new: Tensor, old: Tensor, target: Tensor, config: CriticConfig) -> Tensor:
    """The loss per row of what one critic says, kept near its own old output; the target is never clipped."""
    if config.kind == "categorical":
        near = clip_categorical(
            new, old.softmax(-1), agent.values.atoms, config.clip_radius, config.clip, config.clip_variance_factor
        )
    else:
        near = clip_quantiles(
            new, old, config.clip_radius, config.clip, config.clip_variance_factor, masses=agent.values.masses
        )
    return critic_loss(agent, near, target, config)


def weighted_sum(per_row: Tensor, weight: Tensor) -> Tensor:
    """Σ w·x, where a row of weight 0 may hold anything."""
    return (torch.where(weight > 0, per_row, 0.0) * weight).sum()


def _for_terms(part: Part) -> Batch:
    """The part's rows as a loss term sees them: with the memory before them, and no weight on the burn-in."""
    warm = torch.arange(len(part.rows.start), device=part.rows.start.device)[:, None] >= part.burn_in
    weights = (torch.where(warm, weight, 0.0) for weight in (part.rows.policy_weight, part.rows.value_weight))
    policy_weight, value_weight = weights
    return part.rows._replace(memory=part.memory, policy_weight=policy_weight, value_weight=value_weight)
