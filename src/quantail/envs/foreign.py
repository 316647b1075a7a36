"""Vector environments that live outside: numpy in and out, in each of the ways they start anew after an end.

Nothing here imports Gymnasium or Stable-Baselines3; what they need is known by its methods. Conversion happens once per step.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from quantail.envs.base import TensorEnv, checked_action
from quantail.errors import ConfigError, InputError
from quantail.functional.checks import check_shape
from quantail.types import Box, Group, MultiDiscrete, Observation, Space, Step

Array = npt.NDArray[Any]
Mode = str  # "NextStep", "SameStep" or "Disabled"

MODES = {"nextstep": "NextStep", "samestep": "SameStep", "disabled": "Disabled"}


class Port(NamedTuple):
    """How values of one foreign space cross over."""

    space: Space
    offsets: Mapping[str, Any]  # lowest index of each discrete part; "" where the space has no parts
    dtype: Any = np.float32  # of what goes out


class Outside(NamedTuple):
    """The state of a foreign environment as far as it is known: the real one cannot be held as a value."""

    rows: Tensor  # [B] int64: steps since reset


class ForeignEnv(TensorEnv):
    """B environments behind one object with `reset` and `step`; `env` is that object, `close` closes it.

    The state that goes in and out only counts rows: the environment itself moves on with every call, so a step cannot be
    taken back, and a resumed run starts new episodes (`exact_resume` is False). Without noise of our own: everything random
    comes from `seed`, and every `reset` begins that same story again. A figure of `Step.info` is NaN in rows for which the
    environment did not report it.
    """

    noise_dim = 0
    exact_resume: ClassVar[bool] = False

    def __init__(
        self, env: Any, ports: tuple[Port, Port], seed: int | None, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self.env = env
        self.num_envs = int(env.num_envs)
        self.observation_port, self.action_port = ports
        self.observation_space, self.action_space = ports[0].space, ports[1].space
        self.seed = seed
        self.dtype = dtype
        self.device = torch.device(device)

    def reset(self, noise: Tensor) -> tuple[Outside, Observation]:
        check_shape("noise", noise, (self.num_envs, 0), "environments, no noise")
        rows = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        return Outside(rows), self._read(self._begin())

    def step(self, state: Outside, action: Tensor, noise: Tensor) -> tuple[Outside, Step]:
        check_shape("noise", noise, (self.num_envs, 0), "environments, no noise")
        action = checked_action(self.action_space, self.num_envs, action)
        return Outside(state.rows + 1), self._move(written(self.action_port, action))

    def load_state(self, saved: Mapping[str, Tensor]) -> Outside:
        """The counter as it was; the environment outside stays where it is."""
        if set(saved) != {"rows"} or tuple(saved["rows"].shape) != (self.num_envs,):
            raise InputError(f"saved holds {sorted(saved)}; a foreign environment needs rows [{self.num_envs}] alone")
        return Outside(saved["rows"].to(self.device, torch.int64, copy=True))

    def close(self) -> None:
        """Close the environment outside."""
        self.env.close()

    @abstractmethod
    def _begin(self) -> Any:
        """Reset everything, seeded: the observations."""

    @abstractmethod
    def _move(self, actions: Array) -> Step:
        """One step of everything."""

    def _read(self, observations: Any) -> Observation:
        return read(self.observation_port, observations, self.num_envs, self.dtype, self.device)

    def _step(
        self, observations: Any, rewards: Any, ends: tuple[Array, Array], info: Mapping[str, Array], finals: Any = None
    ) -> Step:
        terminated, truncated = (torch.from_numpy(np.array(end, dtype=np.bool_)).to(self.device) for end in ends)
        return Step(
            obs=self._read(observations),
            reward=torch.from_numpy(np.array(rewards, dtype=np.float64)).to(self.device, self.dtype),
            terminated=terminated,
            truncated=truncated & ~terminated,
            final_obs=None if finals is None else self._read(finals),
            info={name: torch.from_numpy(values).to(self.device, self.dtype) for name, values in info.items()},
        )

    def _finals(self, observations: Mapping[int, Any]) -> Any:
        """One batch of observations with those of some environments, zeros for the others."""
        if isinstance(self.observation_space, Group):
            names = [name for name, _ in self.observation_space.parts]
            return {name: self._stack({i: seen[name] for i, seen in observations.items()}, name) for name in names}
        return self._stack(observations, "")

    def _stack(self, parts: Mapping[int, Any], name: str) -> Array:
        space = part_of(self.observation_space, name)
        kind = np.uint8 if isinstance(space, Box) and space.dtype == "uint8" else np.float64
        batch: Array = np.zeros((self.num_envs, *shape_of(space)), dtype=kind)
        batch[...] = self.observation_port.offsets.get(name, 0)  # where there is no final index, index 0
        for i, part in parts.items():
            batch[i] = part
        return batch


class NextStepEnv(ForeignEnv):
    """Gymnasium's NEXT_STEP: an ended environment starts anew in the row after its final observation."""

    def _begin(self) -> Any:
        return self.env.reset(seed=self.seed)[0]

    def _move(self, actions: Array) -> Step:
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        return self._step(observations, rewards, (terminated, truncated), figures(infos, self.num_envs))


