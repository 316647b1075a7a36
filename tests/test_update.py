"""Mini-batches hold every row once, parts sum to the whole, the KL stops what it should, and a broken step changes nothing."""

import copy
import itertools
import math

import pytest
import torch
from torch.distributions import Categorical, Independent, Normal, kl_divergence

from quantail.config import CloneConfig, EntropyConfig, KlConfig, OptimConfig, PpoConfig
from quantail.loop import make_optimizer
from quantail.nets.agent import select_envs
from quantail.stepper import Stepper, gradient_norms, owners_of
from quantail.stops import ABSOLUTE, RULES, after_epoch, after_step, before_step, start_stops
from quantail.update import update
from rivers import B, Ragged, T, accumulate, disturb, flow, gradients, minibatches, settings, turned, with_part

EXACT = {"rtol": 1e-12, "atol": 1e-12}
EVERYTHING = {"entropy": EntropyConfig(coef=0.3), "kl": KlConfig(penalty=0.9), "clone": CloneConfig(coef=0.7)}


def order(seed=3):
    return torch.Generator().manual_seed(seed)


def learn(river, config, optimizer=None, terms=(), epochs=2, seed=3, **knobs):
    optimizer = optimizer or make_optimizer(river.agent, config.optim)
    return update(Stepper(river.agent, optimizer, config, terms), river.groups, order(seed), turned(**knobs), epochs=epochs)


def weights(agent):
    return {name: p.detach().clone() for name, p in agent.named_parameters()}


# --- mini-batches -----------------------------------------------------------------------------------------------------

SIZES = [
    (1000, [T * B]),  # above the rollout: one batch
    (T * B, [T * B]),
    (3 * T + 5, [3 * T, 2 * T]),  # whole environments, and a remainder
    (2 * T, [2 * T, 2 * T, T]),
    (T, [T] * B),
    (4, [4] * 2 * B + [3] * B),  # below n_steps: chunks of time, the last one shorter
    (5, [5] * 2 * B + [5] * 1),  # the last chunk is one row: five of them fill a batch
    (1, [1] * T * B),
]


@pytest.mark.parametrize("burn_in", [0, 2])
@pytest.mark.parametrize(("batch_size", "sizes"), SIZES)
def test_every_row_is_in_one_batch_of_the_size_asked_for(batch_size, sizes, burn_in):
    config = settings(ppo={"batch_size": batch_size, "burn_in": burn_in})
    river = flow(config)
    # Each row carries its own number where the return's target was.
    tagged = [
        group._replace(rows=group.rows._replace(target=tag[..., None]))
        for group, tag in zip(river.groups, tags(river, config), strict=True)
    ]
    seen, found = [], []
    for parts in minibatches(tagged, order(), config.ppo):
        learned = [part.rows.target[part.burn_in :, :, 0] for part in parts]
        found.append(sum(x.numel() for x in learned))
        seen += [int(x) for rows in learned for x in rows.flatten()]
    assert sorted(seen) == list(range(T * B))
    assert sorted(found) == sorted(sizes)


def tags(river, config):
    """A number for each row of each training sequence, burn-in rows the same as where they are learned."""
    number = torch.arange(T * B, dtype=torch.float64).reshape(T, B)
    length = min(config.ppo.batch_size, T)
    spans = [(max(at - config.ppo.burn_in, 0), at, min(at + length, T)) for at in range(0, T, length)]
    for group in river.groups:
        alike = [s for s in spans if (s[1] - s[0], s[2] - s[0]) == (group.burn_in, len(group.rows.start))]
        yield torch.cat([number[begin:end] for begin, _, end in alike], 1)


def test_batches_come_in_another_order_every_epoch():
    config = settings(ppo={"batch_size": 4})
    river = flow(config)
    source = order()
    first, second = (
        [parts[0].rows.advantage[0, 0].item() for parts in minibatches(river.groups, source, config.ppo)] for _ in range(2)
    )
    assert first != second
    assert sorted(first) != first


