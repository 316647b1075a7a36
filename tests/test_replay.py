"""Before any update, replaying a rollout gives log-ratio 0 and the rollout's values: for everything an agent can be made of.

Memory × head × trunks × kind of source, ragged episodes under way, dropout, held exploration and masks; each rollout replayed
whole and cut into chunks, with and without burn-in, and after its observations and returns have been normalised.
"""

import itertools
from typing import NamedTuple

import pytest
import torch

from quantail.envs.oracles import CartPole
from quantail.estimate import estimate
from quantail.loop import begin, make_agent, rollout_noise
from quantail.normaliser import first_scale
from quantail.rollout import collect
from quantail.streams import Stream, generator
from quantail.types import Box, Discrete, Group, MultiDiscrete
from quantail.update import sequences
from rivers import ACTIONS, B, Ragged, T, disturb, refresh, settings, with_part

MEMORIES, TRUNKS, CRITICS = (
    ("lstm", "gru", "mingru", "none"),
    ("shared", "actor_critic", "each"),
    ("quantile", "categorical", "scalar"),
)
HEADS = (*ACTIONS, "gsde", "masked choice", "masked choices")
EVERY_ROW = {"batch_size": 1}  # the memory before each of them is kept, so that one rollout serves all cuts
CUTS = ({"batch_size": 1000}, {"batch_size": 4}, {"batch_size": 4, "burn_in": 3}, {"batch_size": 3, "burn_in": 1})


class Masked(Ragged):
    """Allows what the noise says, and always something."""

    def allowed(self, noise):
        sizes = [3] if isinstance(self.action_space, Discrete) else list(self.action_space.sizes)
        drawn = noise.double()[:, :1] + torch.linspace(-1, 1, sum(sizes), dtype=torch.float64) > 0
        first = torch.cat([torch.arange(size) for size in sizes]) == 0
        return drawn | first

    def first_mask(self, state):
        return self.allowed(state.x)

    def step(self, state, action, noise):
        after, step = super().step(state, action, noise)
        return after, step._replace(action_mask=self.allowed(noise))


class Seen(NamedTuple):
    """What a rollout said, and what it has to be replayed with."""

    agent: object
    rollout: object
    noise: object
    scale: object


def world(head, same_step):
    """An environment whose agent has this head, and the net's settings for it."""
    if head == "gsde":
        return "real", Ragged("real", same_step), {"gsde": True, "squash": "none"}
    if head.startswith("masked "):
        return head[7:], Masked(head[7:], same_step), {}
    return head, Ragged(head, same_step), {}


def collected(config, env, dtype=torch.float64, iterations=2):
    """The last of so many rollouts, with everything refreshed between them, of an agent whose weights are not symmetric."""
    agent = disturb(make_agent(config, env).to(dtype), 0.2)
    carry = begin(config, env, agent).carry
    for i in range(iterations):
        noise = rollout_noise(config, env, agent, i)
        rollout, after = collect(env, agent, carry, noise, config)
        after = first_scale(after, rollout, config) if i == 0 else after
        if i < iterations - 1:
            source = generator(config.seed, Stream.TARGETS, i, env.device)
            particles = estimate(rollout, agent, after.scale, source, config)[1].particles
            carry = refresh(after, rollout, particles, agent, config)
    return Seen(agent, rollout, noise, after.scale)


def check(seen, config, close):
    """Every row of every chunk says what it said, in log-probability, critics and KL."""
    agent, rollout = seen.agent, seen.rollout
    batch, _ = estimate(rollout, agent, seen.scale, generator(0, Stream.TARGETS, 0), config)
    batch = batch._replace(critics=rollout.critics[:, :-1].movedim(0, -2))
    count = 0
    with torch.no_grad():
        for group in sequences(batch, rollout.memory, seen.noise.dropout, config.ppo):
            rows = group.rows
            outputs, _ = agent.unroll(rows.obs, group.memory, rows.start, rows.action_mask, dropout=group.dropout)
            ratio = agent.policy.log_prob(outputs.policy, rows.action) - rows.log_prob
            assert ratio.abs().max() <= close
            assert (outputs.critics - rows.critics.movedim(-2, 0)).abs().max() <= close
            assert agent.policy.kl(rows.policy, outputs.policy).abs().max() <= close
            count += ratio[group.burn_in :].numel()
    assert count == rollout.log_prob.numel()


