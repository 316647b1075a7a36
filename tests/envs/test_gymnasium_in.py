"""Gymnasium's and SB3's environments as a TensorEnv: every kind of source, row by row."""

import os
from multiprocessing.process import BaseProcess

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from envs.toys import Count, FakeVecEnv, Random, Spaces
from quantail.envs.base import TensorEnv
from quantail.envs.foreign import DisabledEnv, NextStepEnv, SameStepEnv, VecEnv, autoreset_mode, seed_of
from quantail.envs.gymnasium import make_env
from quantail.envs.oracles import LQR
from quantail.errors import ConfigError, EnvironmentFault, InputError
from quantail.types import Box, Discrete, Group, MultiDiscrete


def makers():
    """Two environments out of step: one truncates at 3, one terminates at 2 and counts from 100."""
    return [lambda: Count(3), lambda: Count(2, terminal=True, base=100.0)]


def played(env, rows, action=2, seed=0.0):
    """The first observation, and per row the fields of the step as lists."""
    noise = torch.zeros(env.num_envs, env.noise_dim)
    state, obs = env.reset(noise + seed)
    steps = []
    for _ in range(rows):
        state, step = env.step(state, torch.full((env.num_envs,), action), noise)
        steps.append(step)
    return obs, steps


def columns(steps, name):
    return [getattr(step, name).squeeze(-1).tolist() if "obs" in name else getattr(step, name).tolist() for step in steps]


def next_step_sources():
    yield "sync", lambda: SyncVectorEnv(makers())
    yield "sync without copies", lambda: SyncVectorEnv(makers(), copy=False)
    yield "async", lambda: AsyncVectorEnv(makers())
    yield "string", lambda: SyncVectorEnv(makers(), autoreset_mode="NextStep")


@pytest.mark.parametrize("make", [make for _, make in next_step_sources()], ids=[name for name, _ in next_step_sources()])
def test_next_step_rows(make):
    env = make_env(make())
    obs, steps = played(env, 6)
    env.close()
    assert not env.same_step
    assert obs.squeeze(-1).tolist() == [0, 100]
    assert columns(steps, "obs") == [[1, 101], [2, 102], [3, 100], [0, 101], [1, 102], [2, 100]]
    assert columns(steps, "reward") == [[17, 17], [27, 27], [37, 0], [0, 17], [17, 27], [27, 0]]  # 10·step + action + start 5
    assert columns(steps, "truncated") == [[False, False], [False, False], [True, False], *[[False, False]] * 3]
    assert columns(steps, "terminated") == [[False, False], [False, True], *[[False, False]] * 2, [False, True], [False, False]]
    assert all(step.final_obs is None for step in steps)


class Sharing(SyncVectorEnv):
    """Gives its own buffers away, and a reset writes into them."""

    def step(self, actions):
        obs, *_, infos = super().step(actions)
        return obs, self._rewards, self._terminations, self._truncations, infos


def same_step_sources():
    for mode in (AutoresetMode.SAME_STEP, AutoresetMode.DISABLED):
        for copy in (True, False):
            yield (
                f"sync {mode.value} copy {copy}",
                lambda mode=mode, copy=copy: SyncVectorEnv(makers(), copy, autoreset_mode=mode),
            )
        yield f"async {mode.value}", lambda mode=mode: AsyncVectorEnv(makers(), autoreset_mode=mode)
    yield "sharing", lambda: Sharing(makers(), copy=False, autoreset_mode="Disabled")
    yield "vec env", lambda: FakeVecEnv(makers())


@pytest.mark.parametrize("make", [make for _, make in same_step_sources()], ids=[name for name, _ in same_step_sources()])
def test_same_step_rows(make):
    """The final observation appears once, in the row of the end, and the first of the next episode in the same row."""
    env = make_env(make())
    obs, steps = played(env, 6)
    env.close()
    assert env.same_step
    assert obs.squeeze(-1).tolist() == [0, 100]
    assert columns(steps, "obs") == [[1, 101], [2, 100], [0, 101], [1, 100], [2, 101], [0, 100]]
    assert columns(steps, "final_obs") == [[0, 0], [0, 102], [3, 0], [0, 102], [0, 0], [3, 102]]
    assert columns(steps, "reward") == [[17, 17], [27, 27], [37, 17], [17, 27], [27, 17], [37, 27]]
    assert columns(steps, "truncated") == [[False, False]] * 2 + [[True, False]] + [[False, False]] * 2 + [[True, False]]
    assert columns(steps, "terminated") == [[False, False], [False, True]] * 3


