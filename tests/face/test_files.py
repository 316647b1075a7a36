"""Files hold what a resume needs, and nothing else; what does not fit is refused and leaves everything as it was."""

import io
import os
import pickle
import zipfile

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from envs.toys import Count, Random, Spaces
from quantail import checkpoint
from quantail.algorithm import DistributionalPPO
from quantail.envs.oracles.cartpole import CartPole
from quantail.errors import CheckpointError, ConfigError
from quantail.face import files
from quantail.run import resume, run
from quantail.run.folder import latest_of
from run.worlds import small

SMALL = {"n_steps": 8, "batch_size": 8, "n_epochs": 1, "policy_kwargs": {"lstm_hidden_size": 4, "net_arch": [5]}}
OBS = np.linspace(-1, 1, 4)


@pytest.fixture(scope="module")
def model():
    return DistributionalPPO("MlpLstmPolicy", "CartPole-v1", seed=2, **SMALL).learn(24)


def answers(one):
    return one.predict(OBS, episode_start=[True], deterministic=True), one.distribution(OBS, episode_start=[True]).mean


def agree(one, other):
    (action, state), mean = answers(one)
    (same_action, same_state), same_mean = answers(other)
    return action == same_action and mean == same_mean and all(map(np.array_equal, state, same_state))


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("agent", "agent.zip"),
        ("agent.zip", "agent.zip"),
        ("a.safetensors", "a.safetensors"),
        ("new/deep/a", "new/deep/a.zip"),
    ],
)
def test_a_suffix_is_added_only_where_there_is_none(model, tmp_path, given, written):
    model.save(tmp_path / given)
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == [written]
    for name in (given, written):
        assert agree(DistributionalPPO.load(str(tmp_path / name)), model)


def test_a_file_object_will_do(model):
    place = io.BytesIO()
    model.save(place)
    place.seek(0)
    assert agree(DistributionalPPO.load(place), model)


def test_load_is_of_the_class_and_leaves_the_model_alone(model, tmp_path):
    model.save(tmp_path / "a")
    other = DistributionalPPO("MlpLstmPolicy", "CartPole-v1", seed=3, **SMALL)
    before = answers(other)[1]
    loaded = other.load(tmp_path / "a")
    assert loaded is not other
    assert answers(other)[1] == before
    assert agree(loaded, model)


def test_everything_that_was_asked_for_comes_back(tmp_path):
    asked = {
        "n_steps": 8,
        "batch_size": None,
        "gamma": 0.9,
        "seed": 7,
        "target_kl": 0.1,
        "tensorboard_log": tmp_path / "board",
        "policy_kwargs": {
            "activation_fn": nn.ReLU,
            "optimizer_class": torch.optim.AdamW,
            "net_arch": {"pi": [4], "vf": [6, 7]},
            "lstm_kwargs": {"dropout": 0.25},
        },
    }
    first = DistributionalPPO("MlpLstmPolicy", "CartPole-v1", **asked)
    first.save(tmp_path / "a")
    again = DistributionalPPO.load(tmp_path / "a", env="CartPole-v1")
    assert again.config == first.config
    assert again.policy_kwargs == asked["policy_kwargs"]
    assert (again.seed, again.gamma, again.arguments.policy) == (7, 0.9, "MlpLstmPolicy")
    assert again.tensorboard_log == str(tmp_path / "board")
    DistributionalPPO.load(tmp_path / "a").save(tmp_path / "b")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_without_an_environment_it_predicts_saves_and_can_be_given_one(model, tmp_path):
    model.save(tmp_path / "a")
    alone = DistributionalPPO.load(tmp_path / "a")
    assert alone.get_env() is alone.get_vec_normalize_env() is None
    assert (alone.n_envs, alone.num_timesteps) == (1, 24)
    assert alone.observation_space == model.observation_space
    assert alone.action_space == model.action_space
    with pytest.raises(ConfigError, match=r"there is no environment to train in; call set_env\(env\) first"):
        alone.learn(8)
    alone.save(tmp_path / "b")
    assert agree(DistributionalPPO.load(tmp_path / "b"), model)
    alone.set_env("CartPole-v1")
    alone.learn(16, reset_num_timesteps=False)
    assert alone.num_timesteps == 40


def test_another_number_of_environments_outside_is_fine_for_load_and_not_for_set_env(tmp_path):
    one = DistributionalPPO("MlpLstmPolicy", Random(), **SMALL).learn(8)
    one.save(tmp_path / "a")
    three = [Random() for _ in range(3)]
    from quantail.face.vec import EnvList

    more = DistributionalPPO.load(tmp_path / "a", env=EnvList(three))
    assert more.n_envs == 3
    more.learn(24, reset_num_timesteps=False)
    with pytest.raises(AssertionError, match=r"number of environments to be set is different.*\(3 != 1\)"):
        one.set_env(EnvList(three))


