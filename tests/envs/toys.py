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


class Ragged(gymnasium.Env[Any, Any]):
    """Episodes of 1 to 4 random steps, ended in either way; observes a random number, what was done and the step."""

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1000.0, 1000.0, (3,), np.float64)
        self.action_space = spaces.Discrete(3, start=-1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left, self.terminal = int(self.np_random.integers(1, 5)), bool(self.np_random.random() < 0.5)
        self.time = 0
        return self._obs(0), {}

    def step(self, action):
        self.left, self.time = self.left - 1, self.time + 1
        end = self.left == 0
        reward = float(self.np_random.integers(-9, 9)) + 0.25 * float(action)
        return self._obs(float(action)), reward, end and self.terminal, end and not self.terminal, {"left": float(self.left)}

    def _obs(self, action):
        return np.array([self.np_random.integers(-50, 50) / 8, action, self.time], dtype=np.float64)


class Foreseen(gymnasium.Env[Any, Any]):
    """Observes its own value at discount 1/2: Σ 2⁻ᵏ·rₜ₊ₖ, and beyond a cut-off what it says there; nonsense after an end."""

    observation_space = spaces.Box(-1e6, 1e6, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.rewards = [float(x) for x in self.np_random.integers(-8, 8, self.np_random.integers(1, 5))]
        self.terminal = bool(self.np_random.random() < 0.5)
        self.values = [0.0 if self.terminal else float(self.np_random.integers(-8, 8))]
        for reward in reversed(self.rewards):
            self.values.insert(0, reward + self.values[0] / 2)
        self.time = 0
        return np.array([self.values[0]]), {}

    def step(self, action):
        self.time += 1
        end = self.time == len(self.rewards)
        seen = 777.0 if end and self.terminal else self.values[self.time]
        return np.array([seen]), self.rewards[self.time - 1], end and self.terminal, end and not self.terminal, {}


class Masked(Count):
    """Ends after two to three steps; only one choice is allowed in each row, and any other is an error. Told as asked."""

    def __init__(self, by: str, parts: bool = False) -> None:
        super().__init__()
        self.action_space = spaces.MultiDiscrete([2, 3]) if parts else spaces.Discrete(4, start=5)
        self.by, self.parts, self.rounds = by, parts, 0
        if by == "method":
            self.action_masks = self.mask

    def allowed(self):
        return (self.time + self.rounds) % 2 if self.parts else (self.time + self.rounds) % 4

    def mask(self):
        if self.parts:
            return np.array([self.allowed() == 0, self.allowed() == 1, False, False, True])
        return np.arange(4) == self.allowed()

    def reset(self, *, seed=None, options=None):
        self.rounds += 1
        self.last = 2 + self.rounds % 2
        obs, _ = super().reset(seed=seed)
        return obs, self.told()

    def step(self, action):
        wanted = [self.allowed(), 2] if self.parts else 5 + self.allowed()
        assert np.array_equal(action, wanted), (action, wanted)
        obs, _, terminated, truncated, _ = super().step(action) if not self.parts else self.moved()
        return obs, 1.0, terminated, truncated, self.told()

    def moved(self):
        self.time += 1
        return self._obs(), 1.0, False, self.time >= self.last, {}

    def told(self):
        if self.by == "tuple":
            return {"action_mask": (self.mask()[:2].astype(np.int8), self.mask()[2:].astype(np.int8))}
        return {"action_mask": self.mask().astype(np.int8)} if self.by == "info" else {}


class FakeVecEnv:
    """SB3's VecEnv as documented: lockstep, new observation at once, `terminal_observation` and `TimeLimit.truncated`."""

    def __init__(self, makers: list[Callable[[], Any]], monitor: bool = False) -> None:
        self.envs = [maker() for maker in makers]
        self.num_envs = len(self.envs)
        self.observation_space, self.action_space = self.envs[0].observation_space, self.envs[0].action_space
        self.metadata = {"render_modes": []}
        self.monitor = monitor
        self.seeds: list[int | None] = [None] * self.num_envs
        self.buffer = np.zeros((self.num_envs, *self.observation_space.shape), dtype=np.float64)

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

    def has_attr(self, name):
        return all(hasattr(env, name) for env in self.envs)

    def env_method(self, name):
        return [getattr(env, name)() for env in self.envs]

    def close(self):
        for env in self.envs:
            env.close()
