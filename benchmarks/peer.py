"""The peers of `learning.py`: stable-baselines3's PPO and sb3-contrib's RecurrentPPO on the same environments."""

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from sb3_contrib import RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from quantail.config import Config
from quantail.envs.base import TensorEnv, where
from quantail.envs.gymnasium import gymnasium_space
from quantail.evaluation import Played
from quantail.streams import Stream, generator, normal

WIDEST = 100.0  # the peers want finite actions; no sensible policy comes near


class LockstepEnv(VecEnv):  # type: ignore[misc]
    """A TensorEnv as a VecEnv: the row in which an environment starts anew is taken at once, the others wait in it."""

    def __init__(self, env: TensorEnv, seed: int) -> None:
        self.env, self.source = env, generator(seed, Stream.ENVIRONMENT, 0)
        action = gymnasium_space(env.action_space)
        if isinstance(action, Box):
            action = Box(np.maximum(action.low, -WIDEST), np.minimum(action.high, WIDEST), dtype=np.float32)
        super().__init__(env.num_envs, gymnasium_space(env.observation_space), action)

    def reset(self) -> np.ndarray:
        self.state, obs = self.env.reset(self._noise())
        return obs.numpy()

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = torch.as_tensor(actions)

    def step_wait(self) -> Any:
        self.state, step = self.env.step(self.state, self.actions, self._noise())
        done, obs = step.terminated | step.truncated, step.obs
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if bool(done.any()):
            for i in done.nonzero()[:, 0].tolist():
                infos[i] = {"terminal_observation": obs[i].numpy(), "TimeLimit.truncated": bool(step.truncated[i])}
            fresh, again = self.env.step(self.state, self.actions, self._noise())
            self.state = where(done, fresh, self.state)
            obs = torch.where(done[:, None], again.obs, obs)
        return obs.numpy(), step.reward.numpy(), done.numpy(), infos

    def close(self) -> None:
        pass

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [None] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        pass

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        return [None] * self.num_envs

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs

    def _noise(self) -> torch.Tensor:
        return normal((self.env.num_envs, self.env.noise_dim), self.source)


def learn(kind: str, env: TensorEnv, config: Config, seed: int) -> tuple[Any, int]:
    """A trained peer and the steps it took, with the figures of our own configuration; observations normalised as ours."""
    world = VecNormalize(LockstepEnv(env, seed), norm_reward=True, gamma=config.ppo.gamma)
    recurrent = kind == "RecurrentPPO"
    shape = {"net_arch": {"pi": list(config.net.actor_sizes), "vf": list(config.net.critic_sizes)}}
    rate = config.optim.learning_rate
    model = (RecurrentPPO if recurrent else PPO)(
        "MlpLstmPolicy" if recurrent else "MlpPolicy",
        world,
        learning_rate=(lambda left: rate * left) if config.optim.schedule.kind == "linear" else rate,
        n_steps=config.ppo.n_steps,
        batch_size=config.ppo.batch_size,
        n_epochs=config.ppo.n_epochs,
        gamma=config.ppo.gamma,
        gae_lambda=config.ppo.gae_lambda,
        ent_coef=config.entropy.coef,
        policy_kwargs={
            **shape,
            "log_std_init": config.net.log_std_init,
            **({"lstm_hidden_size": config.net.hidden} if recurrent else {}),
        },
        seed=seed,
        device="cpu",
    )
    model.learn(config.total_timesteps)
    return model, model.num_timesteps


def play(model: Any, env: TensorEnv, rows: int, seed: int) -> Played:
    """The games of `quantail.evaluation.play`, played by a peer without exploration."""
    source, world = generator(seed, Stream.PLAY, 0), model.get_vec_normalize_env()
    shape = (env.num_envs, env.noise_dim)
    state, obs = env.reset(normal(shape, source))
    memory, start, ended = None, np.ones(env.num_envs, dtype=bool), torch.zeros(env.num_envs, dtype=torch.bool)
    played = []
    for _ in range(rows):
        action, memory = model.predict(world.normalize_obs(obs.numpy()), memory, start, deterministic=True)
        state, step = env.step(state, torch.as_tensor(action), normal(shape, source))
        played.append(Played(torch.where(ended, 0.0, step.reward), ~ended, step.terminated, step.truncated))
        start, ended, obs = ended.numpy(), step.terminated | step.truncated, step.obs
    return Played(*(torch.stack(part) for part in zip(*played, strict=True)))
