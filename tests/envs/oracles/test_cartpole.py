"""CartPole against Gymnasium's own, step by step, and its controller against the time limit."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv

from envs.play import first_returns
from quantail.envs.oracles import CartPole
from quantail.errors import InputError

B = 7


def started(env, seed=0):
    """The environments after `reset`, and as many of Gymnasium's in the same state."""
    noise = torch.randn(env.num_envs, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    state, obs = env.reset(noise)
    theirs = [CartPoleEnv() for _ in range(env.num_envs)]
    for b, one in enumerate(theirs):
        one.reset(seed=0)
        one.state = torch.stack(tuple(state.core), -1)[b].numpy()
    return state, obs, theirs


@pytest.mark.parametrize("policy", ["random", "left", "right", "best"])
def test_every_step_is_gymnasiums(policy):
    """Whole episodes side by side, up to the fall: state, reward and end; nothing is put right on the way."""
    env = CartPole(B, horizon=200, dtype=torch.float64)
    state, obs, theirs = started(env)
    source, alive, steps = torch.Generator().manual_seed(1), torch.ones(B, dtype=torch.bool), 0
    for _ in range(200):
        action = {
            "random": torch.randint(2, (B,), generator=source),
            "left": torch.zeros(B, dtype=torch.int64),
            "right": torch.ones(B, dtype=torch.int64),
            "best": env.best_action(obs),
        }[policy]
        state, step = env.step(state, action, torch.zeros(B, 4))
        for b in alive.nonzero()[:, 0].tolist():
            seen, reward, terminated, truncated, _ = theirs[b].step(int(action[b]))
            np.testing.assert_allclose(step.obs[b].numpy(), theirs[b].state, rtol=0, atol=1e-12)
            np.testing.assert_allclose(step.obs[b].numpy(), seen, rtol=1e-6, atol=1e-7)  # they hand out float32
            assert (float(step.reward[b]), bool(step.terminated[b])) == (reward, terminated)
            assert not truncated
            steps += 1
        alive &= ~(step.terminated | step.truncated)
        obs = step.obs
    assert steps == 200 * B if policy == "best" else steps < 80 * B
    assert not alive.any()


def test_a_step_from_anywhere_is_gymnasiums():
    """States that no policy of the test above meets, up to beyond the edges, where only the next state counts."""
    env = CartPole(500, dtype=torch.float64)
    state, _, theirs = started(env)
    source = torch.Generator().manual_seed(2)
    wide = torch.randn(500, 4, generator=source, dtype=torch.float64) * torch.tensor([1.2, 2.0, 0.1, 2.0])
    action = torch.randint(2, (500,), generator=source)
    _, step = env.step(state._replace(core=type(state.core)(*wide.unbind(-1))), action, torch.zeros(500, 4))
    for b, one in enumerate(theirs):
        one.state = wide[b].numpy()
        _, _, terminated, _, _ = one.step(int(action[b]))
        np.testing.assert_allclose(step.obs[b].numpy(), one.state, rtol=1e-14, atol=1e-14)
        assert bool(step.terminated[b]) == terminated
    assert 50 < int(step.terminated.sum()) < 450


def test_spaces_and_time_limit_are_gymnasiums():
    theirs, ours = gymnasium.make("CartPole-v1"), CartPole(1)
    np.testing.assert_allclose(ours.observation_space.high, theirs.observation_space.high, rtol=1e-6)
    np.testing.assert_allclose(ours.observation_space.low, theirs.observation_space.low, rtol=1e-6)
    assert ours.action_space.n == theirs.action_space.n
    assert ours.optimum() == theirs.spec.max_episode_steps == 500


def test_episodes_start_uniformly_near_the_middle():
    _, obs = CartPole(20_000, dtype=torch.float64).reset(
        torch.randn(20_000, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    )
    assert obs.abs().max() <= 0.05
    for column in obs.T:
        share = (column.sort().values + 0.05) / 0.1
        gap = (share - torch.linspace(0, 1, 20_000, dtype=torch.float64)).abs().max()
        assert gap < 2.3 / 20_000**0.5  # Kolmogorov: 5e-5 of sound draws lie further off


def test_without_velocities_the_rest_is_the_same():
    whole, part = CartPole(B, dtype=torch.float64), CartPole(B, velocities=False, dtype=torch.float64)
    (state, obs, _), (other, seen, _) = started(whole), started(part)
    for _ in range(12):
        assert torch.equal(seen, obs[:, [0, 2]])
        action = (obs[:, 2] > 0).long()
        (state, step), (other, later) = (
            env.step(one, action, torch.zeros(B, 4)) for env, one in ((whole, state), (part, other))
        )
        assert torch.equal(later.terminated, step.terminated)
        obs, seen = step.obs, later.obs
    assert part.observation_space.high == (whole.observation_space.high[0], whole.observation_space.high[2])


@pytest.mark.parametrize("horizon", [500, 90])
def test_the_best_action_reaches_the_optimum(horizon):
    env = CartPole(400, horizon=horizon)
    returns = first_returns(env, env.best_action, horizon + 2)
    assert returns.min() == returns.max() == env.optimum() == horizon


def test_nonsense_is_refused_by_name():
    with pytest.raises(InputError, match="horizon"):
        CartPole(1, horizon=0)
    with pytest.raises(InputError, match="num_envs"):
        CartPole(0)
