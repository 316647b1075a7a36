"""Training seen step by step: what callbacks of stable-baselines3 are told of each row of a rollout.

An environment outside is watched while it works, so that a callback can stop it, evaluate or save between two steps. Rows of
a native one are told after the rollout, all at once: its steps may be one captured graph.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from quantail.envs.base import State, TensorEnv
from quantail.envs.crossing import arrays, infos_of, row_of
from quantail.envs.foreign import ForeignEnv, VecEnv
from quantail.errors import QuantailError
from quantail.face.facades import row_from
from quantail.face.vec import Infos, Totals
from quantail.rollout import Carry
from quantail.types import Observation, Step


class Stopped(QuantailError):
    """A callback asked for the end of training; never seen outside `learn`."""


class Seen(NamedTuple):
    """One row of all environments, as a VecEnv says it."""

    actions: Any  # [B, ...] as the environment took them
    new_obs: Any  # [B, ...] of the row after; where an episode ended, the next one's first, if that is known yet
    rewards: Any  # [B]
    dones: Any  # [B] bool
    infos: Infos
    steps: int  # environment steps in it: rows without effect are none


class Tap:
    """The environment outside as it is, and what its last step said."""

    def __init__(self, env: Any) -> None:
        self.behind = env
        self.said: Any = None

    def step(self, actions: Any) -> Any:
        """One step; its actions and its answer stay at hand."""
        result = self.behind.step(actions)
        self.said = actions, result
        return result

    def __getattr__(self, name: str) -> Any:
        behind = self.behind
        return getattr(behind, name)


def tapped(env: Any) -> Tap:
    """A tap under the name of what is behind it, so that errors name that."""
    named: type[Tap] = type(type(env).__name__, (Tap,), {})
    return named(env)


class Watched(TensorEnv):
    """The environment as it is; each step is told."""

    def __init__(self, env: TensorEnv, told: Callable[[Tensor, Step], None]) -> None:
        self.env, self.told = env, told
        self.num_envs, self.noise_dim, self.device, self.dtype = env.num_envs, env.noise_dim, env.device, env.dtype
        self.fitted = env.fitted
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.same_step = env.same_step  # type: ignore[misc] # of the class elsewhere
        self.exact_resume = env.exact_resume  # type: ignore[misc]
        self.observes_gained = env.observes_gained  # type: ignore[misc]
        self.reward_per_gain = env.reward_per_gain  # type: ignore[misc]

    def reset(self, noise: Tensor) -> tuple[State, Observation]:
        return self.env.reset(noise)

    def step(self, state: State, action: Tensor, noise: Tensor) -> tuple[State, Step]:
        state, step = self.env.step(state, action, noise)
        self.told(action, step)
        return state, step

    def first_mask(self, state: State) -> Tensor | None:
        return self.env.first_mask(state)

    def renew(self, state: State, iteration: int) -> None:
        self.env.renew(state, iteration)

    def state_dict(self, state: State) -> dict[str, Tensor]:
        return self.env.state_dict(state)

    def load_state(self, saved: Mapping[str, Tensor]) -> State:
        return self.env.load_state(saved)

    def close(self) -> None:
        self.env.close()


class Watch:
    """Turns steps into rows, and tells of each: at once, or by `replay` after the rollout."""

    def __init__(self, env: TensorEnv, carry: Carry, tell: Callable[[Seen], None]) -> None:
        self.source, self.tell = env, tell
        self.ended = arrays(carry.ended)
        self.totals = Totals(arrays(carry.episode_return), arrays(carry.episode_length))
        self.rows: list[tuple[Tensor, Step]] = []
        self.env = Watched(env, self._live if isinstance(env, ForeignEnv) else self._keep)

    def replay(self) -> None:
        """Tell of the rows that were kept."""
        rows, self.rows = self.rows, []
        for action, step in rows:
            self.tell(self._native(action, step))

    def _keep(self, action: Tensor, step: Step) -> None:
        self.rows.append((action, step))

    def _live(self, action: Tensor, step: Step) -> None:
        assert isinstance(self.source, ForeignEnv)
        actions, result = self.source.env.said
        if isinstance(self.source, VecEnv):
            new_obs, rewards, dones, infos = result
            self.tell(Seen(actions, new_obs, rewards, dones, infos, self.source.num_envs))
            return
        row = row_from(result, self.source.num_envs)
        self.tell(self._counted(actions, *row))

    def _native(self, action: Tensor, step: Step) -> Seen:
        found, finals = infos_of(step), arrays(step.obs if step.final_obs is None else step.final_obs)
        infos: Infos = [{name: values[i] for name, values in found.items()} for i in range(self.source.num_envs)]
        dones, late = arrays(step.terminated | step.truncated), arrays(step.truncated & ~step.terminated)
        for i, info in enumerate(infos):
            info["TimeLimit.truncated"] = bool(late[i])
            if dones[i]:
                info["terminal_observation"] = row_of(finals, i)
        return self._counted(arrays(action), arrays(step.obs), arrays(step.reward), dones, infos)

    def _counted(self, actions: Any, new_obs: Any, rewards: Any, dones: Any, infos: Infos) -> Seen:
        """The row with the episodes that ended in it, and how many of its steps had an effect."""
        counts = np.ones_like(self.ended) if self.source.same_step else ~self.ended
        self.totals.add(np.where(counts, rewards, 0.0), counts.astype(np.int64))
        for i in np.flatnonzero(dones):
            summary = self.totals.end(int(i))
            infos[i].setdefault("episode", summary)
        self.ended = np.array(dones)
        return Seen(actions, new_obs, rewards, dones, infos, int(counts.sum()))