class SameStepEnv(NextStepEnv):
    """Gymnasium's SAME_STEP: the first observation of the next episode comes at once, the final one in the infos."""

    same_step = True

    def _move(self, actions: Array) -> Step:
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        ended = np.flatnonzero(np.logical_or(terminated, truncated))
        if len(ended) and "final_obs" not in infos:
            raise InputError("an episode ended and infos hold no 'final_obs'; an environment in mode SAME_STEP must give it")
        finals = self._finals({int(i): _row(infos["final_obs"], int(i)) for i in ended})
        info = {**figures(infos, self.num_envs)}
        for name, last in figures(infos.get("final_info", {}), self.num_envs).items():
            info[name] = np.where(np.isnan(last), info.get(name, np.nan), last)
        return self._step(observations, rewards, (terminated, truncated), info, finals)


class DisabledEnv(NextStepEnv):
    """Gymnasium's DISABLED: whoever steps must reset what has ended, by a mask.

    As its `step` moves all environments or none, an ended one cannot wait a row: it is reset at once, which makes it the same
    kind of source as SAME_STEP.
    """

    same_step = True

    def _move(self, actions: Array) -> Step:
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        ended = np.logical_or(terminated, truncated)
        finals = self._finals({int(i): _copied(_row(observations, int(i))) for i in np.flatnonzero(ended)})
        if ended.any():
            rewards, terminated, truncated = (np.array(part) for part in (rewards, terminated, truncated))
            observations, _ = self.env.reset(options={"reset_mask": ended})
        return self._step(observations, rewards, (terminated, truncated), figures(infos, self.num_envs), finals)


class VecEnv(ForeignEnv):
    """Stable-Baselines3's VecEnv: starts anew within the step, the last observation in each environment's info."""

    same_step = True

    def _begin(self) -> Any:
        if self.seed is not None:
            self.env.seed(self.seed)
        return self.env.reset()

    def _move(self, actions: Array) -> Step:
        observations, rewards, dones, infos = self.env.step(actions)
        done = np.array(dones, dtype=np.bool_)
        late = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos]) & done
        ended = [int(i) for i in np.flatnonzero(done)]
        if lost := [i for i in ended if "terminal_observation" not in infos[i]]:
            raise InputError(f"episodes of environments {lost} ended and their infos hold no 'terminal_observation'")
        finals = self._finals({i: infos[i]["terminal_observation"] for i in ended})
        return self._step(observations, rewards, (done & ~late, late), _listed_figures(infos), finals)


BY_MODE: Mapping[Mode, type[NextStepEnv]] = {"NextStep": NextStepEnv, "SameStep": SameStepEnv, "Disabled": DisabledEnv}


