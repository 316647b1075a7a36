"""Vector environments that live outside: numpy in and out, in each of the ways they start anew after an end.

Nothing here imports Gymnasium or Stable-Baselines3; what they need is known by its methods. Conversion happens once per step.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from quantail.envs.base import TensorEnv, checked_action
from quantail.envs.crossing import (
    WITHOUT_A_WORD,
    Array,
    Port,
    array_of,
    close_outside,
    copied,
    figures,
    listed_figures,
    mask_of,
    mask_rows,
    read,
    read_rows,
    row_of,
    sizes_of,
    written,
)
from quantail.errors import ConfigError, EnvironmentFault, InputError, QuantailError
from quantail.functional.checks import check_shape
from quantail.types import Observation, Step

Mode = str  # "NextStep", "SameStep" or "Disabled"

MODES = {"nextstep": "NextStep", "samestep": "SameStep", "disabled": "Disabled"}


class Outside(NamedTuple):
    """The state of a foreign environment as far as it is known: the real one cannot be held as a value."""

    rows: Tensor  # [B] int64: steps since reset
    ended: Tensor  # [B] bool: whether the last of them ended an episode
    action_mask: Tensor  # [B, ΣK] bool: what the next row allows; [B, 0] where the environment does not speak of that


class Moved(NamedTuple):
    """What one step gave, still in numpy."""

    observations: Any  # [B, ...]
    rewards: Any  # [B]
    terminated: Any  # [B]
    truncated: Any  # [B]
    figures: dict[str, Array]  # [B] each
    mask: Array | None  # [B, ΣK] bool, of the next row
    finals: Mapping[int, Any] | None = None  # last observations of the episodes that ended, where the row after has another


class ForeignEnv(TensorEnv):
    """B environments behind one object with `reset` and `step`; `env` is that object, `close` closes it.

    The state that goes in and out only counts rows: the environment itself moves on with every call, so a step cannot be
    taken back, and a resumed run starts new episodes (`exact_resume` is False). Everything random comes from the noise given
    to `reset`: it makes the seed, so the same noise begins the same story; that of `step` has no effect.

    Which choices a row allows comes from the environments' `action_masks()`, or from `action_mask` in the infos. `pnl` names
    the figure of the infos that is a step's raw gain, `policy_weight` is taken by its name. All other numbers become
    `Step.info`, NaN in rows for which the environment did not report them.
    """

    noise_dim = 1
    exact_resume: ClassVar[bool] = False
    is_pure: ClassVar[bool] = False

    def __init__(
        self, env: Any, ports: tuple[Port, Port], pnl: str | None, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self.env = env
        self.num_envs = int(env.num_envs)
        self.observation_port, self.action_port = ports
        self.observation_space, self.action_space = ports[0].space, ports[1].space
        self.pnl = pnl
        self.dtype = dtype
        self.device = torch.device(device)
        self.ask_masks = self._masks_by_method() if np.size(sizes_of(self.action_space)) else None

    def reset(self, noise: Tensor) -> tuple[Outside, Observation]:
        check_shape("noise", noise, (self.num_envs, 1), "environments, noise_dim")
        try:
            observations, mask = self._begin(seed_of(noise))
        except Exception as error:
            raise self._fault("reset", error) from error
        rows = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)
        nothing = torch.zeros(self.num_envs, 0, dtype=torch.bool, device=self.device)
        state = Outside(rows, torch.zeros_like(rows, dtype=torch.bool), nothing if mask is None else self._tensor(mask))
        return state, read(self.observation_port, observations, self.num_envs, self.dtype, self.device)

    def step(self, state: Outside, action: Tensor, noise: Tensor) -> tuple[Outside, Step]:
        check_shape("noise", noise, (self.num_envs, 1), "environments, noise_dim")
        actions = written(self.action_port, checked_action(self.action_space, self.num_envs, action))
        try:
            moved = self._move(actions)
        except Exception as error:
            raise self._fault(f"step {int(state.rows[0]) + 1} after the reset", error) from error
        step = self._step(moved, state)
        mask = state.action_mask if step.action_mask is None else step.action_mask
        return Outside(state.rows + 1, step.terminated | step.truncated, mask), step

    def first_mask(self, state: Outside) -> Tensor | None:
        """What the environments said at their reset, if they spoke of masks."""
        return state.action_mask if state.action_mask.shape[1] else None

    def load_state(self, saved: Mapping[str, Tensor]) -> Outside:
        """The state as it was written; the environment outside stays where it is, so a `reset` has to follow."""
        known = {name: tuple(value.shape) for name, value in saved.items()}
        if set(known) != set(Outside._fields) or any(shape[:1] != (self.num_envs,) for shape in known.values()):
            raise InputError(f"saved holds {known}; needs {list(Outside._fields)} of {self.num_envs} environments")
        return Outside(**{name: value.to(self.device, copy=True) for name, value in saved.items()})

    def close(self) -> None:
        """Close the environment outside."""
        close_outside(self.env)

    @abstractmethod
    def _begin(self, seed: int) -> tuple[Any, Array | None]:
        """Reset everything: the observations and what they allow."""

    @abstractmethod
    def _move(self, actions: Array) -> Moved:
        """One step of everything."""

    @abstractmethod
    def _masks_by_method(self) -> Callable[[], Any] | None:
        """What asks every environment for its `action_masks()`, if they have that."""

    def _step(self, moved: Moved, state: Outside) -> Step:
        terminated = self._column("terminated", moved.terminated, np.bool_)
        truncated = self._column("truncated", moved.truncated, np.bool_)
        weight = moved.figures.pop("policy_weight", None)
        pnl = None if self.pnl is None else self._pnl(self.pnl, moved.figures, state)
        where = self.num_envs, self.dtype, self.device
        return Step(
            obs=read(self.observation_port, moved.observations, *where),
            reward=self._column("reward", moved.rewards, np.float64).to(self.dtype),
            terminated=terminated,
            truncated=truncated & ~terminated,
            pnl=pnl,
            final_obs=None if moved.finals is None else read_rows(self.observation_port, moved.finals, *where),
            policy_weight=None if weight is None else self._tensor(np.nan_to_num(weight, nan=1.0)).to(self.dtype),
            action_mask=self._next_mask(moved.mask, state),
            info={name: self._tensor(values).to(self.dtype) for name, values in moved.figures.items()},
        )

    def _pnl(self, name: str, found: dict[str, Array], state: Outside) -> Tensor:
        """The figure that is the raw gain; 0 in a row in which an environment only started anew."""
        restarts = torch.zeros_like(state.ended) if self.same_step else state.ended
        if name not in found and not bool(restarts.all()):
            raise InputError(
                f"pnl={name!r} is not among the figures {sorted(found)} of the infos; name one that every step reports"
            )
        values = found.pop(name, np.zeros(self.num_envs))
        return self._tensor(values).to(self.dtype).masked_fill(restarts, 0.0)

    def _next_mask(self, mask: Array | None, state: Outside) -> Tensor | None:
        """What the next row allows: all, where an environment that has spoken of masks is silent."""
        spoken = state.action_mask.shape[1] > 0
        if mask is not None and not spoken and bool(state.rows[0] > 0):
            raise InputError("the first 'action_mask' came after several steps; give it in the infos of reset, too")
        if mask is None:
            return torch.ones_like(state.action_mask) if spoken else None
        return self._tensor(mask)

    def _column(self, name: str, values: Any, kind: Any) -> Tensor:
        return self._tensor(array_of(name, values, (self.num_envs,), kind))

    def _tensor(self, values: Array) -> Tensor:
        return torch.from_numpy(values).to(self.device)

    def _fault(self, doing: str, error: Exception) -> QuantailError:
        if isinstance(error, QuantailError):
            return error
        reason = str(error) or WITHOUT_A_WORD
        who = f"{type(self.env).__name__} of {self.num_envs}"
        return EnvironmentFault(f"{who} raised {type(error).__name__} in {doing}: {reason}")


class NextStepEnv(ForeignEnv):
    """Gymnasium's NEXT_STEP: an ended environment starts anew in the row after its final observation."""

    def _begin(self, seed: int) -> tuple[Any, Array | None]:
        observations, infos = self.env.reset(seed=seed)
        return observations, self._mask(infos)

    def _move(self, actions: Array) -> Moved:
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        return Moved(observations, rewards, terminated, truncated, figures(infos, self.num_envs), self._mask(infos))

    def _masks_by_method(self) -> Callable[[], Any] | None:
        inner = self.env.unwrapped  # Sync and Async have `call`, a vector environment of one piece has not
        if not hasattr(inner, "call") or not all(inner.call("has_wrapper_attr", "action_masks")):
            return None
        return lambda: inner.call("action_masks")

    def _mask(self, infos: Mapping[str, Any]) -> Array | None:
        if self.ask_masks is not None:
            return mask_rows(self.action_space, self.ask_masks())
        return mask_of(self.action_space, infos, self.num_envs)


