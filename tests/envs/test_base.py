"""The contract of every native environment: pure, masked right, resumable, one graph."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from envs.play import EVERY, action_rows, noise_rows
from quantail.envs.base import EpisodicEnv, Move, checked_action, leaves, uniform, where
from quantail.errors import InputError
from quantail.types import Box, Discrete, Group, MultiDiscrete

B = 7
ROWS = 23

every = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY.keys())


def play(env, rows, seed=1, begin=None):
    """Step `rows` times with seeded noise and actions: the state, the first observation and the steps."""
    noise, actions = noise_rows(env, rows + 1, seed), action_rows(env, rows, seed + 1)
    state, first = env.reset(noise[0])
    steps = []
    for t in range(rows):
        state, step = env.step(state, actions[t], noise[t + 1])
        steps.append(step)
    return state, first, steps


def tensors(value):
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return tensors(list(value.values()))
    return [] if value is None else [leaf for part in value for leaf in tensors(part)]


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(tensors(a), tensors(b), strict=True))


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_and_dtypes(make, dtype):
    env = make(B, dtype=dtype)
    state, first, steps = play(env, 3)
    shape = (B, *env.observation_space.shape)
    for step in steps:
        assert step.obs.shape == first.shape == shape
        assert step.obs.dtype == first.dtype == step.reward.dtype == dtype
        assert step.reward.shape == step.terminated.shape == step.truncated.shape == (B,)
        assert step.terminated.dtype == step.truncated.dtype == torch.bool
        assert step.final_obs is None
        assert step.pnl is None or (step.pnl.shape, step.pnl.dtype) == ((B,), dtype)
    assert all(leaf.shape[:1] == (B,) for _, leaf in leaves(state))


@every
def test_same_inputs_give_the_same_outputs_and_are_left_alone(make):
    env = make(B, dtype=torch.float64)
    state, _, _ = play(env, 5)
    noise, action = noise_rows(env, 1, seed=9)[0], action_rows(env, 1, seed=9)[0]
    before = {name: leaf.clone() for name, leaf in leaves(state)}
    kept = noise.clone(), action.clone()
    first = env.step(state, action, noise)
    second = env.step(state, action, noise)
    assert same(first, second)
    assert all(torch.equal(leaf, before[name]) for name, leaf in leaves(state))
    assert torch.equal(noise, kept[0])
    assert torch.equal(action, kept[1])
    assert same(env.reset(noise), env.reset(noise))


@every
def test_observations_lie_in_their_space(make):
    env = make(B, dtype=torch.float64)
    space = env.observation_space
    _, first, steps = play(env, ROWS)
    low, high = (torch.as_tensor(side, dtype=torch.float64) for side in (space.low, space.high))
    for obs in [first, *(step.obs for step in steps)]:
        assert bool(((obs >= low) & (obs <= high)).all())


@every
def test_environments_do_not_know_of_each_other(make):
    """Environment 2 alone, given its noise and actions, goes the same way as among seven."""
    many, one = make(B, dtype=torch.float64), make(1, dtype=torch.float64)
    noise, actions = noise_rows(many, ROWS + 1), action_rows(many, ROWS)
    state, _ = many.reset(noise[0])
    alone, _ = one.reset(noise[0, 2:3])
    for t in range(ROWS):
        state, step = many.step(state, actions[t], noise[t + 1])
        alone, own = one.step(alone, actions[t, 2:3], noise[t + 1, 2:3])
        for among, single in zip(tensors(step), tensors(own), strict=True):
            torch.testing.assert_close(among[2:3], single, rtol=0, atol=1e-12)


@every
def test_after_an_end_the_row_without_effect_starts_anew(make):
    """Reward 0, not done, and the observation is the first of the episode that this row's noise makes, whatever the action."""
    env = make(B, dtype=torch.float64)
    noise, actions, others = noise_rows(env, ROWS + 1), action_rows(env, ROWS), action_rows(env, ROWS, seed=77)
    state, _ = env.reset(noise[0])
    done, ends = torch.zeros(B, dtype=torch.bool), 0
    for t in range(ROWS):
        fresh, opening = env.reset(noise[t + 1])
        _, other = env.step(state, others[t], noise[t + 1])
        state, step = env.step(state, actions[t], noise[t + 1])
        ends += int(done.sum())
        assert torch.equal(step.obs[done], opening[done])
        assert bool((step.reward[done] == 0).all())
        assert step.pnl is None or bool((step.pnl[done] == 0).all())
        assert not bool((step.terminated | step.truncated)[done].any())
        assert not bool((step.terminated & step.truncated).any())
        for a, b in zip(tensors(step), tensors(other), strict=True):
            assert torch.equal(a[done], b[done])
        for (_, now), (_, new) in zip(leaves(state), leaves(fresh), strict=True):
            assert torch.equal(now[done], new[done])
        done = step.terminated | step.truncated
    assert ends >= B  # each environment has started anew about once or more


