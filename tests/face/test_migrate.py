"""Models of stable-baselines3 and sb3-contrib come in with their weights: they act and judge as they did there."""

import io
import os
import pickle
import warnings
import zipfile

import gymnasium
import numpy as np
import pytest
import torch

pytest.importorskip("sb3_contrib")

from sb3_contrib import RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from quantail.algorithm import DistributionalPPO
from quantail.checkpoint import sb3
from quantail.config import Config, CriticConfig
from quantail.errors import CheckpointError, ConfigError

SHAPES = {
    "as it comes": ("MlpLstmPolicy", {"policy_kwargs": {"lstm_hidden_size": 6}}),
    "two layers": (
        "MlpLstmPolicy",
        {"policy_kwargs": {"lstm_hidden_size": 6, "n_lstm_layers": 2, "net_arch": {"pi": [5], "vf": [7, 3]}}},
    ),
    "shared": ("MlpLstmPolicy", {"policy_kwargs": {"lstm_hidden_size": 6, "shared_lstm": True, "enable_critic_lstm": False}}),
    "critic without": ("MlpLstmPolicy", {"policy_kwargs": {"lstm_hidden_size": 6, "enable_critic_lstm": False}}),
    "no layers": ("MlpLstmPolicy", {"policy_kwargs": {"lstm_hidden_size": 6, "enable_critic_lstm": False, "net_arch": []}}),
    "relu": ("MlpLstmPolicy", {"policy_kwargs": {"lstm_hidden_size": 6, "activation_fn": torch.nn.ReLU}}),
    "no memory": ("MlpPolicy", {"policy_kwargs": {"net_arch": [9]}}),
}
SHORT = {"n_steps": 16, "batch_size": 16, "n_epochs": 2, "seed": 3}


def peer(policy, env, **keywords):
    return (RecurrentPPO if "Lstm" in policy else PPO)(policy, env, device="cpu", **SHORT | keywords).learn(48)


def played(model, env, rows=60):
    """Actions of a deterministic game."""
    obs, state, start = env.reset(), None, np.ones(env.num_envs, dtype=bool)
    actions = []
    for _ in range(rows):
        action, state = model.predict(obs, state=state, episode_start=start, deterministic=True)
        actions.append(action)
        obs, _, start, _ = env.step(action)
    return np.stack(actions)


def values(model, rows):
    """What a peer's critic says about rows of one environment, one after the other from the start of an episode."""
    policy, obs = model.policy, torch.as_tensor(rows)
    if not hasattr(policy, "lstm_actor"):
        return policy.predict_values(obs).detach().numpy()[:, 0]
    state, found = tuple(torch.zeros(policy.lstm_hidden_state_shape) for _ in range(2)), []
    for t in range(len(obs)):
        start = torch.tensor([float(t == 0)])
        found.append(policy.predict_values(obs[t : t + 1], state, start).item())
        lstm = policy.lstm_actor if policy.lstm_critic is None else policy.lstm_critic
        _, state = policy._process_sequence(
            policy.extract_features(obs[t : t + 1], policy.vf_features_extractor), state, start, lstm
        )
    return np.array(found)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_acts_and_judges_as_it_did_there(shape, env, tmp_path):
    policy, keywords = SHAPES[shape]
    theirs = peer(policy, env, **keywords)
    theirs.save(tmp_path / "model")
    more = {"policy_kwargs": {"activation_fn": torch.nn.ReLU}} if shape == "relu" else {}
    exact = Config(critic=CriticConfig(kind="scalar", twin=False))
    ours = DistributionalPPO.from_sb3(tmp_path / "model.zip", env, config=exact, **more)
    vecs = [make_vec_env(env, 2, seed=5) for _ in range(2)]
    np.testing.assert_allclose(played(ours, vecs[0]), played(theirs, vecs[1]), rtol=1e-5, atol=1e-5)
    rows = np.stack([theirs.observation_space.sample() for _ in range(7)]).clip(-3, 3)
    state, found = None, []
    for t, row in enumerate(rows):
        start = np.array([t == 0])
        found.append(ours.distribution(row, state=state, episode_start=start).mean)
        _, state = ours.predict(row, state=state, episode_start=start)
    np.testing.assert_allclose(found, values(theirs, rows), rtol=1e-4, atol=1e-5)


def test_it_learns_on_and_the_twins_part(tmp_path):
    theirs = peer("MlpLstmPolicy", "CartPole-v1", policy_kwargs={"lstm_hidden_size": 6})
    theirs.save(tmp_path / "model")
    model = DistributionalPPO.from_sb3(tmp_path / "model.zip", make_vec_env("CartPole-v1", 2, seed=0), **SHORT)
    first = np.zeros(4, dtype=np.float32)
    (value,), before = values(theirs, first[None]), model.distribution(first)
    assert before.mean == pytest.approx(value, abs=0.03)  # a hundredth of a new head is left in
    assert before.quantile(0.95) - before.quantile(0.05) < 0.1
    model.learn(64)
    assert model.num_timesteps == 64
    heads = model.policy.values.heads
    assert not torch.allclose(heads[0].weight, heads[1].weight)
    assert model.distribution(first).mean == pytest.approx(value, abs=1)  # no value was read in another scale
    assert not model.config.input.normalize_observations


