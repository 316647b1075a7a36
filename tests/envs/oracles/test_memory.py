"""Memory chain and maze: every policy of a kind tried out, and the right one with and without its memory."""

import itertools

import pytest
import torch

from envs.play import ODDS, check_mean, first_returns
from quantail.envs.oracles import MemoryChain, TMaze
from quantail.errors import InputError


def cues(env, seed=0):
    """What the first row shows."""
    noise = torch.randn(env.num_envs, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return env.reset(noise)[1][:, 0]


def both(kind, *args, **symbols):
    """Two environments, one with each cue, and their first observation."""
    env = kind(2, *args, dtype=torch.float64, **symbols)
    state, obs = env.reset(torch.tensor([[-1.0], [1.0]], dtype=torch.float64))
    return env, state, obs


def value_of(policy, kind, *args, **symbols):
    """Mean return over both cues of a policy that is a mapping from what is seen to an action."""
    env, state, obs = both(kind, *args, **symbols)
    total, alive = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.bool)
    while alive.any():
        action = torch.tensor([policy[tuple(round(x, 6) for x in row)] for row in obs.tolist()])
        state, step = env.step(state, action, torch.zeros(2, 1))
        total, alive = total + step.reward * alive, alive & ~(step.terminated | step.truncated)
        obs = step.obs
    return float(total.mean())


def every_policy(seen, actions):
    for choice in itertools.product(range(actions), repeat=len(seen)):
        yield dict(zip(seen, choice, strict=True))


@pytest.mark.parametrize("kind", [MemoryChain, TMaze])
def test_both_cues_come_alike(kind):
    seen = cues(kind(40_000, dtype=torch.float64))
    assert sorted(seen.unique().tolist()) == [-1.0, 1.0]
    assert abs(float(seen.mean())) <= ODDS / 40_000**0.5


# --- the chain --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 3])
def test_no_memoryless_policy_beats_the_baseline_of_the_chain(length):
    """Every deterministic one; the others are mixtures of them, for the clock is seen."""
    env, state, obs = both(MemoryChain, length)
    rows = [obs]
    for _ in range(length):
        state, step = env.step(state, torch.zeros(2, dtype=torch.int64), torch.zeros(2, 1))
        rows.append(step.obs)
    seen = sorted({tuple(round(x, 6) for x in row) for rows_of in rows for row in rows_of.tolist()})
    values = [value_of(policy, MemoryChain, length) for policy in every_policy(seen, 2)]
    assert max(values) == env.baseline("memoryless") == 0.0


@pytest.mark.parametrize("length", [1, 2, 9])
def test_the_chain_asks_once_and_pays_once(length):
    env, state, obs = both(MemoryChain, length)
    assert obs.tolist() == [[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    for row in range(1, length + 1):
        state, step = env.step(state, torch.tensor([row % 2, 1]), torch.zeros(2, 1))  # nothing counts yet
        assert step.reward.tolist() == [0.0, 0.0]
        assert not (step.terminated | step.truncated).any()
        assert step.obs.tolist() == [[0.0, float(row == length), pytest.approx(row / (length + 1))]] * 2
    _, right = env.step(state, torch.tensor([0, 1]), torch.zeros(2, 1))
    _, wrong = env.step(state, torch.tensor([1, 0]), torch.zeros(2, 1))
    assert right.reward.tolist() == [1.0, 1.0]
    assert wrong.reward.tolist() == [-1.0, -1.0]
    assert right.terminated.all()
    assert wrong.terminated.all()


def test_whoever_remembers_the_cue_is_always_right():
    env = MemoryChain(300, length=6, dtype=torch.float64)
    cue = cues(env, seed=3)  # the seed of `first_returns`
    returns = first_returns(env, lambda obs: env.best_action(cue), 7)
    assert returns.unique().tolist() == [env.optimum()] == [1.0]
    guess = iter(torch.randint(2, (7, 4000), generator=torch.Generator().manual_seed(1)))
    check_mean(first_returns(MemoryChain(4000, length=6), lambda obs: next(guess), 7), 0.0)


# --- the maze ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [2, 3])
def test_no_deterministic_memoryless_policy_beats_the_baseline_of_the_maze(length):
    seen = [(-1.0, 0.0), (1.0, 0.0), (0.0, 0.0), (0.0, 1.0)]
    values = [value_of(policy, TMaze, length) for policy in every_policy(seen, 3)]
    env = TMaze(1, length)
    assert max(values) == env.baseline("memoryless") == 0.0
    straight = {(-1.0, 0.0): 2, (1.0, 0.0): 2, (0.0, 0.0): 2, (0.0, 1.0): 1}
    assert value_of(straight, TMaze, length) == env.baseline("memoryless")


def test_the_maze_row_by_row():
    env, state, obs = both(TMaze, 2, horizon=7)
    assert obs.tolist() == [[-1.0, 0.0], [1.0, 0.0]]
    moves = [
        ([0, 2], [[0, 0], [0, 0]]),  # a wall, a step
        ([2, 2], [[0, 0], [0, 1]]),  # the second one is at the junction
        ([2, 2], [[0, 1], [0, 1]]),  # where there is no further forward
    ]
    for action, expected in moves:
        state, step = env.step(state, torch.tensor(action), torch.zeros(2, 1))
        assert step.obs.tolist() == expected
        assert step.reward.tolist() == [0.0, 0.0]
        assert not (step.terminated | step.truncated).any()
    for action, reward in (([0, 1], 1.0), ([1, 0], -1.0)):
        _, step = env.step(state, torch.tensor(action), torch.zeros(2, 1))
        assert step.reward.tolist() == [reward, reward]
        assert step.terminated.all()


def test_whoever_dawdles_is_cut_off_with_nothing():
    env = TMaze(3, 2, horizon=5)
    state, _ = env.reset(torch.ones(3, 1))
    for row in range(5):
        state, step = env.step(state, torch.zeros(3, dtype=torch.int64), torch.zeros(3, 1))
        assert step.truncated.tolist() == [row == 4] * 3
        assert not step.terminated.any()
        assert step.reward.tolist() == [0.0] * 3
    assert TMaze(1, 7).horizon == 32


def test_whoever_remembers_the_sign_turns_right():
    env = TMaze(300, length=4, dtype=torch.float64)
    cue = cues(env, seed=3)
    returns = first_returns(env, lambda obs: env.best_action(cue, obs), 5)
    assert returns.unique().tolist() == [env.optimum()] == [1.0]


@pytest.mark.parametrize("kind", [MemoryChain, TMaze])
@pytest.mark.parametrize("bad", [0, -1, 2.5])
def test_nonsense_is_refused_by_name(kind, bad):
    with pytest.raises(InputError, match="length"):
        kind(1, length=bad)
