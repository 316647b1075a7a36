"""From a rollout to targets: values in raw units, advantages as the slow sums say, particles whose mean they are."""

import itertools
import math

import pytest
import torch

from oracles import rollouts
from oracles.returns import advantages as slow_advantages
from quantail.estimate import estimate, law_mean, outside_share, pooled_law
from quantail.streams import Stream, generator
from quantail.types import Scale
from rivers import B, Ragged, T, flow, settings

EXACT = {"rtol": 1e-12, "atol": 1e-12}
KINDS = ("scalar", "quantile", "categorical")
SCALE = Scale(torch.tensor(3.0, dtype=torch.float64), torch.tensor(2.5, dtype=torch.float64))


def source(seed=0):
    return generator(seed, Stream.TARGETS, 0)


def slow_law(agent, row, config, scale):
    """[(location, mass)] of what the critics [C, N] of one row say together, in raw units; by loops over lists."""
    masses, atoms = agent.values.masses.tolist(), agent.values.atoms.tolist()
    laws = []
    for critic in row.tolist():
        if config.kind == "categorical":
            top = max(critic)
            shares = [math.exp(x - top) for x in critic]
            laws.append(([a * 2.5 + 3.0 for a in atoms], [x / sum(shares) for x in shares]))
        else:
            raw = [x * 2.5 + 3.0 for x in critic]
            laws.append((sorted(raw) if config.twin_reduce == "mean" else raw, masses))
    means = [sum(x * m for x, m in zip(*law, strict=True)) for law in laws]
    if config.twin_reduce == "min":
        laws = [laws[means.index(min(means))]]
    locations = [sum(xs) / len(laws) for xs in zip(*(law[0] for law in laws), strict=True)]
    return locations, [sum(ms) / len(laws) for ms in zip(*(law[1] for law in laws), strict=True)]


@pytest.mark.parametrize("reduce", ["mean", "min"])
@pytest.mark.parametrize(("kind", "twin"), list(itertools.product(KINDS, (False, True))))
def test_the_law_of_all_critics_in_raw_units(kind, twin, reduce):
    config = settings(critic={"kind": kind, "twin": twin, "twin_reduce": reduce})
    river = flow(config)
    law = pooled_law(river.agent, river.rollout.critics, SCALE, config.critic)
    for t, b in itertools.product(range(T + 1), range(B)):
        locations, masses = slow_law(river.agent, river.rollout.critics[:, t, b], config.critic, SCALE)
        mean = sum(x * m for x, m in zip(locations, masses, strict=True))
        assert float(law_mean(law)[t, b]) == pytest.approx(mean, rel=1e-12, abs=1e-12)
        ours = (law.locations.expand(T + 1, B, -1)[t, b], law.masses.expand(T + 1, B, -1)[t, b])
        assert sorted(ours[0].tolist()) == pytest.approx(sorted(locations), rel=1e-12)
        assert ours[1].tolist() == pytest.approx(masses, rel=1e-12)


def slow_rollout(river) -> rollouts.Rollout:
    rollout, final = river.rollout, None
    values = law_mean(pooled_law(river.agent, rollout.critics, river.carry.scale, CRITIC))
    if rollout.final_critics is not None:
        final = law_mean(pooled_law(river.agent, rollout.final_critics, river.carry.scale, CRITIC))
    return rollouts.Rollout(rollout.reward, values, rollout.terminated, rollout.truncated, rollout.valid, final)


CRITIC = settings().critic


@pytest.mark.parametrize("same_step", [False, True])
def test_advantages_are_those_of_the_slow_sums(same_step):
    config = settings(ppo={"gamma": 0.9, "gae_lambda": 0.7})
    river = flow(config, Ragged(same_step=same_step))
    slow = slow_rollout(river)
    expected = slow_advantages(slow, 0.9, 0.7)
    torch.testing.assert_close(river.estimates.advantages, expected, **EXACT)
    torch.testing.assert_close(river.estimates.values, slow.values, **EXACT)
    torch.testing.assert_close(river.estimates.returns, expected + slow.values[:-1], **EXACT)
    assert (expected != 0).any()