def test_keywords_stand_above_the_file(model, tmp_path):
    model.save(tmp_path / "a")
    custom = {"learning_rate": 0.0011, "clip_range": lambda left: left}
    changed = DistributionalPPO.load(tmp_path / "a", env="CartPole-v1", custom_objects=custom, n_steps=4, verbose=0)
    assert (changed.learning_rate, changed.n_steps, changed.config.optim.learning_rate) == (0.0011, 4, 0.0011)
    assert changed.clip_range(0.3) == 0.3
    assert changed.gamma == model.gamma
    changed.learn(4, reset_num_timesteps=False)
    assert changed.num_timesteps == 28
    with pytest.raises(ConfigError, match=r"load takes no 'n_step'; did you mean 'n_steps'"):
        DistributionalPPO.load(tmp_path / "a", n_step=4)
    with pytest.raises(ValueError, match="The specified policy kwargs do not equal the stored policy kwargs"):
        DistributionalPPO.load(tmp_path / "a", policy_kwargs={"lstm_hidden_size": 5})
    DistributionalPPO.load(tmp_path / "a", policy_kwargs=SMALL["policy_kwargs"])


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (Spaces(spaces.Box(-1, 1, (4,)), spaces.Discrete(2)), "Observation spaces do not match: Box"),
        (Count(), "Observation spaces do not match"),
        ("Acrobot-v1", "Observation spaces do not match"),
    ],
)
def test_other_spaces_are_refused(model, tmp_path, env, words):
    model.save(tmp_path / "a")
    with pytest.raises(ValueError, match=words):
        DistributionalPPO.load(tmp_path / "a", env=env)
    with pytest.raises(ValueError, match=words):
        model.set_env(env)
    assert model.get_env().envs[0].spec.id == "CartPole-v1"


def test_other_actions_are_refused():
    low = spaces.Box(-1.0, 1.0, (2,), np.float32)
    one = DistributionalPPO("MlpLstmPolicy", Spaces(low, spaces.Discrete(2)), **SMALL)
    with pytest.raises(ValueError, match=r"Action spaces do not match: Discrete\(2\) != Discrete\(3\)"):
        one.set_env(Spaces(low, spaces.Discrete(3)))


def test_set_env_begins_anew_or_goes_on(model):
    one = DistributionalPPO("MlpLstmPolicy", CartPole(2), seed=2, **SMALL).learn(16)
    before = one.progress.carry
    one.set_env(CartPole(2), force_reset=False)
    one._enter(1, anew=False)
    assert one.progress.carry.obs is before.obs
    one.set_env(CartPole(2))
    one._enter(1, anew=False)
    assert not torch.equal(one.progress.carry.obs, before.obs)
    assert one.progress.carry.obs_moments is before.obs_moments


# --- bad files --------------------------------------------------------------------------------------------------------


class Malice:
    def __reduce__(self):
        return os.mkdir, (os.environ["MALICE"],)


def bad_files(folder, model):
    model.save(folder / "good")
    good = (folder / "good.zip").read_bytes()
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    with zipfile.ZipFile(folder / "sb3.zip", "w") as archive:
        archive.writestr("data", "{}")
        archive.writestr("policy.pth", pickle.dumps(Malice()))
    contents = {"cut": good[:-5], "flipped": bytes(flipped), "pickle": pickle.dumps(Malice()), "empty": b"", "text": b"hello"}
    for name, content in contents.items():
        (folder / name).with_suffix(".zip").write_bytes(content)
    return [*contents, "sb3", "missing"]


def test_a_bad_file_is_refused_and_never_run(model, tmp_path, monkeypatch):
    monkeypatch.setenv("MALICE", str(tmp_path / "ran"))
    names = bad_files(tmp_path, model)
    one = DistributionalPPO("MlpLstmPolicy", "CartPole-v1", seed=3, **SMALL)
    before = answers(one)[1]
    for name in names:
        with pytest.raises(CheckpointError, match=name):
            DistributionalPPO.load(tmp_path / name)
        with pytest.raises(CheckpointError, match=name):
            one.set_parameters(tmp_path / name)
    assert answers(one)[1] == before
    assert not (tmp_path / "ran").exists()


def test_a_save_that_cannot_be_leaves_the_old_file(model, tmp_path, monkeypatch):
    model.save(tmp_path / "a")
    old = (tmp_path / "a.zip").read_bytes()

    def full(*arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(CheckpointError, match="No space left on device"):
            DistributionalPPO("MlpLstmPolicy", "CartPole-v1", seed=3, **SMALL).save(tmp_path / "a")
    assert (tmp_path / "a.zip").read_bytes() == old
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="could not be made"):
        model.save(tmp_path / "file" / "deep")
    with pytest.raises(ConfigError, match="exclude and include cannot be honoured"):
        model.save(tmp_path / "b", exclude=["policy"])


