"""A TensorEnv, and a Gymnasium VectorEnv, as a VecEnv; for who steps `get_env()` by hand."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from quantail.envs.base import TensorEnv, where
from quantail.envs.crossing import action_from, arrays, copied, dtype_of, infos_of, noise_from, row_of
from quantail.envs.foreign import autoreset_mode
from quantail.envs.gymnasium import gymnasium_space
from quantail.face.vec import Infos, Totals, Vec
from quantail.trees import tree_map


class TensorVec(Vec):
    """A native environment. Its state is a value of its own here: stepping it disturbs no training."""

    def __init__(self, env: TensorEnv) -> None:
        self.env = env
        dtype = dtype_of(env)
        seen, taken = (gymnasium_space(space, dtype) for space in (env.observation_space, env.action_space))
        super().__init__(env.num_envs, seen, taken, None)
        self.noise = np.random.default_rng(0)
        self.state: Any = None
        self.totals = Totals(np.zeros(self.num_envs), np.zeros(self.num_envs))

    def behind(self, i: int) -> TensorEnv:
        return self.env

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        if attr_name == "render_mode":
            return [None for _ in self.chosen(indices)]
        return super().get_attr(attr_name, indices)

    def reset(self) -> Any:
        if self.seeds[0] is not None:
            self.noise = np.random.default_rng(self.seeds[0])
        self.seeds = [None] * self.num_envs
        self.state, obs = self.env.reset(noise_from(self.env, self.noise))
        self.totals = Totals(np.zeros(self.num_envs), np.zeros(self.num_envs))
        return arrays(obs)

    def step_wait(self) -> tuple[Any, Any, Any, Infos]:
        action = action_from(self.env, self.actions)
        self.state, step = self.env.step(self.state, action, noise_from(self.env, self.noise))
        ended, obs, finals = step.terminated | step.truncated, step.obs, step.final_obs
        if not self.env.same_step and bool(ended.any()):  # the row in which those that ended start anew, for them alone
            fresh, started = self.env.step(self.state, action, noise_from(self.env, self.noise))
            self.state, finals = where(ended, fresh, self.state), obs
            obs = tree_map(lambda new, old: where(ended, new, old), started.obs, obs)
        rewards, dones = arrays(step.reward), arrays(ended)
        late = arrays(step.truncated & ~step.terminated)
        found, last = infos_of(step), None if finals is None else arrays(finals)
        infos = [{name: values[i] for name, values in found.items()} for i in range(self.num_envs)]
        self.totals.add(rewards)
        for i, info in enumerate(infos):
            info["TimeLimit.truncated"] = bool(late[i])
            if dones[i]:
                info |= {"terminal_observation": row_of(last, i), "episode": self.totals.end(i)}
        return arrays(obs), rewards.astype(np.float32), dones, infos

    def close(self) -> None:
        self.env.close()


class VectorVec(Vec):
    """A Gymnasium VectorEnv, in whichever way it starts anew."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        self.env = env
        self.same_step = autoreset_mode(env.metadata) == "SameStep"
        super().__init__(env.num_envs, env.single_observation_space, env.single_action_space, env.render_mode)
        self.totals = Totals(np.zeros(self.num_envs), np.zeros(self.num_envs))

    def behind(self, i: int) -> Any:
        env: Any = self.env
        return env.envs[i] if hasattr(env, "envs") else env

    def reset(self) -> Any:
        observations, infos = self.env.reset(seed=self.seeds[0])
        self.seeds = [None] * self.num_envs
        self.reset_infos = listed(infos, self.num_envs)
        self.totals = Totals(np.zeros(self.num_envs), np.zeros(self.num_envs))
        return copied(observations)

    def step_wait(self) -> tuple[Any, Any, Any, Infos]:
        result = self.env.step(self.actions)
        observations, rewards, dones, infos = row_from(result, self.num_envs)
        self.totals.add(rewards)
        for i in np.flatnonzero(dones):
            summary = self.totals.end(int(i))
            infos[i].setdefault("episode", summary)
        if dones.any() and not self.same_step:
            observations = copied(self.env.reset(options={"reset_mask": dones.copy()})[0])
        return observations, rewards, dones, infos

    def close(self) -> None:
        self.env.close()


def row_from(result: Any, num_envs: int) -> tuple[Any, Any, Any, Infos]:
    """What a VectorEnv's step gave, as a VecEnv says it: the last observations of what ended lie in the infos."""
    observations, rewards, terminated, truncated, found = result
    dones = np.logical_or(terminated, truncated)
    infos = listed(found, num_envs)
    within = "final_obs" in found  # those that ended have started anew within the step
    last = listed(found.get("final_info", {}), num_envs) if within else infos
    for i, info in enumerate(infos):
        info["TimeLimit.truncated"] = bool(truncated[i] and not terminated[i])
        if dones[i]:
            info |= last[i]
            info["terminal_observation"] = copied(found["final_obs"][i] if within else row_of(observations, i))
    return copied(observations), np.asarray(rewards, dtype=np.float32), dones, infos


def listed(infos: Mapping[str, Any], num_envs: int) -> Infos:
    """Gymnasium's infos, arrays with a mask `_key` each, as one mapping per environment."""
    rows: Infos = [{} for _ in range(num_envs)]
    for name, value in infos.items():
        if name.startswith("_") or name in ("final_obs", "final_info"):
            continue
        present = np.broadcast_to(infos.get(f"_{name}", True), num_envs)
        parts = listed(value, num_envs) if isinstance(value, Mapping) else value
        for i in np.flatnonzero(present):
            rows[i][name] = parts[i]
    return rows
