"""The scale of returns: who sets it, how far it moves, when it rests; and that nothing the critics say moves with it."""

import itertools
import math

import numpy as np
import pytest
import torch

from oracles.moments import debiased_average
from quantail import loop
from quantail.config import InputConfig
from quantail.functional.moments import limit_scale, scale_of
from quantail.loop import begin, make_agent, rollout_noise, train
from quantail.normaliser import adopt, first_scale, frozen, scale_figures, scale_of_returns
from quantail.rollout import collect
from quantail.types import Moments, Scale
from rivers import B, Ragged, T, flow, refresh, settings


def test_the_first_iteration_sets_the_scale_by_its_own_discounted_rewards():
    config = settings("real", ppo={"gamma": 0.8})
    env = Ragged("real")
    agent = make_agent(config, env).double()
    carry = begin(config, env, agent).carry
    assert float(carry.scale.std) == 1.0
    rollout, after = collect(env, agent, carry, rollout_noise(config, env, agent, 0), config)
    sums = []
    for b in range(B):
        total = 0.0
        for t in reversed(range(T)):
            if not rollout.valid[t, b]:
                total = 0.0
                continue
            ends = bool(rollout.terminated[t, b] | rollout.truncated[t, b])
            total = float(rollout.reward[t, b]) + (0.0 if ends else 0.8 * total)
            sums.append(total)
    scale = first_scale(after, rollout, config).scale
    assert float(scale.mean) == pytest.approx(np.mean(sums), rel=1e-12)
    assert float(scale.std) == pytest.approx(np.std(sums), rel=1e-12)
    quiet = settings("real", {"normalize_returns": False})
    assert first_scale(after, rollout, quiet) is after


def test_the_scale_is_a_debiased_average_over_the_particles_of_iterations():
    config = settings("real", {"return_rate": 0.3})
    river = flow(config, Ragged("real"))
    first = (float(river.carry.return_moments.mean), float(river.carry.return_moments.variance))
    weight = river.rollout.value_weight[..., None].expand(river.estimates.particles.shape)
    rows = river.estimates.particles[weight > 0].numpy()
    later = refresh(river.carry, river.rollout, river.estimates.particles, river.agent, config)
    mean, variance = debiased_average([first, (rows.mean(), rows.var())], 0.3)
    assert float(later.scale.mean) == pytest.approx(mean, rel=1e-12)
    assert float(later.scale.std) == pytest.approx(math.sqrt(variance), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("kind", "noncrossing"), [("scalar", False), ("quantile", False), ("quantile", True)])
def test_a_refresh_of_the_scale_keeps_what_the_critics_say(kind, noncrossing, dtype):
    config = settings("real", {"kind": kind, "noncrossing": noncrossing, "return_rate": 0.9})
    river = flow(config, Ragged("real"))
    agent, carry, obs = river.agent.to(dtype), river.carry, river.rollout.obs.to(dtype)
    memory = agent.initial_memory(B)
    with torch.no_grad():
        before = agent.unroll(obs, memory, river.rollout.start)[0].critics.double() * carry.scale.std + carry.scale.mean
        later = refresh(carry, river.rollout, 40 + 30 * river.estimates.particles, agent, config)
        after = agent.unroll(obs, memory, river.rollout.start)[0].critics.double() * later.scale.std + later.scale.mean
    assert later.scale.std > 5 * carry.scale.std
    assert (after - before).abs().max() <= (1e-6 if dtype == torch.float32 else 1e-12) * later.scale.std


@pytest.mark.parametrize(("share", "moves"), [(0.004, False), (0.006, True)])
def test_a_categorical_critics_atoms_move_only_when_targets_fall_outside(share, moves):
    config = settings("real", {"kind": "categorical", "support_width": 5.0, "particles": 1000})
    river = flow(config, Ragged("real"))
    river = river._replace(carry=river.carry._replace(scale=Scale(*(torch.tensor(x, dtype=torch.float64) for x in (1.0, 2.0)))))
    particles = torch.zeros(T, B, 1000, dtype=torch.float64)
    particles[..., : int(1000 * share)] = 100.0
    before = {name: p.clone() for name, p in river.agent.named_parameters()}
    later = refresh(river.carry, river.rollout, particles, river.agent, config)
    assert (later.scale != river.carry.scale) == moves
    assert later.return_moments.weight == river.carry.return_moments.weight + 1
    torch.testing.assert_close(dict(river.agent.named_parameters()), before, rtol=0, atol=0)


def test_a_window_counts_its_iterations_by_their_rows_and_forgets_the_others():
    config = settings("real", {"return_window": 2})
    river = flow(config, Ragged("real"))
    weight = river.rollout.value_weight[..., None].expand(river.estimates.particles.shape)
    carry, seen = river.carry, []
    for i in range(3):
        particles = (1 + i) * river.estimates.particles + i
        seen.append(particles[weight > 0].numpy())
        carry = refresh(carry, river.rollout, particles, river.agent, config)
        rows = np.concatenate(seen[-2:])
        if i > 0:  # before, the first guess is in the window
            assert float(carry.scale.mean) == pytest.approx(rows.mean(), rel=1e-12)
            assert float(carry.scale.std) == pytest.approx(rows.std(), rel=1e-12)
    quiet = river.rollout._replace(value_weight=0 * river.rollout.value_weight)
    later = refresh(carry, quiet, river.estimates.particles, river.agent, config)
    assert later.scale == carry.scale
    torch.testing.assert_close(later.return_history, carry.return_history, rtol=0, atol=0)


