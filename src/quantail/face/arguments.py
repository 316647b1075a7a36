"""The keywords of sb3-contrib's RecurrentPPO, and what they mean as a `Config`."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from quantail.config import Config
from quantail.control import Schedules
from quantail.errors import ConfigError

Schedule = float | Callable[[float], float]


@dataclass(frozen=True)
class Arguments:
    """What was asked for, with RecurrentPPO's names and defaults."""

    policy: Any
    learning_rate: Schedule = 3e-4
    n_steps: int = 128
    batch_size: int | None = 128
    n_epochs: int = 10
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_range: Schedule = 0.2
    clip_range_vf: float | None = None
    normalize_advantage: bool = True
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    max_grad_norm: float | None = 0.5
    use_sde: bool = False
    sde_sample_freq: int = -1
    target_kl: float | None = None
    stats_window_size: int = 100
    tensorboard_log: str | None = None
    policy_kwargs: Mapping[str, Any] | None = None
    verbose: int = 0
    seed: int | None = None

    def changed(self) -> dict[str, Any]:
        """The keywords that are not at their defaults."""
        defaults = {one.name: one.default for one in fields(self)}
        return {name: value for name, value in self.everything().items() if value != defaults[name]}

    def everything(self) -> dict[str, Any]:
        """All keywords but the policy."""
        return {name: value for name, value in vars(self).items() if name != "policy"}

    def schedules(self) -> Schedules:
        """Those keywords that are functions of what is left of training."""
        rate, clip = self.learning_rate, self.clip_range
        return Schedules(rate if callable(rate) else None, clip if callable(clip) else None)


NAMES = tuple(one.name for one in fields(Arguments))
Settings = dict[str, Any]  # "part.field" -> value


def settings_of(values: Mapping[str, Any], n_envs: int, n_steps: int) -> Settings:
    """The keywords as settings, `n_steps` where none is among them; what cannot be done is refused."""
    n_steps = values.get("n_steps", n_steps)
    _check_exploration(values, n_steps)
    found: Settings = {}
    for name, value in values.items():
        if name in PLAIN:
            path, kind = PLAIN[name]
            found[path] = None if value is None else kind(value)
    for name, path in (("learning_rate", "optim.learning_rate"), ("clip_range", "ppo.clip_range")):
        if name in values:
            found |= _start(name, path, values[name])
    if "batch_size" in values:
        size = values["batch_size"]
        found["ppo.batch_size"] = n_steps * n_envs if size is None else operator.index(size)
    if "clip_range_vf" in values:
        found |= _value_clip(values["clip_range_vf"])
    if "normalize_advantage" in values:
        found["ppo.normalize_advantage"] = "global" if values["normalize_advantage"] else "off"
    if values.get("seed") is not None:
        found["seed"] = operator.index(values["seed"])
    return found


def configured(config: Config, settings: Settings) -> Config:
    """The config with these settings."""
    parts: dict[str, dict[str, Any]] = {}
    for path, value in settings.items():
        part, _, name = path.rpartition(".")
        parts.setdefault(part, {})[name] = value
    whole = parts.pop("", {})
    return replace(config, **whole, **{part: replace(getattr(config, part), **values) for part, values in parts.items()})


def any_seed() -> int:
    """A seed that nobody has chosen; it is kept in the config, so that the run can be repeated."""
    return int(np.random.SeedSequence().generate_state(1)[0])


PLAIN: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "n_steps": ("ppo.n_steps", operator.index),
    "n_epochs": ("ppo.n_epochs", operator.index),
    "gamma": ("ppo.gamma", float),
    "gae_lambda": ("ppo.gae_lambda", float),
    "ent_coef": ("entropy.coef", float),
    "vf_coef": ("critic.vf_coef", float),
    "max_grad_norm": ("optim.max_grad_norm", float),
    "use_sde": ("net.gsde", bool),
    "target_kl": ("kl.target", float),
}


def _start(name: str, path: str, value: Any) -> Settings:
    """The number itself, or where a schedule starts, if that can be told apart from 0."""
    if not callable(value):
        return {path: float(value)}
    first = float(value(1.0))
    if not first >= 0:
        raise ConfigError(f"{name}(1.0) is {first}; a schedule needs to give numbers >= 0 for what is left of training, 1 to 0")
    return {path: first} if first > 0 else {}


def _value_clip(value: Any) -> Settings:
    if value is None:
        return {"critic.clip": "off"}
    if callable(value):
        raise ConfigError("clip_range_vf is a function; the value clip cannot follow a schedule: give a number, or None")
    assert value > 0, "`clip_range_vf` must be positive, pass `None` to deactivate vf clipping"
    return {"critic.clip": "mean_only", "critic.clip_radius": float(value)}


def _check_exploration(values: Mapping[str, Any], n_steps: int) -> None:
    frequency = values.get("sde_sample_freq", -1)
    if values.get("use_sde") and 0 < frequency < n_steps:
        raise ConfigError(
            f"sde_sample_freq={frequency} would draw new exploration within a rollout; here it is held for all n_steps rows, "
            "so that they can be replayed: use sde_sample_freq=-1, or fewer n_steps"
        )
