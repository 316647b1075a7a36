"""Each loss equals a loop over its rows, reaches the parameters it should, and no row of weight 0 reaches anything."""

import copy
import itertools
import math

import pytest
import torch
from torch.distributions import Categorical, Independent, Normal, kl_divergence

from quantail.config import CloneConfig, EntropyConfig, KlConfig
from quantail.losses import Part, batch_loss, policy_loss, value_loss, weighted_sum
from quantail.trees import tree_map
from rivers import ACTIONS, B, Ragged, T, accumulate, disturb, flow, gradients, minibatches, settings, turned, with_part

EXACT = {"rtol": 1e-12, "atol": 1e-12}
MEMORIES, TRUNKS, KINDS = (
    ("lstm", "gru", "mingru", "none"),
    ("shared", "actor_critic", "each"),
    ("scalar", "quantile", "categorical"),
)
EVERYTHING = {
    "entropy": EntropyConfig(coef=0.3),
    "kl": KlConfig(penalty=0.9),
    "clone": CloneConfig(coef=0.7, beta=0.6, max_weight=2.0),
}


def whole(river, noise=None) -> Part:
    """The whole rollout as one part."""
    (group,) = river.groups
    totals = group.rows.policy_weight.sum(), group.rows.value_weight.sum()
    return Part(group.rows, group.memory, group.burn_in, *totals, group.dropout, noise)


def one_river(action="choice", critic=None, same_step=False, net=None, **parts):
    config = settings(action, critic, net=net or {}, ppo={"batch_size": T * B}, **EVERYTHING | parts)
    river = flow(config, Ragged(action, same_step))
    disturb(river.agent, 0.3, seed=8)  # the policy has moved since the rollout
    return config, river


# --- loops ------------------------------------------------------------------------------------------------------------


def law(params, action):
    """The raw action's law in one row, by torch's own distributions."""
    if action in ("choice", "choices"):
        sizes = [3] if action == "choice" else [2, 3]
        return [Categorical(logits=block) for block in torch.split(params.logits, sizes, -1)]
    return [Independent(Normal(params.mean, params.log_std.exp()), 1)]


def log_slope(x, squash):
    if squash == "tanh":
        return torch.log(1 - torch.tanh(x) ** 2).sum(-1)
    return torch.log(torch.sigmoid(x) * (1 - torch.sigmoid(x))).sum(-1)


def loop_policy(river, config, action, params, noise):
    """Weighted means of surrogate, entropy, KL and cloning, one row at a time."""
    rows, knobs, squash = river.batch, turned(), ACTIONS[action][1].get("squash")
    sums = dict.fromkeys(("policy_gradient_loss", "entropy", "kl", "clone_loss", "clip_fraction", "log_ratio_mean"), 0.0)
    total = largest = 0.0
    for t, b in itertools.product(range(T), range(B)):
        weight = float(rows.policy_weight[t, b])
        if weight == 0:
            continue
        total += weight
        new, old = (law(tree_map(lambda x, t=t, b=b: x[t, b], one), action) for one in (params, rows.policy))
        raw = rows.action[t, b]
        picks = [raw] if action == "choice" else list(raw) if action == "choices" else [raw]
        log_prob = sum(float(one.log_prob(pick)) for one, pick in zip(new, picks, strict=True))
        entropy = sum(float(one.entropy()) for one in new)
        if squash:
            log_prob -= float(log_slope(raw, squash))
            drawn = new[0].base_dist.mean + new[0].base_dist.stddev * noise[0, t, b]
            entropy += float(log_slope(drawn, squash))
        ratio, adv = math.exp(log_prob - float(rows.log_prob[t, b])), float(rows.advantage[t, b])
        near = min(max(ratio, 1 - 0.17), 1 + 0.17)
        sums["policy_gradient_loss"] += -weight * min(ratio * adv, near * adv)
        sums["entropy"] += weight * entropy
        sums["kl"] += weight * sum(float(kl_divergence(p, q)) for p, q in zip(old, new, strict=True))
        sums["clone_loss"] += -weight * log_prob * min(math.exp(adv / config.clone.beta), config.clone.max_weight)
        sums["clip_fraction"] += weight * (abs(ratio - 1) > float(knobs.clip))
        sums["log_ratio_mean"] += weight * (log_prob - float(rows.log_prob[t, b]))
        largest = max(largest, abs(log_prob - float(rows.log_prob[t, b])))
    return {name: value / total for name, value in sums.items()} | {"log_ratio_max": largest}


