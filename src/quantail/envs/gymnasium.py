"""In: Gymnasium's and SB3's environments as a TensorEnv. Out: a TensorEnv as a Gymnasium VectorEnv or Env."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from quantail.envs.base import State, TensorEnv
from quantail.envs.crossing import NUMBERS, Port, action_from, arrays, dtype_of, first_infos, infos_of, noise_from, row_of
from quantail.envs.foreign import BY_MODE, VecEnv, autoreset_mode
from quantail.errors import ConfigError, EnvironmentFault, InputError
from quantail.functional.checks import check_count
from quantail.types import Box, Discrete, Group, MultiDiscrete, Space

# --- in ---------------------------------------------------------------------------------------------------------------


def make_env(
    spec: Any,
    num_envs: int | None = None,
    options: Mapping[str, Any] | None = None,
    subprocesses: bool = False,
    pnl: str | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> TensorEnv:
    """Whatever is an environment, as a TensorEnv.

    spec: a Gymnasium id, a function that makes an Env, an Env (num_envs 1), a VectorEnv (any autoreset mode), an SB3 VecEnv, or
    a TensorEnv, which comes back as it is. num_envs: how many to make of an id or a function (1 if none). `options` go to
    `gymnasium.make` or to the function. `subprocesses` gives each a process of its own. pnl: which figure of the infos is a
    step's raw gain, for risk (the reward if none). dtype is that of observations and rewards; images of bytes and indices
    stay what they are.
    """
    if isinstance(spec, TensorEnv):
        _same_number(spec.num_envs, num_envs)
        _nothing_to_make(spec, options, subprocesses)
        return spec
    vector = _vector(spec, num_envs, options, subprocesses)
    if isinstance(vector, VectorEnv):
        kind, seen, taken = (
            BY_MODE[autoreset_mode(vector.metadata)],
            vector.single_observation_space,
            vector.single_action_space,
        )
        return kind(vector, (port(seen, "observation"), action_port(taken)), pnl, dtype, device)
    ports = port(vector.observation_space, "observation"), action_port(vector.action_space)
    return VecEnv(vector, ports, pnl, dtype, device)


def _vector(spec: Any, num_envs: int | None, options: Mapping[str, Any] | None, subprocesses: bool) -> Any:
    """A VectorEnv or an SB3 VecEnv from what the user gave."""
    if isinstance(spec, VectorEnv | gymnasium.Env) or is_vec_env(spec):
        _nothing_to_make(spec, options, subprocesses)
        _same_number(1 if isinstance(spec, gymnasium.Env) else int(spec.num_envs), num_envs)
        return SyncVectorEnv([partial(_Numbered, spec, 0)]) if isinstance(spec, gymnasium.Env) else spec
    if not isinstance(spec, str) and not callable(spec):
        raise ConfigError(
            f"env is a {type(spec).__name__}; needs a Gymnasium id, Env or VectorEnv, a function that makes an Env, "
            "an SB3 VecEnv or a TensorEnv"
        )
    count = 1 if num_envs is None else num_envs
    check_count("num_envs", count)
    makers = [partial(_made, spec, dict(options or {}), i) for i in range(count)]
    if subprocesses:
        return AsyncVectorEnv(makers)
    envs = [maker() for maker in makers]
    if len({id(env.unwrapped) for env in envs}) < count:
        raise ConfigError("the function gave the same Env twice; needs to make a new one at every call")
    return SyncVectorEnv([partial(_given, env) for env in envs])


def _made(spec: str | Callable[..., Any], options: dict[str, Any], i: int) -> gymnasium.Env[Any, Any]:
    """Environment number i, which says so when it fails; also in a process of its own."""
    try:
        env = gymnasium.make(spec, **options) if isinstance(spec, str) else spec(**options)
    except gymnasium.error.Error as error:
        raise ConfigError(
            f"Gymnasium cannot make {spec!r} ({error}); check the id and import or install the package that has it"
        ) from error
    if not isinstance(env, gymnasium.Env):
        raise ConfigError(f"the function made a {type(env).__name__}; needs to make a gymnasium.Env")
    return _Numbered(env, i)


class _Numbered(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One of several environments; what it raises is told with its number, name and action."""

    def __init__(self, env: gymnasium.Env[Any, Any], number: int) -> None:
        super().__init__(env)
        kind = type(env.unwrapped).__name__
        self.label = f"environment {number} ({kind if env.spec is None else env.spec.id})"

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        try:
            obs, info = super().reset(seed=seed, options=options)
        except Exception as error:
            raise EnvironmentFault(f"{self.label} raised {type(error).__name__} in reset(seed={seed}): {error}") from error
        return obs, _real(info)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        try:
            *row, info = super().step(action)
        except Exception as error:
            raise EnvironmentFault(f"{self.label} raised {type(error).__name__} in step({action!r}): {error}") from error
        return *row, _real(info)


