"""The face drives the one loop there is: what it learns is bit for bit what `train` learns, whatever looks on."""

import itertools
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from envs.toys import Count, Random
from quantail.algorithm import DistributionalPPO
from quantail.config import Config, PpoConfig
from quantail.envs.gymnasium import make_env
from quantail.envs.oracles.cartpole import CartPole
from quantail.errors import ConfigError, EnvironmentFault
from quantail.face.vec import EnvList
from quantail.loop import train
from rivers import Ragged, settings

SMALL = {"n_steps": 16, "batch_size": 16, "n_epochs": 2, "seed": 3}
NETS = {"lstm_hidden_size": 5, "net_arch": [6]}


def small(env="CartPole-v1", policy="MlpLstmPolicy", nets=NETS, **keywords):
    nets = {name: value for name, value in nets.items() if "Lstm" in policy or not name.startswith("lstm")}
    return DistributionalPPO(policy, env, **{**SMALL, "policy_kwargs": nets, **keywords})


def weights(model):
    return {name: value.clone() for name, value in model.policy.state_dict().items()}


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one | other)


def keeps_on(model):
    return True


# --- the same as the loop ---------------------------------------------------------------------------------------------


def learned(config, env, iterations):
    reports = list(itertools.islice(train(replace(config, total_timesteps=10**9), env), iterations))
    return reports[-1]