def loop_critic(river, config, critic):
    """One critic's weighted mean loss [T, B, N], one row, quantile and particle at a time."""
    rows, kind, total, found = river.batch, config.critic.kind, 0.0, 0.0
    taus, kappa = river.agent.values.taus.tolist(), config.critic.kappa
    for t, b in itertools.product(range(T), range(B)):
        weight = float(rows.value_weight[t, b])
        said, target = critic[t, b].tolist(), rows.target[t, b].tolist()
        if kind == "scalar":
            loss = (said[0] - sum(target) / len(target)) ** 2
        elif kind == "categorical":
            norm = math.log(sum(map(math.exp, said)))
            loss = -sum(p * (x - norm) for p, x in zip(target, said, strict=True)) / math.log(len(said))
        else:
            terms = []
            for (tau, theta), y in itertools.product(zip(taus, said, strict=True), target):
                u = y - theta
                huber = 0.5 * u * u if abs(u) <= kappa else kappa * (abs(u) - 0.5 * kappa)
                terms.append(abs(tau - (u < 0)) * huber / kappa)
            loss = sum(terms) / len(terms)
        total, found = total + weight, found + weight * loss
    return found / total


@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize("action", ACTIONS)
def test_policy_losses_equal_a_loop_over_rows(action, same_step):
    config, river = one_river(action, same_step=same_step)
    part = whole(river, torch.randn(1, T, B, 2, dtype=torch.float64) if "squash" in ACTIONS[action][1] else None)
    loss, stats = batch_loss(river.agent, part, turned(), config)
    outputs, _ = river.agent.unroll(river.batch.obs, part.memory, river.batch.start)
    with torch.no_grad():
        expected = loop_policy(river, config, action, outputs.policy, part.entropy_noise)
    for name, value in expected.items():
        assert float(stats[name]) == pytest.approx(value, rel=1e-12, abs=1e-12), name
    assert expected["clip_fraction"] > 0
    value = sum(loop_critic(river, config, one) for one in outputs.critics.detach()) / 2
    combined = expected["policy_gradient_loss"] - 0.3 * expected["entropy"] + 0.9 * expected["kl"]
    assert float(loss.detach()) == pytest.approx(combined + 0.7 * expected["clone_loss"] + 0.5 * value, rel=1e-11)