@every
def test_resume_in_the_middle_of_an_episode_is_exact(make):
    env = make(B, dtype=torch.float64)
    noise, actions = noise_rows(env, ROWS), action_rows(env, ROWS)
    state, _ = env.reset(noise[0])
    for t in range(ROWS):
        saved = env.state_dict(state)
        assert all(isinstance(value, Tensor) for value in saved.values())
        loaded = env.load_state({name: value.clone() for name, value in saved.items()})
        assert type(loaded) is type(state)
        again = env.step(loaded, actions[t], noise[t])
        state, step = env.step(state, actions[t], noise[t])
        assert same(again, (state, step))


@every
def test_loaded_state_shares_no_memory_with_the_file(make):
    env = make(B, dtype=torch.float64)
    state, _, _ = play(env, 2)
    saved = env.state_dict(state)
    loaded = env.load_state(saved)
    assert not {leaf.data_ptr() for _, leaf in leaves(loaded)} & {leaf.data_ptr() for leaf in saved.values()}


@every
def test_one_graph(make):
    """reset and step trace without a break: no look into tensors from the host, no branch on content."""
    torch._dynamo.reset()
    env = make(B, dtype=torch.float64)
    noise, actions = noise_rows(env, 2), action_rows(env, 1)

    def both(first, second, action):
        state, obs = env.reset(first)
        return obs, env.step(state, action, second)

    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    for traced, eager in zip(tensors(compiled(*noise, *actions)), tensors(both(*noise, *actions)), strict=True):
        torch.testing.assert_close(traced, eager, rtol=0, atol=1e-12)


# --- the clock, on an environment whose observation is the step counter ------------------------------------------------


class Count(NamedTuple):
    x: Tensor


class Counter(EpisodicEnv):
    """Counts its steps; ends after `last` of them if the noise of the start was positive."""

    def __init__(self, num_envs, last=None, horizon=None, noise_dim=1):
        super().__init__(num_envs, (Box((1,)), Discrete(3)), noise_dim, horizon, torch.float64)
        self.end = last

    def start(self, noise):
        return Count(noise[:, 0])

    def observe(self, core, time):
        return time.to(self.dtype)[:, None]

    def move(self, core, time, action, noise):
        ended = None if self.end is None else (time + 1 >= self.end) & (core.x > 0)
        return Move(core, torch.full_like(core.x, 2.0), ended, 10.0 * time.to(self.dtype))


def story(env, rows):
    state, obs = env.reset(torch.tensor([[1.0], [-1.0]]))
    lines = [(obs[:, 0].tolist(), None, None, None, None)]
    for _ in range(rows):
        state, step = env.step(state, torch.zeros(2, dtype=torch.int64), torch.tensor([[1.0], [-1.0]]))
        lines.append(
            tuple(value.tolist() for value in (step.obs[:, 0], step.reward, step.terminated, step.truncated, step.pnl))
        )
    return lines


