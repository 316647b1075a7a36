"""Predicted laws beside what followed: sums by loops, tails of mixtures by sorting every atom, laws that are known."""

import math

import numpy as np
import pytest
import torch

from quantail import calibration
from quantail.calibration import JUDGED, LEVELS, calibration_metrics, judged_rows
from quantail.estimate import distribution, estimate, realise
from quantail.functional.laws import Distribution
from quantail.functional.quantile import tail_levels
from quantail.streams import Stream, generator
from quantail.types import Law
from rivers import B, Ragged, T, flow, settings

HALF = (T + 1) // 2
CLOSE = {"rel": 1e-9, "abs": 1e-9}


def slow(river, gamma, points):
    """What followed each row, and the weight of what was borrowed; `points` says what is drawn at each observation."""
    rollout = river.rollout
    found, borrowed = torch.zeros(T, B, dtype=torch.float64), torch.zeros(T, B, dtype=torch.float64)
    for t in range(T):
        for b in range(B):
            factor, s = 1.0, t
            while True:
                found[t, b] += factor * rollout.reward[s, b]
                factor *= gamma
                if rollout.terminated[s, b]:
                    break
                if rollout.truncated[s, b] or s == T - 1:
                    other = rollout.truncated[s, b] and rollout.final_critics is not None
                    found[t, b] += factor * (points[1][s, b] if other else points[0][s + 1, b])
                    borrowed[t, b] = factor
                    break
                s += 1
    return found, borrowed


@pytest.mark.parametrize("same_step", [False, True])
def test_what_followed_each_row(same_step):
    river = flow(settings("real"), Ragged("real", same_step))
    source = torch.Generator().manual_seed(4)
    points = [torch.randn(n, B, dtype=torch.float64, generator=source) for n in (T + 1, T)]
    laws = [Law(x[..., None], torch.ones(1, dtype=torch.float64)) for x in points]
    final = laws[1] if same_step else None
    found, borrowed = realise(river.rollout, laws[0], final, source, 0.8)
    slow_found, slow_borrowed = slow(river, 0.8, points)
    valid = river.rollout.valid
    torch.testing.assert_close(found[valid], slow_found[valid], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(borrowed[valid], slow_borrowed[valid], rtol=1e-12, atol=1e-12)
    assert 0 < (slow_borrowed[valid] == 0).double().mean() < 1


def test_what_is_borrowed_is_a_draw_and_not_a_mean():
    """Nothing ends, nothing is paid: the returns are γⁿ times draws from the law at the rollout's end."""
    river = flow(settings("real"), Ragged("real", True, num_envs=B))
    never, zero = torch.zeros(T, 4000, dtype=torch.bool), torch.zeros(T, 4000, dtype=torch.float64)
    rollout = river.rollout._replace(
        reward=zero, terminated=never, truncated=never, valid=~never, start=torch.zeros(T + 1, 4000, dtype=torch.bool)
    )
    locations = torch.tensor([-1.0, 0.0, 3.0], dtype=torch.float64).expand(T + 1, 4000, 3)
    law = Law(locations, torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64))
    found, borrowed = realise(rollout, law, None, torch.Generator().manual_seed(0), 0.9)
    assert borrowed[0].tolist() == pytest.approx([0.9**T] * 4000)
    values, counts = np.unique((found[0] / 0.9**T).round(decimals=6).numpy(), return_counts=True)
    assert values.tolist() == [-1, 0, 3]
    np.testing.assert_allclose(counts / 4000, [0.5, 0.3, 0.2], atol=5 * 0.008)


@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize("kind", ["quantile", "categorical"])
def test_the_predicted_tail_is_that_of_all_rows_together(kind, same_step):
    config = settings("real", {"kind": kind, "atoms": 21})
    river = flow(config, Ragged("real", same_step))
    found = calibration_metrics(river.agent, river.rollout, river.estimates, 0.2)
    law, weight = river.estimates.law, river.rollout.value_weight
    rows = [(t, b) for t in range(HALF) for b in range(B) if weight[t, b] > 0]
    atoms, masses = [], []
    edges = [0.0, *np.cumsum(river.agent.values.masses.numpy())]
    for t, b in rows:
        if kind == "categorical":
            atoms += law.locations.tolist()
            masses += (weight[t, b] * law.masses[t, b]).tolist()
            continue
        row = Distribution(law.locations[t, b], law.masses, river.agent.values.levels)
        areas = [0.0, *(u * float(row.cvar(u)) for u in edges[1:-1]), float(row.cvar(1.0))]
        cells = np.diff(edges)
        atoms += (np.diff(areas) / cells).tolist()
        masses += (float(weight[t, b]) * cells).tolist()
    order = np.argsort(atoms)
    share = np.array(masses)[order] / sum(masses)
    inside = np.clip(0.2 - (np.cumsum(share) - share), 0, share)
    assert float(found["critic/cvar_predicted"]) == pytest.approx(float((np.array(atoms)[order] * inside).sum() / 0.2), **CLOSE)
    happened = [float(river.estimates.realised[t, b]) for t, b in rows]
    ordered, tail = sorted(happened), 0.2 * len(happened)
    expected = sum(x * min(max(tail - i, 0), 1) for i, x in enumerate(ordered)) / tail
    assert float(found["critic/cvar_realised"]) == pytest.approx(expected, **CLOSE)
    borrowed = [float(river.estimates.borrowed[t, b]) for t, b in rows]
    assert float(found["critic/realised_borrowed"]) == pytest.approx(np.mean(borrowed), **CLOSE)
    for k, level in enumerate(LEVELS):
        below = [float(river.estimates.realised[t, b] < read(river, kind, t, b).quantile(level)) for t, b in rows]
        assert float(found[f"critic/below_{level:g}"]) == pytest.approx(np.mean(below), **CLOSE), k
    shares = [float(found[f"critic/below_{level:g}"]) for level in LEVELS]
    worst = max(abs(share - level) for share, level in zip(shares, LEVELS, strict=True))
    assert float(found["critic/calibration_error"]) == pytest.approx(worst, **CLOSE)