class SameStepEnv(NextStepEnv):
    """Gymnasium's SAME_STEP: the first observation of the next episode comes at once, the final one in the infos."""

    same_step = True

    def _move(self, actions: Array) -> Moved:
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        ended = np.logical_or(terminated, truncated)
        given = np.broadcast_to(infos.get("_final_obs", "final_obs" in infos), self.num_envs)
        if (ended & ~given).any():
            lost = np.flatnonzero(ended & ~given).tolist()
            raise InputError(
                f"episodes of environments {lost} ended and infos hold no 'final_obs'; mode SAME_STEP must give it"
            )
        finals = {int(i): row_of(infos["final_obs"], int(i)) for i in np.flatnonzero(ended)}
        found = figures(infos, self.num_envs)
        for name, last in figures(infos.get("final_info", {}), self.num_envs).items():
            found[name] = np.where(np.isnan(last), found.get(name, np.nan), last)
        return Moved(observations, rewards, terminated, truncated, found, self._mask(infos), finals)


class DisabledEnv(NextStepEnv):
    """Gymnasium's DISABLED: whoever steps must reset what has ended, by a mask.

    As its `step` moves all environments or none, an ended one cannot wait a row: it is reset at once, which makes it the same
    kind of source as SAME_STEP.
    """

    same_step = True

    def _move(self, actions: Array) -> Moved:
        observations, rewards, terminated, truncated, infos = self.env.step(actions)
        ended, found, mask = np.logical_or(terminated, truncated), figures(infos, self.num_envs), self._mask(infos)
        finals = {int(i): copied(row_of(observations, int(i))) for i in np.flatnonzero(ended)}
        if ended.any():
            rewards, terminated, truncated = (np.array(part) for part in (rewards, terminated, truncated))
            observations, infos = self.env.reset(options={"reset_mask": ended})
            fresh = self._mask(infos)
            mask = fresh if mask is None or fresh is None else np.where(ended[:, None], fresh, mask)
        return Moved(observations, rewards, terminated, truncated, found, mask, finals)