def test_story_of_ends_row_by_row():
    """Environment 0 terminates at step 2, environment 1 is cut off at step 3, both again and again."""
    expected = [
        ([0, 0], None, None, None, None),
        ([1, 1], [2, 2], [False, False], [False, False], [0, 0]),
        ([2, 2], [2, 2], [True, False], [False, False], [10, 10]),
        ([0, 3], [0, 2], [False, False], [False, True], [0, 20]),
        ([1, 0], [2, 0], [False, False], [False, False], [0, 0]),
        ([2, 1], [2, 2], [True, False], [False, False], [10, 0]),
        ([0, 2], [0, 2], [False, False], [False, False], [0, 10]),
        ([1, 3], [2, 2], [False, False], [False, True], [0, 20]),
    ]
    assert story(Counter(2, last=2, horizon=3), 7) == expected


def test_both_ends_at_once_count_as_terminated():
    _, _, terminated, truncated, _ = story(Counter(2, last=3, horizon=3), 3)[3]
    assert (terminated, truncated) == ([True, False], [False, True])


def test_episodes_of_one_step_alternate_with_restarts():
    rows = story(Counter(2, last=1, horizon=1), 6)[1:]
    assert [row[0] for row in rows] == [[1, 1], [0, 0]] * 3
    assert [row[1] for row in rows] == [[2, 2], [0, 0]] * 3
    assert [row[2] for row in rows] == [[True, False], [False, False]] * 3
    assert [row[3] for row in rows] == [[False, True], [False, False]] * 3


def test_without_horizon_nothing_ends():
    rows = story(Counter(2), 40)[1:]
    assert rows[-1][0] == [40, 40]
    assert not any(any(row[2]) or any(row[3]) for row in rows)


# --- pieces -----------------------------------------------------------------------------------------------------------


def test_uniforms_are_the_normal_law_of_the_noise():
    quarter = torch.tensor([-0.6744897501960817, 0.0, 0.6744897501960817], dtype=torch.float64)
    torch.testing.assert_close(uniform(quarter), torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64), rtol=0, atol=1e-12)


def test_where_chooses_whole_environments():
    class Pair(NamedTuple):
        a: Tensor
        b: Count

    yes = Pair(torch.ones(3, 2), Count(torch.ones(3)))
    no = Pair(torch.zeros(3, 2), Count(torch.zeros(3)))
    chosen = where(torch.tensor([True, False, True]), yes, no)
    assert chosen.a.tolist() == [[1, 1], [0, 0], [1, 1]]
    assert chosen.b.x.tolist() == [1, 0, 1]


def test_actions_outside_a_box_are_moved_to_its_boundary():
    class Echo(Counter):
        def __init__(self, space):
            EpisodicEnv.__init__(self, 2, (Box((1,)), space), 1, None, torch.float64)

        def move(self, core, time, action, noise):
            return Move(core, action.flatten(1).sum(-1))

    for space, sums in ((Box((1, 2), -1.0, 2.0), [4.0, -2.0]), (Box((1, 2), (-1.0, -3.0), (2.0, 5.0)), [7.0, -4.0])):
        env = Echo(space)
        state, _ = env.reset(torch.zeros(2, 1))
        _, step = env.step(state, torch.tensor([[[9.0, 9.0]], [[-9.0, -9.0]]]), torch.zeros(2, 1))
        assert step.reward.tolist() == sums


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "needs"),
    [
        ({"num_envs": 0}, "num_envs=0; needs a whole number of at least 1"),
        ({"num_envs": 2.0}, "num_envs=2.0; needs a whole number"),
        ({"horizon": 0}, "horizon=0; needs a whole number of at least 1"),
        ({"dtype": torch.int64}, "dtype=torch.int64; needs a floating point torch.dtype"),
        ({"dtype": "float32"}, "dtype='float32'; needs a floating point torch.dtype"),
    ],
)
def test_environment_refuses(arguments, needs):
    sound = {"num_envs": 2, "spaces": (Box((1,)), Discrete(3)), "noise_dim": 1, "horizon": None}

    class Plain(Counter):
        __init__ = EpisodicEnv.__init__

    Plain(**sound)
    with pytest.raises(InputError, match=needs):
        Plain(**{**sound, **arguments})