def test_the_noise_of_a_sampled_entropy_is_new_in_every_step_and_normal():
    config = settings("tanh", ppo={"batch_size": 2 * T, "burn_in": 2})
    river = flow(config, Ragged("tanh"))
    source, found = order(), []
    for _ in range(40):
        for (part,) in minibatches(river.groups, source, config.ppo, entropy_noise=True):
            assert part.entropy_noise.shape == (1, *part.rows.action[part.burn_in :].shape)
            found.append(part.entropy_noise.flatten())
    drawn = torch.cat(found)
    assert len(drawn.unique()) == len(drawn) == 40 * T * B * 2
    assert abs(float(drawn.mean())) < 5 / math.sqrt(len(drawn))
    assert float(drawn.std()) == pytest.approx(1.0, abs=0.05)
    assert all(part.entropy_noise is None for (part,) in minibatches(river.groups, source, config.ppo))


def test_burn_in_rows_warm_up_the_memory_and_have_no_loss():
    """Their targets and advantages may be anything, their observations not."""
    config = settings(ppo={"batch_size": 4, "burn_in": 2}, net={"memory": "gru"}, **EVERYTHING)
    river = flow(config)
    disturb(river.agent, 0.3, seed=8)
    group = river.groups[1]
    parts = [part for (part,) in minibatches([group], order(), config.ppo)]
    part = next(part for part in parts if not part.rows.start[1:4].any())  # the memory reaches a row that learns
    assert part.burn_in == 2

    def gradient(**changes):
        rows = part.rows._replace(**changes)
        accumulate(river.agent, [part._replace(rows=rows)], turned(), config)
        return torch.cat([g.flatten() for g in gradients(river.agent).values()])

    def spoiled(x):
        return torch.cat([x[:2] + 100, x[2:]])

    clean = gradient()
    for name in ("advantage", "target", "log_prob", "policy_weight", "value_weight"):
        torch.testing.assert_close(gradient(**{name: spoiled(getattr(part.rows, name))}), clean, **EXACT)
    assert not torch.allclose(gradient(obs=spoiled(part.rows.obs)), clean)


# --- accumulation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("critic", ["scalar", "quantile", "categorical"])
@pytest.mark.parametrize("action", ["tanh", "sigmoid", "real", "choices"])
def test_many_small_parts_are_one_batch(action, critic):
    """Ragged episodes, fractional weights, dropout, a sampled entropy, a loss term: the gradient is the same."""

    def term(agent, rows, knobs):
        outputs, _ = agent.unroll(rows.obs, rows.memory, rows.start)
        figure = (
            agent.policy.mode(outputs.policy).double().flatten(2).sum(-1) if action != "choices" else outputs.critics[0].sum(-1)
        )
        return (figure * rows.policy_weight).sum() / rows.policy_weight.sum()

    found = []
    for parts in (1, 2, 3, 5, 9):
        options = {"net": {"dropout": 0.3, "layers": 2}, "ppo": {"batch_size": 1000, "micro_batches": parts}}
        config = settings(action, {"kind": critic}, **options, **EVERYTHING)
        river = flow(config, Ragged(action))
        disturb(river.agent, 0.3, seed=8)
        batches = minibatches(river.groups, order(), config.ppo, entropy_noise=river.agent.policy.needs_entropy_noise)
        (batch,) = list(batches)
        assert len(batch) == min(parts, B)
        stats = accumulate(river.agent, batch, turned(), config, [term])
        found.append((gradients(river.agent), stats))
    for gradient, stats in found[1:]:
        torch.testing.assert_close(gradient, found[0][0], **EXACT)
        torch.testing.assert_close(stats, found[0][1], **EXACT)
    assert found[0][1]["entropy"] != 0