def test_terminated_wins_over_truncated():
    class Both(Count):
        def step(self, action):
            obs, reward, terminated, truncated, info = super().step(action)
            return obs, reward, terminated or truncated, terminated or truncated, info

    _, steps = played(make_env(Both, num_envs=2), 3)
    assert columns(steps, "terminated")[2] == [True, True]
    assert columns(steps, "truncated")[2] == [False, False]


def test_steps_keep_their_values_when_buffers_are_used_again():
    """Rows of an environment that gives the same buffer every time are still different rows."""
    env = make_env(SyncVectorEnv(makers(), copy=False))
    first, steps = played(env, 2)
    assert [first[0].item(), *(step.obs[0].item() for step in steps)] == [0, 1, 2]


# --- what can be given ------------------------------------------------------------------------------------------------


def test_id():
    env = make_env("CartPole-v1", num_envs=3)
    assert isinstance(env, NextStepEnv)
    assert (env.num_envs, env.action_space) == (3, Discrete(2))
    assert env.observation_space.shape == (4,)
    assert env.observation_space.high[0] == pytest.approx(4.8)
    _, obs = env.reset(torch.zeros(3, 1))
    assert obs.shape == (3, 4)
    assert len({float(x) for x in obs[:, 0]}) == 3


def test_env_function_and_tensor_env():
    lonely = Count()
    env = make_env(lonely)
    assert env.num_envs == 1
    assert env.env.envs[0].unwrapped is lonely
    env.close()
    assert lonely.closed
    assert make_env(Count, num_envs=4).num_envs == 4
    tensor = LQR(3)
    assert make_env(tensor) is tensor
    assert make_env(tensor, num_envs=3) is tensor


def test_subprocesses():
    env = make_env(Count, num_envs=2, subprocesses=True)
    assert isinstance(env.env, AsyncVectorEnv)
    _, steps = played(env, 3)
    env.close()
    assert columns(steps, "obs") == [[1, 1], [2, 2], [3, 3]]


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        (AutoresetMode.NEXT_STEP, NextStepEnv),
        ("NextStep", NextStepEnv),
        ("NEXT_STEP", NextStepEnv),
        (AutoresetMode.SAME_STEP, SameStepEnv),
        ("SameStep", SameStepEnv),
        (AutoresetMode.DISABLED, DisabledEnv),
        ("DISABLED", DisabledEnv),
    ],
)
def test_mode_by_enum_value_or_name(mode, kind):
    vector = SyncVectorEnv(makers())
    vector.metadata["autoreset_mode"] = mode
    assert type(make_env(vector)) is kind


@pytest.mark.parametrize("metadata", [{}, {"autoreset_mode": "sometimes"}, {"autoreset_mode": None}, {"autoreset_mode": 3}])
def test_unknown_mode_is_refused(metadata):
    with pytest.raises(ConfigError, match=r"metadata\['autoreset_mode'\] is .*; needs NEXT_STEP, SAME_STEP or DISABLED"):
        autoreset_mode(metadata)


# --- seeds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: (Random, {"num_envs": 2}),
        lambda: (SyncVectorEnv([Random, Random], autoreset_mode=AutoresetMode.DISABLED), {}),
        lambda: (SyncVectorEnv([Random, Random], autoreset_mode=AutoresetMode.SAME_STEP), {}),
        lambda: (FakeVecEnv([Random, Random]), {}),
    ],
)
def test_same_noise_same_trajectory(make):
    def trajectory(seed):
        spec, keywords = make()
        first, steps = played(make_env(spec, **keywords), 7, seed=seed)
        return torch.stack([first, *(step.obs for step in steps)])

    assert torch.equal(trajectory(5), trajectory(5))
    assert not torch.equal(trajectory(5), trajectory(6))
    assert len(trajectory(5).unique()) == 16  # environments differ, and so do episodes


def test_reset_with_the_same_noise_tells_the_same_story_again():
    env = make_env(Random, num_envs=2)
    first, steps = played(env, 4)
    other, _ = played(env, 4, seed=1.0)
    again, repeated = played(env, 4)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(steps[-1].obs, repeated[-1].obs)


