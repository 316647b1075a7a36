"""Every figure equals a slow second computation: loops over rows, lists of numbers, NumPy."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from quantail.config import CloneConfig, EntropyConfig, KlConfig, OptimConfig
from quantail.loop import make_optimizer
from quantail.losses import batch_loss
from quantail.rollout import collect
from quantail.statistics import ended_episodes, explained, findings, latest_episodes, successes, weighted_mean_and_std
from quantail.stepper import Stepper
from quantail.update import update
from rivers import B, Ragged, T, accumulate, disturb, flow, gradients, metrics_of, minibatches, refresh, settings, turned

CLOSE = {"rel": 1e-10, "abs": 1e-12}


def iteration(config=None, action="real", same_step=False, terms=(), **parts):
    """A river, what was learned from it, and the figures."""
    config = config or settings(action, **parts)
    river = flow(config, Ragged(action, same_step), iterations=3)
    source = torch.Generator().manual_seed(3)
    optimizer = make_optimizer(river.agent, config.optim)
    learned = update(Stepper(river.agent, optimizer, config, terms), river.groups, source, turned(), epochs=2)
    found = metrics_of(river.agent, river.carry, river.rollout, river.batch, river.estimates, learned, turned())
    return config, river, learned, found


def rows_of(values, weight):
    """The values and weights of the rows that count, as arrays."""
    pairs = [(float(values[i]), float(weight[i])) for i in itertools.product(*map(range, weight.shape)) if weight[i] > 0]
    return np.array(pairs).T


def spread(values, weight):
    mean = np.average(values, weights=weight)
    return math.sqrt(np.average((values - mean) ** 2, weights=weight))


WANTED = [
    "train/loss",
    "train/policy_gradient_loss",
    "train/value_loss",
    "train/approx_kl",
    "train/clip_fraction",
    "train/entropy_loss",
    "train/explained_variance",
    "train/learning_rate",
    "train/clip_range",
    "policy/log_ratio_mean",
    "policy/log_ratio_max",
    "policy/log_ratio_clamped",
    "policy/log_ratio_not_finite",
    "policy/advantage_raw_min",
    "policy/advantage_raw_max",
    "policy/advantage_raw_std",
    "policy/advantage_raw_mean",
    "policy/advantage_normalised_min",
    "policy/advantage_normalised_max",
    "policy/advantage_normalised_std",
    "policy/entropy_min",
    "policy/entropy_mean",
    "policy/entropy_max",
    "policy/clone_loss",
    "policy/clone_ratio",
    "policy/kl_smooth",
    "policy/kl_max",
    "policy/entropy_coef",
    "policy/clone_coef",
    "policy/kl_penalty",
    "critic/loss_0",
    "critic/loss_1",
    "critic/loss_clipped",
    "critic/loss_unclipped",
    "critic/clip_active",
    "critic/twin_gap",
    "critic/explained_variance_per_env",
    "critic/value_mean",
    "critic/return_mean",
    "critic/return_std",
    "critic/target_std",
    "optim/grad_norm",
    "optim/grad_norm_clipped",
    "optim/steps",
    "optim/void_steps",
    "optim/grad_norm/critic_0",
    "optim/grad_norm/critic_1",
    "optim/grad_norm/actor/memory",
    "optim/grad_norm/actor/memory_1",
    "optim/grad_norm_clipped/critic/encoder",
    "optim/grad_norm_clipped/critic/memory",
    "optim/grad_norm_clipped/critic/memory_0",
    "memory/state_0_layer_1_mean",
    "memory/state_3_layer_0_std",
    "memory/state_1_layer_1_norm",
    "memory/state_0_layer_1_mean_before_start",
    "memory/state_3_layer_0_std_before_start",
    "memory/state_1_layer_1_norm_before_start",
    "memory/state_0_layer_1_mean_after_start",
    "memory/state_3_layer_0_std_after_start",
    "memory/state_1_layer_1_norm_after_start",
    "norm/obs_drift",
    "norm/return_mean",
    "norm/return_std",
    "rollout/valid_rows",
    "rollout/learned_rows",
    "rollout/episodes",
    "health/not_finite_reward",
    "health/not_finite_pnl",
    "health/not_finite_obs",
    "health/not_finite_info",
    "env/pushed",
]


def test_every_figure_is_there_and_finite():
    *_, found = iteration(net={"layers": 2})
    assert [name for name in WANTED if not math.isfinite(found.get(name, math.nan))] == []
    assert all(type(value) is float for value in found.values())


def test_figures_of_the_steps_are_means_extremes_and_counts():
    _, _, learned, found = iteration(clone=CloneConfig(coef=0.7), entropy=EntropyConfig(coef=0.1), kl=KlConfig(smoothing=0.6))
    steps = [{name: float(value) for name, value in step.items()} for step in learned.steps]
    assert len(steps) == 6

    def column(name):
        return [step[name] for step in steps]

    means = {
        "train/loss": "loss",
        "train/policy_gradient_loss": "policy_gradient_loss",
        "train/value_loss": "value_loss",
        "train/approx_kl": "kl",
        "train/clip_fraction": "clip_fraction",
        "policy/entropy_mean": "entropy",
        "policy/log_ratio_mean": "log_ratio_mean",
        "critic/loss_1": "value_loss_1",
        "optim/grad_norm": "grad_norm",
        "optim/grad_norm_clipped/critic_0/head": "grad_norm_clipped/critic_0/head",
    }
    for public, name in means.items():
        assert found[public] == pytest.approx(sum(column(name)) / 6, **CLOSE), public
    assert found["train/entropy_loss"] == -found["policy/entropy_mean"]
    assert found["policy/kl_max"] == max(column("kl"))
    assert found["policy/log_ratio_max"] == max(column("log_ratio_max"))
    assert found["policy/entropy_min"] == min(column("entropy_min"))
    assert found["policy/entropy_max"] == max(column("entropy_max"))
    assert found["optim/steps"] == 6
    smooth = column("kl")[0]
    for kl in column("kl")[1:]:
        smooth = 0.6 * smooth + 0.4 * kl
    assert found["policy/kl_smooth"] == pytest.approx(smooth, **CLOSE)
    ratio = abs(0.7 * found["policy/clone_loss"]) / abs(found["train/policy_gradient_loss"])
    assert found["policy/clone_ratio"] == pytest.approx(ratio, **CLOSE)


def test_entropies_of_single_rows_bound_the_mean():
    """State-dependent deviations differ from row to row; rows of weight 0 do not count."""
    config = settings("tanh", ppo={"batch_size": 1000, "micro_batches": 3})
    river = flow(config, Ragged("tanh"))
    source = torch.Generator().manual_seed(3)
    (batch,) = list(minibatches(river.groups, source, config.ppo, entropy_noise=True))
    stats = accumulate(river.agent, batch, turned(), config)
    rows = []
    for part in batch:
        with torch.no_grad():
            policy = river.agent.unroll(part.rows.obs, part.memory, part.rows.start)[0].policy
            rows.append(rows_of(river.agent.policy.entropy(policy, part.entropy_noise), part.rows.policy_weight))
    values, weights = np.concatenate(rows, 1)
    assert float(stats["entropy_min"]) == pytest.approx(values.min(), rel=1e-12)
    assert float(stats["entropy_max"]) == pytest.approx(values.max(), rel=1e-12)
    assert float(stats["entropy"]) == pytest.approx(np.average(values, weights=weights), rel=1e-12)
    assert values.min() < values.max()


def test_log_ratios_are_those_of_single_rows():
    config = settings("real", ppo={"batch_size": 1000})
    river = flow(config, Ragged("real"))
    disturb(river.agent, 0.3, seed=8)
    (batch,) = list(minibatches(river.groups, torch.Generator(), config.ppo))
    _, stats = batch_loss(river.agent, batch[0], turned(), config)
    rows = batch[0].rows
    with torch.no_grad():
        policy = river.agent.unroll(rows.obs, batch[0].memory, rows.start)[0].policy
        change = river.agent.policy.log_prob(policy, rows.action) - rows.log_prob
    values, weights = rows_of(change, rows.policy_weight)
    assert float(stats["log_ratio_max"]) == pytest.approx(np.abs(values).max(), rel=1e-12)
    assert float(stats["log_ratio_mean"]) == pytest.approx(np.average(values, weights=weights), rel=1e-10)
    share = np.average(np.abs(np.exp(values) - 1) > float(turned().clip), weights=weights)
    assert float(stats["clip_fraction"]) == pytest.approx(share, rel=1e-12)
    assert 0 < share < 1


def test_advantages_before_and_after():
    _, river, _, found = iteration()
    for name, values in (("raw", river.estimates.advantages), ("normalised", river.batch.advantage)):
        x, w = rows_of(values, river.rollout.policy_weight)
        assert found[f"policy/advantage_{name}_min"] == pytest.approx(x.min(), **CLOSE)
        assert found[f"policy/advantage_{name}_max"] == pytest.approx(x.max(), **CLOSE)
        assert found[f"policy/advantage_{name}_mean"] == pytest.approx(np.average(x, weights=w), **CLOSE)
        assert found[f"policy/advantage_{name}_std"] == pytest.approx(spread(x, w), **CLOSE)
    assert found["policy/advantage_normalised_std"] == pytest.approx(1.0, **CLOSE)


@pytest.mark.parametrize("kind", ["scalar", "quantile", "categorical"])
def test_figures_of_the_critic(kind):
    _, river, _, found = iteration(settings("real", {"kind": kind}))
    weight, returns, values = river.rollout.value_weight, river.estimates.returns, river.estimates.values[:-1]
    y, w = rows_of(returns, weight)
    v, _ = rows_of(values, weight)
    assert found["train/explained_variance"] == pytest.approx(1 - spread(y - v, w) ** 2 / spread(y, w) ** 2, **CLOSE)
    groups = []
    for b in range(B):
        y_b, w_b = rows_of(returns[:, b], weight[:, b])
        v_b, _ = rows_of(values[:, b], weight[:, b])
        groups.append(1 - spread(y_b - v_b, w_b) ** 2 / spread(y_b, w_b) ** 2)
    assert found["critic/explained_variance_per_env"] == pytest.approx(np.mean(groups), **CLOSE)
    assert found["critic/return_mean"] == pytest.approx(np.average(y, weights=w), **CLOSE)
    assert found["critic/return_std"] == pytest.approx(spread(y, w), **CLOSE)
    assert found["critic/value_mean"] == pytest.approx(np.average(v, weights=w), **CLOSE)
    particles, heavy = rows_of(river.estimates.particles, weight[..., None].expand(river.estimates.particles.shape))
    assert found["critic/target_std"] == pytest.approx(spread(particles, heavy), **CLOSE)
    gaps = []
    masses, atoms = river.agent.values.masses.tolist(), river.agent.values.atoms.tolist()
    for t, b in itertools.product(range(T), range(B)):
        means = []
        for said in river.rollout.critics[:, t, b].tolist():
            law = (said, masses)
            if kind == "categorical":
                top = sum(map(math.exp, said))
                law = (atoms, [math.exp(x) / top for x in said])
            means.append(sum(x * m for x, m in zip(*law, strict=True)))
        gaps.append((abs(means[0] - means[1]) * float(river.carry.scale.std), float(weight[t, b])))
    assert found["critic/twin_gap"] == pytest.approx(sum(g * w for g, w in gaps) / sum(w for _, w in gaps), **CLOSE)
    assert ("critic/outside_support" in found) == (kind == "categorical")


def test_one_critic_has_no_twin():
    *_, found = iteration(settings("real", {"twin": False}))
    assert "critic/twin_gap" not in found
    assert "critic/loss_1" not in found


@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize("memory", ["lstm", "gru", "none"])
def test_the_memory_around_episode_starts(memory, same_step):
    """By unrolling the rollout again, one row after the other, and keeping every state."""
    config, river, _, found = iteration(
        settings("real", net={"memory": memory, "layers": 2}, optim=OptimConfig(learning_rate=1e-9)), same_step=same_step
    )
    agent = flow(config, Ragged("real", same_step), iterations=3).agent  # before the update
    state, before, after = river.before.memory, [], []
    for t in range(T):
        row = river.rollout.start[t : t + 1]
        with torch.no_grad():
            _, later = agent.unroll(river.rollout.obs[t : t + 1], state, row)
        if t > 0:
            before.append([x[:, row[0]] for x in state])
            after.append([x[:, row[0]] for x in later])
        state = later
    if memory == "none":
        assert not any(name.startswith("memory/") for name in found)
        return
    for i, layer in itertools.product(range(len(state)), range(2)):
        for moment, kept in (("before", before), ("after", after)):
            rows = torch.cat([x[i][layer] for x in kept]).numpy()  # [starts, H]
            assert len(rows) > 3
            name = f"memory/state_{i}_layer_{layer}"
            assert found[f"{name}_mean_{moment}_start"] == pytest.approx(rows.mean(), **CLOSE)
            assert found[f"{name}_std_{moment}_start"] == pytest.approx(rows.std(), **CLOSE)
            assert found[f"{name}_norm_{moment}_start"] == pytest.approx(np.linalg.norm(rows, axis=1).mean(), **CLOSE)
        final = state[i][layer].numpy()
        assert found[f"memory/state_{i}_layer_{layer}_mean"] == pytest.approx(final.mean(), **CLOSE)
        assert found[f"memory/state_{i}_layer_{layer}_std"] == pytest.approx(final.std(), **CLOSE)
        assert found[f"memory/state_{i}_layer_{layer}_norm"] == pytest.approx(np.linalg.norm(final, axis=1).mean(), **CLOSE)


def test_gradient_norms_of_owners_are_means_over_the_steps():
    config, _, learned, found = iteration(settings("real", ppo={"batch_size": 1000}))
    twin = flow(config, Ragged("real"), iterations=3)
    (batch,) = list(minibatches(twin.groups, torch.Generator().manual_seed(3), config.ppo))
    accumulate(twin.agent, batch, turned(), config)
    gradient = gradients(twin.agent)
    names = {id(p): name for name, p in twin.agent.named_parameters()}
    for owner, group in twin.agent.parameter_groups().items():
        first = math.sqrt(sum(float(gradient[names[id(p)]].square().sum()) for p in group))
        assert float(learned.steps[0][f"grad_norm/{owner}"]) == pytest.approx(first, rel=1e-10)
        both = [float(step[f"grad_norm/{owner}"]) for step in learned.steps]
        assert found[f"optim/grad_norm/{owner}"] == pytest.approx(sum(both) / 2, **CLOSE)
    for i in range(2):
        assert found[f"critic/grad_norm_{i}"] == found[f"optim/grad_norm/critic_{i}"] > 0


def test_the_observations_drift_in_units_of_what_was_known():
    config, river, _, _ = iteration()
    known = refresh(river.carry, river.rollout, river.estimates.particles, river.agent, config)
    rollout, carry = collect(river.env, river.agent, known, river.noise, config)
    drifted = metrics_of(
        river.agent, carry, rollout, river.batch, river.estimates, update_of(river, config), turned()
    )["norm/obs_drift"]  # fmt: skip
    raw = rollout.raw_moments[""].mean.numpy()
    expected = np.abs(raw - known.obs_moments[""].mean.numpy()) / np.sqrt(known.obs_moments[""].variance.numpy())
    assert drifted == pytest.approx(expected.mean(), **CLOSE)
    assert drifted > 0
    still = known.obs_moments[""]._replace(variance=known.obs_moments[""].variance * torch.tensor([1, 0, 1, 1]))
    carry = carry._replace(obs_moments={"": still})
    found = metrics_of(river.agent, carry, rollout, river.batch, river.estimates, update_of(river, config), turned())
    assert found["norm/obs_drift"] == pytest.approx(expected[[0, 2, 3]].mean(), **CLOSE)


def update_of(river, config):
    source = torch.Generator().manual_seed(3)
    step = Stepper(river.agent, make_optimizer(river.agent, config.optim), config)
    return update(step, river.groups, source, turned(), epochs=1)


def test_figures_of_the_environment_are_means_over_valid_rows_and_bad_ones_are_counted():
    _, river, learned, found = iteration()
    figure, valid = river.rollout.info["pushed"], river.rollout.valid
    assert found["env/pushed"] == pytest.approx(float(figure[valid].mean()), **CLOSE)
    t, b = valid.nonzero()[4].tolist()
    u, v = (~valid).nonzero()[0].tolist()
    broken = figure.clone()
    broken[t, b], broken[u, v] = math.nan, math.inf
    rollout = river.rollout._replace(info={"pushed": broken})
    found = metrics_of(river.agent, river.carry, rollout, river.batch, river.estimates, learned, turned())
    kept = valid.clone()
    kept[t, b] = False
    assert found["env/pushed"] == pytest.approx(float(figure[kept].mean()), **CLOSE)
    assert found["health/not_finite_info"] == 1
    assert found["rollout/valid_rows"] == float(valid.sum()) < T * B
    assert found["rollout/learned_rows"] == float(valid.sum())
    muted = rollout._replace(value_weight=rollout.value_weight.clone().index_fill(1, torch.tensor([b]), 0.0))
    found = metrics_of(river.agent, river.carry, muted, river.batch, river.estimates, learned, turned())
    assert found["rollout/learned_rows"] == float(valid.sum() - valid[:, b].sum())


def test_episodes_in_the_order_in_which_they_ended():
    _, river, _, found = iteration()
    reward, valid, ends = river.rollout.reward, river.rollout.valid, river.rollout.terminated | river.rollout.truncated
    expected, running = (
        [],
        [(float(x), float(n)) for x, n in zip(river.before.episode_return, river.before.episode_length, strict=True)],
    )
    for t, b in itertools.product(range(T), range(B)):
        total, length = running[b]
        running[b] = (total + float(reward[t, b]), length + 1) if valid[t, b] else (total, length)
        if ends[t, b]:
            expected.append(running[b])
            running[b] = (0.0, 0.0)
    seen = ended_episodes(river.rollout)
    assert len(seen) == found["rollout/episodes"] > 5
    for ours, theirs in zip(seen, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-12)


def test_success_is_read_where_an_episode_ends_and_the_environment_tells():
    _, river, _, _ = iteration()
    assert successes(river.rollout) == []
    told = torch.arange(T * B, dtype=torch.float64).reshape(T, B) % 2
    told[:, 0] = torch.nan
    ended = ~river.rollout.episode_return.isnan()
    expected = [float(told[t, b]) for t, b in itertools.product(range(T), range(B)) if ended[t, b] and b > 0]
    assert successes(river.rollout._replace(info={"is_success": told})) == expected
    assert 0 < sum(expected) < len(expected)


@pytest.mark.parametrize("most", [1, 3, 100])
@pytest.mark.parametrize("told", [False, True])
def test_the_latest_episodes_are_those_of_a_loop_oldest_first(most, told):
    rollout = flow(settings("real"), iterations=3, action="real").rollout
    if told:
        rollout = rollout._replace(info={"is_success": torch.arange(T * B).view(T, B) % 2})
    seen = []
    for t, b in itertools.product(range(T), range(B)):
        gained = float(rollout.episode_return[t, b])
        if not math.isnan(gained):
            seen.append([gained, float(rollout.episode_length[t, b]), float((t * B + b) % 2) if told else math.nan])
    assert len(seen) > 3
    count = min(most, T * B)
    expected = [[math.nan] * 3] * max(count - len(seen), 0) + seen[-count:]
    found = latest_episodes(rollout, most)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=0, equal_nan=True)


def broken(agent, rows, knobs):
    return torch.tensor(math.nan)


def test_void_steps_are_counted_and_leave_the_means_alone():
    calls = itertools.count()

    def sometimes(agent, rows, knobs):
        return torch.tensor(math.nan if next(calls) % 2 else 0.0)

    _, river, learned, found = iteration(terms=[sometimes])
    good = [step for step in learned.steps if not float(step["void"])]
    assert found["optim/void_steps"] == found["optim/steps"] == len(good) == 3
    assert found["train/loss"] == pytest.approx(sum(float(step["loss"]) for step in good) / 3, **CLOSE)
    assert math.isfinite(found["train/approx_kl"])
    assert "3 optimizer steps changed nothing: the first tensor that is not finite is loss term 0" in findings(
        found, river.rollout, learned
    )


def test_nothing_but_void_steps_is_no_crash():
    *_, found = iteration(terms=[broken], optim=OptimConfig(patience=100))
    assert found["optim/void_steps"] == 6
    assert math.isnan(found["train/approx_kl"])
    assert math.isnan(found["policy/entropy_mean"])
    assert math.isfinite(found["train/explained_variance"])


def test_a_share_of_clamped_log_ratios_above_a_percent_is_a_finding():
    _, river, learned, found = iteration()
    assert findings(found, river.rollout, learned) == ()
    for share, count in ((0.009, 0), (0.011, 1)):
        words = findings(found | {"policy/log_ratio_clamped": share}, river.rollout, learned)
        assert len(words) == count
    assert "1.1% of the log-ratios" in words[0]
    (words,) = findings(found | {"policy/log_ratio_not_finite": 7.0}, river.rollout, learned)
    assert words.startswith("7 log-ratios were not finite")


def test_a_finding_names_the_environment():
    _, river, learned, found = iteration()
    not_finite = river.rollout.not_finite.clone()
    not_finite[4, 3, 0] = not_finite[5, 1, 0] = True
    (words,) = findings(found | {"health/not_finite_reward": 2.0}, river.rollout._replace(not_finite=not_finite), learned)
    assert words.startswith("reward was not finite in environments [1, 3]")


class HostReads(TorchFunctionMode):
    """Counts what would make the host wait for a device: numbers read, and shapes that depend on what is in a tensor."""

    READS = ("tolist", "item", "numpy", "cpu", "nonzero", "masked_select", "unique", "equal", "allclose")
    READS += ("__bool__", "__float__", "__int__", "__index__", "__contains__")

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        picks = args[1] if name in ("__getitem__", "__setitem__") else ()
        picks = picks if isinstance(picks, tuple) else (picks,)
        by_content = [one for one in picks if isinstance(one, torch.Tensor) and (one.dtype == torch.bool or not one.ndim)]
        if name in self.READS or by_content:
            self.seen.append(name)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("terms", [[], [broken]], ids=["sound", "void"])
@pytest.mark.parametrize(("action", "kind"), [("real", "quantile"), ("choices", "categorical"), ("tanh", "scalar")])
def test_all_figures_cross_to_the_host_at_once(action, kind, terms):
    config = settings(action, {"kind": kind}, optim=OptimConfig(patience=100), clone=CloneConfig(coef=0.5))
    _, river, learned, found = iteration(config, action, terms=terms)
    with HostReads() as reads:
        again = metrics_of(river.agent, river.carry, river.rollout, river.batch, river.estimates, learned, turned())
    assert reads.seen == ["tolist"]
    assert len(again) > 80
    np.testing.assert_equal(again, found)


def test_the_count_of_host_reads_sees_each_kind():
    x = torch.arange(3.0)
    with HostReads() as reads:
        float(x[0]), bool(x[1] > 0), x[x > 1], x.tolist(), x.nonzero(), x[x[1].long()]
    assert reads.seen == ["__float__", "__bool__", "__getitem__", "tolist", "nonzero", "__getitem__"]


def test_moments_of_nothing_and_variance_of_a_constant_are_not_known():
    mean, deviation = weighted_mean_and_std(torch.ones(3, 2), torch.zeros(3, 2))
    assert mean.isnan()
    assert deviation.isnan()
    assert explained(torch.tensor(1.0), torch.tensor(0.0)).isnan()
