"""Environments by name: ours, Gymnasium's, and one sentence for what is neither."""

import gymnasium
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from quantail.config import EnvConfig
from quantail.envs import oracles
from quantail.errors import ConfigError
from quantail.loop import train
from quantail.registry import NATIVE, make
from rivers import configured


@pytest.mark.parametrize("name", NATIVE)
def test_every_native_environment_is_there_by_its_name(name):
    env = make(EnvConfig(id=name, num_envs=3))
    assert type(env).__name__.removesuffix("Env") == name.removeprefix("quantail/")
    assert env.num_envs == 3


def test_all_oracles_have_a_name():
    assert {name.removeprefix("quantail/") for name in NATIVE} == {*oracles.__all__, "Market"} - {"Oracle"}


def test_options_reach_the_environment():
    env = make(EnvConfig(id="quantail/CartPole", num_envs=2, options={"velocities": False, "horizon": 9}))
    assert (env.velocities, env.horizon) == (False, 9)
    other = make(EnvConfig(id="CartPole-v1", num_envs=2, options={"sutton_barto_reward": True}))
    assert other.env.envs[0].unwrapped._sutton_barto_reward


@pytest.mark.parametrize(("subprocesses", "kind"), [(False, SyncVectorEnv), (True, AsyncVectorEnv)])
def test_ids_of_gymnasium(subprocesses, kind):
    env = make(EnvConfig(id="CartPole-v1", num_envs=2, subprocesses=subprocesses))
    try:
        assert isinstance(env.env, kind)
        assert env.num_envs == 2
    finally:
        env.close()


def test_another_number_of_the_same():
    assert make(EnvConfig(id="quantail/CartPole", num_envs=2), 5).num_envs == 5


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (EnvConfig(), "no environment is named; set env.id"),
        (EnvConfig(id="quantail/CartPol"), "is none of ours; did you mean quantail/CartPole"),
        (EnvConfig(id="quantail/zzz"), "is none of ours; there are quantail/"),
        (EnvConfig(id="quantail/Oracle"), "is none of ours"),
        (EnvConfig(id="CartPole-v99"), "Gymnasium cannot make 'CartPole-v99'"),
        (
            EnvConfig(id="quantail/CartPole", options={"horizn": 3}),
            "env.options.horizn is no option of .*; did you mean horizon",
        ),
        (EnvConfig(id="quantail/CartPole", options={"z": 3}), "quantail/CartPole takes velocities, horizon"),
        (EnvConfig(id="quantail/CartPole", options={"dtype": "x"}), "env.options.dtype is no option"),
        (EnvConfig(id="quantail/CartPole", subprocesses=True), "env.subprocesses=True is for environments of Gymnasium"),
        (EnvConfig(id="quantail/CartPole", pnl="gain"), "env.pnl=gain is for environments of Gymnasium"),
        (EnvConfig(id="CartPole-v1", options={"wind": 3}), r"CartPole-v1 refused the options \{'wind': 3\}"),
    ],
)
def test_what_cannot_be_made_is_one_sentence(config, words):
    with pytest.raises(ConfigError, match=words):
        make(config)


class Told(gymnasium.Env):
    """Tells a gain that is not the reward."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return self.observation_space.low.copy(), {}

    def step(self, action):
        return self.observation_space.low.copy(), 1.0, False, False, {"gain": 5.0}


def test_the_gain_is_the_figure_that_is_named():
    gymnasium.register("Told-v0", entry_point=lambda: Told())
    try:
        seen = {}
        for pnl in (None, "gain"):
            env = make(EnvConfig(id="Told-v0", num_envs=1, pnl=pnl))
            state, _ = env.reset(torch.zeros(1, 1))
            _, step = env.step(state, torch.zeros(1, dtype=torch.int64), torch.zeros(1, 1))
            seen[pnl] = step.pnl
        assert seen[None] is None
        assert seen["gain"].tolist() == [5.0]
    finally:
        gymnasium.registry.pop("Told-v0")


def test_train_makes_what_its_config_names():
    config = configured("choice", {"env.id": "quantail/CartPole", "env.num_envs": 3})
    report = next(train(config))
    assert report.carry.obs.shape == (3, 4)