def test_seeds_come_from_all_of_the_noise():
    noise = torch.randn(3, 1, generator=torch.Generator().manual_seed(0))
    seeds = [seed_of(noise), *(seed_of(noise + 1e-6 * torch.eye(3)[:, i : i + 1]) for i in range(3)), seed_of(noise.flip(0))]
    assert len(set(seeds)) == 5
    assert all(0 <= seed < 2**30 for seed in seeds)
    assert seed_of(noise.clone()) == seed_of(noise.double()) == seeds[0]


# --- spaces and dtypes ------------------------------------------------------------------------------------------------

IMAGE = spaces.Box(0, 255, (4, 5, 3), np.uint8)


@pytest.mark.parametrize(
    ("space", "ours", "dtype"),
    [
        (spaces.Box(-2.0, 3.0, (2, 3), np.float64), Box((2, 3), -2.0, 3.0), torch.float32),
        (spaces.Box(-np.inf, np.inf, (2,), np.float32), Box((2,)), torch.float32),
        (
            spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([1.0, 5.0], np.float32)),
            Box((2,), (-1.0, 0.0), (1.0, 5.0)),
            torch.float32,
        ),
        (spaces.Box(-5, 9, (3,), np.int16), Box((3,), -5.0, 9.0), torch.float32),
        (spaces.Box(0, 255, (7,), np.uint8), Box((7,), 0.0, 255.0), torch.float32),
        (IMAGE, Box((4, 5, 3), 0.0, 255.0, "uint8"), torch.uint8),
        (spaces.Discrete(6, start=-2), Discrete(6), torch.int64),
        (spaces.MultiDiscrete([3, 4]), MultiDiscrete((3, 4)), torch.int64),
        (spaces.MultiDiscrete([3, 4], start=[10, -1]), MultiDiscrete((3, 4)), torch.int64),
        (spaces.MultiBinary(5), MultiDiscrete((2,) * 5), torch.int64),
    ],
)
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_observation_spaces(space, ours, dtype, mode):
    vector = SyncVectorEnv([lambda: Spaces(space, spaces.Discrete(2))] * 3, autoreset_mode=mode)
    env = make_env(vector)
    assert env.observation_space == ours
    first, steps = played(env, 4, action=1)
    for obs in [first, *(step.obs for step in steps), *(step.final_obs for step in steps if step.final_obs is not None)]:
        assert obs.dtype == dtype
        assert obs.shape == (3, *(space.shape or ()))
        if dtype == torch.int64:
            sizes = torch.tensor([ours.n]) if isinstance(ours, Discrete) else torch.tensor(ours.sizes)
            assert bool(((obs >= 0) & (obs < sizes)).all())


def stack_of_frames():
    """Three images [channels, height, width], each entry of its own; as they are to be, [height, width, channels]."""
    frames = np.arange(3 * 2 * 5 * 4, dtype=np.uint8).reshape(3, 2, 5, 4)
    return frames, frames.transpose(0, 2, 3, 1).tolist()


@pytest.mark.parametrize("named", [False, True])
def test_images_with_their_channels_in_front_are_turned(named):
    frames, turned = stack_of_frames()
    box = spaces.Box(0, 255, (2, 5, 4), np.uint8)

    class Film(Spaces):
        def seen(self):
            frame = frames[len(self.taken) % 3]
            return {"frame": frame} if named else frame

        def reset(self, *, seed=None, options=None):
            return self.seen(), {}

        def step(self, action):
            self.taken.append(action)
            return self.seen(), 1.0, False, True, {}

    for mode in AutoresetMode:
        space = spaces.Dict({"frame": box}) if named else box
        env = make_env(SyncVectorEnv([lambda space=space: Film(space, spaces.Discrete(2))] * 2, autoreset_mode=mode))
        first, (step,) = played(env, 1, action=0)
        pick = lambda obs: obs["frame"] if named else obs  # noqa: E731
        ours = dict(env.observation_space.parts)["frame"] if named else env.observation_space
        assert ours == Box((5, 4, 2), 0.0, 255.0, "uint8")
        assert pick(first).tolist() == [turned[0]] * 2
        assert pick(step.final_obs if env.same_step else step.obs).tolist() == [turned[1]] * 2


def test_indices_are_counted_from_zero():
    space = spaces.Discrete(6, start=-2)
    env = make_env(SyncVectorEnv([lambda: Spaces(space, spaces.Discrete(2))] * 3, copy=False))
    _, obs = env.reset(torch.zeros(3, 1))
    space.seed(None)
    theirs = env.env._observations
    assert obs.tolist() == [int(x) + 2 for x in theirs]