@pytest.mark.parametrize("twin", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_critic_losses_equal_a_loop_over_rows(kind, twin):
    config, river = one_river(critic={"kind": kind, "twin": twin, "kappa": 0.3})
    _, stats = batch_loss(river.agent, whole(river), turned(), config)
    critics = river.agent.unroll(river.batch.obs, river.rollout.memory[0], river.batch.start)[0].critics.detach()
    losses = [loop_critic(river, config, one) for one in critics]
    for i, expected in enumerate(losses):
        assert float(stats[f"value_loss_{i}"]) == pytest.approx(expected, rel=1e-12)
    assert float(stats["value_loss"]) == pytest.approx(sum(losses) / len(losses), rel=1e-12)
    assert len(losses) == 1 + twin


def test_kappa_zero_is_the_pinball_loss():
    config, river = one_river(critic={"kappa": 0.0})
    _, stats = batch_loss(river.agent, whole(river), turned(), config)
    critic = river.agent.unroll(river.batch.obs, river.rollout.memory[0], river.batch.start)[0].critics.detach()[0]
    u = river.batch.target[..., None, :] - critic[..., None]
    pinball = torch.maximum(river.agent.values.taus[:, None] * u, (river.agent.values.taus[:, None] - 1) * u).mean((-2, -1))
    expected = (pinball * river.batch.value_weight).sum() / river.batch.value_weight.sum()
    torch.testing.assert_close(stats["value_loss_0"], expected, **EXACT)


@pytest.mark.parametrize("mode", ["mean_only", "mean_and_variance", "per_quantile"])
@pytest.mark.parametrize("kind", KINDS)
def test_clipped_values_are_the_worse_of_two_losses_row_by_row(kind, mode):
    """A critic may gain nothing by moving further than the radius from what it said in the rollout; targets are not clipped."""
    plain, river = one_river(critic={"kind": kind, "clip": mode, "clip_radius": 0.05})
    _, stats = batch_loss(river.agent, whole(river), turned(), plain)
    assert stats["value_loss"] >= stats["value_loss_unclipped"]
    assert 0 < stats["value_clip_active"] < 1
    free, same = one_river(critic={"kind": kind})
    _, unclipped = batch_loss(same.agent, whole(same), turned(), free)
    torch.testing.assert_close(stats["value_loss_unclipped"], unclipped["value_loss"], **EXACT)
    assert unclipped["value_clip_active"] == 0
    shut = turned(value_clip=0.0)
    _, waiting = batch_loss(river.agent, whole(river), shut, plain)
    torch.testing.assert_close(waiting["value_loss"], unclipped["value_loss"], **EXACT)
    assert waiting["value_clip_active"] == 0
    wide, far = one_river(critic={"kind": kind, "clip": mode, "clip_radius": 1e9})
    if mode != "mean_and_variance":
        torch.testing.assert_close(batch_loss(far.agent, whole(far), turned(), wide)[1]["value_loss"], unclipped["value_loss"])
    if kind == "scalar":
        said, old = (
            x[..., 0]
            for x in (
                far.agent.unroll(far.batch.obs, far.rollout.memory[0], far.batch.start)[0].critics,
                far.rollout.critics[:, :-1],
            )
        )
        target = far.batch.target.mean(-1)
        worse = torch.maximum((said - target) ** 2, (old + (said - old).clamp(-0.05, 0.05) - target) ** 2).mean(0)
        expected = (worse * far.batch.value_weight).sum() / far.batch.value_weight.sum()
        torch.testing.assert_close(stats["value_loss"], expected.detach(), **EXACT)


@pytest.mark.parametrize("mode", ["hard", "tanh"])
def test_a_ratio_beyond_the_clamp_is_counted_before_it_is_clamped(mode):
    config, river = one_river()
    config = with_part(config, "ppo", log_ratio_clamp=mode)
    part = whole(river)
    counts = part.rows.policy_weight > 0
    t, b = counts.nonzero()[3].tolist()
    far = part.rows.log_prob.clone()
    far[t, b] -= 30
    u, v = (~counts).nonzero()[0].tolist()
    far[u, v] = -1e9  # a row that does not count is not counted
    _, stats = batch_loss(river.agent, part._replace(rows=part.rows._replace(log_prob=far)), turned(), config)
    share = float(part.rows.policy_weight[t, b] / part.policy_total)
    assert float(stats["log_ratio_clamped"]) == pytest.approx(share, rel=1e-12)
    assert 25 < float(stats["log_ratio_max"]) < 35
    without_it = float(stats["log_ratio_mean"] - share * stats["log_ratio_max"])
    far[t, b] += 60
    _, stats = batch_loss(river.agent, part._replace(rows=part.rows._replace(log_prob=far)), turned(), config)
    assert 25 < float(stats["log_ratio_max"]) < 35  # in size
    far[t, b] = -math.inf
    _, stats = batch_loss(river.agent, part._replace(rows=part.rows._replace(log_prob=far)), turned(), config)
    assert float(stats["log_ratio_not_finite"]) == 1
    assert float(stats["log_ratio_mean"]) == pytest.approx(without_it, abs=1e-12)
    assert float(stats["log_ratio_max"]) < 5


# --- who is moved -----------------------------------------------------------------------------------------------------


def moved(agent, loss) -> set[str]:
    parameters = dict(agent.named_parameters())
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, retain_graph=True)
    hit = {id(p) for p, g in zip(parameters.values(), found, strict=True) if g is not None and (g != 0).any()}
    return {name for name, group in agent.parameter_groups().items() if any(id(p) in hit for p in group)}