def _real(info: Mapping[str, Any]) -> dict[str, Any]:
    """Every number as a float: an array of the first environment's kind would cut those of the others to whole numbers."""
    return {
        name: _real(value) if isinstance(value, Mapping) else float(value) if isinstance(value, NUMBERS) else value
        for name, value in info.items()
    }


def _given(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    return env


def _nothing_to_make(spec: Any, options: Mapping[str, Any] | None, subprocesses: bool) -> None:
    for name, asked in (("subprocesses", subprocesses), ("options", options)):
        if asked:
            raise ConfigError(
                f"{name}={asked} needs an id or a function that makes an Env; {type(spec).__name__} already exists here"
            )


def is_vec_env(spec: Any) -> bool:
    """Whether it has the methods of SB3's VecEnv."""
    return not isinstance(spec, type) and all(hasattr(spec, name) for name in ("step_async", "step_wait", "seed", "num_envs"))


def _same_number(there: int, asked: int | None) -> None:
    if asked is not None and asked != there:
        raise ConfigError(
            f"num_envs={asked}, but the environment given has {there}; leave num_envs out or give an id or a function"
        )


# --- spaces -----------------------------------------------------------------------------------------------------------


def port(space: Any, use: str) -> Port:
    """A Gymnasium space as ours, with what its indices start at and which images have to be turned."""
    grouped = isinstance(space, spaces.Dict)
    inner = {name: space[name] for name in sorted(space.keys())} if grouped else {"": space}
    if not inner:
        raise ConfigError(f"the {use} space is an empty Dict; needs at least one part")
    parts = {name: _part(part, f"{use} {name!r}" if grouped else use) for name, part in inner.items()}
    ours = Group(tuple((name, part) for name, (part, _) in parts.items())) if grouped else parts[""][0]
    turned = frozenset(name for name, part in inner.items() if _turned(part))
    return Port(ours, {name: low for name, (_, low) in parts.items()}, space.dtype, turned=turned)


def _turned(space: Any) -> bool:
    """Whether it holds images with their channels in front: bytes whose first side is the smallest, as SB3 tells them."""
    image = isinstance(space, spaces.Box) and space.dtype == np.uint8 and len(space.shape) == 3
    return image and space.shape[0] < min(space.shape[1:])


def _part(space: Any, use: str) -> tuple[Box | Discrete | MultiDiscrete, Any]:
    match space:
        case spaces.Box():
            image = space.dtype == np.uint8 and len(space.shape) == 3
            low, high = (np.moveaxis(side, 0, -1) if _turned(space) else side for side in (space.low, space.high))
            return Box(tuple(map(int, low.shape)), _side(low), _side(high), "uint8" if image else "float32"), 0
        case spaces.Discrete():
            return Discrete(int(space.n)), int(space.start)
        case spaces.MultiDiscrete() if len(space.shape) == 1:
            return MultiDiscrete(tuple(map(int, space.nvec))), np.array(space.start, dtype=np.int64)
        case spaces.MultiBinary() if len(space.shape) == 1:
            return MultiDiscrete((2,) * int(space.shape[0])), 0
    raise ConfigError(
        f"the {use} space is {space}; needs Box, Discrete, MultiDiscrete or MultiBinary of one axis, or for observations a "
        "Dict of these: flatten it with gymnasium.wrappers.FlattenObservation or a wrapper of your own"
    )


def _side(side: Any) -> float | tuple[float, ...]:
    numbers = np.asarray(side, dtype=np.float64).reshape(-1)
    return float(numbers[0]) if len(numbers) and (numbers == numbers[0]).all() else tuple(map(float, numbers))


def action_port(space: Any) -> Port:
    if isinstance(space, spaces.Dict) or (isinstance(space, spaces.Box) and not np.issubdtype(space.dtype, np.floating)):
        raise ConfigError(
            f"the action space is {space}; needs a Box of floats, Discrete, MultiDiscrete or MultiBinary of one axis"
        )
    found = port(space, "action")
    return found._replace(limits=(space.low, space.high)) if isinstance(space, spaces.Box) else found


def gymnasium_space(space: Space, dtype: torch.dtype = torch.float32) -> Any:
    """Our space as Gymnasium's; Box has the dtype of the environment, or bytes."""
    match space:
        case Box():
            kind = np.uint8 if space.dtype == "uint8" else np.float64 if dtype == torch.float64 else np.float32
            low, high = (
                np.full(space.shape, side) if isinstance(side, float | int) else np.reshape(side, space.shape)
                for side in ((0, 255) if space.dtype == "uint8" and math.isinf(np.max(space.high)) else (space.low, space.high))
            )
            return spaces.Box(low.astype(kind), high.astype(kind), dtype=kind)
        case Discrete():
            return spaces.Discrete(space.n)
        case MultiDiscrete():
            return spaces.MultiDiscrete(list(space.sizes))
        case Group():
            return spaces.Dict({name: gymnasium_space(part, dtype) for name, part in space.parts})


# --- out --------------------------------------------------------------------------------------------------------------


class ToVectorEnv(VectorEnv[Any, Any, Any]):
    """A TensorEnv as a Gymnasium VectorEnv, NEXT_STEP or SAME_STEP as its metadata says. The noise comes from `seed`."""

    def __init__(self, env: TensorEnv, seed: int | None = None) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP if env.same_step else AutoresetMode.NEXT_STEP}
        dtype = dtype_of(env)
        self.single_observation_space = gymnasium_space(env.observation_space, dtype)
        self.single_action_space = gymnasium_space(env.action_space, dtype)
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, self.num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, self.num_envs)
        self._np_random, self._np_random_seed = seeding.np_random(seed)
        self.state: State = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start all environments; a seed starts the noise again."""
        if options and "reset_mask" in options:
            raise InputError("reset_mask cannot be used: these environments start anew by themselves, see metadata")
        super().reset(seed=seed)
        self.state, obs = self.env.reset(noise_from(self.env, self.np_random))
        return arrays(obs), first_infos(self.env, self.state)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One row of all environments."""
        if self.state is None:
            raise InputError("step came before reset; call reset first")
        self.state, step = self.env.step(self.state, action_from(self.env, actions), noise_from(self.env, self.np_random))
        infos: dict[str, Any] = {}
        for name, values in infos_of(step).items():
            infos[name], infos[f"_{name}"] = values, ~np.isnan(values.astype(np.float64)).reshape(self.num_envs, -1).any(-1)
        ended = arrays(step.terminated | step.truncated)
        if step.final_obs is not None and ended.any():
            finals = arrays(step.final_obs)
            infos["final_obs"], infos["_final_obs"] = np.full(self.num_envs, None, dtype=object), ended
            for i in np.flatnonzero(ended):
                infos["final_obs"][i] = row_of(finals, int(i))
        return arrays(step.obs), arrays(step.reward.double()), arrays(step.terminated), arrays(step.truncated), infos

    def close_extras(self, **kwargs: Any) -> None:
        """Close what lies behind."""
        self.env.close()