def test_float64_when_asked():
    env = make_env(SyncVectorEnv(makers(), autoreset_mode="SameStep"), dtype=torch.float64)
    obs, steps = played(env, 2)
    assert obs.dtype == steps[0].obs.dtype == steps[0].reward.dtype == steps[0].final_obs.dtype == torch.float64
    assert steps[0].info["half"].dtype == torch.float64


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_mapping_of_observations(mode):
    space = spaces.Dict({"z": spaces.Discrete(3, start=1), "a": spaces.Box(0, 1, (2,)), "m": IMAGE})
    env = make_env(SyncVectorEnv([lambda: Spaces(space, spaces.Discrete(2))] * 3, autoreset_mode=mode))
    assert env.observation_space == Group(
        (("a", Box((2,), 0.0, 1.0)), ("m", Box((4, 5, 3), 0.0, 255.0, "uint8")), ("z", Discrete(3)))
    )
    first, steps = played(env, 2, action=0)
    for obs in [first, steps[1].obs, *([steps[1].final_obs] if env.same_step else [])]:
        assert list(obs) == ["a", "m", "z"]
        assert [obs[name].dtype for name in obs] == [torch.float32, torch.uint8, torch.int64]
        assert [tuple(obs[name].shape) for name in obs] == [(3, 2), (3, 4, 5, 3), (3,)]
    if env.same_step:
        assert steps[0].final_obs["z"].tolist() == [0, 0, 0]
        assert float(steps[1].final_obs["a"].sum()) > 0


@pytest.mark.parametrize(
    ("space", "action", "taken"),
    [
        (spaces.Discrete(4, start=5), torch.tensor([0, 3]), [5, 8]),
        (spaces.MultiDiscrete([3, 4], start=[1, -1]), torch.tensor([[0, 0], [2, 3]]), [[1, -1], [3, 2]]),
        (spaces.MultiBinary(2), torch.tensor([[0, 1], [1, 1]]), [[0, 1], [1, 1]]),
        (spaces.Box(-1.0, 2.0, (2,)), torch.tensor([[0.5, 9.0], [-9.0, 0.0]]), [[0.5, 2.0], [-1.0, 0.0]]),
        (spaces.Box(-0.7, 0.1, (1,), np.float64), torch.tensor([[0.1], [-0.5]]), [[0.1], [-0.5]]),
        (
            spaces.Box(np.array([[-1, -2]], np.float32), np.array([[1, np.inf]], np.float32)),
            torch.tensor([[[3.0, 9.0]], [[-9.0, -9.0]]]),
            [[[1.0, 9.0]], [[-1.0, -2.0]]],
        ),
        (
            spaces.Box(-np.inf, np.inf, (1, 2), np.float64),
            torch.tensor([[[0.5, 2.0]], [[3.0, 4.0]]]),
            [[[0.5, 2.0]], [[3.0, 4.0]]],
        ),
    ],
)
def test_actions_cross_in_the_numbering_and_within_the_bounds_of_the_environment(space, action, taken):
    inner = [Spaces(spaces.Discrete(2), space) for _ in range(2)]
    env = make_env(SyncVectorEnv([lambda: inner[0], lambda: inner[1]]))
    state, _ = env.reset(torch.zeros(2, 1))
    env.step(state, action, torch.zeros(2, 1))
    arrived = [np.asarray(one.taken[0]) for one in inner]
    assert [one.tolist() for one in arrived] == taken
    assert all(one.dtype == space.dtype for one in arrived)


# --- infos ------------------------------------------------------------------------------------------------------------


def test_figures_of_the_infos():
    _, steps = played(make_env(SyncVectorEnv(makers())), 3)
    assert set(steps[0].info) == {"half"}  # words are no figures
    assert steps[0].info["half"].tolist() == [0.5, 0.5]
    half = steps[2].info["half"]  # environment 1 starts anew in this row and reports nothing
    assert half[0] == 1.5
    assert bool(half[1].isnan())


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_episode_statistics(mode):
    def recorded(maker):
        return lambda: gymnasium.wrappers.RecordEpisodeStatistics(maker())

    env = make_env(SyncVectorEnv([recorded(maker) for maker in makers()], autoreset_mode=mode))
    _, steps = played(env, 3)
    assert steps[1].info["episode/r"][1] == 17 + 27
    assert steps[1].info["episode/l"][1] == 2
    assert bool(steps[1].info["episode/r"][0].isnan())
    assert steps[2].info["episode/r"][0] == 17 + 27 + 37