def autoreset_mode(metadata: Mapping[str, Any]) -> Mode:
    """How a Gymnasium vector environment starts anew, as its metadata says: the enum, its value or its name."""
    said = metadata.get("autoreset_mode")
    mode = MODES.get(str(getattr(said, "value", said)).replace("_", "").lower())
    if mode is None:
        raise ConfigError(
            f"metadata['autoreset_mode'] is {said!r}; needs NEXT_STEP, SAME_STEP or DISABLED: without it nobody knows "
            "which row holds the final observation"
        )
    return mode


# --- values that cross over -------------------------------------------------------------------------------------------


def read(port: Port, value: Any, num_envs: int, dtype: torch.dtype, device: torch.device) -> Observation:
    """Numpy observations [B, ...] (or a mapping of them) as tensors of their own memory."""
    if isinstance(port.space, Group):
        return {
            name: _read(part, value[name], port.offsets.get(name, 0), num_envs, dtype, device)
            for name, part in port.space.parts
        }
    return _read(port.space, value, port.offsets.get("", 0), num_envs, dtype, device)


def _read(space: Space, value: Any, offset: Any, num_envs: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    if isinstance(space, Box) and space.dtype == "uint8":
        array = np.array(value, dtype=np.uint8)
    elif isinstance(space, Box):
        array = np.array(value, dtype=np.float64 if dtype == torch.float64 else np.float32)
    else:
        array = np.array(value, dtype=np.int64) - offset
    if array.shape != (num_envs, *shape_of(space)):
        raise InputError(f"an observation of shape {list(array.shape)} came; the space promised {[num_envs, *shape_of(space)]}")
    return torch.from_numpy(array).to(device)


def written(port: Port, action: Tensor) -> Array:
    """A checked action as numpy, in the foreign numbering and dtype."""
    array: Array = action.detach().cpu().numpy()
    return (array if isinstance(port.space, Box) else array + port.offsets.get("", 0)).astype(port.dtype)


def figures(infos: Mapping[str, Any], num_envs: int, within: str = "") -> dict[str, Array]:
    """The numbers of Gymnasium's vector infos, [B] float64 each, NaN where the mask `_key` says absent: `episode/r`, ..."""
    found: dict[str, Array] = {}
    for name, value in infos.items():
        if name.startswith("_") or name in ("final_obs", "final_info"):
            continue
        present = infos.get(f"_{name}", True)
        if isinstance(value, Mapping):
            parts = figures(value, num_envs, f"{within}{name}/")
        else:
            numbers = isinstance(value, np.ndarray) and value.shape == (num_envs,) and value.dtype.kind in "fiub"
            parts = {f"{within}{name}": value.astype(np.float64)} if numbers else {}
        found.update({key: np.where(present, column, np.nan) for key, column in parts.items()})
    return found


def _listed_figures(infos: Sequence[Mapping[str, Any]]) -> dict[str, Array]:
    """The numbers of SB3's infos, one mapping per environment; `TimeLimit.truncated` is no figure."""
    rows = [{**info, **{f"episode/{key}": number for key, number in info.get("episode", {}).items()}} for info in infos]
    kinds = (int, float, np.integer, np.floating)
    names = {name for row in rows for name, value in row.items() if isinstance(value, kinds) and name != "TimeLimit.truncated"}
    return {
        name: np.array([row[name] if isinstance(row.get(name), kinds) else np.nan for row in rows], dtype=np.float64)
        for name in sorted(names)
    }


def shape_of(space: Space) -> tuple[int, ...]:
    """Shape of one value of a space without parts."""
    if isinstance(space, Box):
        return space.shape
    if isinstance(space, Group):
        raise InputError("a Group has no shape of its own; ask for its parts")
    return (len(space.sizes),) if isinstance(space, MultiDiscrete) else ()


def part_of(space: Space, name: str) -> Space:
    """A part of a Group by its name; the space itself for the name ''."""
    return dict(space.parts)[name] if isinstance(space, Group) else space


def _row(batch: Any, i: int) -> Any:
    """Environment i of a batch: arrays, object arrays or a mapping of them."""
    return {name: part[i] for name, part in batch.items()} if isinstance(batch, Mapping) else batch[i]


def _copied(value: Any) -> Any:
    return {name: np.array(part) for name, part in value.items()} if isinstance(value, Mapping) else np.array(value)
