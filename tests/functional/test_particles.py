"""distributional_targets, judged by walking single particles and by exact expectations over all noise."""

import itertools
import math
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from oracles import returns as oracle
from oracles.rollouts import Rollout, random_rollout
from quantail.functional.returns import distributional_targets
from quantail.types import Law

ATOMS = 3
MASSES = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
TIGHT = {"rtol": 1e-12, "atol": 1e-12}


class Noise(NamedTuple):
    follow: Tensor  # [T, B, M]
    level: Tensor  # [T, B, M]


def noise(*shape: int, seed: int) -> Noise:
    return Noise(*torch.rand(2, *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


def random_law(kind: str, rows: tuple[int, ...], seed: int) -> Law:
    """Locations in every row and shared masses; shared atoms and probabilities in every row; both; or one law for all."""
    generator = torch.Generator().manual_seed(seed)
    locations = torch.randn(*rows, ATOMS, generator=generator, dtype=torch.float64).sort(-1).values
    masses = torch.rand(*rows, ATOMS, generator=generator, dtype=torch.float64).softmax(-1)
    first = (0,) * len(rows)
    locations = locations if kind in ("quantile", "both") else locations[first]
    return Law(locations, masses if kind in ("categorical", "both") else masses[first])


def targets(rollout: Rollout, law: Law, final_law: Law | None, gamma: float, lam: float, noise: Noise) -> Tensor:
    rewards, _, ends, cuts, valid, _ = rollout
    return distributional_targets(rewards, law, ends, cuts, gamma, lam, *noise, valid=valid, final_law=final_law)


def walked(rollout: Rollout, law: Law, final_law: Law | None, gamma: float, lam: float, noise: Noise) -> Tensor:
    """Every particle of a rollout [T, B] by the oracle, one at a time."""
    steps, envs, particles = noise.level.shape
    law = Law(*(part.expand(steps + 1, envs, ATOMS) for part in law))  # nothing shared
    final = None if final_law is None else Law(*(part.expand(steps, envs, ATOMS) for part in final_law))
    result = torch.empty_like(noise.level)
    for b, m in itertools.product(range(envs), range(particles)):
        env = Rollout(*(None if x is None else x[:, b] for x in rollout))
        levels = noise.level[:, b, m].tolist()

        def at(source: Law, row: int, u: float, b: int = b) -> float:
            return oracle.inverse_transform(source.locations[row, b].tolist(), source.masses[row, b].tolist(), u)

        own = [at(law, t, u) for t, u in enumerate(levels)]
        drawn = [at(final, t, u) if final and env.truncated[t] else at(law, t + 1, u) for t, u in enumerate(levels)]
        follows = (noise.follow[:, b, m] < lam).tolist()
        for t in range(steps):
            result[t, b, m] = oracle.walk(env, t, follows, drawn, own, gamma)
    return result


@pytest.mark.property
@given(
    steps=st.sampled_from([1, 2, 5]),
    seed=st.integers(0, 10**6),
    ends=st.sampled_from([0.0, 0.3, 1.0]),
    mode=st.sampled_from(["next_step", "same_step", "explicit"]),
    kind=st.sampled_from(["quantile", "categorical", "both", "shared"]),
    gamma=st.sampled_from([0.0, 0.9, 1.0]),
    lam=st.sampled_from([0.0, 0.6, 1.0]),
)
def test_every_particle_is_where_its_walk_ends(steps, seed, ends, mode, kind, gamma, lam):
    rollout = random_rollout((steps, 2), seed, ends=ends, mode=mode)
    law = random_law(kind, (steps + 1, 2), seed)
    final_law = random_law(kind, (steps, 2), seed + 1) if mode == "same_step" else None
    case = (rollout, law, final_law, gamma, lam, noise(steps, 2, 4, seed=seed))
    assert_close(targets(*case), walked(*case), **TIGHT)


def all_noise(steps: int, lam: float) -> tuple[Noise, Tensor]:
    """Every combination over all rows of (follow or not, which atom): noise [T, 1, M], and the chance of each [M]."""
    options = [(follows, atom) for follows in (0, 1) for atom in range(ATOMS)]
    chosen = torch.tensor(list(itertools.product(options, repeat=steps)))  # [M, T, 2]
    follows, atoms = chosen.permute(2, 1, 0).unsqueeze(-2)  # [T, 1, M] each
    chances = torch.tensor([1 - lam, lam], dtype=torch.float64)
    insides = torch.tensor([(1 + lam) / 2, lam / 2], dtype=torch.float64)  # only the second is below λ
    level = (MASSES.cumsum(0) - MASSES / 2)[atoms]
    return Noise(insides[follows], level), (chances[follows] * MASSES[atoms]).prod(0)[0]


@pytest.mark.parametrize("lam", [0.0, 0.3, 0.95, 1.0])
@pytest.mark.parametrize(
    ("mode", "terminated", "truncated"),
    [
        ("next_step", (), ()),
        ("next_step", (1,), ()),
        ("next_step", (), (0, 2)),
        ("same_step", (0,), (1,)),
        ("same_step", (2,), (2,)),
    ],
)
def test_the_mean_over_all_noise_is_exactly_advantage_plus_value(mode, terminated, truncated, lam):
    steps, gamma = 3, 0.9
    ends, cuts = (torch.tensor([[t in rows] for t in range(steps)]) for rows in (terminated, truncated))
    law = Law(torch.randn(steps + 1, 1, ATOMS, dtype=torch.float64), MASSES)
    final_law = Law(torch.randn(steps, 1, ATOMS, dtype=torch.float64), MASSES) if mode == "same_step" else None
    final_means = None if final_law is None else final_law.locations @ MASSES
    rollout = Rollout(torch.randn(steps, 1, dtype=torch.float64), law.locations @ MASSES, ends, cuts, None, final_means)
    every, chance = all_noise(steps, lam)
    assert chance.sum().item() == pytest.approx(1, abs=1e-12)
    found = targets(rollout, law, final_law, gamma, lam, every) @ chance
    assert_close(found, oracle.advantages(rollout, gamma, lam) + rollout.values[:-1], **TIGHT)


def law_at(*numbers: float) -> Law:
    """Certainty: each row's law is one number."""
    return Law(torch.tensor(numbers, dtype=torch.float64)[:, None], torch.ones(1, dtype=torch.float64))


@pytest.mark.parametrize(
    ("lam", "terminated", "truncated", "final", "expected"),
    [
        (0.0, None, None, None, [11, 22, 43]),
        (1.0, None, None, None, [1 + 1 + 0.75 + 10, 2 + 1.5 + 20, 43]),
        (0.5, None, None, None, [11, 22, 43]),  # u < λ is strict: with u = ½ none follows
        (1.0, 2, None, None, [1 + 1 + 0.75, 2 + 1.5, 3]),
        (1.0, 1, None, None, [1 + 1, 2, 40]),
        (1.0, None, 1, None, [1 + 1 + 10, 22, 40]),
        (1.0, None, 1, 6.0, [1 + 1 + 1.5, 5, 43]),
        (1.0, None, 2, 6.0, [1 + 1 + 0.75 + 0.75, 2 + 1.5 + 1.5, 6]),
        (0.0, 1, 1, 6.0, [11, 2, 43]),
    ],
)
def test_certain_laws_worked_by_hand(lam, terminated, truncated, final, expected):
    """Rewards 1 2 3, laws certain at 10 20 40 80, γ = ½, all noise ½."""
    rewards, rows = torch.tensor([1.0, 2, 3], dtype=torch.float64), range(3)
    ends, cuts = (torch.tensor([t == row for t in rows]) for row in (terminated, truncated))
    half = torch.full((3, 1), 0.5, dtype=torch.float64)
    final_law = None if final is None else law_at(final, final, final)
    found = distributional_targets(rewards, law_at(10, 20, 40, 80), ends, cuts, 0.5, lam, half, half, final_law=final_law)
    assert found[:, 0].tolist() == expected


def test_lambda_1_is_the_monte_carlo_return_in_every_particle():
    steps = 13
    rollout = random_rollout((steps, 2), seed=1, ends=0.0)
    rollout.terminated[-1] = True
    found = targets(rollout, random_law("quantile", (steps + 1, 2), 1), None, 0.9, 1.0, noise(steps, 2, 5, seed=1))
    discounts = 0.9 ** torch.arange(steps, dtype=torch.float64)[:, None]
    expected = torch.stack([(rollout.rewards[t:] * discounts[: steps - t]).sum(0) for t in range(steps)])
    assert_close(found, expected[..., None].expand_as(found), **TIGHT)


@pytest.mark.parametrize(("which", "other", "moved"), [("follow", 0.9, [0, 1, 2]), ("level", 0.99, [])])
def test_each_row_and_each_particle_answers_to_its_own_noise_alone(which, other, moved):
    """All follow to the last row. One number of row 2 changes: its follow moves the rows up to it, its level moves none."""
    rollout, law = random_rollout((4, 1), seed=8, ends=0.0), random_law("quantile", (5, 1), seed=8)
    same = Noise(*(torch.full((4, 1, 3), u, dtype=torch.float64) for u in (0.2, 0.01)))
    base = targets(rollout, law, None, 0.9, 0.5, same)
    changed = getattr(same, which).clone()
    changed[2, 0, 1] = other
    gap = (targets(rollout, law, None, 0.9, 0.5, same._replace(**{which: changed})) != base)[:, 0]
    assert torch.equal(base, base[..., :1].expand_as(base))
    assert gap.nonzero().tolist() == [[row, 1] for row in moved]


@pytest.mark.parametrize("final", [False, True])
def test_garbage_where_nobody_may_look_changes_no_bit(final):
    rollout, drawn = random_rollout((9, 3), seed=9, mode="explicit"), noise(9, 3, 5, seed=9)
    law = random_law("both", (10, 3), seed=9)
    final_law = dirty_law = random_law("quantile", (9, 3), seed=10) if final else None
    if final_law is not None:
        read = (rollout.truncated & ~rollout.terminated)[..., None]
        dirty_law = final_law._replace(locations=torch.where(read, final_law.locations, math.nan))
    dirty = rollout._replace(rewards=torch.where(rollout.valid, rollout.rewards, math.nan))
    clean = targets(rollout, law, final_law, 0.9, 0.6, drawn)
    assert torch.equal(targets(dirty, law, dirty_law, 0.9, 0.6, drawn), clean)


def test_gradients():
    rollout, drawn = random_rollout((4, 2), seed=12), noise(4, 2, 3, seed=12)
    law = random_law("quantile", (5, 2), seed=12)

    def particles(rewards, locations):
        return targets(rollout._replace(rewards=rewards), law._replace(locations=locations), None, 0.9, 0.6, drawn)

    assert torch.autograd.gradcheck(particles, (rollout.rewards.requires_grad_(), law.locations.requires_grad_()))