def test_normalised_observations_stay_those_of_the_wrapper(tmp_path):
    train = VecNormalize(make_vec_env("Pendulum-v1", 2, seed=0))
    theirs = peer("MlpPolicy", train)
    theirs.save(tmp_path / "model")
    train.save(tmp_path / "vec.pkl")
    envs = [VecNormalize.load(tmp_path / "vec.pkl", make_vec_env("Pendulum-v1", 2, seed=1)) for _ in range(2)]
    for env in envs:
        env.training = env.norm_reward = False
    ours = DistributionalPPO.from_sb3(tmp_path / "model.zip", envs[0])
    np.testing.assert_allclose(played(ours, envs[0]), played(theirs, envs[1]), rtol=1e-5, atol=1e-5)


def test_held_exploration_comes_along(tmp_path):
    theirs = peer("MlpLstmPolicy", "Pendulum-v1", use_sde=True, policy_kwargs={"lstm_hidden_size": 6, "net_arch": [5]})
    theirs.save(tmp_path / "model")
    ours = DistributionalPPO.from_sb3(tmp_path / "model.zip", "Pendulum-v1")
    assert ours.use_sde
    assert torch.equal(ours.policy.policy.log_std, theirs.policy.log_std)


# --- what cannot come in ----------------------------------------------------------------------------------------------


class Runs:
    """What a pickle would run."""

    def __reduce__(self):
        return os.system, ("touch a_pickle_ran",)


def zipped(path, content, **others):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {"policy.pth": content, **others}.items():
            archive.writestr(name, data)


def saved(value):
    held = io.BytesIO()
    torch.save(value, held)
    return held.getvalue()


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda path: zipped(path, pickle.dumps(Runs())), "without running code"),
        (lambda path: zipped(path, saved({"weight": Runs()})), "without running code"),
        (lambda path: zipped(path, saved([torch.ones(2)])), "holds no tensors by name"),
        (lambda path: zipped(path, saved({"weight": 3})), "holds no tensors by name"),
        (lambda path: zipped(path, saved({"weight": torch.ones(2)}), bomb=bytes(10**7)), "unpacks to far more than its"),
        (lambda path: path.write_bytes(pickle.dumps(Runs())), "without running code"),
        (lambda path: path.write_bytes(b""), "without running code"),
        (lambda path: path.mkdir(), "could not be read"),
        (lambda path: None, "there is no file"),
    ],
)
def test_a_bad_file_is_refused_and_never_run(write, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "model.zip")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(CheckpointError, match=words):
            DistributionalPPO.from_sb3(tmp_path / "model.zip", "CartPole-v1")
    assert not (tmp_path / "a_pickle_ran").exists()


def test_settings_are_never_unpickled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    theirs = peer("MlpPolicy", "CartPole-v1")
    zipped(tmp_path / "model.zip", saved(theirs.policy.state_dict()), data=pickle.dumps(Runs()))
    DistributionalPPO.from_sb3("model.zip", "CartPole-v1")
    (tmp_path / "policy.pth").write_bytes(saved(theirs.policy.state_dict()))
    DistributionalPPO.from_sb3("policy.pth", "CartPole-v1")
    assert not (tmp_path / "a_pickle_ran").exists()


def test_what_does_not_fit_is_named(tmp_path):
    peer("MlpLstmPolicy", "CartPole-v1", policy_kwargs={"lstm_hidden_size": 6}).save(tmp_path / "model")
    weights = sb3.read_weights(tmp_path / "model.zip")
    other = DistributionalPPO("MlpLstmPolicy", "CartPole-v1", policy_kwargs={"lstm_hidden_size": 5})
    before = {name: value.clone() for name, value in other.policy.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"w_x would be \[24, 4\] by the weights and is \[20, 4\] in this agent; make it"):
        sb3.import_weights(weights, other.policy)
    assert all(torch.equal(value, before[name]) for name, value in other.policy.state_dict().items())
    with pytest.raises(CheckpointError, match=r"would be \[24, 4\] by the weights and is \[24, 3\] in this agent"):
        DistributionalPPO.from_sb3(tmp_path / "model.zip", "Pendulum-v1")
    with pytest.raises(CheckpointError, match=r"the weights hold no action_net\.weight"):
        sb3.import_weights({"log_std": torch.ones(1)}, other.policy)
    with pytest.raises(ConfigError, match="MlpPolicy has no memory"):
        DistributionalPPO.from_sb3(tmp_path / "model.zip", "CartPole-v1", policy="MlpPolicy")


def test_a_policy_that_sees_images_cannot_come_in(tmp_path):
    class Screen(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Box(0, 255, (36, 36, 1), np.uint8), gymnasium.spaces.Discrete(2)

    PPO("CnnPolicy", Screen(), device="cpu").save(tmp_path / "model")
    with pytest.raises(CheckpointError, match="images are seen by other convolutions here"):
        sb3.import_weights(sb3.read_weights(tmp_path / "model.zip"), DistributionalPPO("CnnPolicy", Screen()).policy)


def test_a_categorical_critic_keeps_its_own_head(tmp_path):
    peer("MlpPolicy", "CartPole-v1").save(tmp_path / "model")
    config = Config(seed=4, critic=CriticConfig(kind="categorical", atoms=5))
    model = DistributionalPPO.from_sb3(tmp_path / "model.zip", "CartPole-v1", config=config)
    left = sb3.import_weights(sb3.read_weights(tmp_path / "model.zip"), model.policy)
    assert left == ("value_net.weight", "value_net.bias")
    assert model.progress.carry.iteration == 0  # its scale is found out as ever
    model.learn(128)
