"""What an iteration says of itself: every figure a 0-d tensor on the device, all of them crossing to the host at once."""

import torch
from torch import Tensor

from quantail.estimate import Batch, Estimates
from quantail.losses import Knobs
from quantail.nets.agent import Agent
from quantail.nets.memory import memory_statistics
from quantail.rollout import Carry, Rollout
from quantail.update import Learned

# Statistics of the optimizer steps under their public names; the mean over the steps, or the largest where marked.
STEP_NAMES = {
    "loss": "train/loss",
    "policy_gradient_loss": "train/policy_gradient_loss",
    "value_loss": "train/value_loss",
    "kl": "train/approx_kl",
    "clip_fraction": "train/clip_fraction",
    "entropy": "policy/entropy_mean",
    "clone_loss": "policy/clone_loss",
    "log_ratio_mean": "policy/log_ratio_mean",
    "log_ratio_clamped": "policy/log_ratio_clamped",
    "log_ratio_not_finite": "policy/log_ratio_not_finite",
    "log_ratio_max": "policy/log_ratio_max",
    "grad_norm": "optim/grad_norm",
    "grad_norm_clipped": "optim/grad_norm_clipped",
    "void": "optim/void_steps",
    "value_loss_0": "critic/loss_0",
    "value_loss_1": "critic/loss_1",
}


def metrics_of(
    agent: Agent, carry: Carry, rollout: Rollout, batch: Batch, estimates: Estimates, learned: Learned, knobs: Knobs
) -> dict[str, float]:
    """All figures of an iteration by name."""
    tensors = {
        **step_metrics(learned),
        **advantage_metrics(batch, estimates),
        **critic_metrics(rollout, estimates),
        **memory_metrics(agent, carry),
        **gradient_metrics(agent),
        **normaliser_metrics(carry, rollout),
        **{f"health/not_finite_{name}": rollout.not_finite[..., i].sum() for i, name in enumerate(("reward", "pnl", "obs"))},
        "rollout/valid_rows": rollout.valid.sum(),
        "train/learning_rate": knobs.learning_rate,
        "train/clip_range": knobs.clip,
        "policy/entropy_coef": knobs.entropy_coef,
        "policy/clone_coef": knobs.clone_coef,
        "policy/kl_penalty": knobs.kl_penalty,
    }
    values = torch.stack([value.detach().double() for value in tensors.values()]).tolist()
    metrics = dict(zip(tensors, values, strict=True))
    metrics["train/entropy_loss"] = -metrics["policy/entropy_mean"]
    return metrics


def step_metrics(learned: Learned) -> dict[str, Tensor]:
    """Over the optimizer steps: means, the count of void ones, and the extremes."""
    found = {}
    for name, public in STEP_NAMES.items():
        values = [step[name] for step in learned.steps if name in step]
        if values:
            stacked = torch.stack(values).double()
            found[public] = stacked.max() if name.endswith("_max") else stacked.sum() if name == "void" else stacked.mean()
            if name == "kl":
                found["policy/kl_max"] = stacked.max()
    return found


def advantage_metrics(batch: Batch, estimates: Estimates) -> dict[str, Tensor]:
    """Advantages before and after normalisation, over the rows that count."""
    counts = batch.policy_weight > 0
    found = {}
    for name, values in (("raw", estimates.advantages), ("normalised", batch.advantage)):
        mean, deviation = weighted_mean_and_std(values, batch.policy_weight)
        found[f"policy/advantage_{name}_mean"] = mean
        found[f"policy/advantage_{name}_std"] = deviation
        found[f"policy/advantage_{name}_min"] = torch.where(counts, values, torch.inf).amin()
        found[f"policy/advantage_{name}_max"] = torch.where(counts, values, -torch.inf).amax()
    return found


