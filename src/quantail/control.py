"""What changes during training: schedules of knobs, and controllers that answer the statistics of the last iteration."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch

from quantail.config import CloneConfig, Config, CriticConfig, EntropyConfig, KlConfig
from quantail.errors import ConfigError
from quantail.losses import Knobs
from quantail.optim.schedule import answered, scheduled

EPISODES = 100  # whose mean return and length are reported, as SB3 does
SLOPE_WINDOW = 10  # iterations over which the entropy's slope is reported where no plateau asks for another


class Control(NamedTuple):
    """Plain numbers that outlive an iteration; the statistics they answer cross to the host once per iteration anyway."""

    entropies: tuple[float, ...] = ()  # of the policy, newest last, as many as the slope is taken over
    decay_start: int | None = None  # iteration at which the entropy coefficient began to fall
    lost: int = 0  # iterations in a row with negative explained variance
    explained: float = math.nan  # variance of the returns, in the last iteration
    kl_penalty: float = 0.0
    kl_integral: float = 0.0
    kl_error: float | None = None  # KL − target of the last iteration
    epoch_factor: float = 1.0
    void_steps: int = 0  # optimizer steps in a row that changed nothing
    blind: int = 0  # rollouts in a row with hardly a row to learn from
    updates: int = 0  # passes over rollouts so far
    episodes: tuple[tuple[float, float], ...] = ()  # return and length of those that ended, newest last
    successes: tuple[float, ...] = ()  # 1 or 0 for each of those whose environment says so, newest last
    rate_factor: float = 1.0  # what the KL has made of the learning rate


class Schedules(NamedTuple):
    """Functions of the share of training that is left, 1 to 0, in place of what the config says of a knob."""

    learning_rate: Callable[[float], float] | None = None
    clip_range: Callable[[float], float] | None = None


NO_SCHEDULES = Schedules()


def start_control(config: Config) -> Control:
    """Nothing seen yet."""
    return Control(kl_penalty=config.kl.penalty, decay_start=None if config.entropy.plateau_window else 0)


def knobs(
    control: Control, iteration: int, env_steps: int, config: Config, device: torch.device, schedules: Schedules = NO_SCHEDULES
) -> Knobs:
    """The knobs of an iteration, as 0-d tensors."""
    done = min(env_steps / config.total_timesteps, 1.0)
    values = (
        learning_rate(control, done, config, schedules),
        asked("clip_range", schedules.clip_range, done, clip_range(iteration, config)),
        entropy_coef(control, iteration, config.entropy),
        clone_coef(env_steps, config.clone),
        control.kl_penalty,
        float(clips_values(control, iteration, config.critic)),
    )
    written = [torch.full((1,), value, dtype=torch.float64, device=device) for value in values]
    return Knobs(*torch.cat(written).unbind())  # by the device, which a copy would have to wait for


def steer(control: Control, iteration: int, metrics: Mapping[str, float], stopped: bool, config: Config) -> Control:
    """The answer to one iteration: entropy plateau, lost critic, KL penalty, length of the next update."""
    entropies = control.entropies
    if math.isfinite(metrics["policy/entropy_mean"]):
        entropies = (*entropies, metrics["policy/entropy_mean"])[-(config.entropy.plateau_window or SLOPE_WINDOW) :]
    decay_start = control.decay_start
    if decay_start is None and settled(entropies, config.entropy):
        decay_start = iteration + 1
    explained = metrics["train/explained_variance"]
    lost = control.lost + 1 if explained < 0 else 0
    decay = config.kl.epoch_decay
    factor = max(control.epoch_factor * decay, 1 / config.ppo.n_epochs) if stopped else min(control.epoch_factor / decay, 1.0)
    control = control._replace(
        entropies=entropies, decay_start=decay_start, lost=lost, explained=explained, epoch_factor=factor
    )
    kl = metrics["train/approx_kl"]
    control = control._replace(rate_factor=answered(control.rate_factor, kl, config.kl.target, config.optim.kl_rate))
    return steer_penalty(control, kl, config.kl)


def tally(control: Control, ended: Sequence[Sequence[float]], epochs: int) -> Control:
    """Count what an iteration did: passes over the rollout, and the latest episodes that ended, oldest first.

    Of each its return, length and success; NaN where there was none, or where its environment says nothing of that.
    """
    episodes = [(gained, length) for gained, length, _ in ended if not math.isnan(length)]
    successes = [success for *_, success in ended if math.isfinite(success)]
    return control._replace(
        episodes=(*control.episodes, *episodes)[-EPISODES:],
        successes=(*control.successes, *successes)[-EPISODES:],
        updates=control.updates + epochs,
    )


def tally_metrics(control: Control) -> dict[str, float]:
    """What the counts say: mean return, length and success of the latest episodes, passes so far, the entropy's slope."""
    found = {"train/n_updates": float(control.updates), "policy/entropy_slope": slope(control.entropies)}
    if control.episodes:
        returns, lengths = zip(*control.episodes, strict=True)
        found |= {"rollout/ep_rew_mean": sum(returns) / len(returns), "rollout/ep_len_mean": sum(lengths) / len(lengths)}
    if control.successes:
        found["rollout/success_rate"] = sum(control.successes) / len(control.successes)
    return found