def test_figures_of_a_vec_env():
    _, steps = played(make_env(FakeVecEnv(makers(), monitor=True)), 2)
    assert steps[0].info["half"].tolist() == [0.5, 0.5]
    assert set(steps[0].info) == {"half"}
    assert set(steps[1].info) == {"half", "episode/r", "episode/l", "episode/t"}
    assert steps[1].info["episode/r"][1] == 8.0
    assert bool(steps[1].info["episode/r"][0].isnan())


def test_rewards_that_are_no_number_pass():
    class Broken(Count):
        def step(self, action):
            obs, _, terminated, truncated, info = super().step(action)
            return obs * np.inf, float("nan"), terminated, truncated, info

    _, steps = played(make_env(Broken, num_envs=2), 1)
    assert bool(steps[0].reward.isnan().all())
    assert bool(steps[0].obs.isinf().all())


# --- the state that is held -------------------------------------------------------------------------------------------


def test_state_counts_rows_and_says_that_it_is_all():
    env = make_env(Count, num_envs=2)
    assert not env.exact_resume
    assert LQR(1).exact_resume
    state, _ = env.reset(torch.zeros(2, 1))
    for _ in range(2):
        state, _ = env.step(state, torch.zeros(2, dtype=torch.int64), torch.zeros(2, 1))
    saved = env.state_dict(state)
    assert {name: value.tolist() for name, value in saved.items()} == {
        "rows": [2, 2],
        "ended": [False, False],
        "action_mask": [[], []],
    }
    assert env.load_state(saved).rows.tolist() == [2, 2]


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "space",
    [
        spaces.Tuple([spaces.Discrete(2)]),
        spaces.Text(3),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.MultiDiscrete([[2, 3], [3, 2]]),
        spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(2)})}),
        spaces.Dict({"a": spaces.Text(3)}),
    ],
)
def test_observation_space_is_refused(space):
    with pytest.raises(ConfigError, match=r"(?s)the observation.* space is .*; needs Box, Discrete"):
        make_env(Spaces(space, spaces.Discrete(2)))


def test_empty_mapping_is_refused():
    with pytest.raises(ConfigError, match="the observation space is an empty Dict"):
        make_env(Spaces(spaces.Dict({}), spaces.Discrete(2)))


@pytest.mark.parametrize("space", [spaces.Dict({"a": spaces.Discrete(2)}), spaces.Box(0, 9, (2,), np.int64), spaces.Text(3)])
def test_action_space_is_refused(space):
    with pytest.raises(ConfigError, match="the action space is"):
        make_env(Spaces(spaces.Discrete(2), space))


@pytest.mark.parametrize(
    ("arguments", "needs"),
    [
        ({"spec": 3}, "env is a int; needs a Gymnasium id, Env or VectorEnv"),
        ({"spec": "NoSuchEnvironment-v0"}, "Gymnasium cannot make 'NoSuchEnvironment-v0' .*import or install the package"),
        ({"spec": Count(), "options": {"last": 2}}, "options={'last': 2} needs an id or a function"),
        ({"spec": LQR(3), "options": {"last": 2}}, "options={'last': 2} needs an id or a function"),
        ({"spec": LQR(3), "subprocesses": True}, "subprocesses=True needs an id or a function"),
        ({"spec": lambda: 3}, "the function made a int; needs to make a gymnasium.Env"),
        ({"spec": Count(), "num_envs": 2}, "num_envs=2, but the environment given has 1"),
        ({"spec": LQR(3), "num_envs": 2}, "num_envs=2, but the environment given has 3"),
        ({"spec": FakeVecEnv([Count]), "num_envs": 2}, "num_envs=2, but the environment given has 1"),
        ({"spec": Count(), "subprocesses": True}, "subprocesses=True needs an id or a function"),
        ({"spec": FakeVecEnv([Count]), "subprocesses": True}, "subprocesses=True needs an id or a function"),
    ],
)
def test_make_env_refuses(arguments, needs):
    with pytest.raises(ConfigError, match=needs):
        make_env(**arguments)


def test_number_of_environments_is_checked():
    with pytest.raises(InputError, match="num_envs=0; needs a whole number of at least 1"):
        make_env(Count, num_envs=0)