@pytest.mark.parametrize("same_step", [False, True], ids=["next step", "same step"])
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(("memory", "trunks"), list(itertools.product(MEMORIES, TRUNKS)))
def test_replay_before_any_update_is_exact(memory, trunks, head, same_step):
    action, env, net = world(head, same_step)
    at = MEMORIES.index(memory) + TRUNKS.index(trunks) + HEADS.index(head)
    kind, layers = CRITICS[at % 3], 1 + at % 2
    options = {"memory": memory, "trunks": trunks, "layers": layers, "dropout": 0.3, **net}
    config = settings(action, {"kind": kind, "noncrossing": at % 2 == 0}, net=options, ppo=EVERY_ROW)
    seen = collected(config, env)
    assert seen.rollout.start[1:-1].any()
    for cut in CUTS:
        check(seen, with_part(config, "ppo", **cut), 1e-12)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("memory", MEMORIES)
def test_replay_in_float32_is_close(memory, head):
    action, env, net = world(head, same_step=head in ("choice", "real"))
    config = settings(action, net={"memory": memory, "layers": 2, "dropout": 0.3, **net}, ppo=EVERY_ROW)
    seen = collected(config, env, torch.float32)
    for cut in CUTS:
        check(seen, with_part(config, "ppo", **cut), 2e-5)


def test_replay_of_long_float32_rollouts_is_close():
    config = settings(net={"hidden": 32}, ppo={"n_steps": 128, "batch_size": 128})
    check(collected(config, CartPole(6), torch.float32), config, 2e-5)


class Parts(Ragged):
    """Sees the same numbers as several parts: real ones, an image, a choice and two choices."""

    observation_space = Group(
        (
            ("real", Box((4,))),
            ("image", Box((9, 6, 2), 0, 255, "uint8")),
            ("one", Discrete(3)),
            ("two", MultiDiscrete((2, 4))),
        )
    )

    def shown(self, x):
        bytes_ = (40 * x[:, :1] + 7 * torch.arange(108, dtype=torch.float64)).remainder(256)
        index = (3 * x).long().abs()
        two = torch.stack([index[:, 1] % 2, index[:, 2] % 4], -1)
        return {"real": x, "image": bytes_.to(torch.uint8).view(-1, 9, 6, 2), "one": index[:, 0] % 3, "two": two}

    def reset(self, noise):
        state, obs = super().reset(noise)
        return state, self.shown(obs)

    def step(self, state, action, noise):
        after, step = super().step(state, action, noise)
        final = None if step.final_obs is None else self.shown(step.final_obs)
        return after, step._replace(obs=self.shown(step.obs), final_obs=final)


@pytest.mark.parametrize("same_step", [False, True], ids=["next step", "same step"])
@pytest.mark.parametrize("memory", MEMORIES)
def test_replay_of_observations_in_parts(memory, same_step):
    config = settings("tanh", net={"memory": memory, "dropout": 0.3}, ppo=EVERY_ROW)
    seen = collected(config, Parts("tanh", same_step))
    assert seen.rollout.obs["image"].dtype == torch.uint8  # neither images nor choices are standardised
    assert seen.rollout.obs["real"].abs().max() < 6
    for cut in CUTS:
        check(seen, with_part(config, "ppo", **cut), 1e-12)


@pytest.mark.parametrize("broken", ["memory", "start", "mask", "dropout", "observation"])
def test_the_replay_notices_what_it_should(broken):
    """Each of the things that a replay needs, spoiled a little, is seen far beyond the tolerance."""
    config = settings("choice", net={"dropout": 0.3}, ppo={"batch_size": 4})
    seen = collected(config, Masked("choice", False))
    rollout, noise = seen.rollout, seen.noise
    spoiled = {
        "memory": lambda: rollout._replace(memory={t: rollout.memory[max(t - 4, 0)] for t in rollout.memory}),
        "start": lambda: rollout._replace(start=rollout.start.roll(1, 0)),
        "mask": lambda: rollout._replace(action_mask=torch.ones_like(rollout.action_mask)),
        "dropout": lambda: rollout,
        "observation": lambda: rollout._replace(obs=rollout.obs + 1e-6),
    }[broken]()
    noise = noise._replace(dropout=noise.dropout.flip(1)) if broken == "dropout" else noise
    with pytest.raises(AssertionError):
        check(seen._replace(rollout=spoiled, noise=noise), config, 1e-12)


def test_both_kinds_of_sources_and_every_row_are_among_those_above():
    """The rollouts above are what they claim to be: rows without effect or final critics, several starts, rows cut off."""
    for same_step in (False, True):
        config = settings(ppo={"batch_size": 4})
        rollout = collected(config, Ragged(same_step=same_step)).rollout
        assert (rollout.final_critics is not None) == same_step == bool(rollout.valid.all())
        assert rollout.terminated.any()
        assert rollout.truncated.any()
        assert sorted(rollout.memory) == [0, 4, 8]
        assert rollout.start.sum() > B
        assert rollout.log_prob.shape == (T, B)
