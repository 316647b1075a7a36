"""What is replayed is what happened, row by row; and what an episode's end does to memory, values and advantages."""

from typing import NamedTuple

import pytest
import torch

from quantail.config import Config, CriticConfig, NetConfig, PpoConfig
from quantail.envs.base import TensorEnv
from quantail.functional.moments import merge_moments
from quantail.functional.returns import gae
from quantail.loop import begin, make_agent, rollout_noise
from quantail.rollout import chunks, collect
from quantail.types import Box, Discrete, Step

T = 23


class Clock(NamedTuple):
    """State of the toy environments: steps since the start, whether the step before ended, episodes so far."""

    time: torch.Tensor
    done: torch.Tensor
    episode: torch.Tensor


class Counter(TensorEnv):
    """Counts. Environment b's episodes last 2 + (b + number of the episode) mod 4 steps; every third one terminates, the
    others are truncated. The observation is (time, episode), the reward a function of both, so every row is known."""

    observation_space = Box((2,))
    action_space = Discrete(3)
    noise_dim = 1
    device = torch.device("cpu")

    def __init__(self, num_envs: int, same_step: bool, dtype: torch.dtype = torch.float64) -> None:
        self.num_envs, self.dtype = num_envs, dtype
        self.same_step = same_step

    def reset(self, noise):
        zero = torch.zeros(self.num_envs, dtype=torch.int64)
        state = Clock(zero, zero.bool(), zero)
        return state, self.observe(state)

    def observe(self, state):
        return torch.stack([state.time, state.episode], -1).to(self.dtype)

    def length(self, episode):
        return 2 + (torch.arange(self.num_envs) + episode) % 4

    def step(self, state, action, noise):
        restart = state.done & ~torch.tensor(self.same_step)
        time = torch.where(restart, 0, state.time + 1)
        episode = state.episode + restart
        done = (time >= self.length(episode)) & ~restart
        terminated = done & (episode % 3 == 0)
        reward = torch.where(restart, 0.0, (time + 10 * episode).to(self.dtype))
        moved = Clock(time, done, episode)
        final = self.observe(moved)
        if not self.same_step:
            return moved, Step(final, reward, terminated, done & ~terminated)
        fresh = Clock(torch.where(done, 0, time), done, episode + done)
        final = torch.where(done[:, None], final, torch.nan)  # garbage where nothing ended
        return fresh, Step(self.observe(fresh), reward, terminated, done & ~terminated, final_obs=final)


def config(**net) -> Config:
    sizes = {"encoder_sizes": (6,), "actor_sizes": (5,), "critic_sizes": (7,), "hidden": 4}
    return Config(net=NetConfig(**sizes | net), ppo=PpoConfig(n_steps=T), critic=CriticConfig(atoms=9))


def second_rollout(env: TensorEnv, chosen: Config, dtype: torch.dtype = torch.float64):
    """The rollout of iteration 1: memory is full, observations are standardised, episodes are under way."""
    agent = make_agent(chosen, env).to(dtype)
    carry = begin(chosen, env, agent).carry
    for i in range(2):
        noise = rollout_noise(chosen, env, agent, i)
        before = carry
        rollout, carry = collect(env, agent, carry, noise._replace(act=noise.act.to(dtype)), chosen)
        seen = {name: merge_moments(known, rollout.raw_moments[name]) for name, known in carry.obs_moments.items()}
        carry = carry._replace(obs_moments=seen)
    return agent, rollout, noise, before


def test_valid_and_start_follow_the_source():
    _, waits, _, _ = second_rollout(Counter(5, False), config())
    _, at_once, _, _ = second_rollout(Counter(5, True), config())
    done = waits.terminated | waits.truncated
    assert (waits.valid[1:] == ~done[:-1]).all()
    assert (waits.start[2:] == done[:-1]).all()
    assert at_once.valid.all()
    assert (at_once.start[1:] == (at_once.terminated | at_once.truncated)).all()


@pytest.mark.parametrize("same_step", [False, True])
def test_the_bootstrap_is_the_value_of_the_final_observation_with_the_memory_of_its_episode(same_step):
    chosen = config(memory="lstm", trunks="actor_critic")
    env = Counter(5, same_step)
    agent, rollout, _, before = second_rollout(env, chosen)
    ends = rollout.truncated.nonzero().tolist()
    assert len(ends) > 4
    for t, b in ends:
        starts = rollout.start[: t + 1, b].nonzero()[:, 0].tolist()
        first = starts[-1] if starts else 0
        memory = tuple(x[:, b : b + 1] for x in (agent.initial_memory(5) if starts else before.memory))
        expected = rollout.final_critics[:, t, b] if same_step else rollout.critics[:, t + 1, b]
        final = torch.stack([final_observation(rollout, before, t, b, same_step)])
        rows = torch.cat([rollout.obs[first : t + 1, b], final])[:, None]
        start = torch.zeros(len(rows), 1, dtype=torch.bool)
        outputs, _ = agent.unroll(rows, memory, start)
        assert (outputs.critics[:, -1, 0] - expected).abs().max() <= 1e-12