@pytest.mark.parametrize("mode", ["global", "env", "off"])
def test_normalised_advantages_count_the_rows_that_move_the_policy(mode):
    config = settings(ppo={"normalize_advantage": mode})
    river = flow(config)
    raw, weight = river.estimates.advantages, river.rollout.policy_weight
    if mode == "off":
        torch.testing.assert_close(river.batch.advantage, raw, rtol=0, atol=0)
        return
    columns = [list(range(B))] if mode == "global" else [[b] for b in range(B)]
    for column in columns:
        pairs = [(float(raw[t, b]), float(weight[t, b])) for t in range(T) for b in column]
        total = sum(w for _, w in pairs)
        mean = sum(x * w for x, w in pairs) / total
        std = math.sqrt(sum(w * (x - mean) ** 2 for x, w in pairs) / total)
        expected = [[(float(raw[t, b]) - mean) / std if weight[t, b] > 0 else 0.0 for b in column] for t in range(T)]
        torch.testing.assert_close(river.batch.advantage[:, column], torch.tensor(expected, dtype=torch.float64), **EXACT)


@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize("kind", ["quantile", "categorical"])
def test_the_particles_mean_is_the_return(kind, same_step):
    """E[particles] = A + V: within five standard errors of 40 000 draws, on every row."""
    config = settings(critic={"kind": kind, "particles": 40_000})
    river = flow(config, Ragged(same_step=same_step))
    particles = river.estimates.particles
    error = (particles.mean(-1) - river.estimates.returns).abs()
    assert (error <= 5 * particles.std(-1) / math.sqrt(40_000) + 1e-9)[river.rollout.valid].all()
    assert particles.std(-1)[river.rollout.valid].max() > 0.1


@pytest.mark.parametrize(("kind", "targets"), [("scalar", "distributional"), ("quantile", "lambda_return")])
def test_a_scalar_target_is_the_return_itself(kind, targets):
    config = settings(critic={"kind": kind, "targets": targets})
    river = flow(config)
    torch.testing.assert_close(river.estimates.particles, river.estimates.returns[..., None], rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_targets_are_in_the_critics_scale(kind):
    config = settings(critic={"kind": kind, "atoms": 31, "support_width": 8.0})
    river = flow(config)
    batch, found = estimate(river.rollout, river.agent, SCALE, source(), config)
    scaled = (found.particles - 3.0) / 2.5
    if kind != "categorical":
        torch.testing.assert_close(batch.target, scaled, **EXACT)
        return
    torch.testing.assert_close(batch.target.sum(-1), torch.ones(T, B, dtype=torch.float64), **EXACT)
    inside = scaled.clamp(-8, 8).mean(-1)  # what lies outside goes to the last atom; the split between two keeps the mean
    torch.testing.assert_close((batch.target * river.agent.values.atoms).sum(-1), inside, **EXACT)


def test_targets_repeat_with_their_source_and_differ_with_another():
    config = settings()
    river = flow(config)
    first, again, other = (
        estimate(river.rollout, river.agent, river.carry.scale, source(seed), config)[0].target for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert (first != other)[river.rollout.valid].any(-1).float().mean() > 0.7  # rows that terminate know their target


def test_a_batch_is_the_rollout_without_the_row_of_the_bootstrap():
    river = flow(settings(critic={"clip": "mean_only"}))
    batch, rollout = river.batch, river.rollout
    assert torch.equal(batch.obs, rollout.obs[:T])
    assert torch.equal(batch.start, rollout.start[:T])
    for name in ("action", "log_prob", "policy_weight", "value_weight"):
        assert torch.equal(getattr(batch, name), getattr(rollout, name))
    for c in range(2):
        assert torch.equal(batch.critics[:, :, c], rollout.critics[c, :T])
    assert flow(settings()).batch.critics is None


def test_the_share_outside_the_atoms_is_weighted():
    particles = torch.tensor([[[0.0, 9.0], [20.0, -20.0]]], dtype=torch.float64)  # [1, 2, 2]
    weight = torch.tensor([[3.0, 1.0]], dtype=torch.float64)
    # In units of 2.5 around 3: -1.2, 2.4 | 6.8, -9.2.
    assert float(outside_share(particles, SCALE, weight, 2.0)) == pytest.approx((3 * 0.5 + 1 * 1) / 4)
    assert float(outside_share(particles, SCALE, weight, 7.0)) == pytest.approx(0.125)
    assert math.isnan(float(outside_share(particles, SCALE, 0 * weight, 7.0)))
