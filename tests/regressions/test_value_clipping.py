"""Clipped predictions of the critics in the real update: what is compared with what, in which units, for which critics."""

import itertools
import math

import pytest
import torch

from quantail.config import OptimConfig
from quantail.functional.categorical import clip_categorical
from quantail.functional.quantile import clip_quantiles
from quantail.loop import train
from quantail.losses import Part, batch_loss
from rivers import B, Ragged, T, disturb, flow, settings, turned, with_part

MODES, KINDS = ("mean_only", "mean_and_variance", "per_quantile"), ("scalar", "quantile", "categorical")
RADIUS = 0.07


def rows_loss(said, target, config, taus):
    """Loss of each row of one critic, from the definitions: said [T, B, N], target [T, B, M] -> [T, B]."""
    if config.kind == "categorical":
        return -(target * (said - said.logsumexp(-1, keepdim=True))).sum(-1) / math.log(said.shape[-1])
    if config.kind == "scalar":
        return (said[..., 0] - target.mean(-1)) ** 2
    u = target[..., None, :] - said[..., None]
    huber = torch.where(u.abs() <= config.kappa, 0.5 * u**2, config.kappa * (u.abs() - 0.5 * config.kappa))
    return ((taus[:, None] - (u < 0).double()).abs() * huber / config.kappa).mean((-2, -1))


@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize("twin", [False, True])
@pytest.mark.parametrize(("kind", "mode"), list(itertools.product(KINDS, MODES)))
def test_each_critic_is_clipped_alone_and_targets_never(kind, mode, twin, same_step):
    """Row by row the worse of two losses, for each critic around its own old output; then the means."""
    config = settings(critic={"kind": kind, "clip": mode, "clip_radius": RADIUS, "twin": twin}, ppo={"batch_size": T * B})
    river = flow(config, Ragged(same_step=same_step))
    disturb(river.agent, 0.3, seed=8)
    (group,) = river.groups
    part = Part(group.rows, group.memory, 0, group.rows.policy_weight.sum(), group.rows.value_weight.sum())
    _, stats = batch_loss(river.agent, part, turned(), config)
    said = river.agent.unroll(group.rows.obs, group.memory, group.rows.start)[0].critics.detach()
    weight, taus, losses = group.rows.value_weight, river.agent.values.taus, []
    for critic, old in zip(said, river.rollout.critics[:, :-1], strict=True):
        if kind == "categorical":
            near = clip_categorical(critic, old.softmax(-1), river.agent.values.atoms, RADIUS, mode)
        else:
            near = clip_quantiles(critic, old, RADIUS, mode, masses=river.agent.values.masses)
        pair = [rows_loss(one, group.rows.target, config.critic, taus) for one in (critic, near)]
        losses.append((torch.maximum(*pair) * weight).sum() / weight.sum())
    assert len(losses) == 1 + twin
    for i, loss in enumerate(losses):
        torch.testing.assert_close(stats[f"value_loss_{i}"], loss, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(stats["value_loss"], sum(losses) / len(losses), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("kind", "mode"), list(itertools.product(KINDS, MODES)))
def test_the_clipped_share_does_not_depend_on_the_unit_of_rewards(kind, mode):
    """Euros or cents: the radius is in deviations of the return, and so are new, old and target."""
    found = []
    for unit in (1.0, 100.0):
        config = settings(critic={"kind": kind, "clip": mode, "clip_radius": RADIUS}, ppo={"batch_size": T * B})
        config = with_part(config, "input", reward_scale=unit)
        river = flow(config, Ragged(), iterations=1)
        disturb(river.agent, 0.3, seed=8)
        (group,) = river.groups
        part = Part(group.rows, group.memory, 0, group.rows.policy_weight.sum(), group.rows.value_weight.sum())
        found.append(batch_loss(river.agent, part, turned(), config)[1])
    assert 0 < found[0]["value_clip_active"] < 1
    for name in ("value_clip_active", "value_loss", "value_loss_unclipped", "value_loss_clipped"):
        torch.testing.assert_close(found[1][name], found[0][name], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize("twin", [False, True])
@pytest.mark.parametrize(("kind", "mode"), list(itertools.product(KINDS, ("off", *MODES))))
def test_every_combination_trains_on_ragged_episodes(kind, mode, twin, same_step):
    """In chunks with burn-in and in small parts; the second iteration too, whose scale has moved."""
    ppo = {"batch_size": 4, "burn_in": 1, "micro_batches": 2}
    critic = {"kind": kind, "clip": mode, "clip_radius": 1e-3, "twin": twin}
    config = settings(critic=critic, ppo=ppo, optim=OptimConfig(learning_rate=0.02))
    reports = train(config, Ragged(same_step=same_step))
    first = next(reports)
    before = {name: p.clone() for name, p in first.agent.named_parameters()}
    second = next(reports)
    assert second.metrics["optim/void_steps"] == 0
    assert math.isfinite(second.metrics["train/value_loss"])
    still = [name for name, p in second.agent.named_parameters() if torch.equal(p, before[name])]
    assert still == []
    assert (second.metrics["critic/clip_active"] > 0) == (mode != "off")
