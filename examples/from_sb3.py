"""Coming from stable-baselines3: its own documented scripts, with one import changed.

    from sb3_contrib import RecurrentPPO  ->  from quantail import DistributionalPPO as RecurrentPPO

Needs `pip install stable-baselines3`. Prints the mean reward of an episode of CartPole after training with everything that the
guides of stable-baselines3 show: evaluation, callbacks, VecNormalize, saving and loading.
"""

import os
import sys
import tempfile

import gymnasium as gym
import numpy as np
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    EvalCallback,
    EveryNTimesteps,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecNormalize

from quantail import DistributionalPPO as RecurrentPPO


def the_page_of_recurrent_ppo(steps: int) -> float:
    """https://sb3-contrib.readthedocs.io/en/master/modules/ppo_recurrent.html#example"""
    model = RecurrentPPO("MlpLstmPolicy", "CartPole-v1", verbose=0, seed=0)
    model.learn(steps)

    vec_env = model.get_env()
    mean_reward, _ = evaluate_policy(model, vec_env, n_eval_episodes=20, warn=False)

    model.save("ppo_recurrent")
    del model  # remove to demonstrate saving and loading

    model = RecurrentPPO.load("ppo_recurrent")

    obs = vec_env.reset()
    # cell and hidden state of the LSTM
    lstm_states = None
    num_envs = 1
    # Episode start signals are used to reset the lstm states
    episode_starts = np.ones((num_envs,), dtype=bool)
    for _ in range(100):
        action, lstm_states = model.predict(obs, state=lstm_states, episode_start=episode_starts, deterministic=True)
        obs, _, dones, _ = vec_env.step(action)
        episode_starts = dones
    return float(mean_reward)


class CountEpisodes(BaseCallback):
    """https://stable-baselines3.readthedocs.io/en/master/guide/callbacks.html#custom-callback"""

    def __init__(self, verbose: int = 0) -> None:
        super().__init__(verbose)
        self.episodes = 0

    def _on_step(self) -> bool:
        self.episodes += int(np.sum(self.locals["dones"]))
        self.logger.record("mine/episodes", self.episodes)
        return True


def the_page_of_callbacks(steps: int) -> int:
    """https://stable-baselines3.readthedocs.io/en/master/guide/callbacks.html"""
    count = CountEpisodes()
    checkpoints = CheckpointCallback(save_freq=steps // 4, save_path="./logs/", name_prefix="rl_model", save_vecnormalize=True)
    enough = StopTrainingOnRewardThreshold(reward_threshold=10_000)
    evaluation = EvalCallback(
        Monitor(gym.make("CartPole-v1")),
        callback_on_new_best=enough,
        best_model_save_path="./logs/best_model",
        log_path="./logs/results",
        eval_freq=steps // 2,
        verbose=0,
    )
    event = EveryNTimesteps(n_steps=steps // 2, callback=CheckpointCallback(save_freq=1, save_path="./logs/events"))
    model = RecurrentPPO("MlpLstmPolicy", "CartPole-v1", n_steps=32, n_epochs=2, seed=0)
    model.learn(steps, callback=CallbackList([count, checkpoints, evaluation, event, StopTrainingOnMaxEpisodes(10_000)]))
    model.learn(64, callback=lambda locals_, globals_: True, reset_num_timesteps=False)
    assert len(os.listdir("./logs/events")) == 2
    assert os.path.exists("./logs/best_model/best_model.zip")
    return count.episodes


def the_page_of_vec_normalize(steps: int) -> float:
    """https://stable-baselines3.readthedocs.io/en/master/guide/examples.html#pybullet-normalizing-input-features"""
    vec_env = VecNormalize(make_vec_env("Pendulum-v1", n_envs=4, seed=0), norm_obs=True, norm_reward=True, clip_obs=10.0)
    model = RecurrentPPO("MlpLstmPolicy", vec_env, n_steps=32, n_epochs=2, seed=0)
    model.learn(steps)
    model.save("ppo_pendulum")
    vec_env.save("vec_normalize.pkl")

    vec_env = VecNormalize.load("vec_normalize.pkl", make_vec_env("Pendulum-v1", n_envs=4, seed=1))
    vec_env.training = False  # do not update them at test time
    vec_env.norm_reward = False  # reward normalization is not needed at test time
    model = RecurrentPPO.load("ppo_pendulum", env=vec_env)
    return float(evaluate_policy(model, model.get_env(), n_eval_episodes=4)[0])


def main(steps: int = 20_000) -> None:
    """All pages, in a folder of their own; the shorter ones are only to run."""
    os.chdir(tempfile.mkdtemp())
    assert the_page_of_callbacks(max(steps // 20, 128)) > 0
    assert the_page_of_vec_normalize(max(steps // 20, 128)) < 0
    print(the_page_of_recurrent_ppo(steps))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