def test_the_parts_means_are_over_the_weight_of_the_whole_step():
    """Not the mean of the parts' means: parts of unequal weight differ."""
    config = settings("real", ppo={"batch_size": 1000, "micro_batches": B})
    river = flow(config, Ragged("real"))
    (batch,) = list(minibatches(river.groups, order(), config.ppo))
    stats = accumulate(river.agent, batch, turned(), config)
    weight = river.batch.policy_weight
    expected = -(river.batch.advantage * weight).sum() / weight.sum()  # the ratio is still 1
    torch.testing.assert_close(stats["policy_gradient_loss"], expected, **EXACT)
    assert len({float(part.rows.policy_weight.sum()) for part in batch}) > 2


def test_environments_learn_together_as_alone():
    """What the agent says of many environments at once is what it says of each: also the loss is the sum of theirs."""
    config = settings("real", net={"memory": "lstm"}, ppo={"batch_size": 1000})
    river = flow(config, Ragged("real"))
    group = river.groups[0]
    together, _ = river.agent.unroll(group.rows.obs, group.memory, group.rows.start)
    for b in range(B):
        one = slice(b, b + 1)
        memory = select_envs(group.memory, one)
        alone, _ = river.agent.unroll(group.rows.obs[:, one], memory, group.rows.start[:, one])
        torch.testing.assert_close(alone.critics, together.critics[:, :, one], **EXACT)
        torch.testing.assert_close(alone.policy.mean, together.policy.mean[:, one], **EXACT)


# --- the KL stops -----------------------------------------------------------------------------------------------------


def watched(kls, **config):
    """Index and rule of the stop in a sequence of epochs of KLs, by a loop like `update`'s."""
    config, fine = KlConfig(target=0.1, **config), torch.tensor(True)
    stops, i = start_stops(torch.device("cpu")), 0
    for epoch in kls:
        for kl in epoch:
            stops, go = before_step(stops, torch.tensor(kl, dtype=torch.float64), fine, config)
            stops = after_step(stops, fine, config, patience=3)
            assert bool(go) == (int(stops.rule) != ABSOLUTE)
            if stops.rule:
                return i, RULES[stops.rule]
            i += 1
        stops = after_epoch(stops, config)
        if stops.rule:
            return i, RULES[stops.rule]
    return i, ""


@pytest.mark.parametrize(
    ("kls", "config", "expected"),
    [
        ([[0.05, 0.149, 0.2]], {}, (2, "absolute")),
        ([[0.05, 0.15, 0.15]], {}, (3, "")),  # equal is not above
        ([[0.05, 0.149, 0.2]], {"absolute_factor": 1.4}, (1, "absolute")),
        ([[0.05, 0.9]], {"absolute_factor": 10.0, "smoothing": 0.99}, (2, "")),
        ([[0.11, 0.12, 0.09], [0.11, 0.12, 0.13]], {"consecutive": 3}, (5, "consecutive")),
        ([[0.11, 0.12, 0.09], [0.11, 0.12]], {"consecutive": 2}, (1, "consecutive")),
        ([[0.09, 0.11], [0.12, 0.09]], {"consecutive": 2}, (2, "consecutive")),  # the streak runs over the epoch's end
        ([[0.11, 0.12, 0.09, 0.09]], {"fraction": 0.5}, (4, "")),
        ([[0.11, 0.12, 0.13, 0.09]], {"fraction": 0.5}, (4, "fraction")),
        ([[0.09, 0.09, 0.09, 0.09], [0.11]], {"fraction": 0.5}, (5, "fraction")),  # each epoch counts anew
        ([[0.05, 0.149, 0.149]], {"consecutive": 1, "smoothing": 0.5}, (2, "consecutive")),  # .05, .0995, .12425
        ([[0.05, 0.149, 0.06]], {"consecutive": 1, "smoothing": 0.5}, (3, "")),
        ([[0.12, 0.07, 0.07]], {"consecutive": 2, "smoothing": 0.8}, (1, "consecutive")),  # .12, .11
    ],
)
def test_the_three_stop_rules(kls, config, expected):
    assert watched(kls, **config) == expected