@pytest.mark.parametrize(("kind", "twin"), list(itertools.product(KINDS, (False, True))))
@pytest.mark.parametrize(("memory", "trunks"), list(itertools.product(MEMORIES, TRUNKS)))
def test_each_loss_reaches_its_own_and_all_together_everything(memory, trunks, kind, twin):
    net = {"memory": memory, "trunks": trunks, "layers": 2}
    config, river = one_river("real", {"kind": kind, "twin": twin, "noncrossing": True}, net=net)
    agent, part = river.agent, whole(river)
    outputs, _ = agent.unroll(part.rows.obs, part.memory, part.rows.start)
    loss, stats = policy_loss(agent, part, part.rows, outputs.policy, turned(), config)
    _, of_critics = value_loss(agent, part, part.rows, outputs.critics, turned(), config.critic)
    own = {"shared": ["shared"] * 3, "actor_critic": ["actor", "critic", "critic"], "each": ["actor", "critic_0", "critic_1"]}
    terms = {"actor/head": loss, **{f"critic_{i}/head": of_critics[f"value_loss_{i}"] for i in range(1 + twin)}}
    for (head, term), trunk in zip(terms.items(), own[trunks], strict=False):
        layers = {"encoder", *(["memory_0", "memory_1"] if memory != "none" else [])}
        assert moved(agent, term) == {head, *(f"{trunk}/{layer}" for layer in layers)}
    for name in ("policy_gradient_loss", "entropy", "kl", "clone_loss"):
        assert moved(agent, stats[name]) <= moved(agent, loss)
    accumulate(agent, [part], turned(), config)
    assert [name for name, p in agent.named_parameters() if p.grad is None or not (p.grad != 0).any()] == []
    assert all(p.grad.isfinite().all() for p in agent.parameters())


@pytest.mark.parametrize("part", ["entropy", "kl", "clone"])
def test_what_is_off_is_measured_without_a_gradient(part):
    """0 times an infinite KL would be NaN: a term that never weighs anything stays out of the loss."""
    off = {"entropy": EntropyConfig(), "kl": KlConfig(), "clone": CloneConfig()}
    config, river = one_river("real", **{part: off[part]})
    stats = policy_loss(
        river.agent,
        whole(river),
        river.batch,
        river.agent.unroll(river.batch.obs, river.rollout.memory[0], river.batch.start)[0].policy,
        turned(),
        config,
    )[1]
    assert not stats["clone_loss" if part == "clone" else part].requires_grad
    assert stats["policy_gradient_loss"].requires_grad


# --- who is not -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ACTIONS)
def test_rows_without_weight_may_hold_anything(action):
    """The rows after an end: garbage in every field, the observation too, for the memory starts anew after them."""
    config, river = one_river(action)
    noise = torch.randn(1, T, B, 2, dtype=torch.float64)
    part = whole(river, noise if "squash" in ACTIONS[action][1] else None)
    ghosts = ~river.rollout.valid
    assert ghosts.sum() > 5

    def spoiled(x):
        if not x.is_floating_point():
            return torch.where(ghosts.reshape(T, B, *[1] * (x.ndim - 2)), 0, x)
        return torch.where(ghosts.reshape(T, B, *[1] * (x.ndim - 2)), 50 * torch.randn_like(x), x)

    kept = {"start", "policy_weight", "value_weight", "memory", "critics", "action_mask"}
    garbage = {name: tree_map(spoiled, value) for name, value in part.rows._asdict().items() if name not in kept}
    clean = accumulate(river.agent, [part], turned(), config)
    before = gradients(river.agent)
    dirty = accumulate(river.agent, [part._replace(rows=part.rows._replace(**garbage))], turned(), config)
    for name, gradient in gradients(river.agent).items():
        torch.testing.assert_close(gradient, before[name], **EXACT)
    for name, value in clean.items():
        torch.testing.assert_close(dirty[name], value, **EXACT)