def final_observation(rollout, before, t, b, same_step):
    """What the environment showed after step t: the next row (NEXT_STEP), or else one more tick of the clock."""
    if not same_step:
        return rollout.obs[t + 1, b]
    moments = before.obs_moments[""]
    raw = rollout.obs[t, b] * moments.variance.sqrt() + moments.mean
    return (raw + torch.tensor([1.0, 0.0]) - moments.mean) / moments.variance.sqrt()


@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize("steps", [4, 5, 6, 7, 23])
def test_a_perfect_value_function_has_no_advantages(same_step, steps):
    """Reward 1 in every row, V = 1/(1 − γ) where truncation is the only end: also when an episode ends on the last row."""
    env, gamma = Counter(5, same_step), 0.9
    state, _ = env.reset(torch.zeros(5, 1))
    rows = []
    for _ in range(steps):
        state, step = env.step(state, torch.zeros(5, dtype=torch.int64), torch.zeros(5, 1))
        rows.append(step.terminated | step.truncated)
    done = torch.stack(rows)
    previous = torch.cat([torch.zeros_like(done[:1]), done[:-1]])
    valid = torch.ones_like(done) if same_step else ~previous
    value = torch.full((steps + 1, 5), 1 / (1 - gamma), dtype=torch.float64)
    final = value[:-1] if same_step else None
    rewards = valid.double()
    advantages, returns = gae(rewards, value, torch.zeros_like(done), done, gamma, 0.7, valid=valid, final_values=final)
    assert advantages.abs().max() < 1e-12
    assert (returns - value[:-1]).abs().max() < 1e-12
    assert done.any()


@pytest.mark.parametrize(
    ("steps", "batch_size", "burn_in", "expected"),
    [
        (8, 8, 0, [(0, 0, 8)]),
        (8, 100, 3, [(0, 0, 8)]),
        (8, 4, 0, [(0, 0, 4), (4, 4, 8)]),
        (8, 3, 0, [(0, 0, 3), (3, 3, 6), (6, 6, 8)]),
        (8, 3, 2, [(0, 0, 3), (1, 3, 6), (4, 6, 8)]),
    ],
)
def test_chunks_cut_time_where_a_batch_is_shorter_than_the_rollout(steps, batch_size, burn_in, expected):
    assert chunks(steps, PpoConfig(n_steps=steps, batch_size=batch_size, burn_in=burn_in)) == expected


class Faulty(Counter):
    """The counter with one bad number: what, when, where."""

    def __init__(self, what: str, at: int, env: int) -> None:
        super().__init__(5, False)
        self.what, self.at, self.env = what, at, env

    def step(self, state, action, noise):
        after, step = super().step(state, action, noise)
        here = (torch.arange(5) == self.env) & (after.time == self.at) & (after.episode == 1)
        bad = {
            "reward": step._replace(reward=torch.where(here, torch.nan, step.reward)),
            "pnl": step._replace(pnl=torch.where(here, torch.inf, step.reward)),
            "obs": step._replace(obs=torch.where(here[:, None], -torch.inf, step.obs)),
        }[self.what]
        return after, bad


@pytest.mark.parametrize(("index", "what"), list(enumerate(["reward", "pnl", "obs"])))
def test_a_bad_number_mutes_its_environment_until_the_next_start(index, what):
    chosen = config()
    env = Faulty(what, at=1, env=2)
    agent = make_agent(chosen, env).double()
    noise = rollout_noise(chosen, env, agent, 0)
    rollout, _ = collect(env, agent, begin(chosen, env, agent).carry, noise, chosen)
    for part in (rollout.obs, rollout.reward, rollout.pnl, rollout.critics, rollout.log_prob):
        assert part.isfinite().all()
    assert rollout.not_finite.sum((0, 1)).tolist() == [int(i == index) for i in range(3)]
    (t, b, _) = rollout.not_finite.nonzero()[0].tolist()
    assert b == 2
    muted = rollout.valid & (rollout.value_weight == 0)
    first = t + (what == "obs")
    nexts = rollout.start[first + 1 :, 2].nonzero()[:, 0]
    until = first + 1 + int(nexts[0])
    expected = torch.zeros_like(muted)
    expected[first:until, 2] = rollout.valid[first:until, 2]
    assert (muted == expected).all()
    assert expected.any()
    assert (rollout.policy_weight == rollout.value_weight).all()
