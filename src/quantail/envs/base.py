"""What an environment is: pure functions of state, action and noise, for B environments at once.

State is a value: a (nested) NamedTuple of tensors [B, ...]. `reset` and `step` give the same outputs for the same inputs,
never look into a tensor from the host, and keep one graph, so they can be replayed, tested, compiled and saved.

Noise comes in as standard normals [B, noise_dim], float32 or float64. An environment that needs uniforms takes
`uniform(noise)`. A row either starts an episode or moves one on, never both, so one row of noise serves either.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from quantail.errors import InputError
from quantail.functional.checks import check_count, check_shape
from quantail.types import Box, Discrete, Group, Observation, Space, Step

# A state is any NamedTuple; each environment knows its own.
State = Any


class TensorEnv(ABC):
    """B environments that move together.

    `same_step` says which row follows an end (DESIGN §3): False, the final observation, then a row without effect in which
    the environment starts anew (NEXT_STEP); True, the first observation of the next episode at once, the last one of the
    old episode lying in `Step.final_obs`. Where `exact_resume` is False, what `load_state` gives back is not where the
    environment was: a resumed run has to `reset` and to start new episodes.
    """

    num_envs: int
    observation_space: Space
    action_space: Space
    noise_dim: int
    device: torch.device
    dtype: torch.dtype = torch.float32  # of observations and rewards
    same_step: ClassVar[bool] = False
    exact_resume: ClassVar[bool] = True
    is_pure: ClassVar[bool] = True  # functions of tensors alone, so that a device can replay them without the host
    observes_gained: ClassVar[bool] = False  # whether an observation tells what the episode has gained so far
    fitted: Mapping[str, Any] = MappingProxyType({})  # what was fitted on training data, as plain values; saved with the agent
    reward_per_gain: ClassVar[float] = 1.0  # how much reward a unit of `Step.pnl` is, where rewards have a scale of their own

    @abstractmethod
    def reset(self, noise: Tensor) -> tuple[State, Observation]:
        """Start every environment: noise [B, noise_dim] -> (state, first observation [B, ...])."""

    @abstractmethod
    def step(self, state: State, action: Tensor, noise: Tensor) -> tuple[State, Step]:
        """One row: action [B] int64, [B, D] int64 or [B, *shape] floating, noise [B, noise_dim] -> (state, Step)."""

    def first_mask(self, state: State) -> Tensor | None:
        """Which choices the row after `reset` allows, [B, ΣK] bool; all if none. Of later rows `Step.action_mask` tells."""
        return None

    def renew(self, state: State, iteration: int) -> None:  # noqa: B027 - most have nothing to renew
        """Told before each iteration of training, so that a made-up world can be made anew where no episode runs."""

    def close(self) -> None:
        """Let go of what lives outside; a native environment has nothing there."""
        return None

    def state_dict(self, state: State) -> dict[str, Tensor]:
        """All that an exact resume needs, as tensors under flat names: `core.x`, `time`, ..."""
        return dict(leaves(state))

    def load_state(self, saved: Mapping[str, Tensor]) -> State:
        """The state that `state_dict` wrote, on this environment's device."""
        template, _ = self.reset(torch.zeros(self.num_envs, self.noise_dim, device=self.device))
        expected = dict(leaves(template))
        kind = type(self).__name__
        if set(saved) != set(expected):
            raise InputError(f"saved holds {sorted(saved)}; {kind} needs {sorted(expected)}: load what this environment saved")
        for name, like in expected.items():
            if saved[name].shape != like.shape or saved[name].dtype != like.dtype:
                raise InputError(
                    f"saved[{name!r}] is {saved[name].dtype} {list(saved[name].shape)}; {kind} needs {like.dtype} "
                    f"{list(like.shape)}: use the num_envs and dtype it was saved with"
                )
        return rebuilt(template, {name: value.to(self.device, copy=True) for name, value in saved.items()})


# --- episodes ---------------------------------------------------------------------------------------------------------


class Episodes(NamedTuple):
    """The state of an `EpisodicEnv`: where each environment is, and since when."""

    core: State  # what the environment itself remembers
    time: Tensor  # [B] int64 steps since the episode's first observation
    done: Tensor  # [B] bool: the step before finished the episode, so the next row starts a new one


class Move(NamedTuple):
    """What one step of the dynamics gives, before clock and restart."""

    core: State
    reward: Tensor  # [B]
    terminated: Tensor | None = None  # [B] bool; never if none
    pnl: Tensor | None = None  # [B] raw gain, for risk; the reward if none


