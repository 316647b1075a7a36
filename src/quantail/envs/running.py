"""An environment that shows what has been gained so far: the best action for the tail of a sum depends on the sum.

Without it an agent can only mind what is still to come, which is another question with another answer: after a loss as after a
win it would ask for the best tail of the rest (Bäuerle & Ott 2011; docs/risk.md, static and nested).
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from quantail.envs.base import State, TensorEnv
from quantail.errors import ConfigError
from quantail.types import Box, Group, Observation, Space, Step

PART, REST = "gained", "obs"  # the names of the sum and of an observation that had none


class Gained(NamedTuple):
    """Where an environment is, and what it has gained on the way."""

    inner: State
    total: Tensor  # [B] of the running episode
    window: Tensor  # [W, B] the latest gains, newest last; one row of zeros where no window is asked for
    ended: Tensor  # [B] bool: the row before ended an episode


class ObserveGained(TensorEnv):
    """The environment with one more number in its observations: the sum of gains (`Step.pnl`, else the reward) of the episode
    so far, or of its last `window` rows.

    Real vectors grow by one entry; images and choices get a part of their own, named "gained".
    """

    def __init__(self, env: TensorEnv, window: int | None = None) -> None:
        if window is not None and window < 1:
            raise ConfigError(f"window={window} sums no rows; choose at least 1, or None for the whole episode")
        self.env, self.window_rows = env, window
        self.num_envs, self.noise_dim = env.num_envs, env.noise_dim
        self.device, self.dtype, self.fitted = env.device, env.dtype, env.fitted
        self.action_space, self.observation_space = env.action_space, widened(env.observation_space)
        self.same_step, self.exact_resume = env.same_step, env.exact_resume  # type: ignore[misc]
        self.is_pure = env.is_pure  # type: ignore[misc]
        self.reward_per_gain = env.reward_per_gain  # type: ignore[misc]
        self.observes_gained = window is None  # type: ignore[misc]

    def reset(self, noise: Tensor) -> tuple[Gained, Observation]:
        inner, obs = self.env.reset(noise)
        rows = torch.zeros((self.window_rows or 1) + 1, self.num_envs, dtype=torch.float64, device=self.device)
        state = Gained(inner, rows[0], rows[1:].clone(), torch.zeros_like(rows[0], dtype=torch.bool))
        return state, self._beside(obs, rows[0])

    def step(self, state: Gained, action: Tensor, noise: Tensor) -> tuple[Gained, Step]:
        inner, step = self.env.step(state.inner, action, noise)
        restart = state.ended & ~torch.full_like(state.ended, self.same_step)
        gain = (step.reward if step.pnl is None else step.pnl).double()
        gain = torch.where(gain.isfinite() & ~restart, gain, 0.0)
        total = torch.where(restart, 0.0, state.total + gain)
        window = torch.where(restart, 0.0, torch.cat([state.window[1:], gain[None]]))
        done = step.terminated | step.truncated
        shown = total if self.window_rows is None else window.sum(0)
        if step.final_obs is not None:  # the next row is another episode's
            step = step._replace(final_obs=self._beside(step.final_obs, shown))
            total, window = torch.where(done, 0.0, total), torch.where(done, 0.0, window)
            shown = torch.where(done, 0.0, shown)
        return Gained(inner, total, window, done), step._replace(obs=self._beside(step.obs, shown))

    def first_mask(self, state: Gained) -> Tensor | None:
        return self.env.first_mask(state.inner)

    def renew(self, state: Gained, iteration: int) -> None:
        self.env.renew(state.inner, iteration)

    def close(self) -> None:
        self.env.close()

    def state_dict(self, state: Gained) -> dict[str, Tensor]:
        """The environment's own under `inner.`, and the sums."""
        own = {"total": state.total, "window": state.window, "ended": state.ended}
        return own | {f"inner.{name}": value for name, value in self.env.state_dict(state.inner).items()}

    def load_state(self, saved: Mapping[str, Tensor]) -> Gained:
        """What `state_dict` wrote, on this environment's device."""
        inner = {name.removeprefix("inner."): value for name, value in saved.items() if name.startswith("inner.")}
        own = (saved[name].to(self.device, copy=True) for name in ("total", "window", "ended"))
        return Gained(self.env.load_state(inner), *own)

    def _beside(self, obs: Observation, gained: Tensor) -> Observation:
        number = gained.to(self.dtype)[:, None]
        if isinstance(obs, Mapping):
            return {**obs, PART: number}
        if isinstance(self.observation_space, Group):
            return {REST: obs, PART: number}
        return torch.cat([obs, number.to(obs.dtype)], -1)


def widened(space: Space) -> Space:
    """The space with one more real number."""
    number = Box((1,))
    match space:
        case Box(shape=(n,), dtype="float32"):
            low, high = (side if isinstance(side, tuple) else (side,) * n for side in (space.low, space.high))
            return replace(space, shape=(n + 1,), low=(*low, -math.inf), high=(*high, math.inf))
        case Group(parts) if PART in dict(parts):
            raise ConfigError(f"the observation already has a part named {PART!r}; it cannot be shown twice")
        case Group(parts):
            return Group((*parts, (PART, number)))
        case _:
            return Group(((REST, space), (PART, number)))
