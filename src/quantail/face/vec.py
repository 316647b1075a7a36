"""Environments in the shape of stable-baselines3's VecEnv, without needing it.

`reset() -> obs`; `step(actions) -> (obs, rewards, dones, infos)`: an ended environment starts anew within the step, its last
observation lies in `infos[i]["terminal_observation"]`, and `infos[i]["episode"]` holds return, length and time, as Monitor's.
"""

import copy
import inspect
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from quantail.envs.crossing import copied
from quantail.errors import InputError

Indices = int | Iterable[int] | None
Infos = list[dict[str, Any]]


class Totals:
    """Return and length of each running episode."""

    def __init__(self, rewards: Any, lengths: Any) -> None:
        self.rewards, self.lengths = np.array(rewards, dtype=np.float64), np.array(lengths, dtype=np.int64)
        self.begun = time.perf_counter()

    def add(self, rewards: Any, counts: Any = 1) -> None:
        """One row; `counts` is 0 where it was without effect."""
        self.rewards += np.asarray(rewards, dtype=np.float64) * counts
        self.lengths += counts

    def end(self, i: int) -> dict[str, Any]:
        """What environment i made of its episode; the next begins."""
        elapsed = round(time.perf_counter() - self.begun, 6)
        done = {"r": round(float(self.rewards[i]), 6), "l": int(self.lengths[i]), "t": elapsed}
        self.rewards[i] = self.lengths[i] = 0
        return done


class Vec:
    """What all kinds have in common; a kind gives `reset`, `step_wait`, `render_mode`, and who stands behind each index."""

    reset_infos: Infos

    def __init__(self, num_envs: int, observation_space: Any, action_space: Any, render_mode: str | None) -> None:
        self.num_envs, self.observation_space, self.action_space = num_envs, observation_space, action_space
        self.render_mode = render_mode
        self.metadata = {"render_modes": [] if render_mode is None else [render_mode]}
        self.reset_infos = [{} for _ in range(num_envs)]
        self.seeds: list[int | None] = [None] * num_envs
        self.options: list[dict[str, Any]] = [{} for _ in range(num_envs)]
        self.actions: Any = None

    def behind(self, i: int) -> Any:
        """The environment at an index."""
        raise NotImplementedError

    def reset(self) -> Any:
        """Start every environment anew: the first observations."""
        raise NotImplementedError

    def step_wait(self) -> tuple[Any, Any, Any, Infos]:
        """What the actions of `step_async` led to."""
        raise NotImplementedError

    def step_async(self, actions: Any) -> None:
        """Take these actions at the next `step_wait`."""
        self.actions = actions

    def step(self, actions: Any) -> tuple[Any, Any, Any, Infos]:
        """One step of all: (obs, rewards, dones, infos)."""
        self.step_async(actions)
        return self.step_wait()

    def close(self) -> None:
        """Close what lies behind."""
        for i in range(self.num_envs):
            self.behind(i).close()

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seeds of the next reset, one for each environment."""
        self.seeds = [None if seed is None else seed + i for i in range(self.num_envs)]
        return self.seeds

    def set_options(self, options: Any = None) -> None:
        """Options of the next reset, alike for all or one for each."""
        given = {} if options is None else options
        self.options = [copy.deepcopy(given) for _ in range(self.num_envs)] if isinstance(given, dict) else list(given)

    def has_attr(self, attr_name: str) -> bool:
        """Whether all environments have it."""
        try:
            self.get_attr(attr_name)
        except AttributeError:
            return False
        return True

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """The attribute of each."""
        return [_attribute(self.behind(i), attr_name) for i in self.chosen(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Set the attribute of each."""
        for i in self.chosen(indices):
            env = self.behind(i)
            env.set_wrapper_attr(attr_name, value) if hasattr(env, "set_wrapper_attr") else setattr(env, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Indices = None, **kwargs: Any) -> list[Any]:
        """Call a method of each."""
        return [_attribute(self.behind(i), method_name)(*args, **kwargs) for i in self.chosen(indices)]

    def env_is_wrapped(self, wrapper_class: type, indices: Indices = None) -> list[bool]:
        """Whether each is inside such a wrapper; all count as monitored, for their infos hold `episode`."""
        if wrapper_class.__name__ == "Monitor":
            return [True for _ in self.chosen(indices)]
        return [any(isinstance(layer, wrapper_class) for layer in _layers(self.behind(i))) for i in self.chosen(indices)]

    def get_images(self) -> Sequence[Any]:
        """A picture of each environment that paints."""
        return [self.behind(i).render() for i in range(self.num_envs)] if self.render_mode == "rgb_array" else []

    def render(self, mode: str | None = None) -> Any:
        """Environments made with render_mode "human" paint themselves; of others the pictures side by side, if any."""
        if self.render_mode == "human":
            return self.env_method("render")[0]
        pictures = [picture for picture in self.get_images() if picture is not None]
        return np.concatenate(pictures, axis=1) if pictures else None

    @property
    def unwrapped(self) -> "Vec":
        """Itself."""
        return self

    def getattr_depth_check(self, name: str, already_found: bool) -> str | None:
        """What a wrapper of stable-baselines3 asks before it looks for an attribute here."""
        return f"{type(self).__module__}.{type(self).__name__}" if already_found and name in dir(self) else None

    def chosen(self, indices: Indices) -> Iterable[int]:
        """The indices meant."""
        return range(self.num_envs) if indices is None else [indices] if isinstance(indices, int) else indices


