"""A TensorEnv as a Gymnasium VectorEnv and Env: Gymnasium's own checker, seeds, ends, infos; and there and back again."""

import warnings
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import Tensor

from envs.play import EVERY
from envs.toys import Count
from quantail.envs.base import EpisodicEnv, Move, TensorEnv
from quantail.envs.foreign import seed_of
from quantail.envs.gymnasium import ToEnv, ToVectorEnv, gymnasium_space, make_env
from quantail.envs.oracles import LQR, CartPole, Corridor, Kelly, MemoryChain, StaticNested
from quantail.errors import ConfigError, InputError
from quantail.types import Box, Discrete, Group, MultiDiscrete, Step


class Steps(NamedTuple):
    noise: Tensor


class Counter(EpisodicEnv):
    """Counts steps; even environments terminate at 2, odd ones are cut off at 3; reports its doubled count."""

    def __init__(self, num_envs, dtype=torch.float32):
        super().__init__(num_envs, (Box((1,), 0.0, 9.0), Discrete(3)), 1, 3, dtype)

    def start(self, noise):
        return Steps(noise[:, 0])

    def observe(self, core, time):
        return time.to(self.dtype)[:, None]

    def move(self, core, time, action, noise):
        even = torch.arange(self.num_envs) % 2 == 0
        return Move(core, (10 * (time + 1) + action).to(self.dtype), even & (time >= 1), 2.0 * time.to(self.dtype))

    def step(self, state, action, noise):
        state, step = super().step(state, action, noise)
        return state, step._replace(info={"twice": 2 * step.obs[:, 0], "absent": torch.full_like(step.reward, torch.nan)})


class Mapped(TensorEnv):
    """Observes a mapping with an image; takes two choices."""

    def __init__(self):
        self.num_envs, self.noise_dim, self.device = 1, 2, torch.device("cpu")
        self.observation_space = Group((("image", Box((2, 3, 3), 0, 255, "uint8")), ("size", Box((2,), -99.0, 99.0))))
        self.action_space = MultiDiscrete((3, 4))

    def _obs(self, noise):
        return {
            "image": (noise[:, :1].abs() * 50).clamp(0, 255).to(torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 2, 3, 3),
            "size": noise,
        }

    def reset(self, noise):
        return Steps(noise), self._obs(noise)

    def step(self, state, action, noise):
        no = torch.zeros(1, dtype=torch.bool)
        return Steps(noise), Step(self._obs(noise), action.sum(-1).to(noise.dtype), no, no)


# --- Gymnasium's checker ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: Counter(1),
        lambda: Counter(1, torch.float64),
        lambda: MemoryChain(1, length=2),
        lambda: Corridor(1, dtype=torch.float64),
        lambda: Kelly(1, max_fraction=0.99),
        lambda: StaticNested(1, observe_return=False),
        Mapped,
    ],
)
def test_check_env_has_nothing_to_say(make):
    """Warnings are errors here; Kelly's stakes are [0, 0.99] and not the [-1, 1] that the checker recommends."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*we recommend using a symmetric and normalized space.*")
        check_env(ToEnv(make()), skip_render_check=True)


@pytest.mark.parametrize("make", EVERY.values(), ids=EVERY.keys())
def test_check_env_on_every_oracle(make):
    """Only what the spaces themselves are is remarked upon: numbers without bounds, actions beyond [-1, 1]."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=".*(-infinity|infinity|we recommend using a symmetric and normalized space).*"
        )
        check_env(ToEnv(lambda: make(1)), skip_render_check=True)


# --- one environment --------------------------------------------------------------------------------------------------


def test_env_ends_and_begins_again():
    env = ToEnv(Counter(1), seed=0)
    obs, info = env.reset()
    assert obs.tolist() == [0]
    assert info == {}
    assert env.step(1) == (np.array([1], np.float32), 11.0, False, False, {"twice": 2.0, "pnl": 0.0})
    obs, reward, terminated, truncated, info = env.step(np.int64(2))
    assert (obs.tolist(), reward, terminated, truncated) == ([2.0], 22.0, True, False)
    assert info == {"twice": 4.0, "pnl": 2.0}  # what is NaN was not reported
    with pytest.raises(InputError, match="call reset first"):
        env.step(0)
    assert env.reset()[0].tolist() == [0]


def test_env_is_cut_off():
    env = ToEnv(MemoryChain(1, length=9))
    env.env.horizon = 2
    env.reset()
    assert env.step(0)[2:4] == (False, False)
    assert env.step(0)[2:4] == (False, True)


def test_env_is_reproducible_by_seed():
    def episode(seed, by_reset):
        env = ToEnv(lambda: LQR(1, start_sd=1.0, sd=0.5), seed=None if by_reset else seed)
        first, _ = env.reset(seed=seed if by_reset else None)
        return [first.item(), *(env.step(np.zeros(1, np.float32))[0].item() for _ in range(4))]

    for by_reset in (True, False):
        assert episode(3, by_reset) == episode(3, by_reset)
        assert episode(3, by_reset) != episode(4, by_reset)
        assert len(set(episode(3, by_reset))) == 5


