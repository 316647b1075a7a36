"""Playing changes nothing, repeats, and counts episodes as a loop does."""

import copy
import math

import pytest
import torch

from quantail.config import InputConfig
from quantail.envs.oracles import CartPole
from quantail.evaluation import Played, act, play
from quantail.intake import standardize_observation
from quantail.loop import make_agent
from quantail.types import Moments
from rivers import B, Ragged, disturb, flow, gradients, settings

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def moments(features=4):
    mean = torch.arange(features, dtype=torch.float64)
    return {"": Moments(mean, mean + 0.5, torch.full((features,), 10.0, dtype=torch.float64))}


def slow_returns(played):
    """Returns of ended episodes, one environment and one row at a time."""
    found = []
    for b in range(played.reward.shape[1]):
        total = 0.0
        for t in range(played.reward.shape[0]):
            total += float(played.reward[t, b])
            if played.terminated[t, b] or played.truncated[t, b]:
                found.append(total)
                total = 0.0
    return found


@pytest.mark.parametrize("same_step", [False, True])
def test_episode_returns_are_those_of_a_loop(same_step):
    env = Ragged("real", same_step)
    config = settings("real")
    agent = disturb(make_agent(config, env).double(), 0.2)
    played = play(env, agent, moments(), config, 29)
    expected = slow_returns(played)
    assert len(expected) > 10
    assert played.episode_returns().tolist() == pytest.approx(expected, rel=1e-12)
    rows = [(t, b) for t in range(29) for b in range(B) if played.valid[t, b]]
    assert played.per_step() == pytest.approx(sum(float(played.reward[row]) for row in rows) / len(rows), rel=1e-12)
    assert played.valid.all() == same_step


def test_a_long_run_of_large_rewards_does_not_round_its_episodes_away():
    """Sums over all rows would lose the last digits of each episode in float32."""
    reward = torch.full((4000, 1), 16777.0)
    reward[-1] = 1.0
    done = torch.zeros(4000, 1, dtype=torch.bool)
    done[1::2] = True
    played = Played(reward, torch.ones_like(done), done, torch.zeros_like(done))
    assert played.episode_returns()[-1] == 16778.0
    assert played.episode_returns()[1000] == 2 * 16777.0


def test_no_episode_no_return():
    flags = torch.zeros(3, 2, dtype=torch.bool)
    assert Played(torch.ones(3, 2), ~flags, flags, flags).episode_returns().tolist() == []


def test_a_cartpole_game_counts_its_rows():
    """Reward 1 in each row, so the return is the length; the row after an end counts nothing."""
    env, config = CartPole(7), settings()
    agent = make_agent(config, env)
    played = play(env, agent, moments(), config, 90, deterministic=False)
    assert played.episode_returns().tolist() == slow_returns(played)
    assert played.per_step() == 1.0
    assert not played.valid.all()


def test_playing_changes_no_weight_no_statistic_and_no_stream():
    env, config = Ragged("tanh"), settings("tanh", net={"dropout": 0.5})
    agent, known = make_agent(config, env).double(), moments()
    before, seen = copy.deepcopy(agent.state_dict()), copy.deepcopy(known)
    torch.manual_seed(3)
    play(env, agent, known, config, 20, deterministic=False)
    drawn = torch.rand(2)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(2), drawn)
    torch.testing.assert_close(dict(agent.state_dict()), dict(before), rtol=0, atol=0)
    torch.testing.assert_close(known, seen, rtol=0, atol=0)
    assert all((g == 0).all() for g in gradients(agent).values())


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_same_seed_plays_the_same_game(deterministic):
    env, config = Ragged("choice"), settings()
    agent = disturb(make_agent(config, env).double(), 0.2)
    first, again, other = (
        play(env, agent, moments(), config, 15, seed=seed, deterministic=deterministic) for seed in (5, 5, 6)
    )
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert (first.reward != other.reward).any()


def test_exploring_differs_from_the_mode():
    env, config = Ragged("real"), settings("real")
    agent = make_agent(config, env).double()
    bold, still = (play(env, agent, moments(), config, 9, deterministic=one) for one in (False, True))
    assert (bold.reward != still.reward).any()


@pytest.mark.parametrize("action", ["tanh", "real", "choice", "choices"])
def test_acting_row_by_row_is_the_unroll_of_all_rows(action):
    """The memory goes in and out; observations are standardised by the moments that are passed."""
    config = settings(action, net={"layers": 2})
    river = flow(config, Ragged(action))
    obs, start = 3 * torch.randn(7, B, 4, dtype=torch.float64), torch.rand(7, B) < 0.3
    memory, found = river.agent.initial_memory(B), []
    for t in range(7):
        action_taken, memory = act(river.agent, obs[t], memory, start[t], moments(), config)
        found.append(action_taken)
    seen = standardize_observation(obs, moments(), config.input)
    outputs, after = river.agent.unroll(seen, river.agent.initial_memory(B), start)
    expected = river.agent.policy.to_env(river.agent.policy.mode(outputs.policy))
    torch.testing.assert_close(torch.stack(found), expected, **EXACT)
    torch.testing.assert_close(memory, after, **EXACT)


def test_a_masked_choice_is_never_made():
    config = settings("choice")
    river = flow(config)
    mask = torch.tensor([[True, False, False], [False, True, False], [False, False, True], [True, True, False], [False] * 3])
    noise = torch.rand(B, 1)
    args = (river.agent, torch.randn(B, 4), river.agent.initial_memory(B), torch.ones(B, dtype=torch.bool), moments(), config)
    for drawn in (None, noise):
        action, _ = act(*args, noise=drawn, action_mask=mask)
        assert action[:3].tolist() == [0, 1, 2]
        assert action[3] != 2


def test_observations_are_standardised_and_clipped_only_if_asked():
    obs = torch.tensor([[10.0, 1.0, 2.0, -90.0]])
    seen = standardize_observation(obs, moments(), InputConfig(clip_observations=4.0))
    expected = [max(-4.0, min(4.0, (x - m) / math.sqrt(m + 0.5))) for x, m in zip(obs[0].tolist(), range(4), strict=True)]
    assert seen[0].tolist() == pytest.approx(expected, rel=1e-6)
    assert standardize_observation(obs, moments(), InputConfig(normalize_observations=False)) is obs
