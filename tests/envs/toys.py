"""Hand-written environments whose observation is the step counter, and a stand-in for SB3's VecEnv."""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Count(gymnasium.Env[Any, Any]):
    """Observes the number of its step; ends at the last, truncated or with `terminal` terminated; reward 10·step + action."""

    def __init__(self, last: int = 3, terminal: bool = False, base: float = 0.0) -> None:
        self.observation_space = spaces.Box(-1000.0, 1000.0, (1,), np.float64)
        self.action_space = spaces.Discrete(4, start=5)
        self.last, self.terminal, self.base = last, terminal, base
        self.time = 0
        self.closed = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._obs(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.time += 1
        end = self.time >= self.last
        info = {"half": self.time / 2, "word": "x"}
        return self._obs(), 10.0 * self.time + float(action), end and self.terminal, end and not self.terminal, info

    def close(self):
        self.closed = True

    def _obs(self):
        return np.array([self.base + self.time], dtype=np.float64)


class Random(Count):
    """Observes random numbers of its own generator."""

    def _obs(self):
        return self.np_random.normal(size=1)


class Spaces(gymnasium.Env[Any, Any]):
    """Any spaces: observes samples of its own, takes what it is told and keeps it."""

    def __init__(self, observation: Any, action: Any) -> None:
        self.observation_space, self.action_space = observation, action
        self.taken: list[Any] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        self.taken.append(action)
        done = len(self.taken) % 2 == 0
        return self.observation_space.sample(), 1.0, False, done, {}


class FakeVecEnv:
    """SB3's VecEnv as documented: lockstep, new observation at once, `terminal_observation` and `TimeLimit.truncated`."""

    def __init__(self, makers: list[Callable[[], Any]], monitor: bool = False) -> None:
        self.envs = [maker() for maker in makers]
        self.num_envs = len(self.envs)
        self.observation_space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space
        self.metadata = {"render_modes": []}
        self.monitor = monitor
        self.seeds: list[int | None] = [None] * self.num_envs
        self.buffer = np.zeros((self.num_envs, 1), dtype=np.float64)

    def seed(self, seed=None):
        self.seeds = [None if seed is None else seed + i for i in range(self.num_envs)]
        return self.seeds

    def reset(self):
        for i, env in enumerate(self.envs):
            self.buffer[i] = env.reset(seed=self.seeds[i])[0]
        self.seeds = [None] * self.num_envs
        return self.buffer

    def step_async(self, actions):
        self.actions = actions

    def step_wait(self):
        rewards, dones, infos = np.zeros(self.num_envs, np.float32), np.zeros(self.num_envs, bool), []
        for i, env in enumerate(self.envs):
            obs, rewards[i], terminated, truncated, info = env.step(self.actions[i])
            dones[i] = terminated or truncated
            info["TimeLimit.truncated"] = truncated and not terminated
            if dones[i]:
                info["terminal_observation"] = obs
                if self.monitor:
                    info["episode"] = {"r": 7.0 + i, "l": 3, "t": 0.5}
                obs, _ = env.reset()
            self.buffer[i] = obs
            infos.append(info)
        return self.buffer, rewards, dones, infos

    def step(self, actions):
        self.step_async(actions)
        return self.step_wait()

    def close(self):
        for env in self.envs:
            env.close()
