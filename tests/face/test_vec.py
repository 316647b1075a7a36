"""Environments in the shape of a VecEnv: each against Gymnasium's own, stepped by hand with the same seeds and actions."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from envs.toys import Count, Random, Spaces
from quantail.algorithm import DistributionalPPO
from quantail.envs.crossing import noise_from
from quantail.envs.oracles.cartpole import CartPole
from quantail.errors import InputError
from quantail.face.facades import TensorVec, VectorVec
from quantail.face.vec import EnvList
from rivers import Ragged

LASTS, ROWS = (3, 5), 12
SEED = 11


class Named(Random):
    """Random, with a figure of its own in the infos, and one only at the end."""

    def __init__(self, last, terminal=False):
        super().__init__(last, terminal)
        self.power = 2
        self.render_mode = "rgb_array"

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        info["mine"] = float(obs[0])
        if terminated or truncated:
            info["is_success"] = self.last == 3
        return obs, reward, terminated, truncated, info

    def render(self):
        return np.full((2, 3, 3), self.last, dtype=np.uint8)

    def scaled(self, value):
        return self.power * value


def makers(terminal):
    return [lambda last=last: Named(last, terminal) for last in LASTS]


def vector(mode, terminal):
    return VectorVec(SyncVectorEnv(makers(terminal), autoreset_mode=mode))


KINDS = {
    "list": lambda terminal: EnvList([maker() for maker in makers(terminal)]),
    "same step": lambda terminal: vector(AutoresetMode.SAME_STEP, terminal),
    "next step": lambda terminal: vector(AutoresetMode.NEXT_STEP, terminal),
    "disabled": lambda terminal: vector(AutoresetMode.DISABLED, terminal),
}


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_tells_the_story_of_plain_environments(kind, terminal):
    vec = KINDS[kind](terminal)
    vec.seed(SEED)
    envs = [maker() for maker in makers(terminal)]
    obs = vec.reset()
    for i, env in enumerate(envs):
        assert np.array_equal(obs[i], env.reset(seed=SEED + i)[0])
    returns, lengths = np.zeros(2), np.zeros(2, dtype=int)
    for t in range(ROWS):
        actions = np.array([5 + t % 4, 5 + (t + 1) % 4])
        obs, rewards, dones, infos = vec.step(actions)
        for i, env in enumerate(envs):
            expected, reward, terminated, truncated, info = env.step(int(actions[i]))
            returns[i] += reward
            lengths[i] += 1
            assert rewards[i] == pytest.approx(reward)
            assert dones[i] == (terminated or truncated)
            assert infos[i]["TimeLimit.truncated"] == (truncated and not terminated)
            assert infos[i]["mine"] == info["mine"]
            assert ("is_success" in infos[i]) == ("is_success" in info)
            if dones[i]:
                assert infos[i]["is_success"] == (LASTS[i] == 3)
                assert np.array_equal(infos[i]["terminal_observation"], expected)
                assert infos[i]["episode"]["r"] == pytest.approx(returns[i])
                assert infos[i]["episode"]["l"] == lengths[i] == LASTS[i]
                returns[i] = lengths[i] = 0
                expected, _ = env.reset()
            else:
                assert "terminal_observation" not in infos[i]
                assert "episode" not in infos[i]
            assert np.array_equal(obs[i], expected)


def test_observations_are_memory_of_their_own():
    vec = KINDS["list"](True)
    first = vec.reset()
    kept = first.copy()
    vec.step(np.array([5, 5]))
    assert np.array_equal(first, kept)


def test_the_inside_can_be_asked_called_and_set():
    vec = KINDS["list"](True)
    vec.reset()
    assert vec.get_attr("last") == [3, 5]
    assert vec.get_attr("last", 1) == [5]
    assert vec.env_method("scaled", 4, indices=[0]) == [8]
    vec.set_attr("power", 3, indices=1)
    assert vec.env_method("scaled", 4) == [8, 12]
    assert vec.has_attr("power")
    assert not vec.has_attr("no such")
    assert vec.env_is_wrapped(gymnasium.wrappers.TimeLimit) == [False, False]
    wrapped = EnvList([gymnasium.wrappers.TimeLimit(Count(), 9)])
    assert wrapped.env_is_wrapped(gymnasium.wrappers.TimeLimit) == [True]
    assert wrapped.get_attr("last") == [3]
    assert vec.unwrapped is vec
    envs = list(vec.envs)
    vec.close()
    assert all(env.closed for env in envs)


def test_pictures_stand_side_by_side():
    vec = KINDS["list"](True)
    vec.reset()
    picture = vec.render("rgb_array")
    assert picture.shape == (2, 6, 3)
    assert (picture[:, :3] == 3).all()
    assert (picture[:, 3:] == 5).all()
    assert EnvList([Count()]).render() is None


def test_options_and_seeds_are_of_the_next_reset_only():
    class Told(Count):
        def reset(self, *, seed=None, options=None):
            self.heard = [*getattr(self, "heard", []), (seed, options)]
            return super().reset(seed=seed)

    env = Told(2)
    vec = EnvList([env])
    vec.seed(4)
    vec.set_options({"level": 2})
    vec.reset()
    vec.reset()
    vec.step(np.array([5]))
    vec.step(np.array([5]))
    assert env.heard == [(4, {"level": 2}), (None, None), (None, None)]


def test_parts_are_stacked_part_by_part_and_tuples_are_refused():
    space = spaces.Dict({"a": spaces.Box(0, 1, (2,), np.float32), "b": spaces.Discrete(3)})
    obs = EnvList([Spaces(space, spaces.Discrete(2)), Spaces(space, spaces.Discrete(2))]).reset()
    assert {name: part.shape for name, part in obs.items()} == {"a": (2, 2), "b": (2,)}
    with pytest.raises(InputError, match="an observation is a tuple"):
        EnvList([Spaces(spaces.Tuple([space]), spaces.Discrete(2))]).reset()


@pytest.mark.parametrize("same_step", [False, True])
def test_a_native_environment_starts_anew_within_a_step_and_others_are_not_disturbed(same_step):
    """Against its own rows, where a row of reset is left out for those that ended."""
    vec, env = TensorVec(Ragged("choice", same_step)), Ragged("choice", same_step)
    vec.seed(SEED)
    first = vec.reset()
    _, obs = env.reset(noise_from(env, np.random.default_rng(SEED)))
    assert np.array_equal(first, obs.numpy())
    lengths = [[] for _ in range(env.num_envs)]
    ages = np.zeros(env.num_envs, dtype=int)
    for t in range(40):
        obs, _, dones, infos = vec.step(np.full(env.num_envs, t % 3))
        ages += 1
        for i in np.flatnonzero(dones):
            lengths[i].append(ages[i])
            ages[i] = 0
            assert infos[i]["TimeLimit.truncated"] == (i % 2 == 0)
            assert infos[i]["episode"]["l"] == lengths[i][-1]
            assert not np.array_equal(infos[i]["terminal_observation"], obs[i])
        assert np.array_equal(vec.state.time.numpy() == 0, dones)
        assert np.array_equal(vec.state.x.numpy(), obs)
    assert [set(found) for found in lengths] == [{2 + i} for i in range(env.num_envs)]


def test_stepping_what_get_env_gives_disturbs_no_training_of_a_native_environment():
    quiet, stepped = (DistributionalPPO("MlpPolicy", CartPole(2), n_steps=8, batch_size=8, seed=1) for _ in range(2))
    for model in (quiet, stepped):
        model.learn(16)
        if model is stepped:
            env = model.get_env()
            env.reset()
            for _ in range(9):
                env.step(np.zeros(2, dtype=int))
        model.learn(16, reset_num_timesteps=False)
    for one, other in zip(quiet.policy.parameters(), stepped.policy.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_seed_tells_the_same_story_again():
    def story(seed):
        vec = TensorVec(CartPole(2))
        vec.seed(seed)
        return np.concatenate([vec.reset(), *(vec.step(np.ones(2, dtype=int))[0] for _ in range(30))])

    assert np.array_equal(story(3), story(3))
    assert not np.array_equal(story(3), story(4))


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_in_every_kind(kind):
    inner = KINDS[kind](False)
    env = inner if kind == "list" else inner.env
    told = []

    def callback(inner, outer):
        told.extend(info["episode"]["l"] for info in inner["infos"] if "episode" in info)

    nets = {"lstm_hidden_size": 4}
    model = DistributionalPPO("MlpLstmPolicy", env, n_steps=13, batch_size=13, n_epochs=1, policy_kwargs=nets)
    model.learn(60, callback=callback)
    assert {3, 5} == set(told)
    assert len(model.ep_info_buffer) == len(told)
    assert type(model.get_env()) is type(inner)
    steps = model.num_timesteps
    rows = 13 * model.progress.carry.iteration * 2
    assert (steps < rows) == (kind == "next step")  # there, the row after an end is none
    assert model.n_envs == 2