def test_without_a_target_nothing_stops():
    stops, fine = start_stops(torch.device("cpu")), torch.tensor(True)
    for kl in (1.0, 1e9):
        stops, go = before_step(stops, torch.tensor(kl), fine, KlConfig())
        stops = after_epoch(after_step(stops, fine, KlConfig(), patience=3), KlConfig())
        assert go
    assert not stops.rule


def test_a_rule_that_has_spoken_stands_and_what_follows_counts_for_nothing():
    """As on a device, where the steps after a stop are still called."""
    config, fine = KlConfig(target=0.1, consecutive=1, smoothing=0.5), torch.tensor(True)
    stops, _ = before_step(start_stops(torch.device("cpu"), void_steps=2), torch.tensor(0.2), fine, config)
    stopped = after_step(stops, fine, config, patience=9)
    assert RULES[stopped.rule] == "absolute"
    for kl, whole in ((0.05, True), (math.nan, False), (9.0, True)):
        later, go = before_step(stopped, torch.tensor(kl), torch.tensor(whole), config)
        later = after_epoch(after_step(later, torch.tensor(whole), config, patience=1), config)
        assert not go
        assert later._replace(above=stopped.above, batches=stopped.batches) == stopped


def test_a_stop_at_the_very_first_step_moves_nothing_and_still_reports():
    """The policy has moved before the update, so the first batch is already too far."""
    config = settings("real", kl=KlConfig(target=1e-6))
    river = flow(config, Ragged("real"))
    disturb(river.agent, 0.2, seed=8)
    before, optimizer = weights(river.agent), make_optimizer(river.agent, config.optim)
    learned = learn(river, config, optimizer)
    assert (learned.stopped, len(learned.steps), learned.epochs) == ("absolute", 1, 1)
    assert float(learned.steps[0]["taken"]) == float(learned.steps[0]["void"]) == 0
    assert learned.steps[0]["kl"] > 1.5e-6
    torch.testing.assert_close(weights(river.agent), before, rtol=0, atol=0)
    assert not optimizer.state


@pytest.mark.parametrize("rule", ["consecutive", "fraction"])
def test_the_other_rules_stop_an_update_after_the_step(rule):
    strict = {"consecutive": {"consecutive": 2}, "fraction": {"fraction": 0.0}}[rule]
    config = settings("real", kl=KlConfig(target=1e-6, absolute_factor=1e9, **strict))
    river = flow(config, Ragged("real"))
    disturb(river.agent, 0.2, seed=8)
    learned = learn(river, config)
    assert learned.stopped == rule
    assert len(learned.steps) == {"consecutive": 2, "fraction": 3}[rule]
    assert all(step["taken"] for step in learned.steps)


@pytest.mark.parametrize("action", ["real", "tanh", "choices"])
def test_the_kl_is_exact_and_measured_before_the_step(action):
    config = settings(action, ppo={"batch_size": 1000})
    river = flow(config, Ragged(action))
    old = river.batch.policy
    (first, second) = learn(river, config, learning_rate=0.05).steps
    assert abs(float(first["kl"])) <= 1e-12
    river = flow(config, Ragged(action))
    learn(river, config, epochs=1, learning_rate=0.05)
    with torch.no_grad():
        new = river.agent.unroll(river.batch.obs, river.rollout.memory[0], river.batch.start)[0].policy
    if action == "choices":
        pairs = zip(torch.split(old.logits, [2, 3], -1), torch.split(new.logits, [2, 3], -1), strict=True)
        kl = sum(kl_divergence(Categorical(logits=p), Categorical(logits=q)) for p, q in pairs)
    else:
        kl = kl_divergence(*(Independent(Normal(one.mean, one.log_std.exp()), 1) for one in (old, new)))
    expected = (kl * river.batch.policy_weight).sum() / river.batch.policy_weight.sum()
    torch.testing.assert_close(second["kl"], expected, rtol=1e-10, atol=1e-14)
    assert expected > 1e-5