def test_one_environment_twice_is_refused():
    only = Count()
    with pytest.raises(ConfigError, match="the same Env twice"):
        make_env(lambda: only, num_envs=2)


def test_wrong_action_noise_and_state_are_refused():
    env = make_env(Count, num_envs=2)
    with pytest.raises(InputError, match=r"noise has shape \[2, 2\]; needs \[2, 1\]"):
        env.reset(torch.zeros(2, 2))
    state, _ = env.reset(torch.zeros(2, 1))
    with pytest.raises(InputError, match=r"action is torch.float32 \[2\]; needs torch.int64 \[2\]"):
        env.step(state, torch.zeros(2), torch.zeros(2, 1))
    with pytest.raises(InputError, match="noise"):
        env.step(state, torch.zeros(2, dtype=torch.int64), torch.zeros(3, 1))
    good = env.state_dict(state)
    for saved in ({}, {"rows": torch.zeros(2)}, {**good, "more": torch.zeros(2)}, {**good, "ended": torch.zeros(3)}):
        with pytest.raises(InputError, match=r"saved holds .*; needs \['rows', 'ended', 'action_mask'\] of 2 environments"):
            env.load_state(saved)


def test_observation_that_breaks_its_promise_is_refused():
    vec = FakeVecEnv(makers())
    vec.observation_space = spaces.Box(-1.0, 1.0, (2,))
    env = make_env(vec)
    with pytest.raises(InputError, match=r"observation has shape \[2, 1\]; needs \[2, 2\]"):
        env.reset(torch.zeros(2, 1))


def test_end_without_final_observation_is_refused():
    class Forgetful(FakeVecEnv):
        def step_wait(self):
            obs, rewards, dones, infos = super().step_wait()
            return obs, rewards, dones, [{key: info[key] for key in info if key != "terminal_observation"} for info in infos]

    with pytest.raises(
        InputError, match=r"episodes of environments \[1\] ended and their infos hold no 'terminal_observation'"
    ):
        played(make_env(Forgetful(makers())), 2)

    class Silent(SyncVectorEnv):
        def step(self, actions):
            *rest, _ = super().step(actions)
            return (*rest, {})

    with pytest.raises(InputError, match=r"environments \[1\] ended and infos hold no 'final_obs'"):
        played(make_env(Silent(makers(), autoreset_mode="SameStep")), 2)


def stepped(spec, action=0, **options):
    """One step of one or two environments."""
    env = make_env(spec, **options)
    state, _ = env.reset(torch.zeros(env.num_envs, 1))
    return env.step(state, torch.full((env.num_envs,), action), torch.zeros(env.num_envs, 1))[1]


class Failing(Count):
    """Fails at a choice, or at a reset."""

    def __init__(self, at_reset=False):
        super().__init__()
        self.at_reset = at_reset

    def reset(self, *, seed=None, options=None):
        if self.at_reset:
            raise OSError("no data")
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if action == 7:
            raise ZeroDivisionError("price is 0")
        return super().step(action)


@pytest.mark.parametrize("subprocesses", [False, True])
@pytest.mark.filterwarnings("ignore:.*ERROR")  # Gymnasium repeats what happened in a subprocess
def test_environment_that_fails_is_named(subprocesses):
    env = make_env(Failing, num_envs=3, subprocesses=subprocesses)
    state, _ = env.reset(torch.zeros(3, 1))
    state, _ = env.step(state, torch.tensor([0, 1, 0]), torch.zeros(3, 1))
    said = r"environment 1 \(Failing\) raised ZeroDivisionError in step\(.*7.*\): price is 0"
    with pytest.raises(EnvironmentFault, match=said):
        env.step(state, torch.tensor([0, 2, 0]), torch.zeros(3, 1))
    env.close()


class Dying(Count):
    """Its process is gone in the second step."""

    def step(self, action):
        if self.time == 1:
            os._exit(3)
        return super().step(action)


def test_a_process_that_dies_is_no_endless_wait():
    """Neither the step nor the close that follows; and the other processes end too."""
    env = make_env(Dying, num_envs=2, subprocesses=True)
    state, _ = env.reset(torch.zeros(2, 1))
    state, _ = env.step(state, torch.tensor([0, 0]), torch.zeros(2, 1))
    with pytest.raises(EnvironmentFault, match=r"AsyncVectorEnv of 2 raised \w+ in step 2 after the reset: .+"):
        env.step(state, torch.tensor([0, 0]), torch.zeros(2, 1))
    env.close()
    assert not any(process.is_alive() for process in env.env.processes)
    env.close()