def test_seed_once_then_new_episodes():
    env = ToEnv(LQR(1, start_sd=1.0))
    first, _ = env.reset(seed=3)
    second, _ = env.reset()
    assert first != second


# --- several environments ---------------------------------------------------------------------------------------------


def test_vector_env_rows():
    env = ToVectorEnv(Counter(2), seed=0)
    assert env.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert env.action_space == spaces.MultiDiscrete([3, 3])
    obs, info = env.reset()
    assert (obs.tolist(), info) == ([[0], [0]], {})
    rows = [env.step(np.array([1, 2])) for _ in range(4)]
    assert [row[0].squeeze(-1).tolist() for row in rows] == [[1, 1], [2, 2], [0, 3], [1, 0]]
    assert [row[1].tolist() for row in rows] == [[11, 12], [21, 22], [0, 32], [11, 0]]
    assert [row[2].tolist() for row in rows] == [[False, False], [True, False], [False, False], [False, False]]
    assert [row[3].tolist() for row in rows] == [[False, False], [False, False], [False, True], [False, False]]
    assert rows[1][4]["twice"].tolist() == [4, 4]
    assert rows[1][4]["_twice"].tolist() == [True, True]
    assert rows[1][4]["_absent"].tolist() == [False, False]
    assert rows[1][4]["pnl"].tolist() == [2, 2]


def test_vector_env_is_reproducible_by_seed():
    def story(seed):
        env = ToVectorEnv(LQR(3, start_sd=1.0, sd=0.5))
        first, _ = env.reset(seed=seed)
        return np.stack([first, *(env.step(np.zeros((3, 1), np.float32))[0] for _ in range(3))])

    assert np.array_equal(story(1), story(1))
    assert not np.array_equal(story(1), story(2))
    assert len(np.unique(story(1))) == 12


def test_observations_do_not_share_memory():
    env = ToVectorEnv(Counter(2))
    first, _ = env.reset()
    second = env.step(np.array([0, 0]))[0]
    second += 5
    assert first.tolist() == [[0], [0]]
    assert env.step(np.array([0, 0]))[0].tolist() == [[2], [2]]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_there_and_back_again(mode):
    """A foreign environment out through ToVectorEnv tells the same story, with its kind of rows in the metadata."""
    vector = SyncVectorEnv([lambda: Count(3), lambda: Count(2, terminal=True, base=100.0)], autoreset_mode=mode)
    direct = make_env(vector)
    again = make_env(ToVectorEnv(direct))
    assert again.same_step == direct.same_step
    noise, action = torch.zeros(2, 1), torch.tensor([1, 3])
    stories = []
    for env in (direct, again):
        state, obs = env.reset(noise)
        story = [obs]
        for _ in range(7):
            state, step = env.step(state, action, noise)
            story += [step.obs, step.reward, step.terminated, step.truncated, step.info["half"].nan_to_num(-1)]
            story += [] if step.final_obs is None else [step.final_obs]
        stories.append(story)
    assert len(stories[0]) == len(stories[1])
    assert all(torch.equal(a, b) for a, b in zip(*stories, strict=True))


def test_native_environment_there_and_back_again():
    """CartPole through ToVectorEnv and make_env gives the rows of CartPole given the same noise."""
    native = CartPole(3, horizon=15)
    generator = np.random.default_rng(seed_of(torch.zeros(3, 1)))
    wrapped = make_env(ToVectorEnv(CartPole(3, horizon=15)))
    assert wrapped.observation_space.shape == native.observation_space.shape
    draw = lambda: torch.from_numpy(generator.standard_normal((3, 4))).float()  # noqa: E731
    state, obs = native.reset(draw())
    outside, seen = wrapped.reset(torch.zeros(3, 1))
    assert torch.equal(obs, seen)
    for t in range(40):
        action = torch.tensor([0, 1, t % 2])
        state, step = native.step(state, action, draw())
        outside, other = wrapped.step(outside, action, torch.zeros(3, 1))
        assert all(
            torch.equal(getattr(step, name), getattr(other, name)) for name in ("obs", "reward", "terminated", "truncated")
        )


class Choosy(TensorEnv):
    """Says everything that a step can say: pnl, weight, mask and figures; native, of either kind, its state the noise."""

    num_envs, noise_dim, device = 3, 2, torch.device("cpu")
    observation_space, action_space = Box((2,)), MultiDiscrete((2, 3))

    def __init__(self, same_step):
        self.same_step = same_step

    def reset(self, noise):
        return Steps(noise), noise

    def first_mask(self, state):
        return torch.cat([state.noise, state.noise, state.noise[:, :1]], 1) > 0

    def step(self, state, action, noise):
        done = noise[:, 0] > 0.3
        step = Step(
            noise,
            noise.sum(1) + action.sum(1),
            done & (noise[:, 1] > 0),
            done & (noise[:, 1] <= 0),
            pnl=noise[:, 1],
            final_obs=torch.where(done[:, None], 2 * noise, 0.0) if self.same_step else None,
            policy_weight=(noise[:, 0] > 0).float(),
            action_mask=self.first_mask(Steps(noise)),
            info={"spread": noise[:, 0] - noise[:, 1]},
        )
        return Steps(noise), step


