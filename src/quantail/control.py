"""What changes during training: schedules of knobs, and controllers that answer the statistics of the last iteration."""

import math
from typing import NamedTuple

import torch

from quantail.config import CloneConfig, Config, EntropyConfig, ScheduleConfig
from quantail.losses import Knobs


class Control(NamedTuple):
    """Plain numbers that outlive an iteration; the statistics they answer cross to the host once per iteration anyway."""

    entropies: tuple[float, ...] = ()  # of the policy, newest last, as many as the plateau looks at
    decay_start: int | None = None  # iteration at which the entropy coefficient began to fall
    lost: int = 0  # iterations in a row with negative explained variance
    kl_penalty: float = 0.0
    kl_integral: float = 0.0
    epoch_factor: float = 1.0
    void_steps: int = 0  # optimizer steps in a row that changed nothing


def start_control(config: Config) -> Control:
    """Nothing seen yet."""
    return Control(kl_penalty=config.kl.penalty, decay_start=None if config.entropy.plateau_window else 0)


def knobs(control: Control, iteration: int, env_steps: int, config: Config, device: torch.device) -> Knobs:
    """The knobs of an iteration, as 0-d tensors."""
    done = min(env_steps / config.total_timesteps, 1.0)
    values = (
        scheduled(config.optim.learning_rate, config.optim.schedule, done),
        clip_range(iteration, config),
        entropy_coef(control, iteration, config.entropy),
        clone_coef(env_steps, config.clone),
        control.kl_penalty,
    )
    return Knobs(*torch.tensor(values, dtype=torch.float64, device=device).unbind())


def steer(control: Control, iteration: int, metrics: dict[str, float], stopped: bool, config: Config) -> Control:
    """The answer to one iteration: entropy plateau, lost critic, KL penalty, length of the next update."""
    entropies = (*control.entropies, metrics["policy/entropy_mean"])[-max(config.entropy.plateau_window, 1) :]
    decay_start = control.decay_start
    if decay_start is None and settled(entropies, config.entropy):
        decay_start = iteration + 1
    lost = control.lost + 1 if metrics["train/explained_variance"] < 0 else 0
    penalty, integral = kl_penalty(control, metrics["train/approx_kl"], config)
    decay = config.kl.epoch_decay
    factor = max(control.epoch_factor * decay, 1 / config.ppo.n_epochs) if stopped else min(control.epoch_factor / decay, 1.0)
    return control._replace(
        entropies=entropies, decay_start=decay_start, lost=lost, kl_penalty=penalty, kl_integral=integral, epoch_factor=factor
    )


def epochs(control: Control, config: Config) -> int:
    """How many passes over the rollout this update makes."""
    return max(1, round(config.ppo.n_epochs * control.epoch_factor))


def scheduled(start: float, schedule: ScheduleConfig, done: float) -> float:
    """A value that falls from `start` with the share of training done: linear, or half a cosine; never below the floor."""
    left = {"constant": 1.0, "linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}[schedule.kind]
    return max(start * left, min(schedule.floor, start))


def clip_range(iteration: int, config: Config) -> float:
    """From `clip_start` linearly to `clip_range` over `clip_warmup` iterations."""
    ppo = config.ppo
    if ppo.clip_start is None or iteration >= ppo.clip_warmup:
        return ppo.clip_range
    return ppo.clip_start + (ppo.clip_range - ppo.clip_start) * iteration / ppo.clip_warmup


def clone_coef(env_steps: int, config: CloneConfig) -> float:
    """`coef` for `warmup_steps` environment steps, then linearly to `final` over `decay_steps`; without those it stays."""
    if config.decay_steps == 0 or env_steps <= config.warmup_steps:
        return config.coef
    done = min((env_steps - config.warmup_steps) / config.decay_steps, 1.0)
    return config.coef + (config.final - config.coef) * done


def entropy_coef(control: Control, iteration: int, config: EntropyConfig) -> float:
    """Decayed since `decay_start`, boosted while the critic is lost, never below the floor (nor raised to it from below 0)."""
    value = config.coef
    if config.final is not None and control.decay_start is not None:
        done = min(max(iteration - control.decay_start, 0) / config.decay_iterations, 1.0)
        value = config.coef + (config.final - config.coef) * done
    excess = control.lost - config.boost_patience
    if excess > 0:
        value = min(value * config.boost_factor**excess, config.boost_cap * config.coef)
    return max(value, config.floor)


def settled(entropies: tuple[float, ...], config: EntropyConfig) -> bool:
    """Whether a full window of entropies has a least-squares slope within the tolerance."""
    if len(entropies) < config.plateau_window:
        return False
    return abs(slope(entropies)) <= config.plateau_tolerance


def slope(values: tuple[float, ...]) -> float:
    """Least-squares slope per step: Σ(t − t̄)(v − v̄)/Σ(t − t̄)²; 0 for a single value."""
    middle, mean = (len(values) - 1) / 2, sum(values) / len(values)
    spread = sum((t - middle) ** 2 for t in range(len(values)))
    return sum((t - middle) * (v - mean) for t, v in enumerate(values)) / spread if spread else 0.0


def kl_penalty(control: Control, kl: float, config: Config) -> tuple[float, float]:
    """PI control in position form: β = clip(β₀ + k_p·e + I, 0, β_max), e = KL − target; I stays where β can answer."""
    kl_config = config.kl
    if kl_config.target is None or not math.isfinite(kl):
        return control.kl_penalty, control.kl_integral
    error = kl - kl_config.target
    push = kl_config.penalty + kl_config.penalty_kp * error
    integral = control.kl_integral + kl_config.penalty_ki * error
    if not 0 <= push + integral <= kl_config.penalty_max:
        integral = min(max(integral, -push), kl_config.penalty_max - push) if kl_config.penalty_ki else 0.0
    return min(max(push + integral, 0.0), kl_config.penalty_max), integral