def test_a_process_may_be_dead_before_it_is_found_dead(monkeypatch):
    """Its pipe breaks first: a close that asked and waited would wait for ever, or warn."""
    env = make_env(Dying, num_envs=2, subprocesses=True)
    state, _ = env.reset(torch.zeros(2, 1))
    state, _ = env.step(state, torch.tensor([0, 0]), torch.zeros(2, 1))
    with pytest.raises(EnvironmentFault):
        env.step(state, torch.tensor([0, 0]), torch.zeros(2, 1))
    with monkeypatch.context() as patch:
        patch.setattr(BaseProcess, "is_alive", lambda process: True)
        env.close()
    assert not any(process.is_alive() for process in env.env.processes)


def test_sources_that_fail_are_named():
    with pytest.raises(EnvironmentFault, match=r"environment 0 \(Failing\) raised OSError in reset\(seed=\d+\): no data"):
        stepped(Failing(at_reset=True))
    with pytest.raises(EnvironmentFault, match="FakeVecEnv of 2 raised OSError in reset: no data"):
        stepped(FakeVecEnv([Count, lambda: Failing(at_reset=True)]))
    with pytest.raises(EnvironmentFault, match="SyncVectorEnv of 1 raised ZeroDivisionError in step 1 after the reset: price"):
        stepped(SyncVectorEnv([Failing]), action=2)


def test_options_go_to_the_maker():
    env = make_env(Count, num_envs=2, options={"last": 2, "base": 50.0})
    obs, steps = played(env, 2)
    assert obs.tolist() == [[50], [50]]
    assert columns(steps, "truncated") == [[False, False], [True, True]]
    assert make_env("CartPole-v1", options={"max_episode_steps": 7}).env.envs[0].spec.max_episode_steps == 7


def test_id_with_its_module():
    assert make_env("gymnasium.envs.classic_control:CartPole-v1").observation_space.shape == (4,)


NAMED = spaces.Dict({"a": spaces.Discrete(2)})


@pytest.mark.parametrize(
    ("space", "seen", "says"),
    [
        (spaces.Discrete(3, start=4), 7, r"observation is 7 in environment 0; the space does not hold that"),
        (spaces.MultiDiscrete([2, 3]), [1, -1], r"observation is -1 in environment 0"),
        (spaces.Box(-1.0, 1.0, (2,)), ["a", "b"], r"observation cannot be read as float32 \[1, 2\]"),
        (spaces.Box(-1.0, 1.0, (2,)), [1.0], r"observation has shape \[1, 1\]; needs \[1, 2\]"),
        (NAMED, {"b": [0]}, r"observation is \['b'\]; the space promised a mapping with \['a'\]"),
        (NAMED, {"a": 2}, r"observation 'a' is 2 in environment 0"),
        (NAMED, [1], r"observation is a list; the space promised a mapping"),
    ],
)
def test_observation_outside_its_space_is_refused(space, seen, says):
    class Liar(FakeVecEnv):
        def reset(self):
            return {name: np.array([part]) for name, part in seen.items()} if isinstance(seen, dict) else [seen]

    vec = Liar([Count])
    vec.observation_space = space
    with pytest.raises(InputError, match=says):
        make_env(vec).reset(torch.zeros(1, 1))


def test_values_of_the_wrong_shape_are_refused():
    class Wide(FakeVecEnv):
        def step_wait(self):
            obs, rewards, *rest = super().step_wait()
            return obs, rewards[:, None], *rest

    with pytest.raises(InputError, match=r"reward has shape \[2, 1\]; needs \[2\]"):
        stepped(Wide(makers()))

    class Short(FakeVecEnv):
        def step_wait(self):
            obs, rewards, dones, infos = super().step_wait()
            return obs, rewards, ~dones, [{**info, "terminal_observation": np.zeros(2)} for info in infos]

    with pytest.raises(InputError, match=r"final observation of environment 0 has shape \[2\]; needs \[1\]"):
        stepped(Short(makers()))


def test_action_that_is_not_finite_is_refused():
    env = make_env(SyncVectorEnv([lambda: Spaces(spaces.Discrete(2), spaces.Box(-1.0, 1.0, (2,)))] * 2))
    state, _ = env.reset(torch.zeros(2, 1))
    with pytest.raises(InputError, match="action of environment 1 is not finite"):
        env.step(state, torch.tensor([[0.0, 0.0], [0.0, torch.nan]]), torch.zeros(2, 1))


