"""The loss of a batch: policy, entropy, cloning, KL penalty and critics, each a weighted mean over the whole step."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quantail.config import Config, CriticConfig
from quantail.estimate import Batch
from quantail.functional.categorical import categorical_loss
from quantail.functional.policy import LOG_RATIO_BOUND, awr_loss, clamp_log_ratio, clipped_surrogate
from quantail.functional.quantile import quantile_huber_loss
from quantail.nets.agent import Agent, Memory
from quantail.trees import tree_map


class Knobs(NamedTuple):
    """Quantities that change during training: 0-d tensors, so that captured graphs obey schedules."""

    learning_rate: Tensor
    clip: Tensor
    entropy_coef: Tensor
    clone_coef: Tensor
    kl_penalty: Tensor


LossTerm = Callable[[Agent, Batch, Knobs], Tensor]


class Part(NamedTuple):
    """The rows of one micro-batch, and the weight of the whole optimizer step they are a part of."""

    rows: Batch  # [L, S, ...], burn-in rows included
    memory: Memory  # before the first of them
    burn_in: int  # so many first rows only warm up the memory
    policy_total: Tensor  # scalar
    value_total: Tensor  # scalar
    dropout: Tensor | None = None


def batch_loss(
    agent: Agent, part: Part, entropy_noise: Tensor | None, knobs: Knobs, config: Config
) -> tuple[Tensor, dict[str, Tensor]]:
    """This part's share of the step's loss, and of the statistics that go with it (weighted sums over totals)."""
    old = part.rows
    outputs, _ = agent.unroll(old.obs, part.memory, old.start, old.action_mask, dropout=part.dropout)
    new_policy, critics = _after(outputs.policy, part.burn_in), outputs.critics[:, part.burn_in :]
    old = _after(old, part.burn_in)

    def policy_mean(per_row: Tensor) -> Tensor:
        return weighted_sum(per_row, old.policy_weight) / part.policy_total

    def value_mean(per_row: Tensor) -> Tensor:
        return weighted_sum(per_row, old.value_weight) / part.value_total

    log_prob = agent.policy.log_prob(new_policy, old.action)
    raw_log_ratio = torch.where(old.policy_weight > 0, log_prob - old.log_prob, 0.0)
    log_ratio = clamp_log_ratio(raw_log_ratio, mode=config.ppo.log_ratio_clamp)
    surrogate = policy_mean(clipped_surrogate(log_ratio, old.advantage, knobs.clip))
    entropy = policy_mean(agent.policy.entropy(new_policy, entropy_noise))
    kl = policy_mean(agent.policy.kl(old.policy, new_policy))
    loss = surrogate - knobs.entropy_coef * entropy + knobs.kl_penalty * kl
    clone = torch.zeros_like(surrogate)
    if config.clone.coef or config.clone.final:
        clone = policy_mean(awr_loss(log_prob, old.advantage, config.clone.beta, config.clone.max_weight))
        loss = loss + knobs.clone_coef * clone
    per_critic = torch.stack([value_mean(critic_loss(agent, one, old.target, config.critic)) for one in critics])
    loss = loss + config.critic.vf_coef * per_critic.mean()
    stats = {
        "policy_gradient_loss": surrogate,
        "entropy": entropy,
        "kl": kl,
        "clone_loss": clone,
        "value_loss": per_critic.mean(),
        **{f"value_loss_{i}": one for i, one in enumerate(per_critic)},
        **ratio_statistics(raw_log_ratio.detach(), knobs, policy_mean),
    }
    return loss, {name: value.detach() for name, value in stats.items()}


def ratio_statistics(log_ratio: Tensor, knobs: Knobs, mean: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """How far the policy has moved, before anything is clamped: what is not finite is counted, not hidden."""
    like = log_ratio.dtype
    return {
        "clip_fraction": mean((log_ratio.expm1().abs() > knobs.clip).to(like)),
        "log_ratio_mean": mean(log_ratio),
        "log_ratio_clamped": mean((log_ratio.abs() > LOG_RATIO_BOUND).to(like)),
        "log_ratio_max": log_ratio.abs().max(),
        "log_ratio_not_finite": (~log_ratio.isfinite()).sum().to(like),
    }


def critic_loss(agent: Agent, critic: Tensor, target: Tensor, config: CriticConfig) -> Tensor:
    """Loss per row of one critic [..., N], so scaled that `vf_coef` means the same for every kind."""
    if config.kind == "categorical":
        return categorical_loss(critic, target) / math.log(config.atoms)
    if config.kind == "scalar":
        return (critic[..., 0] - target.mean(-1)).square()
    loss = quantile_huber_loss(critic, target, agent.values.taus, config.kappa)
    return loss / config.kappa if config.kappa > 0 else loss


def weighted_sum(per_row: Tensor, weight: Tensor) -> Tensor:
    """Σ w·x, where a row of weight 0 may hold anything."""
    return (torch.where(weight > 0, per_row, 0.0) * weight).sum()


def _after(rows: Any, burn_in: int) -> Any:
    """The rows to learn from: those after the burn-in."""
    return tree_map(lambda x: x[burn_in:], rows) if burn_in else rows