@pytest.mark.parametrize("callback", [None, lambda inner, outer: True], ids=["unwatched", "watched"])
@pytest.mark.parametrize("policy", ["MlpPolicy", "MlpLstmPolicy"])
def test_learning_on_a_native_environment_equals_the_loop_bit_for_bit(policy, callback):
    """CartPole without velocities, through the face and through `train`, with one config."""
    config = Config(seed=5, ppo=PpoConfig(n_steps=32, n_epochs=2, batch_size=64))
    config = replace(config, net=replace(config.net, hidden=8, memory="lstm" if "Lstm" in policy else "none"))
    expected = learned(config, CartPole(3, velocities=False), 4)
    model = DistributionalPPO(policy, CartPole(3, velocities=False), config=config)
    model.learn(expected.env_steps, callback=callback)
    assert same(weights(model), expected.agent.state_dict())
    assert model.num_timesteps == expected.env_steps
    assert model.progress.carry.iteration == 4
    for one, other in zip(model.progress.carry.memory, expected.carry.memory, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("callback", [None, lambda inner, outer: True], ids=["unwatched", "watched"])
@pytest.mark.parametrize("same_step", [False, True])
def test_so_it_does_with_ragged_episodes_of_every_kind(same_step, callback):
    config = settings("real")
    expected = learned(config, Ragged("real", same_step), 3)
    model = DistributionalPPO("MlpLstmPolicy", Ragged("real", same_step), config=config)
    model.learn(expected.env_steps, callback=callback)
    assert same(weights(model), expected.agent.state_dict())
    assert model.num_timesteps == expected.env_steps


def test_learning_outside_equals_the_loop_bit_for_bit():
    model = small(EnvList([Random(4), Random(7)]))
    assert model.config.ppo.n_steps == 16
    expected = learned(model.config, make_env(EnvList([Random(4), Random(7)])), 3)
    model.learn(96)
    assert same(weights(model), expected.agent.state_dict())


def test_learning_in_pieces_is_learning_at_once():
    whole, pieces = small(CartPole(2)), small(CartPole(2))
    whole.learn(150)
    pieces.learn(70)
    between = pieces.num_timesteps
    pieces.learn(150 - between, reset_num_timesteps=False)
    assert 70 <= between < 150
    assert same(weights(whole), weights(pieces))


def test_a_file_goes_on_as_if_nothing_had_happened(tmp_path):
    whole, first = small(CartPole(2)), small(CartPole(2))
    whole.learn(100)
    whole.learn(100, reset_num_timesteps=False)
    first.learn(100)
    first.save(tmp_path / "half")
    second = DistributionalPPO.load(tmp_path / "half", env=CartPole(2))
    assert second.num_timesteps == first.num_timesteps
    second.learn(100, reset_num_timesteps=False)
    assert same(weights(whole), weights(second))
    anew = DistributionalPPO.load(tmp_path / "half", env=CartPole(2), force_reset=True)
    anew.learn(100, reset_num_timesteps=False)
    assert not same(weights(whole), weights(anew))


def test_learning_anew_counts_from_zero_and_keeps_what_was_learned():
    model = small(CartPole(2))
    model.learn(64)
    before, seen = weights(model), model.progress.carry.obs_moments[""].weight
    iterations = model.progress.carry.iteration
    model.learn(64)
    assert 64 <= model.num_timesteps < 96
    assert model.progress.carry.iteration > iterations  # the streams go on: nothing is drawn twice
    assert model.progress.carry.obs_moments[""].weight.min() > seen.max()
    assert not same(before, weights(model))


# --- callbacks --------------------------------------------------------------------------------------------------------


class Moments:
    """Writes down what it is told."""

    def __init__(self, until=10**9):
        self.told, self.rows, self.until = [], [], until

    def init_callback(self, model):
        self.model = model
        self.told.append("init")

    def on_training_start(self, locals_, globals_):
        self.told.append("training start")
        self.scope = locals_

    def on_rollout_start(self):
        self.told.append("rollout start")

    def update_locals(self, locals_):
        self.rows.append(dict(locals_))

    def on_step(self):
        self.told.append("step")
        self.rows[-1]["num_timesteps"] = self.model.num_timesteps
        self.rows[-1]["weights"] = weights(self.model)
        return len(self.rows) < self.until

    def on_rollout_end(self):
        self.told.append("rollout end")

    def on_training_end(self):
        self.told.append("training end")


SOURCES = {
    "native": lambda: CartPole(2),
    "vec": lambda: EnvList([Random(4), Random(7)]),
    "id": lambda: "CartPole-v1",
}


@pytest.mark.parametrize("source", SOURCES)
def test_callbacks_are_told_of_every_moment_in_order(source):
    told = Moments()
    model = small(SOURCES[source]())
    model.learn(2 * 16 * model.n_envs - 5, callback=told)
    rollout = ["rollout start", *["step"] * 16, "rollout end"]
    assert told.told == ["init", "training start", *rollout, *rollout, "training end"]
    assert {"self", "total_timesteps", "tb_log_name"} <= set(told.scope)
    for row in told.rows:
        assert {"new_obs", "rewards", "dones", "infos", "actions", "n_steps", "env"} <= set(row)
        assert len(row["infos"]) == len(row["rewards"]) == len(row["dones"]) == len(row["new_obs"]) == model.n_envs
    first, second = told.rows[:16], told.rows[16:]
    assert all(same(row["weights"], first[0]["weights"]) for row in first)  # nothing is learned within a rollout
    assert not same(second[0]["weights"], first[0]["weights"])
    steps = [row["num_timesteps"] for row in told.rows]
    assert steps[-1] == model.num_timesteps
    assert steps == sorted(steps)
    assert [row["n_steps"] for row in first] == list(range(16))


def test_rows_are_those_of_the_environment():
    """Random observes numbers of its own, so every row can be told from any other."""
    told = Moments()
    model = small(EnvList([Random(4), Random(7)]))
    seeds = []
    begin = model.source.vec.seed
    model.source.vec.seed = lambda seed=None: (seeds.append(seed), begin(seed))[1]
    model.learn(32, callback=told)
    for i, last in enumerate((4, 7)):
        env = Random(last)
        env.reset(seed=seeds[-1] + i)
        returns = 0.0
        for row in told.rows:
            obs, reward, _, done, _ = env.step(row["actions"][i])
            returns += reward
            assert row["rewards"][i] == pytest.approx(reward)
            assert row["dones"][i] == done
            if done:
                assert np.array_equal(row["infos"][i]["terminal_observation"], obs)
                assert row["infos"][i]["TimeLimit.truncated"]
                assert row["infos"][i]["episode"]["r"] == pytest.approx(returns)
                assert row["infos"][i]["episode"]["l"] == last
                obs, _ = env.reset()
                returns = 0.0
            assert np.array_equal(row["new_obs"][i], obs)


def test_rows_of_a_native_environment_name_their_episodes():
    told = Moments()
    model = small(Ragged("choice"), config=settings("choice"))
    model.learn(100, callback=told)
    ended = [info["episode"] for row in told.rows for info, done in zip(row["infos"], row["dones"], strict=True) if done]
    lengths = {i: [] for i in range(5)}
    for row in told.rows:
        for i, (info, done) in enumerate(zip(row["infos"], row["dones"], strict=True)):
            if done:
                lengths[i].append(info["episode"]["l"])
                assert info["TimeLimit.truncated"] == (i % 2 == 0)
    assert len(ended) == len(model.ep_info_buffer) > 10
    assert all(set(found) == {2 + i} for i, found in lengths.items())
    counted = sum(row["num_timesteps"] - before["num_timesteps"] for before, row in itertools.pairwise(told.rows))
    assert counted + told.rows[0]["num_timesteps"] == model.num_timesteps < 5 * len(told.rows)  # a row after an end is no step


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("until", [1, 20])
def test_a_callback_can_end_training_within_a_rollout(source, until):
    told = Moments(until)
    model = small(SOURCES[source]())
    model.learn(10_000, callback=[lambda inner, outer: None, told])
    assert told.told.count("step") == until
    assert told.told[-1] == "training end"
    assert model.progress.carry.iteration == (until - 1) // 16
    model.learn(16, reset_num_timesteps=False)  # and it goes on, in new episodes
    assert model.progress.carry.iteration == (until - 1) // 16 + 1


def test_what_a_callback_raises_is_raised():
    def breaks(inner, outer):
        raise KeyError("mine")

    for source in SOURCES.values():
        with pytest.raises(KeyError, match="mine"):
            small(source()).learn(32, callback=breaks)


def test_what_is_no_callback_is_refused():
    with pytest.raises(ValueError, match="callback is a int; needs a function"):
        small().learn(32, callback=3)


def test_an_environment_that_fails_is_named():
    class Fails(Count):
        def step(self, action):
            raise RuntimeError("market closed")

    with pytest.raises(EnvironmentFault, match=r"EnvList of 1 raised RuntimeError in step 1 after the reset: market closed"):
        small(Fails()).learn(32)


# --- schedules --------------------------------------------------------------------------------------------------------


def test_schedules_are_functions_of_what_is_left_from_one_down(tmp_path):
    asked = []

    def rate(left):
        asked.append(left)
        return 1e-3 * left

    model = small(learning_rate=rate, clip_range=lambda left: 0.1 + left)
    asked.clear()
    seen = []
    model.learn(64, callback=lambda inner, outer: seen.append(model.progress.optimizer.param_groups[0]["lr"]))
    assert asked == pytest.approx([1.0, 0.75, 0.5, 0.25])
    assert seen[-1] == pytest.approx(0.5e-3)
    assert model.learning_rate is rate
    asked.clear()
    model.learn(64, reset_num_timesteps=False)  # of the whole, as there
    assert asked == pytest.approx([0.5, 0.375, 0.25, 0.125])
    model.save(tmp_path / "with functions")
    again = DistributionalPPO.load(tmp_path / "with functions", env="CartPole-v1", clip_range=0.3)
    with pytest.raises(ConfigError, match=r"learning_rate was a function when this was saved.*load\(path, learning_rate="):
        again.learn(16)
    again = DistributionalPPO.load(tmp_path / "with functions", env="CartPole-v1", clip_range=0.3, learning_rate=rate)
    again.learn(16)
    assert again.clip_range == 0.3


def test_a_schedule_moves_the_weights_as_its_numbers_do():
    constant, function, other = (
        small(CartPole(2), learning_rate=rate) for rate in (1e-3, lambda left: 1e-3, lambda left: 1e-3 * left)
    )
    for model in (constant, function, other):
        model.learn(100)
    assert same(weights(constant), weights(function))
    assert not same(weights(constant), weights(other))


# --- without stable-baselines3 ----------------------------------------------------------------------------------------


def test_all_of_it_works_where_stable_baselines3_is_not_installed(tmp_path):
    program = f"""
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("stable_baselines3", "sb3_contrib"):
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Block())
import numpy as np
from quantail import DistributionalPPO
model = DistributionalPPO("MlpLstmPolicy", "CartPole-v1", n_steps=64, batch_size=64, n_epochs=1, verbose=1,
                          tensorboard_log={str(tmp_path / "board")!r}, policy_kwargs=dict(lstm_hidden_size=4))
model.learn(64, callback=[lambda inner, outer: True], progress_bar=True)
env = model.get_env()
obs, state, start = env.reset(), None, np.ones(1, bool)
for _ in range(5):
    action, state = model.predict(obs, state=state, episode_start=start, deterministic=True)
    obs, rewards, start, infos = env.step(action)
model.save({str(tmp_path / "model")!r})
loaded = DistributionalPPO.load({str(tmp_path / "model")!r}, env="CartPole-v1")
loaded.learn(8, reset_num_timesteps=False)
model.logger.record("mine/figure", 1.5)
model.dump_logs()
print("steps", loaded.num_timesteps)
try:
    import stable_baselines3
except ImportError:
    print("blocked")
"""
    answer = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[-2:] == ["steps 128", "blocked"]
    for words in ("ep_rew_mean", "total_timesteps", "approx_kl", "figure"):
        assert words in answer.stdout
    assert list((tmp_path / "board" / "DistributionalPPO_1").glob("events*"))


def test_findings_are_said_aloud(caplog):
    class Broken(Count):
        def step(self, action):
            obs, reward, *rest = super().step(action)
            return obs, float("nan") if self.time == 2 else reward, *rest

    model = small(Broken(5))
    model.learn(32)
    assert "reward was not finite in environments [0]" in caplog.text
    assert all(p.isfinite().all() for p in model.policy.parameters())