class VecEnv(ForeignEnv):
    """Stable-Baselines3's VecEnv: starts anew within the step, the last observation in each environment's info."""

    same_step = True

    def _begin(self, seed: int) -> tuple[Any, Array | None]:
        self.env.seed(seed)
        return self.env.reset(), self._mask()

    def _move(self, actions: Array) -> Moved:
        observations, rewards, dones, infos = self.env.step(actions)
        done = np.array(dones, dtype=np.bool_)
        late = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos]) & done
        ended = [int(i) for i in np.flatnonzero(done)]
        if lost := [i for i in ended if "terminal_observation" not in infos[i]]:
            raise InputError(f"episodes of environments {lost} ended and their infos hold no 'terminal_observation'")
        finals = {i: infos[i]["terminal_observation"] for i in ended}
        return Moved(observations, rewards, done & ~late, late, listed_figures(infos), self._mask(), finals)

    def _masks_by_method(self) -> Callable[[], Any] | None:
        vec = self.env  # before SB3 2.2 it has no `has_attr`
        return (lambda: vec.env_method("action_masks")) if hasattr(vec, "has_attr") and vec.has_attr("action_masks") else None

    def _mask(self) -> Array | None:
        return None if self.ask_masks is None else mask_rows(self.action_space, self.ask_masks())


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


def seed_of(noise: Tensor) -> int:
    """A seed for an environment outside, from the noise of a reset; small enough that seed + number of environments is, too."""
    words = noise.detach().cpu().double().numpy().ravel().view(np.uint32)
    return int(np.random.SeedSequence(words.tolist()).generate_state(1)[0] >> 2)
