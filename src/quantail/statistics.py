"""What an iteration says of itself: every figure a 0-d tensor on the device, all of them crossing to the host at once."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from quantail.behaviour import behaviour_metrics
from quantail.calibration import TAIL, calibration_metrics
from quantail.errors import InputError
from quantail.estimate import Batch, Estimates, outside_share
from quantail.functional.checks import check_finite
from quantail.losses import Knobs
from quantail.nets.agent import Agent
from quantail.nets.memory import memory_statistics
from quantail.rollout import Carry, Rollout
from quantail.update import Learned

CLAMP_SHARE = 0.01  # of log-ratios beyond the clamp, above which the policy moves too far for the surrogate

# Statistics of the optimizer steps under their public names: over the steps that were not void the mean, the largest or
# smallest where the name says so, the last of what is smoothed; over all of them the sum of what counts.
STEP_NAMES = {
    "loss": "train/loss",
    "policy_gradient_loss": "train/policy_gradient_loss",
    "value_loss": "train/value_loss",
    "kl": "train/approx_kl",
    "clip_fraction": "train/clip_fraction",
    "entropy": "policy/entropy_mean",
    "entropy_min": "policy/entropy_min",
    "entropy_max": "policy/entropy_max",
    "kl_smooth": "policy/kl_smooth",
    "clone_loss": "policy/clone_loss",
    "log_ratio_mean": "policy/log_ratio_mean",
    "log_ratio_clamped": "policy/log_ratio_clamped",
    "log_ratio_not_finite": "policy/log_ratio_not_finite",
    "log_ratio_max": "policy/log_ratio_max",
    "grad_norm": "optim/grad_norm",
    "grad_norm_clipped": "optim/grad_norm_clipped",
    "taken": "optim/steps",
    "void": "optim/void_steps",
    "value_loss_0": "critic/loss_0",
    "value_loss_1": "critic/loss_1",
    "value_loss_unclipped": "critic/loss_unclipped",
    "value_loss_clipped": "critic/loss_clipped",
    "value_clip_active": "critic/clip_active",
    "cost_loss": "risk/cost_loss",
}
NO_OTHERS: Mapping[str, Tensor] = MappingProxyType({})
COUNTS = ("taken", "void", "log_ratio_not_finite")


def gathered(
    agent: Agent,
    carry: Carry,
    rollout: Rollout,
    batch: Batch,
    estimates: Estimates,
    steps: tuple[Sequence[str], Tensor],
    knobs: Knobs,
    others: Mapping[str, Tensor] = NO_OTHERS,
) -> tuple[tuple[str, ...], Tensor]:
    """Names and values of all figures of an iteration. `carry` is the one after the rollout, before anything was refreshed.

    `steps` are names and values of the optimizer steps; `others` 0-d tensors by their public names that were found elsewhere
    and cross together with these.
    """
    tensors = {
        **step_metrics(*steps, knobs),
        **advantage_metrics(batch, estimates),
        **critic_metrics(agent, carry, rollout, estimates),
        **calibration_metrics(agent, rollout, estimates, TAIL),
        **memory_metrics(carry, rollout),
        **normaliser_metrics(carry, rollout),
        **source_metrics(rollout),
        **behaviour_metrics(agent, carry, rollout),
        **others,
        "train/learning_rate": knobs.learning_rate,
        "train/clip_range": knobs.clip,
        "policy/entropy_coef": knobs.entropy_coef,
        "policy/clone_coef": knobs.clone_coef,
        "policy/kl_penalty": knobs.kl_penalty,
    }
    return tuple(tensors), torch.stack([value.detach().double() for value in tensors.values()])


def crossed(names: Sequence[str], values: Tensor) -> dict[str, float]:
    """The figures on the host: the one time that an iteration waits for its device."""
    metrics: dict[str, float] = dict(zip(names, values.tolist(), strict=True))
    metrics["train/entropy_loss"] = -metrics["policy/entropy_mean"]
    norms = {f"critic/grad_norm_{i}": metrics.get(f"optim/grad_norm/critic_{i}") for i in range(2)}
    return metrics | {name: norm for name, norm in norms.items() if norm is not None}


def step_metrics(names: Sequence[str], values: Tensor, knobs: Knobs) -> dict[str, Tensor]:
    """Over the optimizer steps, values [S, names]; NaN where all of them were void."""
    columns = dict(zip(names, values.unbind(1), strict=True))
    counted = columns.pop("counted") > 0  # not after a stop
    good = counted & (columns["void"] == 0)
    found = {}
    for name, column in columns.items():
        public = STEP_NAMES.get(name, f"optim/{name}" if "/" in name else f"train/{name}")
        found[public] = _over_steps(name, column, counted if name in COUNTS else good)
    found["policy/kl_max"] = _over_steps("kl_max", columns["kl"], good)
    ours, theirs = knobs.clone_coef * found["policy/clone_loss"], found["train/policy_gradient_loss"]
    return found | {"policy/clone_ratio": ours.abs() / theirs.abs()}


def _over_steps(name: str, values: Tensor, good: Tensor) -> Tensor:
    """One number for all steps, without a look from the host at how many were good: values [S], good [S] bool -> []."""
    if name in COUNTS:
        return torch.where(good, values, 0.0).sum()
    if name.endswith("_smooth"):
        newest = torch.where(good, torch.arange(len(values), device=good.device), 0).argmax()
        one = values.index_select(0, newest[None])[0]
    elif name.endswith("_max"):
        one = torch.where(good, values, -torch.inf).max()
    elif name.endswith("_min"):
        one = torch.where(good, values, torch.inf).min()
    else:
        one = torch.where(good, values, 0.0).sum() / good.sum()
    return torch.where(good.any(), one, torch.nan)


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


def critic_metrics(agent: Agent, carry: Carry, rollout: Rollout, estimates: Estimates) -> dict[str, Tensor]:
    """How much of the return's variance the rollout's own predictions explain: over all rows, and env by env."""
    weight, error = rollout.value_weight, estimates.returns - estimates.values[:-1]
    whole = explained(weighted_mean_and_std(error, weight)[1], weighted_mean_and_std(estimates.returns, weight)[1])
    each = explained(weighted_mean_and_std(error, weight, 0)[1], weighted_mean_and_std(estimates.returns, weight, 0)[1])
    known = each.isfinite()
    mean_each = torch.where(known, each, 0.0).sum() / known.sum()
    means = agent.values.mean(rollout.critics[:, :-1]) * carry.scale.std
    particles, heavy = estimates.particles, weight[..., None].expand(estimates.particles.shape)
    found = {
        "train/explained_variance": whole,
        "critic/explained_variance_per_env": mean_each,
        "critic/value_mean": weighted_mean_and_std(estimates.values[:-1], weight)[0],
        "critic/return_mean": weighted_mean_and_std(estimates.returns, weight)[0],
        "critic/return_std": weighted_mean_and_std(estimates.returns, weight)[1],
        "critic/target_std": weighted_mean_and_std(particles, heavy)[1],
    }
    if agent.values.kind == "categorical":
        found["critic/outside_support"] = outside_share(particles, carry.scale, weight, agent.values.atoms[-1])
    if len(means) == 2:
        found["critic/twin_gap"] = weighted_mean_and_std((means[0] - means[1]).abs(), weight)[0]
    return found


def memory_metrics(carry: Carry, rollout: Rollout) -> dict[str, Tensor]:
    """How full the memory is, tensor by tensor and layer by layer: at the end of the rollout, and around episode starts.

    `before_start` is what the old episode left behind, `after_start` what the first row of the new one wrote, over all starts
    but those in the first row; NaN where there are none.
    """
    found: dict[str, Tensor] = {}
    for i, state in enumerate(carry.memory):
        for kind, values in memory_statistics(state)._asdict().items():
            found |= {f"memory/state_{i}_layer_{layer}_{kind}": value for layer, value in enumerate(values)}
    if rollout.memory_sums is None:
        return found
    width = carry.memory[0].shape[-1]
    weight = rollout.start[1:-1].double()
    count = weight.sum()
    for moment, rows in (("before", rollout.memory_sums[:-1]), ("after", rollout.memory_sums[1:])):
        total, squares = rows.double().movedim(0, -2).unbind()  # [states, layers, T−1, B] each
        mean = (total * weight).sum((-2, -1)) / (count * width)
        spread = ((squares * weight).sum((-2, -1)) / (count * width) - mean.square()).clamp_min(0.0).sqrt()
        norm = (squares.sqrt() * weight).sum((-2, -1)) / count
        for kind, values in (("mean", mean), ("std", spread), ("norm", norm)):
            for i, state in enumerate(values):
                found |= {f"memory/state_{i}_layer_{j}_{kind}_{moment}_start": value for j, value in enumerate(state)}
    return found


def source_metrics(rollout: Rollout) -> dict[str, Tensor]:
    """What the environments gave: valid rows, numbers that are not finite, and means of their figures over the valid rows."""
    found = {f"health/not_finite_{name}": rollout.not_finite[..., i].sum() for i, name in enumerate(("reward", "pnl", "obs"))}
    bad = torch.zeros_like(found["health/not_finite_reward"])
    for name, figure in rollout.info.items():
        known = rollout.valid & figure.isfinite()
        bad = bad + (rollout.valid & ~figure.isfinite()).sum()
        found[f"env/{name}"] = weighted_mean_and_std(figure, known)[0]
    return found | {
        "health/not_finite_info": bad,
        "rollout/valid_rows": rollout.valid.sum(),
        "rollout/learned_rows": (rollout.value_weight > 0).sum(),
        "rollout/episodes": (~rollout.episode_return.isnan()).sum(),
    }


def normaliser_metrics(carry: Carry, rollout: Rollout) -> dict[str, Tensor]:
    """The return's scale, and how far this rollout's observations lie from those before it, in standard deviations."""
    found = {"norm/return_mean": carry.scale.mean, "norm/return_std": carry.scale.std}
    for name, known in carry.obs_moments.items():
        moves = (known.variance > 0) & (known.weight > 0)  # a feature that never moved has no unit to drift in
        drift = (rollout.raw_moments[name].mean - known.mean).abs() / torch.where(moves, known.variance, 1.0).sqrt()
        found[f"norm/obs_drift{'_' + name if name else ''}"] = torch.where(moves, drift, 0.0).sum() / moves.sum().clamp_min(1)
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


def ended_episodes(rollout: Rollout) -> list[tuple[float, float]]:
    """Return and length of the episodes that ended in this rollout, in the order in which they did."""
    ended = ~rollout.episode_return.isnan()
    pairs = torch.stack([rollout.episode_return[ended].double(), rollout.episode_length[ended].double()], -1)
    return [(total, length) for total, length in pairs.tolist()]


def successes(rollout: Rollout) -> list[float]:
    """1 or 0 for each episode that ended in this rollout and whose environment reports `is_success`, as SB3 reads it."""
    if "is_success" not in rollout.info:
        return []
    told = torch.where(rollout.episode_return.isnan(), torch.nan, rollout.info["is_success"].double())
    return told[told.isfinite()].tolist()


def latest_episodes(rollout: Rollout, most: int) -> Tensor:
    """Return, length and success of the latest episodes that ended in this rollout, oldest first: [most, 3], NaN for none."""
    returns = rollout.episode_return.flatten().double()
    place = torch.where(returns.isnan(), -1, torch.arange(len(returns), device=returns.device))
    at = place.topk(min(most, len(place))).values.flip(0)
    told = rollout.info.get("is_success", torch.full_like(rollout.episode_return, torch.nan))
    columns = (returns, rollout.episode_length.flatten().double(), told.flatten().double())
    rows = torch.stack([column.index_select(0, at.clamp_min(0)) for column in columns], -1)
    return torch.where((at >= 0)[:, None], rows, torch.nan)


def explained_void(learned: Learned, batch: Batch) -> Learned:
    """Where a void step's fault came in with the batch, its culprit says what entry of which tensor that was."""
    if not learned.culprit:
        return learned
    names = ("policy_weight", "value_weight", "log_prob", "target", "advantage")  # what breaks others first
    try:
        check_finite(**{name: getattr(batch, name) for name in names})
    except InputError as error:
        return learned._replace(note=f"; in the batch {error}")
    return learned


def findings(metrics: Mapping[str, float], rollout: Rollout, learned: Learned) -> tuple[str, ...]:
    """What is wrong with an iteration, in words: what was seen, where, and what was done about it."""
    found = []
    for i, name in enumerate(("reward", "pnl", "obs")):
        if metrics[f"health/not_finite_{name}"]:
            envs = rollout.not_finite[..., i].any(0).nonzero()[:, 0].tolist()
            found.append(f"{name} was not finite in environments {envs}: zeroed, and they weigh nothing until their next start")
    if void := int(metrics["optim/void_steps"]):
        found.append(f"{void} optimizer steps changed nothing: the first tensor that is not finite is {learned.culprit}")
    if bad := int(metrics["policy/log_ratio_not_finite"]):
        found.append(f"{bad} log-ratios were not finite: lower the learning rate, or look at the policy's deviation")
    if (share := metrics["policy/log_ratio_clamped"]) > CLAMP_SHARE:
        found.append(f"{share:.1%} of the log-ratios were clamped: the policy moves too far; set kl.target or fewer epochs")
    return tuple(found)
