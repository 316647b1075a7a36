"""Scripts written for stable-baselines3 and sb3-contrib: its callbacks, its evaluation, its wrappers, unmodified."""

import os
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from stable_baselines3.common import callbacks as sb3
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor, load_results
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecNormalize

from envs.toys import Count, Random
from quantail.algorithm import DistributionalPPO
from quantail.envs.oracles.cartpole import CartPole

ROOT = Path(__file__).parents[1]
SMALL = {"n_steps": 16, "batch_size": 16, "n_epochs": 1, "seed": 1, "policy_kwargs": {"lstm_hidden_size": 4, "net_arch": [5]}}


def small(env="CartPole-v1", **keywords):
    return DistributionalPPO("MlpLstmPolicy", env, **SMALL | keywords)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_documented_scripts_run_with_one_import_changed(tmp_path):
    program = ROOT / "examples" / "from_sb3.py"
    answer = subprocess.run([sys.executable, "-W", "error", program, "256"], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert float(answer.stdout.splitlines()[-1]) > 5
    assert "from quantail import DistributionalPPO as RecurrentPPO" in program.read_text(encoding="utf-8")
    assert "sb3_contrib import" not in program.read_text(encoding="utf-8").split('"""')[2]


# --- environments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: "CartPole-v1", lambda: CartPole(2), lambda: gymnasium.make_vec("CartPole-v1", 2)])
def test_what_get_env_gives_passes_for_a_vec_env_and_can_be_wrapped(make):
    env = small(make()).get_env()
    assert isinstance(env, VecEnv)
    assert isinstance(env, DummyVecEnv) == (env.num_envs == 1)
    wrapped = VecNormalize(env)
    assert wrapped.reset().shape == (env.num_envs, 4)
    obs, rewards, dones, infos = wrapped.step(np.ones(env.num_envs, dtype=int))
    assert obs.shape == (env.num_envs, 4)
    assert rewards.shape == dones.shape == (env.num_envs,)
    assert len(infos) == env.num_envs
    model = small(wrapped).learn(16)
    assert model.get_env() is wrapped
    env.close()


def test_a_single_environment_is_told_as_a_dummy_vec_env_tells_it():
    """Row by row, with the same seed and the same actions."""
    ours, theirs = small(Random(4)).get_env(), DummyVecEnv([lambda: Monitor(Random(4))])
    for vec in (ours, theirs):
        vec.seed(3)
    np.testing.assert_array_equal(ours.reset(), theirs.reset())
    for t in range(11):
        found, expected = (vec.step(np.array([5 + t % 3])) for vec in (ours, theirs))
        for one, other in zip(found[:3], expected[:3], strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype
        info, other = found[3][0], expected[3][0]
        assert set(info) == set(other)
        if "episode" in info:
            assert {**info["episode"], "t": 0} == {**other["episode"], "t": 0}


def test_evaluation_of_the_own_environment_is_that_of_another():
    model = small().learn(32)
    own = evaluate_policy(model, model.get_env(), n_eval_episodes=3, return_episode_rewards=True)
    assert len(own[0]) == 3
    env = Monitor(Count(4))
    counts, lengths = evaluate_policy(small(Count(4)).learn(16), env, n_eval_episodes=2, return_episode_rewards=True)
    assert lengths == [4, 4]
    assert all(100 <= total <= 140 for total in counts)


def test_evaluation_follows_the_state_of_each_environment():
    """Environments of different lengths, many at once and one by one, with deterministic actions: the same returns."""
    model = small(make_vec_env("CartPole-v1", 3, seed=0)).learn(48)

    def returns(env, seed):
        env.seed(seed)
        found, _ = evaluate_policy(model, env, n_eval_episodes=env.num_envs, return_episode_rewards=True)
        return sorted(found)

    together = returns(make_vec_env("CartPole-v1", 3), 5)
    alone = sorted(returns(make_vec_env("CartPole-v1", 1), 5 + i)[0] for i in range(3))
    assert together == alone


def test_subprocesses_learn_as_one_process_does():
    makers = [lambda: Monitor(Count(4)), lambda: Monitor(Count(6))]
    models = [small(kind(makers)).learn(64) for kind in (DummyVecEnv, SubprocVecEnv)]
    one, other = (model.policy.state_dict() for model in models)
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert [e["l"] for e in models[0].ep_info_buffer] == [e["l"] for e in models[1].ep_info_buffer]
    models[1].get_env().close()


# --- callbacks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [lambda: CartPole(2), lambda: make_vec_env("CartPole-v1", 2)], ids=["native", "outside"])
def test_checkpoints_are_named_by_steps_and_can_be_loaded(source):
    model = small(source())
    model.learn(64, callback=sb3.CheckpointCallback(save_freq=8, save_path="saved", name_prefix="m"))
    steps = sorted(int(name.split("_")[1]) for name in os.listdir("saved"))
    assert len(steps) == 8 * model.progress.carry.iteration // 4 == 2 * model.progress.carry.iteration
    for number in steps:
        assert DistributionalPPO.load(f"saved/m_{number}_steps").num_timesteps == number
    if model.source.outside:
        assert steps == [16, 32, 48, 64]


def test_evaluations_are_written_and_the_best_is_kept():
    env = Monitor(gymnasium.make("CartPole-v1"))
    best = sb3.StopTrainingOnRewardThreshold(1e9)
    callback = sb3.EvalCallback(
        env, best_model_save_path="best", log_path="log", eval_freq=10, n_eval_episodes=2, callback_on_new_best=best, verbose=0
    )
    model = small()
    model.learn(48, callback=callback)
    written = np.load("log/evaluations.npz")
    assert written["timesteps"].tolist() == [10, 20, 30, 40]
    assert written["results"].shape == (4, 2)
    assert callback.best_mean_reward == written["results"].mean(1).max()
    assert DistributionalPPO.load("best/best_model").num_timesteps in (10, 20, 30, 40)


def after_evaluation(**callbacks):
    return sb3.EvalCallback(Monitor(Constant(4)), eval_freq=5, verbose=0, **callbacks)


STOPPERS = {
    "episodes": lambda: sb3.StopTrainingOnMaxEpisodes(2),
    "reward": lambda: after_evaluation(callback_on_new_best=sb3.StopTrainingOnRewardThreshold(1)),
    "improvement": lambda: after_evaluation(callback_after_eval=sb3.StopTrainingOnNoModelImprovement(1, min_evals=1)),
    "a function": lambda: lambda inner, outer: inner["self"].num_timesteps < 7,
}


class Constant(Count):
    """Count, whose reward does not depend on what is done, with actions from 0 on."""

    def __init__(self, last):
        super().__init__(last)
        self.action_space = gymnasium.spaces.Discrete(4)

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, 1.0, *rest


@pytest.mark.parametrize("stopper", STOPPERS)
def test_training_stops_where_it_does_there(stopper):
    contrib = pytest.importorskip("sb3_contrib").RecurrentPPO
    found, expected = (cls("MlpLstmPolicy", Constant(4), **SMALL) for cls in (DistributionalPPO, contrib))
    for model in (found, expected):
        model.learn(10_000, callback=STOPPERS[stopper]())
    assert found.num_timesteps == expected.num_timesteps < 50


@pytest.mark.filterwarnings("ignore:rich is experimental")  # says the progress bar of stable-baselines3
def test_events_lists_and_bars():
    fired = []
    note = sb3.ConvertCallback(lambda inner, outer: fired.append(inner["self"].num_timesteps) or True)
    events = sb3.EveryNTimesteps(20, note)
    model = small()
    model.learn(64, callback=[events, sb3.CallbackList([sb3.LogEveryNTimesteps(16)]), sb3.ProgressBarCallback()])
    assert fired == [20, 40, 60]
    model.learn(32, callback=None, progress_bar=True, reset_num_timesteps=False)
    assert model.num_timesteps == 96


class Asks(sb3.BaseCallback):
    """Touches all that the guide says is there."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def _on_training_start(self):
        assert self.training_env is self.model.get_env()
        assert self.logger is self.model.logger
        assert self.locals["total_timesteps"] == 32
        assert isinstance(self.globals, dict)

    def _on_step(self):
        self.seen.append((self.n_calls, self.num_timesteps))
        self.logger.record("mine/figure", self.n_calls)
        self.logger.record_mean("mine/mean", self.n_calls)
        assert self.model.get_vec_normalize_env() is None
        assert np.isfinite(self.model.distribution(self.locals["new_obs"]).cvar(0.1)).all()
        return True


def test_a_callback_of_ones_own_finds_everything_and_its_figures_are_written():
    model, asks = small(Constant(4)), Asks()
    logger = configure("log", ["csv"])
    model.set_logger(logger)
    model.learn(32, callback=asks)
    logger.close()
    assert model.logger is logger
    assert asks.seen == [(i, i) for i in range(1, 33)]
    header, *rows = Path("log/progress.csv").read_text(encoding="utf-8").splitlines()
    table = [dict(zip(header.split(","), row.split(","), strict=True)) for row in rows]
    assert [float(row["mine/figure"]) for row in table] == [16, 32]
    assert [float(row["mine/mean"]) for row in table] == [8.5, 24.5]
    assert [float(row["time/total_timesteps"]) for row in table] == [16, 32]
    assert {"train/approx_kl", "train/explained_variance", "train/value_loss"} <= set(table[-1])
    assert {"rollout/ep_len_mean", "rollout/ep_rew_mean", "time/fps"} <= set(table[-1])


def test_tensorboard_folders_are_numbered_and_gone_on_with():
    model = small(tensorboard_log="board")
    for reset in (True, True, False):
        model.learn(16, tb_log_name="mine", reset_num_timesteps=reset)
    assert sorted(os.listdir("board")) == ["mine_1", "mine_2"]


def test_the_window_of_statistics_is_honoured_and_monitors_tell_raw_rewards():
    env = VecNormalize(DummyVecEnv([lambda: Monitor(Count(4), "monitor")]), norm_reward=True)
    model = small(env, stats_window_size=3)
    model.learn(64)
    raw = load_results(".")["r"].tolist()
    assert [episode["r"] for episode in model.ep_info_buffer] == raw[-3:]
    assert model.ledger.figures(64)["rollout/ep_rew_mean"] == pytest.approx(np.mean(raw[-3:]))
    env.close()


def test_what_scripts_read_is_there_and_steps_may_be_a_float():
    model = small(make_vec_env("CartPole-v1", 2)).learn(total_timesteps=1e2)
    assert model.num_timesteps == 128
    assert model.env is model.get_env()
    assert (model.n_envs, len(model.ep_success_buffer)) == (2, 0)
    assert len(model.ep_info_buffer) > 0
    with pytest.raises(AttributeError, match="n_envs is fixed once the model is made"):
        model.n_envs = 3


# --- VecNormalize -----------------------------------------------------------------------------------------------------


def test_observations_are_not_normalised_twice():
    def config(env):
        return small(env).config.input.normalize_observations

    assert config(make_vec_env("CartPole-v1", 2))
    assert not config(VecNormalize(make_vec_env("CartPole-v1", 2)))
    assert config(VecNormalize(make_vec_env("CartPole-v1", 2), norm_obs=False))
    assert not config(gymnasium.wrappers.NormalizeObservation(gymnasium.make("CartPole-v1")))
    assert not config(gymnasium.wrappers.vector.NormalizeObservation(gymnasium.make_vec("CartPole-v1", 2)))


def test_statistics_reach_the_evaluation_and_are_saved_beside_the_model():
    train, test = (VecNormalize(make_vec_env("CartPole-v1", 2), training=training) for training in (True, False))
    model = small(train)
    assert model.get_vec_normalize_env() is train
    evaluation = sb3.EvalCallback(test, eval_freq=16, n_eval_episodes=2, verbose=0)
    model.learn(32, callback=[sb3.CheckpointCallback(16, "saved", save_vecnormalize=True), evaluation])
    assert sorted(os.listdir("saved")) == ["rl_model_32_steps.zip", "rl_model_vecnormalize_32_steps.pkl"]
    np.testing.assert_array_equal(test.obs_rms.mean, train.obs_rms.mean)
    loaded = VecNormalize.load("saved/rl_model_vecnormalize_32_steps.pkl", make_vec_env("CartPole-v1", 2))
    again = DistributionalPPO.load("saved/rl_model_32_steps", env=loaded)
    assert again.get_vec_normalize_env() is loaded
    again.learn(32, reset_num_timesteps=False)
    assert again.num_timesteps == 64


# --- as in the tests of sb3-contrib -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy_kwargs",
    [
        {},
        {"shared_lstm": True, "enable_critic_lstm": False},
        {"enable_critic_lstm": True, "lstm_hidden_size": 4, "lstm_kwargs": {"dropout": 0.5}},
        {"enable_critic_lstm": False, "lstm_hidden_size": 4, "lstm_kwargs": {"dropout": 0.5}},
        {"enable_critic_lstm": False, "lstm_hidden_size": 4},
        {"n_lstm_layers": 2, "lstm_hidden_size": 4},
    ],
)
@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_every_arrangement_learns(env, policy_kwargs):
    model = DistributionalPPO("MlpLstmPolicy", env, n_steps=16, batch_size=8, seed=0, n_epochs=2, policy_kwargs=policy_kwargs)
    model.learn(total_timesteps=32)
    evaluate_policy(model, make_vec_env(env, 1, seed=0), n_eval_episodes=1)


def test_exploration_that_depends_on_the_state_learns():
    model = small("Pendulum-v1", use_sde=True, clip_range_vf=0.1, target_kl=0.05)
    model.learn(32)
    assert model.num_timesteps == 32
    assert all(parameter.isfinite().all() for parameter in model.policy.parameters())
