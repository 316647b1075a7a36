"""Whatever is an environment, as training takes it and as its user sees it."""

from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import Tensor

from quantail.envs.base import State, TensorEnv
from quantail.envs.crossing import Port, dtype_of
from quantail.envs.foreign import ForeignEnv
from quantail.envs.gymnasium import action_port, is_vec_env, make_env, port
from quantail.errors import ConfigError
from quantail.face.facades import TensorVec, VectorVec
from quantail.face.vec import EnvList, vec_layers
from quantail.face.watch import Tap, tapped
from quantail.types import Group, Observation, Space, Step


class Source(NamedTuple):
    """An environment from its several sides."""

    env: TensorEnv  # what is trained in
    vec: Any  # what the user gets back: a VecEnv, or something of its shape; None where there is no environment
    spaces: tuple[Any, Any]  # of observations and actions, as Gymnasium's
    ports: tuple[Port, Port]  # how their values cross over
    native: bool = False  # whether it is, or was, a TensorEnv of our own

    @property
    def outside(self) -> bool:
        """Whether it lives outside, where each step happens but once."""
        return isinstance(self.env, ForeignEnv)


class Absent(TensorEnv):
    """No environment: what a policy knows of one when it is only to predict, or has not begun to train."""

    noise_dim = 1
    exact_resume = False

    def __init__(self, spaces: tuple[Space, Space], num_envs: int, device: torch.device, dtype: torch.dtype) -> None:
        self.observation_space, self.action_space = spaces
        self.num_envs, self.device, self.dtype = num_envs, device, dtype

    @classmethod
    def like(cls, env: TensorEnv) -> "Absent":
        """In place of an environment that is not to be reset yet."""
        return cls((env.observation_space, env.action_space), env.num_envs, env.device, env.dtype)

    def reset(self, noise: Tensor) -> tuple[State, Observation]:
        return (), self._nothing(self.observation_space)

    def step(self, state: State, action: Tensor, noise: Tensor) -> tuple[State, Step]:
        raise ConfigError("there is no environment to step; give one first")

    def _nothing(self, space: Space) -> Any:
        if isinstance(space, Group):
            return {name: self._nothing(part) for name, part in space.parts}
        shape = space.shape if hasattr(space, "shape") else (len(space.sizes),) if hasattr(space, "sizes") else ()
        kind = self.dtype if hasattr(space, "shape") else torch.int64
        if getattr(space, "dtype", "") == "uint8" and len(shape) == 3:
            kind = torch.uint8
        return torch.zeros((self.num_envs, *shape), dtype=kind, device=self.device)


def source_of(spec: Any, device: torch.device | str) -> Source:
    """An id, Env, VectorEnv, VecEnv, TensorEnv, or a function that makes an Env; "auto" is the GPU where there is one."""
    if isinstance(spec, TensorEnv) and not isinstance(spec, ForeignEnv):
        return _native(spec, device)
    if not isinstance(spec, VectorEnv | ForeignEnv) and not is_vec_env(spec):
        spec = EnvList([made(spec)])
    env = spec if isinstance(spec, ForeignEnv) else make_env(spec, device=chosen(device))
    assert isinstance(env, ForeignEnv)
    inner = env.env.behind if isinstance(env.env, Tap) else env.env
    env.env = tapped(inner)
    return Source(env, VectorVec(inner) if isinstance(inner, VectorEnv) else inner, _spaces(inner), _ports(env))


def source_without(
    spaces: tuple[Any, Any], own: tuple[Space, Space], num_envs: int, native: bool, device: torch.device
) -> Source:
    """Spaces, as Gymnasium's and as ours, and no environment."""
    wide = torch.float64 if getattr(spaces[1], "dtype", None) == np.float64 else torch.float32
    env = Absent(own, num_envs, device, wide)
    ports = native_ports(env, spaces) if native else (port(spaces[0], "observation"), action_port(spaces[1]))
    return Source(env, None, spaces, ports, native)


