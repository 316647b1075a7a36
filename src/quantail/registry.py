"""Environments by name: `quantail/CartPole` is one of ours, everything else is an id of Gymnasium's."""

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any

from quantail.config import EnvConfig, RiskConfig
from quantail.envs import oracles
from quantail.envs.base import TensorEnv
from quantail.envs.running import ObserveGained
from quantail.errors import ConfigError
from quantail.market.make import market

OURS = "quantail/"

# Name -> what makes it: a function of num_envs and its options.
NATIVE: Mapping[str, Callable[..., TensorEnv]] = {
    OURS + "Market": market,
    **{OURS + name: getattr(oracles, name) for name in oracles.__all__ if name != "Oracle"},
}


def make(
    config: EnvConfig,
    num_envs: int | None = None,
    risk: RiskConfig | None = None,
    part: str = "train",
    fitted: Mapping[str, Any] | None = None,
) -> TensorEnv:
    """The environment that a config names; num_envs, where another number of it is wanted.

    Where the tail of a sum is minded that its observations do not tell, they are made to. `part`: of an environment that has
    data to hold out, which; the config's own word stands above it. `fitted`: what an earlier one took from its training data.
    """
    return observed(named(config, num_envs, part, fitted), risk)


def observed(env: TensorEnv, risk: RiskConfig | None) -> TensorEnv:
    """The environment, made to show what has been gained where that is minded and not seen."""
    if risk is None or not risk.observe or gained_is_seen(env, risk):
        return env
    return ObserveGained(env, risk.window if risk.horizon == "window" else None)


def gained_is_seen(env: TensorEnv, risk: RiskConfig) -> bool:
    """Whether the agent sees what it has to know of the outcome under way; or nobody minds."""
    if not risk.used or risk.horizon == "step":
        return True
    if risk.horizon == "episode":
        return env.observes_gained
    return isinstance(env, ObserveGained) and env.window_rows == risk.window


def named(config: EnvConfig, num_envs: int | None, part: str, fitted: Mapping[str, Any] | None) -> TensorEnv:
    """The environment itself."""
    if not config.id:
        raise ConfigError("no environment is named; set env.id (--env CartPole-v1, --env quantail/CartPole), or hand one over")
    count = config.num_envs if num_envs is None else num_envs
    if config.id.startswith(OURS):
        return native(config, count, part, fitted)
    from quantail.envs.gymnasium import make_env

    try:
        return make_env(config.id, count, config.options, config.subprocesses, config.pnl)
    except TypeError as error:
        raise ConfigError(f"{config.id} refused the options {config.options} ({error}); see its own description") from error


def native(config: EnvConfig, num_envs: int, part: str, fitted: Mapping[str, Any] | None) -> TensorEnv:
    """One of ours by name."""
    if config.id not in NATIVE:
        close = get_close_matches(config.id.removeprefix(OURS), [name.removeprefix(OURS) for name in NATIVE], n=1)
        hint = f"did you mean {OURS}{close[0]}?" if close else f"there are {', '.join(NATIVE)}"
        raise ConfigError(f"env.id={config.id!r} is none of ours; {hint}")
    for name, asked in (("subprocesses", config.subprocesses), ("pnl", config.pnl)):
        if asked:
            raise ConfigError(f"env.{name}={asked} is for environments of Gymnasium; leave it out for {config.id}")
    maker = NATIVE[config.id]
    if maker is market:  # knows its options itself
        return market(num_envs, fitted, **{"part": part, **config.options})
    check_options(config, options_of(maker))
    return maker(num_envs, **config.options)


def options_of(maker: Any) -> tuple[str, ...]:
    """The names it takes after the number of environments."""
    parameters = list(inspect.signature(maker).parameters.values())[1:]
    return tuple(one.name for one in parameters if one.kind is not inspect.Parameter.VAR_KEYWORD)


def check_options(config: EnvConfig, known: tuple[str, ...]) -> None:
    """Refuse options that the environment does not take."""
    for name in config.options:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"{config.id} takes {', '.join(known) or 'none'}"
            raise ConfigError(f"env.options.{name} is no option of {config.id}; {hint}")
