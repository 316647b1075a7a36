"""What an environment hands over, refused by name where its shape or type is not what its spaces promise.

Only shapes and types are looked at, never content, so a check costs no wait for a device.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from quantail.envs.base import TensorEnv
from quantail.errors import InputError
from quantail.types import Box, Discrete, Group, MultiDiscrete, Observation, Space, Step

REAL = "floating point"


def started(env: TensorEnv, noise: Tensor) -> tuple[Any, Observation, Tensor | None]:
    """`reset`, checked: noise [B, E] -> (state, first observation, which choices its row allows)."""
    state, obs = env.reset(noise)
    mask = env.first_mask(state)
    check_observation("obs", env, obs)
    check_mask("action_mask", env, mask)
    return state, obs, mask


def stepped(env: TensorEnv, state: Any, action: Tensor, noise: Tensor) -> tuple[Any, Step]:
    """`step`, checked; counts and flags among the figures become real numbers."""
    state, step = env.step(state, action, noise)
    check_step(env, step)
    return state, step._replace(info={name: x if x.is_floating_point() else x.double() for name, x in step.info.items()})


def check_observation(name: str, env: TensorEnv, obs: Observation) -> None:
    """An observation of B environments: obs [B, *shape], or a mapping of such for a Group."""
    space = env.observation_space
    if not isinstance(space, Group):
        _check(name, env, obs, _shape(space), _kind(space))
        return
    names = sorted(part for part, _ in space.parts)
    if not isinstance(obs, Mapping) or sorted(obs) != names:
        seen = f"has the parts {sorted(obs)}" if isinstance(obs, Mapping) else f"is a {type(obs).__name__}"
        raise InputError(f"{name} of {_who(env)} {seen}; its space needs the parts {names}")
    for part, of in space.parts:
        _check(f"{name}[{part!r}]", env, obs[part], _shape(of), _kind(of))


def check_step(env: TensorEnv, step: Step) -> None:
    """Everything that one step of B environments gives."""
    check_observation("obs", env, step.obs)
    for name, kind in (("reward", REAL), ("terminated", torch.bool), ("truncated", torch.bool)):
        _check(name, env, getattr(step, name), (), kind)
    for name in ("pnl", "policy_weight"):
        if getattr(step, name) is not None:
            _check(name, env, getattr(step, name), (), REAL)
    for name, figure in step.info.items():
        _check(f"info[{name!r}]", env, figure, (), None)
    if (step.final_obs is not None) != env.same_step:
        raise InputError(
            f"final_obs of {_who(env)} is {'None' if step.final_obs is None else 'given'}, but same_step is {env.same_step}; "
            "pass the last observation where the next row starts the next episode, and None where that row shows it"
        )
    if step.final_obs is not None:
        check_observation("final_obs", env, step.final_obs)
    check_mask("action_mask", env, step.action_mask)


def check_mask(name: str, env: TensorEnv, mask: Tensor | None) -> None:
    """Which choices the next row allows: None, or bool [B, ΣK]."""
    if mask is None:
        return
    space = env.action_space
    if not isinstance(space, Discrete | MultiDiscrete):
        raise InputError(
            f"{name} of {_who(env)} is given, but only choices can be forbidden, not actions of {space}; pass None"
        )
    _check(name, env, mask, (space.n if isinstance(space, Discrete) else sum(space.sizes),), torch.bool)


def _check(name: str, env: TensorEnv, value: Any, shape: tuple[int, ...], kind: Any) -> None:
    """A tensor [B, *shape] of a dtype, of any floating one, or of any at all."""
    wanted = [env.num_envs, *shape]
    if not isinstance(value, Tensor):
        raise InputError(f"{name} of {_who(env)} is a {type(value).__name__}; needs a torch.Tensor {wanted}")
    fits = kind is None or (value.dtype.is_floating_point if kind is REAL else value.dtype == kind)
    if not fits or list(value.shape) != wanted:
        raise InputError(
            f"{name} of {_who(env)} is {value.dtype} {list(value.shape)}; needs {'' if kind is None else f'{kind} '}{wanted}, "
            "one row for each environment"
        )


def _shape(space: Space) -> tuple[int, ...]:
    """Of one environment's part."""
    match space:
        case Box(shape):
            return shape
        case MultiDiscrete(sizes):
            return (len(sizes),)
    return ()


def _kind(space: Space) -> Any:
    """The dtype that a part has, or REAL."""
    if isinstance(space, Box):
        return torch.uint8 if space.dtype == "uint8" else REAL
    return torch.int64


def _who(env: TensorEnv) -> str:
    return type(env).__name__