def critic_metrics(rollout: Rollout, estimates: Estimates) -> dict[str, Tensor]:
    """How much of the return's variance the rollout's own predictions explain: over all rows, and env by env."""
    weight, error = rollout.value_weight, estimates.returns - estimates.values[:-1]
    whole = explained(weighted_mean_and_std(error, weight)[1], weighted_mean_and_std(estimates.returns, weight)[1])
    each = explained(weighted_mean_and_std(error, weight, 0)[1], weighted_mean_and_std(estimates.returns, weight, 0)[1])
    known = each.isfinite()
    mean_each = torch.where(known, each, 0.0).sum() / known.sum()
    means = rollout.critics.mean(-1)
    gap = (means[0] - means[-1]).abs().mean()
    return {
        "train/explained_variance": whole,
        "critic/explained_variance_per_env": mean_each,
        "critic/twin_gap": gap,
        "critic/value_mean": weighted_mean_and_std(estimates.values[:-1], weight)[0],
        "critic/return_mean": weighted_mean_and_std(estimates.returns, weight)[0],
        "critic/return_std": weighted_mean_and_std(estimates.returns, weight)[1],
        "critic/target_std": estimates.particles.std(correction=0),
    }


def memory_metrics(agent: Agent, carry: Carry) -> dict[str, Tensor]:
    """How full the memory is, tensor by tensor and layer by layer."""
    found: dict[str, Tensor] = {}
    for i, state in enumerate(carry.memory):
        summary = memory_statistics(state)
        for layer in range(len(state)):
            found |= {f"memory/state_{i}_layer_{layer}_{kind}": values[layer] for kind, values in summary._asdict().items()}
    return found


def gradient_metrics(agent: Agent) -> dict[str, Tensor]:
    """Norms of the last step's gradients by owner: each trunk's encoder and memory layers, each head."""
    found = {}
    for owner, parameters in agent.parameter_groups().items():
        gradients = [p.grad for p in parameters if p.grad is not None]
        if gradients:
            found[f"optim/grad_norm/{owner}"] = torch.nn.utils.get_total_norm(gradients)
    return found


def normaliser_metrics(carry: Carry, rollout: Rollout) -> dict[str, Tensor]:
    """The return's scale, and how far this rollout's observations lie from those before it, in standard deviations."""
    found = {"norm/return_mean": carry.scale.mean, "norm/return_std": carry.scale.std}
    for name, known in carry.obs_moments.items():
        drift = (rollout.raw_moments[name].mean - known.mean).abs() / known.variance.sqrt().clamp_min(1e-12)
        found[f"norm/obs_drift{'_' + name if name else ''}"] = torch.where(known.weight > 0, drift, 0.0).mean()
    return found


def weighted_mean_and_std(values: Tensor, weight: Tensor, dim: int | None = None) -> tuple[Tensor, Tensor]:
    """Over all rows, or over time for each environment; 0/0 is NaN: nothing was seen."""
    dims = tuple(range(values.ndim)) if dim is None else (dim,)
    values, weight = torch.where(weight > 0, values, 0.0).double(), weight.double()
    total = weight.sum(dims, keepdim=True)
    mean = (values * weight).sum(dims, keepdim=True) / total
    variance = ((values - mean).square() * weight).sum(dims, keepdim=True) / total
    return mean.squeeze(dims), variance.sqrt().squeeze(dims)


def explained(error_std: Tensor, return_std: Tensor) -> Tensor:
    """1 − Var(error)/Var(return); NaN where the return does not vary."""
    return torch.where(return_std > 0, 1 - (error_std / return_std).square(), torch.nan)


def episode_metrics(rollout: Rollout) -> dict[str, float]:
    """Mean return and length of the episodes that ended in this rollout; nothing when none did."""
    ended = ~rollout.episode_return.isnan()
    count = int(ended.sum())
    if not count:
        return {}
    found = {"rollout/episodes": float(count)}
    for name, values in (("ep_rew_mean", rollout.episode_return), ("ep_len_mean", rollout.episode_length)):
        found[f"rollout/{name}"] = float(torch.where(ended, values, 0.0).sum()) / count
    return found