def test_a_step_of_the_scale_is_limited():
    config = settings("real", {"return_max_step": 0.25, "return_rate": 1.0})
    river = flow(config, Ragged("real"))
    later = refresh(river.carry, river.rollout, 50 * river.estimates.particles, river.agent, config)
    assert later.scale == limit_scale(river.carry.scale, scale_of(later.return_moments), 0.25)
    assert float(later.scale.std / river.carry.scale.std) == pytest.approx(1.25)
    assert float(later.return_moments.variance.sqrt()) > 10 * float(later.scale.std)


def test_a_frozen_scale_rests_until_the_critic_is_lost():
    critic = settings("real", {"return_freeze": 3, "return_thaw": 2}).critic
    assert [frozen(i, 0, critic) for i in range(6)] == [False] * 4 + [True] * 2
    assert [frozen(5, lost, critic) for lost in range(4)] == [True, True, False, False]
    never = settings("real", {"return_freeze": 3}).critic
    assert frozen(5, 100, never)
    assert not frozen(5, 0, settings("real").critic)
    config = settings("real", {"return_freeze": 1, "return_thaw": 2})
    river = flow(config, Ragged("real"))  # the second rollout
    still = refresh(river.carry, river.rollout, 9 * river.estimates.particles, river.agent, config, lost=1)
    assert still.scale == river.carry.scale
    assert still.return_moments.weight == river.carry.return_moments.weight + 1
    assert scale_figures(river.carry, still, config)["norm/return_moved"] == 0
    moved = refresh(river.carry, river.rollout, 9 * river.estimates.particles, river.agent, config, lost=2)
    assert moved.scale == scale_of(moved.return_moments)
    assert scale_figures(river.carry, moved, config)["norm/return_moved"] == 1


@pytest.mark.parametrize("kind", ["quantile", "categorical"])
def test_drift_is_told_in_units_of_the_scale_that_was_learned_in(kind):
    config = settings("real", {"kind": kind, "return_rate": 1.0})
    river = flow(config, Ragged("real"))
    particles = 3 * river.estimates.particles + 100
    figures = scale_figures(river.carry, refresh(river.carry, river.rollout, particles, river.agent, config), config)
    weight = river.rollout.value_weight[..., None].expand(particles.shape)
    rows, scale = particles[weight > 0].numpy(), river.carry.scale
    assert float(figures["norm/return_drift"]) == pytest.approx(abs(rows.mean() - float(scale.mean)) / float(scale.std))
    assert float(figures["norm/return_growth"]) == pytest.approx(rows.std() / float(scale.std))
    assert float(figures["norm/return_moved"]) == 1.0
    assert figures.get("norm/reanchored") == (1.0 if kind == "categorical" else None)
    off = settings("real", {"kind": kind, "normalize_returns": False})
    quiet = refresh(river.carry, river.rollout, particles, river.agent, off)
    assert quiet.scale == river.carry.scale
    assert scale_figures(river.carry, quiet, off) == {}


def test_equal_returns_are_no_unit_and_small_ones_are():
    def scale(mean, std):
        moments = Moments(*(torch.tensor(x, dtype=torch.float64) for x in (mean, std**2, 1.0)))
        return float(scale_of_returns(moments).std)

    assert scale(0.0, 3e-6) == pytest.approx(3e-6)
    assert scale(0.0, 0.0) == 1e-8
    assert scale(-200.0, 1e-5) == pytest.approx(2e-3)
    assert scale(200.0, 1.0) == 1.0


@pytest.mark.parametrize("kind", ["scalar", "quantile", "categorical"])
def test_the_unit_of_the_rewards_does_not_matter(kind):
    """A millionth of the rewards, as the returns of minute bars are: the same steps."""

    def weights(unit):
        config = settings("real", {"kind": kind}, input=InputConfig(reward_scale=unit))
        env = Ragged("real")
        reports = train(config, env, make_agent(config, env).double())
        for report in itertools.islice(reports, 3):
            last = report
        return dict(last.agent.named_parameters()), last.metrics

    (ours, metrics), (theirs, plain) = weights(1e-6), weights(1.0)
    for name, parameter in ours.items():
        torch.testing.assert_close(parameter, theirs[name], rtol=1e-4, atol=1e-5)
    assert metrics["critic/return_std"] == pytest.approx(1e-6 * plain["critic/return_std"], rel=1e-3)


class Drifting(Ragged):
    """Rewards that grow, and move, from one step to the next."""

    def __init__(self) -> None:
        super().__init__("real")
        self.rows = 0

    def step(self, state, action, noise):
        after, step = super().step(state, action, noise)
        self.rows += 1
        return after, step._replace(reward=1.03**self.rows * (step.reward - 0.1 * self.rows))


@pytest.mark.parametrize("options", [{}, {"noncrossing": True}, {"sorting": True}, {"kind": "scalar"}, {"return_window": 2}])
def test_in_the_loop_no_refresh_moves_what_the_critics_say(monkeypatch, options):
    """In float32, at every row of the rollout, for both critics: within a millionth of a standard deviation."""
    moves, scales, seen = [], [], []

    def told(rollout, carry):
        seen.append(rollout)

    def watched(before, after, agent):
        def said(scale):
            with torch.no_grad():
                outputs = agent.unroll(seen[-1].obs, agent.initial_memory(B), seen[-1].start)[0].critics
            return outputs.double() * scale.std + scale.mean

        expected = said(before.scale)
        adopted = adopt(before, after, agent)
        moves.append((said(after.scale) - expected).abs().amax((1, 2, 3)) / after.scale.std)
        scales.append(float(after.scale.std / before.scale.std))
        return adopted

    monkeypatch.setattr(loop, "adopt", watched)
    for _ in itertools.islice(train(settings("real", options), Drifting(), hooks=loop.Hooks(collected=told)), 6):
        pass
    assert max(scales) > 1.2
    assert moves[0].shape == (2,)
    assert torch.stack(moves).max() <= 1e-6