# --- gradient norms ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [0.05, 1e9, 0.0, -1.0, None])
def test_norms_before_and_after_the_clip_and_the_step_that_follows(limit):
    config = settings("real", ppo={"batch_size": 1000}, optim=OptimConfig(name="sgd", max_grad_norm=limit))
    river = flow(config, Ragged("real"))
    before = weights(river.agent)
    (stats,) = learn(river, config, epochs=1, learning_rate=0.5).steps
    moved = torch.cat([((before[name] - p) / 0.5).detach().flatten() for name, p in river.agent.named_parameters()])
    twin = flow(config, Ragged("real"))
    (batch,) = list(minibatches(twin.groups, order(), config.ppo))
    accumulate(twin.agent, batch, turned(), config)
    raw = torch.cat([g.flatten() for g in gradients(twin.agent).values()])
    assert float(stats["grad_norm"]) == pytest.approx(float(raw.norm()), rel=1e-12)
    assert float(stats["grad_norm_clipped"]) == pytest.approx(float(moved.norm()), rel=1e-9)
    shrunk = limit == 0.05
    assert float(moved.norm()) == pytest.approx(0.05 if shrunk else float(raw.norm()), rel=1e-4)
    for name, group in river.agent.parameter_groups().items():
        expected = math.sqrt(sum(float(p.grad.square().sum()) for p in group))
        assert float(stats[f"grad_norm_clipped/{name}"]) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("trunks", ["shared", "actor_critic", "each"])
def test_owners_are_layers_memories_heads_and_critics(trunks):
    config = settings("real", net={"trunks": trunks, "layers": 2}, ppo={"batch_size": 1000})
    river = flow(config, Ragged("real"))
    (batch,) = list(minibatches(river.groups, order(), config.ppo))
    accumulate(river.agent, batch, turned(), config)
    owners = owners_of(river.agent)
    found = dict(zip(owners.names, (owners.shares @ gradient_norms(owners).square()).sqrt().tolist(), strict=True))

    def norm(*prefixes):
        groups = river.agent.parameter_groups().items()
        return math.sqrt(sum(float(p.grad.square().sum()) for n, g in groups if n.startswith(prefixes) for p in g))

    trunk = {"shared": "shared", "actor_critic": "critic", "each": "critic_1"}[trunks]
    assert found[f"{trunk}/memory"] == pytest.approx(norm(f"{trunk}/memory_0", f"{trunk}/memory_1"), rel=1e-12)
    assert found[f"{trunk}/memory_1"] == pytest.approx(norm(f"{trunk}/memory_1"), rel=1e-12)
    assert found["critic_1"] == pytest.approx(norm("critic_1/"), rel=1e-12)
    assert set(river.agent.parameter_groups()) < set(found)
    assert min(found.values()) > 0


# --- void steps -------------------------------------------------------------------------------------------------------