class ToEnv(gymnasium.Env[Any, Any]):
    """A TensorEnv of one environment, or a function that makes it, as a Gymnasium Env. The noise comes from `seed`."""

    def __init__(self, env: TensorEnv | Callable[[], TensorEnv], seed: int | None = None) -> None:
        self.env = env if isinstance(env, TensorEnv) else env()
        if self.env.num_envs != 1:
            raise ConfigError(f"num_envs={self.env.num_envs}; ToEnv needs a TensorEnv with num_envs 1, or use ToVectorEnv")
        if self.env.same_step:
            raise ConfigError("the environment starts anew within a step; ToEnv needs one whose same_step is False")
        self.observation_space = gymnasium_space(self.env.observation_space, dtype_of(self.env))
        self.action_space = gymnasium_space(self.env.action_space, dtype_of(self.env))
        self._np_random, self._np_random_seed = seeding.np_random(seed)
        self.state: State = None  # None before a reset and after an end

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; a seed starts the noise again."""
        super().reset(seed=seed)
        self.state, obs = self.env.reset(noise_from(self.env, self.np_random))
        return row_of(arrays(obs), 0), {name: values[0] for name, values in first_infos(self.env, self.state).items()}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One step; after an end, `reset` must come first."""
        if self.state is None:
            raise InputError("the episode has not begun or is over; call reset first")
        actions = np.asarray(action)[None]
        self.state, step = self.env.step(self.state, action_from(self.env, actions), noise_from(self.env, self.np_random))
        terminated, truncated = bool(step.terminated), bool(step.truncated)
        if terminated or truncated:
            self.state = None
        infos = {name: values[0] for name, values in infos_of(step).items() if not np.isnan(values.astype(np.float64)).any()}
        return row_of(arrays(step.obs), 0), float(step.reward), terminated, truncated, infos

    def close(self) -> None:
        """Close what lies behind."""
        self.env.close()