def test_huge_observations_become_infinite():
    assert stepped(lambda: Count(base=1e300)).obs.tolist() == [[torch.inf]]


# --- pnl, weights, masks ----------------------------------------------------------------------------------------------


class Trader(Count):
    """Says what it earned and, in odd steps, that its action had no effect."""

    def step(self, action):
        *row, info = super().step(action)
        return *row, info | {"gain": 100.0 * self.time} | ({"policy_weight": 0.0} if self.time % 2 else {})


@pytest.mark.parametrize("mode", [*AutoresetMode, "vec env"])
def test_pnl_and_policy_weight(mode):
    inner = [lambda: Trader(2), lambda: Trader(3)]
    env = make_env(FakeVecEnv(inner) if mode == "vec env" else SyncVectorEnv(inner, autoreset_mode=mode), pnl="gain")
    _, steps = played(env, 4)
    at_once, waits = [[100, 100], [200, 200], [100, 300], [200, 100]], [[100, 100], [200, 200], [0, 300], [100, 0]]
    assert columns(steps, "pnl") == (at_once if env.same_step else waits)
    assert set(steps[0].info) == {"half"}
    assert steps[0].policy_weight.tolist() == [0, 0]
    assert steps[1].policy_weight is None
    assert steps[2].policy_weight.tolist() == ([0, 0] if env.same_step else [1, 0])


def test_pnl_that_nobody_reports_is_refused():
    with pytest.raises(InputError, match=r"pnl='gains' is not among the figures \['gain', 'half'\] of the infos"):
        stepped(Trader, pnl="gains")


def test_pnl_of_rows_that_only_start_anew_is_nothing():
    env = make_env(Trader, num_envs=2, pnl="gain", options={"last": 1})
    _, steps = played(env, 3)
    assert columns(steps, "pnl") == [[100, 100], [0, 0], [100, 100]]


def test_masks_that_come_late_or_misshapen_are_refused():
    class Late(Count):
        def step(self, action):
            *row, info = super().step(action)
            return *row, info | ({"action_mask": np.arange(4) > 1} if self.time >= self.since else {})

    late = Late()
    late.since = 1
    env = make_env(late)
    state, _ = env.reset(torch.zeros(1, 1))
    assert env.first_mask(state) is None
    _, step = env.step(state, torch.zeros(1, dtype=torch.int64), torch.zeros(1, 1))
    assert step.action_mask.tolist() == [[False, False, True, True]]
    late.since = 2
    with pytest.raises(InputError, match="the first 'action_mask' came after several steps; give it in the infos of reset"):
        played(env, 2)
    late.since, late.action_space = 1, spaces.Discrete(7)
    with pytest.raises(InputError, match=r"action mask of environment 0 has shape \[4\]; needs \[7\]"):
        stepped(late, action=6)


def test_silence_about_masks_allows_all():
    """One environment speaks of masks only at its reset, the other never."""

    class Once(Count):
        def reset(self, *, seed=None, options=None):
            return super().reset(seed=seed)[0], {"action_mask": np.arange(4) == 1}

    env = make_env(SyncVectorEnv([Once, Count]))
    state, _ = env.reset(torch.zeros(2, 1))
    assert env.first_mask(state).tolist() == [[False, True, False, False], [True] * 4]
    _, step = env.step(state, torch.tensor([1, 1]), torch.zeros(2, 1))
    assert step.action_mask.tolist() == [[True] * 4] * 2


# --- the real thing ---------------------------------------------------------------------------------------------------


def test_vec_env_of_stable_baselines3():
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    env = make_env(vec_env.DummyVecEnv(makers()))
    assert isinstance(env, VecEnv)
    assert isinstance(env, TensorEnv)
    obs, steps = played(env, 6)
    assert obs.squeeze(-1).tolist() == [0, 100]
    assert columns(steps, "obs") == [[1, 101], [2, 100], [0, 101], [1, 100], [2, 101], [0, 100]]
    assert columns(steps, "final_obs") == [[0, 0], [0, 102], [3, 0], [0, 102], [0, 0], [3, 102]]
    assert columns(steps, "truncated") == [[False, False]] * 2 + [[True, False]] + [[False, False]] * 2 + [[True, False]]
    assert columns(steps, "terminated") == [[False, False], [False, True]] * 3
    env.close()