class Poison(torch.autograd.Function):
    """Passes on what it is given, and NaN for its gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * math.nan


def broken_loss(agent, rows, knobs):
    return torch.tensor(math.nan)


def broken_gradient(agent, rows, knobs):
    return Poison.apply(agent.values.heads[1].weight).sum()


def endless_gradient(agent, rows, knobs):
    return 1e200 * agent.values.heads[1].weight.square().sum().sqrt() * 1e200


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize(
    ("term", "culprit"),
    [
        (broken_loss, "loss term 1"),
        (broken_gradient, "the gradient of values.heads.1.weight"),
        (endless_gradient, "loss term 1"),
    ],
)
def test_a_step_that_is_not_finite_changes_nothing_and_names_what_broke(term, culprit, name):
    optim = OptimConfig(name=name, patience=100, weight_decay=0.1)
    config = settings(ppo={"batch_size": 2 * T}, optim=optim)
    river = flow(config)
    optimizer = make_optimizer(river.agent, config.optim)
    learn(river, config, optimizer, epochs=1)
    before, state = weights(river.agent), copy.deepcopy(optimizer.state_dict()["state"])
    harmless = lambda agent, rows, knobs: torch.zeros(())  # noqa: E731
    learned = learn(river, config, optimizer, [harmless, term], epochs=1)
    assert [float(step["void"]) for step in learned.steps] == [1.0, 1.0, 1.0]
    assert (learned.void_steps, learned.culprit) == (3, culprit)
    torch.testing.assert_close(weights(river.agent), before, rtol=0, atol=0)
    torch.testing.assert_close(optimizer.state_dict()["state"], state, rtol=0, atol=0)
    learned = learn(river, config, optimizer, epochs=1)
    assert learned.void_steps == 0
    assert any((p != before[name]).any() for name, p in river.agent.named_parameters())


@pytest.mark.parametrize(
    ("field", "culprit"),
    [("advantage", "the surrogate loss"), ("target", "the loss of critic 0"), ("log_prob", "the surrogate loss")],
)
def test_a_broken_number_in_the_batch_is_blamed_on_the_loss_it_enters(field, culprit):
    config = settings(ppo={"batch_size": 1000})
    river = flow(config)
    rows = river.groups[0].rows
    broken = getattr(rows, field).clone()
    t, b = (rows.policy_weight > 0).nonzero()[0].tolist()
    broken[t, b] = math.nan
    river = river._replace(groups=[river.groups[0]._replace(rows=rows._replace(**{field: broken}))])
    before = weights(river.agent)
    learned = learn(river, config, epochs=1)
    assert learned.culprit == culprit
    torch.testing.assert_close(weights(river.agent), before, rtol=0, atol=0)


def test_void_steps_in_a_row_end_the_update_and_one_good_step_forgives_them():
    config = settings(ppo={"batch_size": T}, optim=OptimConfig(patience=4))
    calls = itertools.count()

    def now_and_then(agent, rows, knobs):
        return torch.tensor(math.nan if next(calls) % 4 else 0.0)  # three void steps, one good one

    river = flow(config)
    learned = learn(river, config, terms=[now_and_then], epochs=2)
    assert len(learned.steps) == 2 * B
    assert sum(float(step["void"]) for step in learned.steps) == 7
    learned = learn(river, config, terms=[broken_loss], epochs=2)
    assert (len(learned.steps), learned.void_steps) == (4, 4)
    step = Stepper(river.agent, make_optimizer(river.agent, config.optim), config, [broken_loss])
    carried = update(step, river.groups, order(), turned(), epochs=2, void_steps=3)
    assert (len(carried.steps), carried.void_steps) == (1, 4)


# --- the step ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_the_step_is_torchs_own_at_the_knobs_learning_rate(name):
    config = settings(ppo={"batch_size": 1000}, optim=OptimConfig(name=name, weight_decay=0.03, eps=1e-4, max_grad_norm=None))
    river = flow(config)
    twin = copy.deepcopy(river.agent)
    learn(river, config, epochs=1, learning_rate=0.013)
    (batch,) = list(minibatches(river.groups, order(), config.ppo))
    accumulate(twin, batch, turned(), config)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[name]
    kind(twin.parameters(), 0.013, weight_decay=0.03, **({} if name == "sgd" else {"eps": 1e-4})).step()
    torch.testing.assert_close(weights(river.agent), weights(twin), rtol=0, atol=0)


def test_an_update_repeats_and_depends_on_its_order():
    config = settings("tanh", ppo={"batch_size": 2 * T}, entropy=EntropyConfig(coef=0.1))
    found = []
    for seed in (3, 3, 4):
        river = flow(config, Ragged("tanh"))
        learn(river, config, seed=seed)
        found.append(weights(river.agent))
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
    assert any((found[2][name] != value).any() for name, value in found[0].items())


def test_more_parts_than_sequences_is_no_error():
    config = with_part(settings(), "ppo", micro_batches=50)
    assert isinstance(config.ppo, PpoConfig)
    assert len(learn(flow(config), config, epochs=1).steps) == 3