class EpisodicEnv(TensorEnv):
    """Dynamics given, episodes made: clock, end, time limit and the restart in the row after an end, in one place.

    A subclass says how an episode starts, what is seen and how it moves on. An end that belongs to the problem is
    `terminated` by `move`; `horizon` is a time limit from outside and truncates (None: the episode never ends by time).
    Where both happen in one step, terminated wins. After an end, one row follows in which the action has no effect, the
    reward is 0 and the environment starts anew. Actions outside a Box are moved to its boundary.
    """

    horizon: int | None

    def __init__(
        self,
        num_envs: int,
        spaces: tuple[Space, Space],
        noise_dim: int,
        horizon: int | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        """`spaces` are those of observations and of actions; dtype is that of observations, rewards and dynamics."""
        check_count("num_envs", num_envs)
        if horizon is not None:
            check_count("horizon", horizon)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise InputError(f"dtype={dtype!r}; needs a floating point torch.dtype: torch.float32 or torch.float64")
        self.num_envs = num_envs
        self.observation_space, self.action_space = spaces
        self.noise_dim = noise_dim
        self.horizon = horizon
        self.dtype = dtype
        self.device = torch.device(device)
        self._bounds = bounds(spaces[1], dtype, self.device) if isinstance(spaces[1], Box) else ()

    @abstractmethod
    def start(self, noise: Tensor) -> State:
        """What an episode starts from: noise [B, noise_dim] -> core."""

    @abstractmethod
    def observe(self, core: State, time: Tensor) -> Tensor:
        """What is seen: core, time [B] int64 -> [B, ...]."""

    @abstractmethod
    def move(self, core: State, time: Tensor, action: Tensor, noise: Tensor) -> Move:
        """One step of the dynamics; time [B] counts the steps before this one."""

    def reset(self, noise: Tensor) -> tuple[Episodes, Tensor]:
        """Every environment at the first row of an episode."""
        noise = self._noise(noise)
        core = self.start(noise)
        time = torch.zeros(self.num_envs, dtype=torch.int64, device=noise.device)
        return Episodes(core, time, torch.zeros_like(time, dtype=torch.bool)), self.observe(core, time)

    def step(self, state: Episodes, action: Tensor, noise: Tensor) -> tuple[Episodes, Step]:
        """Move on where the episode runs, start anew where it ended one row before."""
        noise = self._noise(noise)
        action = checked_action(self.action_space, self.num_envs, action)
        if isinstance(self.action_space, Box):
            action = action.to(self.dtype).clamp(*self._bounds)
        restart = state.done
        moved = self.move(state.core, state.time, action, noise)
        core = where(restart, self.start(noise), moved.core)
        time = torch.where(restart, 0, state.time + 1)
        terminated = torch.zeros_like(restart) if moved.terminated is None else moved.terminated & ~restart
        late = torch.zeros_like(restart) if self.horizon is None else time >= self.horizon
        truncated = late & ~terminated
        step = Step(
            obs=self.observe(core, time),
            reward=moved.reward.masked_fill(restart, 0.0),
            terminated=terminated,
            truncated=truncated,
            pnl=None if moved.pnl is None else moved.pnl.masked_fill(restart, 0.0),
        )
        return Episodes(core, time, terminated | truncated), step

    def _noise(self, noise: Tensor) -> Tensor:
        check_shape("noise", noise, (self.num_envs, self.noise_dim), "environments, noise_dim")
        return noise.to(self.dtype)


# --- noise, actions, state trees --------------------------------------------------------------------------------------


def uniform(noise: Tensor) -> Tensor:
    """Uniforms on [0, 1] from standard normals: u = Φ(z). In float32, 1 itself comes up once in 10⁷ draws."""
    chance: Tensor = torch.special.ndtr(noise)
    return chance


def checked_action(space: Space, num_envs: int, action: Tensor) -> Tensor:
    """The action itself, or an error that says what came and what the space needs; content is not read."""
    if not isinstance(action, Tensor):
        raise InputError(f"action is a {type(action).__name__}; needs a torch.Tensor: pass torch.as_tensor(action)")
    if isinstance(space, Box):
        check_shape("action", action, (num_envs, *space.shape), "environments, shape of the action")
        return action
    if isinstance(space, Group):
        raise InputError("action belongs to a Group, which no environment takes; use a Box, Discrete or MultiDiscrete")
    shape = (num_envs,) if isinstance(space, Discrete) else (num_envs, len(space.sizes))
    if action.dtype != torch.int64 or tuple(action.shape) != shape:
        raise InputError(f"action is {action.dtype} {list(action.shape)}; needs torch.int64 {list(shape)}: indices of choices")
    return action


def bounds(space: Box, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Lowest and highest value of a Box, [] or [*shape], so that `clamp` meets no constant of the host."""
    low, high = (torch.as_tensor(side, dtype=dtype, device=device) for side in (space.low, space.high))
    return (low.reshape(space.shape) if low.ndim else low, high.reshape(space.shape) if high.ndim else high)


def where(mask: Tensor, yes: State, no: State) -> State:
    """Choose per environment: mask [B], two states of the same kind with leaves [B, ...] -> a state."""
    if isinstance(yes, Tensor):
        return torch.where(mask.view(-1, *[1] * (yes.ndim - 1)), yes, no)
    return type(yes)(*(where(mask, a, b) for a, b in zip(yes, no, strict=True)))


def leaves(state: State, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """The tensors of a state with their flat names: `core.position`, `time`, ..."""
    if isinstance(state, Tensor):
        yield name, state
        return
    for field, part in zip(state._fields, state, strict=True):
        yield from leaves(part, f"{name}.{field}" if name else field)


def rebuilt(template: State, tensors: Mapping[str, Tensor], name: str = "") -> State:
    """A state of the template's kind from the tensors under their flat names."""
    if isinstance(template, Tensor):
        return tensors[name]
    parts = zip(template._fields, template, strict=True)
    return type(template)(*(rebuilt(part, tensors, f"{name}.{field}" if name else field) for field, part in parts))