def test_only_the_critic_learns_from_rows_where_the_action_had_no_effect():
    config, river = one_river()
    part = whole(river)
    quiet = (part.rows.policy_weight == 0) & (part.rows.value_weight > 0)
    assert quiet.any()
    changed = part.rows._replace(target=torch.where(quiet[..., None], part.rows.target + 1, part.rows.target))
    _, before = batch_loss(river.agent, part, turned(), config)
    _, after = batch_loss(river.agent, part._replace(rows=changed), turned(), config)
    assert after["value_loss"] != before["value_loss"]
    changed = part.rows._replace(advantage=torch.where(quiet, part.rows.advantage + 1, part.rows.advantage))
    _, after = batch_loss(river.agent, part._replace(rows=changed), turned(), config)
    assert after["policy_gradient_loss"] == before["policy_gradient_loss"]


def test_a_weighted_sum_ignores_what_weighs_nothing():
    values = torch.tensor([1.0, math.nan, math.inf, 4.0])
    assert float(weighted_sum(values, torch.tensor([2.0, 0.0, 0.0, 0.5]))) == 4.0


@pytest.mark.parametrize("burn_in", [0, 2])
def test_a_loss_term_can_replay_its_rows_and_sees_no_weight_on_the_burn_in(burn_in):
    config = settings(ppo={"batch_size": 4, "burn_in": burn_in}, net={"memory": "gru"})
    river = flow(config)
    seen = []

    def term(agent, rows, knobs):
        outputs, _ = agent.unroll(rows.obs, rows.memory, rows.start)
        gap = (agent.policy.log_prob(outputs.policy, rows.action) - rows.log_prob).abs()
        assert gap.max() <= 1e-12
        seen.append((rows.policy_weight, rows.value_weight))
        return (agent.policy.entropy(outputs.policy) * rows.policy_weight).sum() / rows.policy_weight.sum().clamp_min(1e-9)

    order = torch.Generator().manual_seed(0)
    whole_weight = 0.0
    for (part,) in minibatches(river.groups, order, config.ppo):
        _, stats = batch_loss(river.agent, part, turned(), config, [term])
        weight, value_weight = seen[-1]
        assert (weight[: part.burn_in] == 0).all()
        assert (value_weight[: part.burn_in] == 0).all()
        torch.testing.assert_close(stats["term_0"], stats["entropy"], **EXACT)
        whole_weight += float(weight.sum())
    assert whole_weight == pytest.approx(float(river.batch.policy_weight.sum()))


# --- many agents at once ----------------------------------------------------------------------------------------------


class Lossy(torch.nn.Module):
    """An agent whose forward is the loss of a part."""

    def __init__(self, agent, config):
        super().__init__()
        self.agent, self.config = agent, config

    def forward(self, part, knobs):
        return batch_loss(self.agent, part, knobs, self.config)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("action", ["tanh", "choices"])
def test_the_losses_of_a_population_are_those_of_its_agents(action, kind):
    """vmap over stacked weights and knobs equals one agent after the other, gradients included."""
    config, river = one_river(
        action, {"kind": kind, "clip": "per_quantile" if kind == "quantile" else "off"}, net={"memory": "gru"}
    )
    part = whole(river, torch.randn(1, T, B, 2, dtype=torch.float64) if "squash" in ACTIONS[action][1] else None)
    agents = [Lossy(disturb(copy.deepcopy(river.agent), 0.1, seed=i), config) for i in range(3)]
    clips = torch.tensor([0.05, 0.1, 0.3], dtype=torch.float64)
    stacked, buffers = torch.func.stack_module_state(agents)
    shell = copy.deepcopy(agents[0]).to("meta")

    def run(parameters, own_buffers, clip):
        return torch.func.functional_call(shell, (parameters, own_buffers), (part, turned()._replace(clip=clip)))

    losses, stats = torch.vmap(run)(stacked, buffers, clips)
    losses.sum().backward()
    for i, lossy in enumerate(agents):
        loss, figures = lossy(part, turned()._replace(clip=clips[i]))
        loss.backward()
        torch.testing.assert_close(losses[i], loss, **EXACT)
        torch.testing.assert_close({name: value[i] for name, value in stats.items()}, figures, **EXACT)
        for name, parameter in lossy.named_parameters():
            torch.testing.assert_close(stacked[name].grad[i], parameter.grad, **EXACT)