def epochs(control: Control, config: Config) -> int:
    """How many passes over the rollout this update makes."""
    return max(1, round(config.ppo.n_epochs * control.epoch_factor))


def asked(name: str, schedule: Callable[[float], float] | None, done: float, otherwise: float) -> float:
    """What a schedule from outside says of a knob, or what is said without one."""
    if schedule is None:
        return otherwise
    value = float(schedule(1.0 - done))
    if not math.isfinite(value) or value < 0:
        raise ConfigError(f"{name} at {1 - done:g} of training left is {value}; a schedule needs to give finite numbers >= 0")
    return value


def learning_rate(control: Control, done: float, config: Config, schedules: Schedules) -> float:
    """What the schedule says, times what the KL has made of it; never below the floor."""
    optim = config.optim
    planned = asked("learning_rate", schedules.learning_rate, done, scheduled(optim.learning_rate, optim.schedule, done))
    return max(planned * control.rate_factor, min(optim.schedule.floor, planned))


def clip_range(iteration: int, config: Config) -> float:
    """From `clip_start` linearly to `clip_range` over `clip_warmup` iterations."""
    ppo = config.ppo
    if ppo.clip_start is None or iteration >= ppo.clip_warmup:
        return ppo.clip_range
    return ppo.clip_start + (ppo.clip_range - ppo.clip_start) * iteration / ppo.clip_warmup


def clips_values(control: Control, iteration: int, config: CriticConfig) -> bool:
    """Whether predictions are held near the rollout's: after the warm-up, and where the critic explained enough."""
    if config.clip == "off" or iteration < config.clip_warmup:
        return False
    return config.clip_explained is None or control.explained >= config.clip_explained


def clone_coef(env_steps: int, config: CloneConfig) -> float:
    """`coef` for `warmup_steps` environment steps, then linearly to `final` over `decay_steps`; without those it stays."""
    if config.decay_steps == 0 or env_steps <= config.warmup_steps:
        return config.coef
    done = min((env_steps - config.warmup_steps) / config.decay_steps, 1.0)
    return config.coef + (config.final - config.coef) * done


def entropy_coef(control: Control, iteration: int, config: EntropyConfig) -> float:
    """Decayed since `decay_start`, boosted while the critic is lost, never below the floor."""
    value = config.coef
    if config.final is not None and control.decay_start is not None:
        done = min(max(iteration - control.decay_start, 0) / config.decay_iterations, 1.0)
        value = config.coef + (config.final - config.coef) * done
    excess = control.lost - config.boost_patience
    if excess > 0:
        most = max(config.boost_cap * config.coef, value)
        power = min(math.log(config.boost_factor) * excess, 700.0)  # beyond, the exponential overflows
        value = min(value * math.exp(power), most)
    return max(value, config.floor)


def settled(entropies: tuple[float, ...], config: EntropyConfig) -> bool:
    """Whether a full window of entropies has a least-squares slope within the tolerance."""
    if len(entropies) < config.plateau_window:
        return False
    return abs(slope(entropies)) <= config.plateau_tolerance


def slope(values: Sequence[float]) -> float:
    """Least-squares slope per step: Σ(t − t̄)(v − v̄)/Σ(t − t̄)²; 0 for a single value, or none."""
    if len(values) < 2:
        return 0.0
    middle, mean = (len(values) - 1) / 2, sum(values) / len(values)
    spread = sum((t - middle) ** 2 for t in range(len(values)))
    return sum((t - middle) * (v - mean) for t, v in enumerate(values)) / spread


def steer_penalty(control: Control, kl: float, config: KlConfig) -> Control:
    """PID control in position form: β = clip(β₀ + k_p·e + I + k_d·(e − e′), 0, β_max), e = KL − target, e′ the one before.

    I stays where β can answer: it does not wind up. A weight that nothing steers stays as it is.
    """
    if config.target is None or not config.steered or not math.isfinite(kl):
        return control
    error = kl - config.target
    change = 0.0 if control.kl_error is None else error - control.kl_error
    push = config.penalty + config.penalty_kp * error + config.penalty_kd * change
    integral = control.kl_integral + config.penalty_ki * error
    if not 0 <= push + integral <= config.penalty_max:
        integral = min(max(integral, -push), config.penalty_max - push) if config.penalty_ki else 0.0
    penalty = min(max(push + integral, 0.0), config.penalty_max)
    return control._replace(kl_penalty=penalty, kl_integral=integral, kl_error=error)