def read(river, kind, t, b):
    law = river.estimates.law
    if kind == "categorical":
        return Distribution(law.locations, law.masses[t, b])
    return Distribution(law.locations[t, b], law.masses, river.agent.values.levels)


def test_a_scalar_critic_predicts_no_law():
    river = flow(settings("real", {"kind": "scalar"}), Ragged("real"))
    found = calibration_metrics(river.agent, river.rollout, river.estimates, 0.05)
    assert sorted(found) == ["critic/cvar_realised", "critic/realised_borrowed"]


def test_rows_without_weight_may_hold_anything_and_none_at_all_is_not_known():
    river = flow(settings("real"), Ragged("real"))
    plain = calibration_metrics(river.agent, river.rollout, river.estimates, 0.05)
    ghost = river.rollout.value_weight == 0
    assert ghost.any()
    spoiled = river.estimates._replace(
        realised=river.estimates.realised.masked_fill(ghost, 1e9),
        borrowed=river.estimates.borrowed.masked_fill(ghost, math.nan),
    )
    torch.testing.assert_close(calibration_metrics(river.agent, river.rollout, spoiled, 0.05), plain, rtol=0, atol=0)
    nothing = river.rollout._replace(value_weight=0 * river.rollout.value_weight)
    assert all(value.isnan() for value in calibration_metrics(river.agent, nothing, river.estimates, 0.05).values())


@pytest.mark.parametrize("kind", ["scalar", "quantile", "categorical"])
def test_a_distribution_is_the_law_of_all_critics_in_raw_units(kind):
    river = flow(settings("real", {"kind": kind, "atoms": 32}), Ragged("real"))
    found = distribution(river.agent, river.rollout.critics, river.carry.scale, settings("real", {"kind": kind}).critic)
    torch.testing.assert_close(found.mean, river.estimates.values, rtol=1e-12, atol=1e-12)
    if kind == "quantile":
        torch.testing.assert_close(found.taus, tail_levels(32, dtype=torch.float64)[0], rtol=0, atol=0)
    else:
        assert found.taus is None
    if kind != "scalar":
        low, high = found.quantile(0.01), found.quantile(0.99)
        assert (low < high).all()
        assert (found.cvar(0.05) < found.mean).all()


@pytest.mark.parametrize(("ret_clip", "bound"), [(0.7, 0.7), (1e-9, 1e-3)])
def test_targets_are_bounded_when_asked_and_never_to_nothing(ret_clip, bound):
    river = flow(settings("real"), Ragged("real"))
    source = lambda: generator(0, Stream.TARGETS, 0)  # noqa: E731
    free = estimate(river.rollout, river.agent, river.carry.scale, source(), settings("real"))
    tight = estimate(river.rollout, river.agent, river.carry.scale, source(), settings("real", {"ret_clip": ret_clip}))
    torch.testing.assert_close(tight[0].target, free[0].target.clamp(-bound, bound), rtol=0, atol=0)
    assert (free[0].target.abs() > bound).any()
    torch.testing.assert_close(tight[1].particles, free[1].particles, rtol=0, atol=0)


def test_of_a_large_rollout_every_kth_environment_is_judged(monkeypatch):
    assert judged_rows(9, 3) == (slice(None, 5), slice(None, None, 1))
    steps, every = judged_rows(128, 512)
    assert steps == slice(None, 64)
    assert 64 * len(range(512)[every]) == JUDGED
    river = flow(settings("real"), Ragged("real", True))
    whole = calibration_metrics(river.agent, river.rollout, river.estimates, 0.3)
    weight = river.rollout.value_weight.clone()
    weight[:, 1::2] = 0.0
    monkeypatch.setattr(calibration, "JUDGED", HALF * ((B + 1) // 2))
    found = calibration_metrics(river.agent, river.rollout, river.estimates, 0.3)
    monkeypatch.undo()
    expected = calibration_metrics(river.agent, river.rollout._replace(value_weight=weight), river.estimates, 0.3)
    assert {name: float(x) for name, x in found.items()} == pytest.approx(
        {name: float(x) for name, x in expected.items()}, **CLOSE
    )
    assert float(found["critic/cvar_realised"]) != float(whole["critic/cvar_realised"])