def test_a_checkpoint_of_a_run_is_a_model_too(tmp_path):
    """It goes on as the run itself does, and predicts what its agent says."""
    config = small(total=150)
    run(config, tmp_path / "run")
    path = latest_of(tmp_path / "run")
    alone, model = DistributionalPPO.load(path), DistributionalPPO.load(path, env=CartPole(3))
    assert agree(alone, model)
    assert (alone.num_timesteps, alone.n_envs, alone.config) == (checkpoint.read(path).env_steps, 3, config)
    assert alone.observation_space == model.observation_space
    outcome = resume(tmp_path / "run", total_timesteps=300)
    model.learn(300 - model.num_timesteps, reset_num_timesteps=False)
    assert model.num_timesteps == outcome.env_steps
    there = outcome.agent.state_dict()
    assert all(torch.equal(value, there[name]) for name, value in model.policy.state_dict().items())
    alone.set_parameters(latest_of(tmp_path / "run"))
    assert agree(alone, model)


def test_of_a_run_outside_the_environment_has_to_be_given(tmp_path):
    outside = small(total=30, env__id="CartPole-v1", net__memory="none", env__num_envs=1)
    run(outside, tmp_path / "run")
    path = latest_of(tmp_path / "run")
    with pytest.raises(
        CheckpointError, match=r"is a checkpoint of a run in CartPole-v1, which alone.*load\(path, env=\.\.\.\)"
    ):
        DistributionalPPO.load(path)
    model = DistributionalPPO.load(path, env="CartPole-v1").learn(16, reset_num_timesteps=False)
    assert model.num_timesteps > 30
    with pytest.raises(CheckpointError, match=r"has the observation space Box\[4\].*; use the environment it was trained in"):
        DistributionalPPO.load(path, env="Pendulum-v1")


# --- parameters -------------------------------------------------------------------------------------------------------


def test_parameters_go_from_one_to_another_with_what_normalises(model, tmp_path):
    other = DistributionalPPO("MlpLstmPolicy", "CartPole-v1", seed=3, **SMALL)
    assert not agree(other, model)
    other.set_parameters(model.get_parameters())
    assert agree(other, model)
    model.save(tmp_path / "a")
    third = DistributionalPPO("MlpLstmPolicy", "CartPole-v1", seed=4, **SMALL)
    third.set_parameters(tmp_path / "a")
    assert agree(third, model)
    steps = third.progress.optimizer.state_dict()["state"][0]["step"]
    assert steps == model.progress.optimizer.state_dict()["state"][0]["step"] > 0


def test_parameters_that_do_not_fit_are_refused(model):
    one = DistributionalPPO("MlpLstmPolicy", "CartPole-v1", seed=3, **SMALL)
    given = one.get_parameters()
    with pytest.raises(ValueError, match="Key mine is an invalid object name"):
        one.set_parameters({**given, "mine": {}}, exact_match=False)
    for name in ("policy", "policy.optimizer"):
        fewer = {key: value for key, value in given.items() if key != name}
        with pytest.raises(ValueError, match="do not match agents' parameters"):
            one.set_parameters(fewer)
        one.set_parameters(fewer, exact_match=False)
    one.set_parameters({name: given[name] for name in ("policy", "policy.optimizer")})  # as dictionaries made by hand are
    weights = dict(list(given["policy"].items())[:-1])
    with pytest.raises(RuntimeError, match="Missing key"):
        one.set_parameters({**given, "policy": weights})
    one.set_parameters({**given, "policy": weights}, exact_match=False)
    with pytest.raises(ValueError, match="statistics hold"):
        one.set_parameters({**given, "statistics": {}})


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(-1.0, np.inf, (3,), np.float64),
        spaces.Box(np.float32([0.1, -np.inf]), np.float32([0.2, 7.0])),
        spaces.Box(0, 255, (4, 5, 3), np.uint8),
        spaces.Discrete(3, start=-2),
        spaces.MultiDiscrete([2, 3], start=[1, 0]),
        spaces.MultiBinary(4),
        spaces.Dict({"b": spaces.Discrete(2), "a": spaces.Box(0, 1, (), np.float32)}),
    ],
)
def test_spaces_come_back(space):
    assert files.space_from(files.space_to(space)) == space


def test_spaces_that_cannot_be_saved_are_named():
    with pytest.raises(ConfigError, match="cannot be saved"):
        files.space_to(spaces.Text(3))