class EnvList(Vec):
    """Gymnasium environments one after the other in this process."""

    def __init__(self, envs: Sequence[gymnasium.Env[Any, Any]]) -> None:
        self.envs = list(envs)
        first = self.envs[0]
        super().__init__(len(envs), first.observation_space, first.action_space, first.render_mode)
        self.totals = Totals(np.zeros(len(envs)), np.zeros(len(envs)))

    def behind(self, i: int) -> gymnasium.Env[Any, Any]:
        return self.envs[i]

    def reset(self) -> Any:
        observations = [self._start(i) for i in range(self.num_envs)]
        self.seeds, self.options = [None] * self.num_envs, [{} for _ in range(self.num_envs)]
        self.totals = Totals(np.zeros(self.num_envs), np.zeros(self.num_envs))
        return stacked(observations)

    def step_wait(self) -> tuple[Any, Any, Any, Infos]:
        observations, infos = [], []
        rewards, dones = np.zeros(self.num_envs, dtype=np.float32), np.zeros(self.num_envs, dtype=bool)
        exact = np.zeros(self.num_envs)
        for i, env in enumerate(self.envs):
            obs, reward, terminated, truncated, given = env.step(self.actions[i])
            info = dict(given)
            rewards[i] = exact[i] = float(reward)
            dones[i] = terminated or truncated
            info["TimeLimit.truncated"] = bool(truncated and not terminated)
            if dones[i]:
                info["terminal_observation"] = obs
                obs = self._start(i)
            observations.append(obs)
            infos.append(info)
        self.totals.add(exact)
        for k in np.flatnonzero(dones):
            summary = self.totals.end(int(k))
            infos[k].setdefault("episode", summary)
        return stacked(observations), rewards, dones, infos

    def _start(self, i: int) -> Any:
        obs, info = self.envs[i].reset(seed=self.seeds[i], **({"options": self.options[i]} if self.options[i] else {}))
        self.seeds[i] = None  # of one reset, not of those that follow it
        self.reset_infos[i] = info
        return obs


def stacked(observations: Sequence[Any]) -> Any:
    """Observations over one another; those with parts, part by part."""
    if isinstance(observations[0], Mapping):
        return {name: np.stack([np.asarray(obs[name]) for obs in observations]) for name in observations[0]}
    if isinstance(observations[0], tuple):
        raise InputError("an observation is a tuple; use Box, Discrete, MultiDiscrete or a Dict of these")
    return np.stack([np.asarray(copied(obs)) for obs in observations])


def take_for_vec_env(cls: type[Vec]) -> None:
    """Let `isinstance(..., VecEnv)` say yes where stable-baselines3 is imported; EnvList is what it calls a DummyVecEnv."""
    if "stable_baselines3" in sys.modules:
        from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

        VecEnv.register(cls)
        if issubclass(cls, EnvList):
            DummyVecEnv.register(cls)


def vec_layers(vec: Any) -> list[Any]:
    """A VecEnv and all it wraps, from the outermost in."""
    layers = [vec]
    while inspect.getattr_static(layers[-1], "venv", None) is not None:
        layers.append(layers[-1].venv)
    return layers


def _layers(env: Any) -> list[Any]:
    layers = [env]
    while isinstance(layers[-1], gymnasium.Wrapper):
        layers.append(layers[-1].env)
    return layers


def _attribute(env: Any, name: str) -> Any:
    return env.get_wrapper_attr(name) if hasattr(env, "get_wrapper_attr") else getattr(env, name)