def chosen(device: torch.device | str) -> torch.device:
    """The device by name; "auto", and one that is not there, as stable-baselines3 chooses."""
    asked = torch.device("cuda" if device == "auto" else device)
    return torch.device("cpu") if asked.type == "cuda" and not torch.cuda.is_available() else asked


def made(spec: Any) -> gymnasium.Env[Any, Any]:
    """One environment from an id or a function; able to give pictures, where it can paint."""
    env = spec
    if isinstance(spec, str):
        try:
            env = _painting(spec)
        except gymnasium.error.Error as error:
            raise ConfigError(
                f"Gymnasium cannot make {spec!r} ({error}); check the id and import or install the package that has it"
            ) from error
    elif callable(spec) and not isinstance(spec, gymnasium.Env):
        env = spec()
    if not isinstance(env, gymnasium.Env):
        raise ConfigError(
            f"env is a {type(env).__name__}; needs a Gymnasium id, Env or VectorEnv, a function that makes an Env, an SB3 "
            "VecEnv or a TensorEnv"
        )
    return env


def normalised_outside(vec: Any) -> bool:
    """Whether observations come normalised already: by SB3's VecNormalize, or by a wrapper of Gymnasium's."""
    layers = vec_layers(vec)
    if any(type(layer).__name__ == "VecNormalize" and layer.norm_obs for layer in layers):
        return True
    last = layers[-1]
    inner = [*getattr(last, "envs", ()), last.env if isinstance(last, VectorVec) else None]
    return any(_wrapped(env, "NormalizeObservation") for env in inner if env is not None)


def vec_normalize(vec: Any) -> Any:
    """The VecNormalize around an environment, or None."""
    return next((layer for layer in vec_layers(vec) if type(layer).__name__ == "VecNormalize"), None)


def check_spaces(old: tuple[Any, Any], new: tuple[Any, Any]) -> None:
    """Refuse an environment whose spaces are others."""
    for use, one, other in zip(("Observation", "Action"), old, new, strict=True):
        if one != other:
            raise ConfigError(f"{use} spaces do not match: {one} != {other}; give an environment like the one trained in")


def _native(env: TensorEnv, device: torch.device | str) -> Source:
    if device != "auto" and torch.device(device).type != env.device.type:
        raise ConfigError(f"device={device!r}, but the environment lives on {env.device}; leave device out, or make it there")
    vec = TensorVec(env)
    spaces = (vec.observation_space, vec.action_space)
    return Source(env, vec, spaces, native_ports(env, spaces), native=True)


def native_ports(env: TensorEnv, spaces: tuple[Any, Any]) -> tuple[Port, Port]:
    """How values of our own spaces cross over: as they are."""
    seen, taken = env.observation_space, env.action_space
    names = [name for name, _ in seen.parts] if isinstance(seen, Group) else [""]
    action = Port(taken, {"": 0}, spaces[1].dtype)
    if isinstance(spaces[1], gymnasium.spaces.Box):
        action = action._replace(limits=(spaces[1].low, spaces[1].high))
    return Port(seen, dict.fromkeys(names, 0), torch.zeros((), dtype=dtype_of(env)).numpy().dtype), action


def _ports(env: ForeignEnv) -> tuple[Port, Port]:
    return env.observation_port, env.action_port


def _spaces(spec: Any) -> tuple[Any, Any]:
    if isinstance(spec, VectorEnv):
        return spec.single_observation_space, spec.single_action_space
    return spec.observation_space, spec.action_space


def _painting(name: str) -> gymnasium.Env[Any, Any]:
    try:
        return gymnasium.make(name, render_mode="rgb_array")
    except TypeError:
        return gymnasium.make(name)


def _wrapped(env: Any, kind: str) -> bool:
    layer: Any = env
    while layer is not None:
        if type(layer).__name__ == kind:
            return True
        layer = layer.env if isinstance(layer, gymnasium.Wrapper | gymnasium.vector.VectorWrapper) else None
    return False