@pytest.mark.parametrize("same_step", [False, True])
def test_everything_a_step_says_comes_back(same_step):
    native = Choosy(same_step)
    wrapped = make_env(ToVectorEnv(Choosy(same_step)), pnl="pnl")
    assert wrapped.same_step == same_step
    generator = np.random.default_rng(seed_of(torch.ones(3, 1)))
    draw = lambda: torch.from_numpy(generator.standard_normal((3, 2))).float()  # noqa: E731
    state, obs = native.reset(draw())
    outside, seen = wrapped.reset(torch.ones(3, 1))
    assert torch.equal(obs, seen)
    assert torch.equal(native.first_mask(state), wrapped.first_mask(outside))
    restart, ends = torch.zeros(3, dtype=torch.bool), 0
    for t in range(20):
        action = torch.tensor([[t % 2, 0], [1, 2], [0, t % 3]])
        state, step = native.step(state, action, draw())
        outside, other = wrapped.step(outside, action, torch.ones(3, 1))
        assert torch.equal(other.pnl, step.pnl.masked_fill(restart, 0.0))  # who only starts anew earns nothing
        restart = (step.terminated | step.truncated) & (not same_step)
        ends += int((step.terminated | step.truncated).sum())
        for name in ("obs", "reward", "terminated", "truncated", "policy_weight", "action_mask"):
            assert torch.equal(getattr(step, name), getattr(other, name)), name
        if same_step:
            assert torch.equal(other.final_obs, step.final_obs)
        assert list(other.info) == ["spread"]
        assert torch.equal(other.info["spread"], step.info["spread"])
    assert ends > 5


def test_env_says_what_is_allowed():
    class Single(Choosy):
        num_envs = 1

    env = ToEnv(Single(False))
    obs, info = env.reset(seed=1)
    assert info["action_mask"].tolist() == (np.array([*obs, *obs, obs[0]]) > 0).tolist()
    obs, *_, info = env.step(np.array([0, 0]))
    assert info["action_mask"].tolist() == (np.array([*obs, *obs, obs[0]]) > 0).tolist()


@pytest.mark.parametrize("outward", [ToEnv, ToVectorEnv])
def test_closing_closes_what_lies_behind(outward):
    inner = Count()
    outward(make_env(inner)).close()
    assert inner.closed
    outward(LQR(1)).close()


# --- spaces and refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (Box((2,), -1.0, 1.0), spaces.Box(-1.0, 1.0, (2,))),
        (Box((2,), (-1.0, 0.0), (1.0, 2.0)), spaces.Box(np.array([-1, 0], np.float32), np.array([1, 2], np.float32))),
        (Box((3, 4, 3), 0, 255, "uint8"), spaces.Box(0, 255, (3, 4, 3), np.uint8)),
        (Box((3, 4, 3), dtype="uint8"), spaces.Box(0, 255, (3, 4, 3), np.uint8)),
        (Discrete(3), spaces.Discrete(3)),
        (MultiDiscrete((3, 4)), spaces.MultiDiscrete([3, 4])),
        (Group((("a", Discrete(2)),)), spaces.Dict({"a": spaces.Discrete(2)})),
    ],
)
def test_spaces_go_out(ours, theirs):
    assert gymnasium_space(ours) == theirs


def test_float64_spaces_for_float64_environments():
    assert ToEnv(LQR(1, dtype=torch.float64)).observation_space.dtype == np.float64
    assert ToVectorEnv(LQR(2)).observation_space.dtype == np.float32


def test_several_environments_are_no_env():
    with pytest.raises(ConfigError, match="num_envs=2; ToEnv needs a TensorEnv with num_envs 1"):
        ToEnv(LQR(2))


def test_same_step_environment_is_no_env():
    with pytest.raises(ConfigError, match="same_step is False"):
        ToEnv(make_env(SyncVectorEnv([Count], autoreset_mode="SameStep")))


def test_step_before_reset_is_refused():
    with pytest.raises(InputError, match="call reset first"):
        ToEnv(LQR(1)).step(np.zeros(1))
    with pytest.raises(InputError, match="call reset first"):
        ToVectorEnv(LQR(1)).step(np.zeros((1, 1)))


def test_action_of_the_wrong_kind_is_refused():
    env = ToVectorEnv(MemoryChain(2, length=2))
    env.reset()
    with pytest.raises(InputError, match=r"action is float64; needs whole numbers for Discrete\(n=2\)"):
        env.step(np.array([0.5, 1.0]))
    with pytest.raises(InputError, match=r"action is torch.int64 \[3\]; needs torch.int64 \[2\]"):
        env.step(np.array([0, 1, 1]))


def test_reset_mask_is_refused():
    with pytest.raises(InputError, match="reset_mask"):
        ToVectorEnv(LQR(2)).reset(options={"reset_mask": np.array([True, False])})


def test_they_are_gymnasiums():
    assert isinstance(ToEnv(LQR(1)), gymnasium.Env)
    assert isinstance(ToVectorEnv(LQR(1)), gymnasium.vector.VectorEnv)