@pytest.mark.parametrize(
    ("noise", "needs"),
    [
        (torch.zeros(2, 2), r"noise has shape \[2, 2\]; needs \[2, 1\]"),
        (torch.zeros(3, 1), r"noise has shape \[3, 1\]; needs \[2, 1\]"),
        (torch.zeros(2, 1, dtype=torch.int64), r"noise is torch.int64; needs floating point"),
        ([0.0, 0.0], "noise is a list; needs a torch.Tensor"),
    ],
)
def test_noise_is_refused_by_reset_and_step(noise, needs):
    env = Counter(2)
    state, _ = env.reset(torch.zeros(2, 1))
    with pytest.raises(InputError, match=needs):
        env.reset(noise)
    with pytest.raises(InputError, match=needs):
        env.step(state, torch.zeros(2, dtype=torch.int64), noise)


@pytest.mark.parametrize(
    ("space", "action", "needs"),
    [
        (Discrete(3), torch.zeros(2, 1, dtype=torch.int64), r"action is torch.int64 \[2, 1\]; needs torch.int64 \[2\]"),
        (Discrete(3), torch.zeros(2), r"action is torch.float32 \[2\]; needs torch.int64 \[2\]"),
        (Discrete(3), [0, 0], r"action is a list; needs a torch.Tensor"),
        (MultiDiscrete((3, 4)), torch.zeros(2, dtype=torch.int64), r"action is torch.int64 \[2\]; needs torch.int64 \[2, 2\]"),
        (Box((4,)), torch.zeros(2, 3), r"action has shape \[2, 3\]; needs \[2, 4\]"),
        (Box((4,)), torch.zeros(2, 4, dtype=torch.int64), r"action is torch.int64; needs floating point"),
        (Group((("a", Discrete(2)),)), torch.zeros(2), "action belongs to a Group"),
    ],
)
def test_action_is_refused(space, action, needs):
    with pytest.raises(InputError, match=needs):
        checked_action(space, 2, action)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sound_actions_pass(dtype):
    for space, action in (
        (Discrete(3), torch.ones(2, dtype=torch.int64)),
        (MultiDiscrete((3, 4)), torch.ones(2, 2, dtype=torch.int64)),
        (Box((4,)), torch.ones(2, 4, dtype=dtype)),
    ):
        assert checked_action(space, 2, action) is action


def test_step_checks_the_action():
    env = Counter(2)
    state, _ = env.reset(torch.zeros(2, 1))
    with pytest.raises(InputError, match="action"):
        env.step(state, torch.zeros(3, dtype=torch.int64), torch.zeros(2, 1))


def test_foreign_state_is_refused():
    env = Counter(2)
    saved = env.state_dict(env.reset(torch.zeros(2, 1))[0])
    assert set(saved) == {"core.x", "time", "done"}
    with pytest.raises(InputError, match=r"saved holds \['done', 'time'\]; Counter needs \['core.x', 'done', 'time'\]"):
        env.load_state({name: saved[name] for name in ("time", "done")})
    with pytest.raises(InputError, match=r"saved\['core.x'\] is torch.float64 \[3\]; Counter needs torch.float64 \[2\]"):
        env.load_state({**saved, "core.x": torch.zeros(3, dtype=torch.float64)})
    with pytest.raises(InputError, match=r"saved\['time'\] is torch.int32 \[2\]; Counter needs torch.int64 \[2\]"):
        env.load_state({**saved, "time": saved["time"].int()})
