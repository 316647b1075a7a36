"""Optimizers by name: the right one with the right settings, several as one, and what a void step leaves alone."""

import copy
import dataclasses

import pytest
import torch

from quantail.checkpoint import tree
from quantail.config import OptimConfig, UpgdConfig, VarianceConfig
from quantail.errors import ConfigError
from quantail.loop import make_optimizer
from quantail.optim import UPGD, UPGDW, AdaptiveUPGD, joint
from quantail.optim.gating import DEFAULTS
from quantail.optim.joint import Joint, figures, load_moments, make, scaler_of
from quantail.optim.muon import MuonOnDevice
from quantail.optim.schedule import set_rates
from quantail.optim.variance import DEFAULTS as MEASURING
from quantail.stepper import Stepper
from quantail.update import update
from rivers import B, Ragged, T, flow, settings, turned

EXACT = {"rtol": 1e-12, "atol": 1e-12}
KINDS = {
    "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD,
    "upgd": UPGD, "upgdw": UPGDW, "adaptive_upgd": AdaptiveUPGD,
}  # fmt: skip


def order(seed=3):
    return torch.Generator().manual_seed(seed)


def weights(agent):
    return {name: p.detach().clone() for name, p in agent.named_parameters()}


@pytest.mark.parametrize("name", KINDS)
def test_the_name_chooses_and_the_settings_arrive(name):
    gating = UpgdConfig(0.7, "tanh", 2.0, "unit", "reference", False, 0.3, "tracked")
    optim = OptimConfig(name, 0.3, beta1=0.4, beta2=0.5, eps=1e-3, weight_decay=0.6, upgd=gating)
    river = flow(settings("real"))
    optimizer = make_optimizer(river.agent, optim, seed=5)
    assert type(optimizer) is KINDS[name]
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"]) == (0.3, 0.6)
    assert [id(p) for p in group["params"]] == [id(p) for p in river.agent.parameters()]
    if "betas" in group:
        assert (group["betas"], group["eps"]) == ((0.4, 0.5), 1e-3)
    if "gate" in group:
        assert {key: group[key] for key in dataclasses.asdict(gating)} == dataclasses.asdict(gating)
        assert group["seed"] == 5


def test_the_defaults_of_the_config_are_those_of_the_library():
    plain = dataclasses.asdict(UpgdConfig())
    assert plain == {name: DEFAULTS[name] for name in plain}
    measuring = dataclasses.asdict(VarianceConfig())
    assert {**measuring, "population": False} == {"estimator": "off", **MEASURING}


def test_muon_takes_the_matrices_and_adamw_the_rest():
    river = flow(settings("real"))
    optimizer = make_optimizer(river.agent, OptimConfig("muon", 0.01, weight_decay=0.3, critic_learning_rate=0.002))
    muon, adamw = optimizer.members
    assert (type(muon), type(adamw)) == (torch.optim.Muon, torch.optim.AdamW)
    assert all(p.ndim == 2 for group in muon.param_groups for p in group["params"])
    assert all(p.ndim != 2 for group in adamw.param_groups for p in group["params"])
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.002] * 2
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.3}
    held = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(p) for p in river.agent.parameters())
    twin = copy.deepcopy(river.agent)
    groups = [[p for p in twin.parameters() if (p.ndim == 2) == flat] for flat in (True, False)]
    judges = (
        torch.optim.Muon(groups[0], 0.01, weight_decay=0.3, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(groups[1], 0.01, eps=1e-5, weight_decay=0.3),
    )
    plain = make_optimizer(river.agent, OptimConfig("muon", 0.01, weight_decay=0.3))
    for agent in (river.agent, twin):
        for i, p in enumerate(agent.parameters()):
            p.grad = torch.full_like(p, 0.1 * (i + 1))
    plain.step()
    for judge in judges:
        judge.step()
    torch.testing.assert_close(weights(river.agent), weights(twin), rtol=0, atol=0)


def test_muon_is_refused_where_torch_lacks_it(monkeypatch):
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(ConfigError, match=r"needs torch\.optim\.Muon, which torch .* lacks; use torch 2\.9, or adamw"):
        make_optimizer(flow(settings("real")).agent, OptimConfig("muon"))


def test_muon_reads_its_rate_and_decay_where_they_lie():
    """A captured graph does the same again and sees only what tensors hold: the rate of torch's own would stay as it was."""
    source = torch.Generator().manual_seed(1)
    start = [torch.randn(shape, generator=source, dtype=torch.float64) for shape in ((5, 3), (2, 7), (4, 4))]
    mine, theirs = ([torch.nn.Parameter(w.clone()) for w in start] for _ in range(2))
    settings = {"weight_decay": 0.3, "adjust_lr_fn": "match_rms_adamw"}
    rates = [torch.tensor(0.02), torch.tensor(0.5)]
    ours = MuonOnDevice([{"params": mine[:2]}, {"params": mine[2:], "lr": rates[1]}], rates[0], **settings)
    judge = torch.optim.Muon([{"params": theirs[:2]}, {"params": theirs[2:]}], **settings)
    for t in range(6):
        for group, rate, wanted in zip(judge.param_groups, rates, (0.02 / (t + 1), 0.5 * t), strict=True):
            rate.fill_(wanted)
            group["lr"] = float(rate)
        for one, other in zip(mine, theirs, strict=True):
            one.grad = torch.randn(one.shape, generator=source, dtype=torch.float64)
            other.grad = one.grad.clone()
        mine[1].grad = theirs[1].grad = None if t == 3 else mine[1].grad
        ours.step()
        judge.step()
        assert [group["lr"] is rate for group, rate in zip(ours.param_groups, rates, strict=True)] == [True, True]
        torch.testing.assert_close([p.detach() for p in mine], [p.detach() for p in theirs], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [*KINDS, "muon"])
def test_where_a_graph_may_be_captured_every_rate_is_a_tensor_that_is_filled(name, monkeypatch):
    monkeypatch.setattr(joint, "_captures", lambda device: True)
    params = [torch.nn.Parameter(torch.ones(shape)) for shape in ((3, 2), (4,), (2, 2), (2,))]
    optim = OptimConfig(name, 0.01, critic_learning_rate=0.002)
    optimizer = make(params, params[2:], optim, seed=0)
    rates = [group["lr"] for group in optimizer.param_groups]
    set_rates(optimizer, torch.tensor(0.5, dtype=torch.float64), optim)
    assert all(group["lr"] is rate for group, rate in zip(optimizer.param_groups, rates, strict=True))
    assert [float(rate) for rate in rates] == pytest.approx([0.5, 0.1] * (len(rates) // 2))
    assert len(set(map(id, rates))) == len(rates)


@pytest.mark.parametrize("shared", [False, True])
def test_counters_of_a_file_go_where_this_optimizer_counts(shared):
    """Saved on a CPU, loaded where graphs are captured: `meta` stands for that device."""

    def begun(device, **options):
        params = [torch.nn.Parameter(torch.ones(3, device=device)) for _ in range(2)]
        return params, torch.optim.Adam(params, 0.1, **options)

    params, saved = begun("cpu")
    for p in params:
        p.grad = torch.ones_like(p)
    saved.step()
    if shared:
        saved.state[params[1]]["step"] = saved.state[params[0]]["step"]
    twins, other = begun("meta", capturable=True)
    load_moments(other, saved.state_dict())
    steps = [other.state[p]["step"] for p in twins]
    assert [step.device.type for step in steps] == ["meta", "meta"]
    assert (steps[0] is steps[1]) == shared


def test_what_another_optimizer_learned_is_refused_in_words():
    def begun(name, estimator="off"):
        params = [torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.ones(2))]
        optimizer = make(params, [], OptimConfig(name, variance=VarianceConfig(estimator)), seed=0)
        for p in params:
            p.grad = torch.ones_like(p)
        optimizer.step()
        return optimizer

    strangers = (("adamw", "adaptive_upgd"), ("upgd", "adaptive_upgd"), ("upgd", "adam"), ("sgd", "muon"), ("muon", "sgd"))
    for saved, chosen in strangers:
        with pytest.raises(ConfigError, match=r"another optim\.name or optim\.variance\.estimator"):
            load_moments(begun(chosen), begun(saved).state_dict())
    for saved, chosen in (("off", "elementwise"), ("elementwise", "off")):
        with pytest.raises(ConfigError, match=r"another optim\.name or optim\.variance\.estimator"):
            load_moments(begun("adam", chosen), begun("adam", saved).state_dict())
    for saved, chosen in (("adam", "adamw"), ("sgd", "adaptive_upgd"), ("adaptive_upgd", "adam")):
        optimizer = begun(chosen)
        load_moments(optimizer, begun(saved).state_dict())
        optimizer.step()


ALL = (*KINDS, "muon")
MEASURED = [
    ("adaptive_upgd", "two_batch"),
    ("adaptive_upgd", "elementwise"),
    ("adam", "elementwise"),
    ("muon", "off"),
    ("upgd", "off"),
]


def config_of(name, estimator, **variance):
    optim = OptimConfig(name, 0.01, variance=VarianceConfig(estimator, warmup=1, **variance))
    return settings("real", ppo={"batch_size": 2 * T, "micro_batches": 2}, optim=optim)


def learn(river, config, optimizer, terms=(), epochs=1, seed=3):
    return update(Stepper(river.agent, optimizer, config, terms), river.groups, order(seed), turned(), epochs=epochs)


def plain_state(optimizer):
    """As a checkpoint holds it."""
    tensors = {}
    return tree.encoded(optimizer.state_dict(), tensors), tensors


@pytest.mark.parametrize(("name", "estimator"), MEASURED)
def test_a_void_step_moves_nothing_not_even_noise_and_memory(name, estimator):
    config = config_of(name, estimator)
    river = flow(config, Ragged("real"))
    optimizer = make_optimizer(river.agent, config.optim, config.seed)
    learn(river, config, optimizer)
    before, kept = weights(river.agent), plain_state(optimizer)
    twin, copied = copy.deepcopy((river.agent, optimizer))
    learn(river, config, optimizer, [lambda agent, rows, knobs: torch.tensor(float("nan"))])
    torch.testing.assert_close(weights(river.agent), before, rtol=0, atol=0)
    now = plain_state(optimizer)
    assert now[0] == kept[0]
    torch.testing.assert_close(now[1], kept[1], rtol=0, atol=0)
    learn(river, config, optimizer, seed=4)
    learn(river._replace(agent=twin), config, copied, seed=4)
    torch.testing.assert_close(weights(river.agent), weights(twin), rtol=0, atol=0)


@pytest.mark.parametrize(("name", "estimator"), MEASURED)
def test_what_a_file_holds_goes_on_bit_for_bit(name, estimator):
    config = config_of(name, estimator)
    river = flow(config, Ragged("real"))
    optimizer = make_optimizer(river.agent, config.optim, config.seed)
    learn(river, config, optimizer)
    twin = copy.deepcopy(river.agent)
    other = make_optimizer(twin, config.optim, config.seed)
    other.load_state_dict(tree.decoded(*plain_state(optimizer)))
    learn(river, config, optimizer, seed=5)
    learn(river._replace(agent=twin), config, other, seed=5)
    torch.testing.assert_close(weights(twin), weights(river.agent), rtol=0, atol=0)
    if estimator != "off":
        with pytest.raises(ConfigError, match=r"another optim\.name or optim\.variance\.estimator"):
            Joint([torch.optim.SGD(twin.parameters(), 0.1)]).load_state_dict(optimizer.state_dict())


@pytest.mark.parametrize("apply_to", ["step", "gradient"])
def test_the_gradient_is_measured_as_it_came_and_the_clip_comes_last(apply_to):
    """With and without a clip the ratio is the same; what is applied is clipped after the factor."""
    ratios = []
    for limit in (None, 1e-3):
        config = config_of("sgd", "elementwise", apply_to=apply_to, alpha=5.0, floor=1e-6)
        config = dataclasses.replace(config, optim=dataclasses.replace(config.optim, learning_rate=1e-12, max_grad_norm=limit))
        river = flow(config, Ragged("real"))
        optimizer = make_optimizer(river.agent, config.optim)
        learned = update(Stepper(river.agent, optimizer, config), river.groups, order(), turned(learning_rate=1e-12), epochs=2)
        ratios.append(float(scaler_of(optimizer).ratio()))
        factor = float(scaler_of(optimizer).factor())
        last = learned.steps[-1]
        total = torch.linalg.vector_norm(torch.stack([p.grad.norm() for p in river.agent.parameters() if p.grad is not None]))
        assert float(last["grad_norm_clipped"]) == pytest.approx(float(total), rel=1e-6)
        if limit is None:
            assert float(last["grad_norm_clipped"] / last["grad_norm"]) == pytest.approx(
                factor if apply_to == "gradient" else 1.0
            )
    assert ratios[0] == pytest.approx(ratios[1], rel=1e-5)
    assert ratios[0] > 0


def test_two_batches_in_the_update_see_the_parts_own_gradients():
    config = config_of("sgd", "two_batch")
    config = dataclasses.replace(config, ppo=dataclasses.replace(config.ppo, batch_size=T * B, micro_batches=3))
    river = flow(config, Ragged("real"))
    optimizer = make_optimizer(river.agent, config.optim)
    found, add = [], scaler_of(optimizer).add_part

    def watch(share):
        found.append(
            (float(share), torch.cat([p.grad.flatten().clone() for p in river.agent.parameters() if p.grad is not None]))
        )
        add(share)

    scaler_of(optimizer).add_part = watch
    learn(river, config, optimizer)
    shares, sums = zip(*found, strict=True)
    own = [sums[0], sums[1] - sums[0], sums[2] - sums[1]]
    assert sum(shares) == pytest.approx(1.0)
    noise = (sum(float(g.square().sum()) / s for g, s in zip(own, shares, strict=True)) - float(sums[2].square().sum())) / 2
    signal = float(sums[2].square().sum()) - noise
    expected = min(max(noise, 0) / max(signal, 1e-300), 1e9)
    assert float(scaler_of(optimizer).ratio()) == pytest.approx(expected, rel=1e-9)


def test_batches_of_one_sequence_cannot_be_compared():
    config = config_of("adam", "two_batch")
    config = dataclasses.replace(config, ppo=dataclasses.replace(config.ppo, batch_size=T))
    river = flow(config, Ragged("real"))
    with pytest.raises(ConfigError, match="holds one sequence; raise it to two sequences"):
        learn(river, config, make_optimizer(river.agent, config.optim))


def test_figures_are_what_they_are_called():
    p = torch.nn.Parameter(torch.tensor([1.0, 2.0, -1.0], dtype=torch.float64))
    optimizer = UPGD([p], 0.1, sigma=0.0, utility_beta=0.9)
    assert figures(optimizer) == {}
    p.grad = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    utilities = (-p.grad * p.detach()).clone()
    optimizer.step()
    gates = 2 * (1 - torch.sigmoid(utilities / utilities.abs().max()))
    found = figures(optimizer)
    assert float(found["optim/gate_mean"]) == pytest.approx(float(gates.mean()), rel=1e-12)
    assert float(found["optim/gate_std"]) == pytest.approx(float(gates.std(correction=0)), rel=1e-12)


def test_a_joint_optimizer_behaves_as_one():
    a, b = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    joint = Joint([torch.optim.SGD([a], 0.1), torch.optim.SGD([b], 0.2)])

    def closure():
        joint.zero_grad()
        loss = (a.square() + b.square()).sum()
        loss.backward()
        return loss

    assert float(joint.step(closure).detach()) == 4.0
    assert (a.tolist(), b.tolist()) == (pytest.approx([0.8, 0.8]), pytest.approx([0.6, 0.6]))
    joint.zero_grad()
    assert a.grad is None
    for group in joint.param_groups:
        group["lr"] = 0.0
    joint.step(closure)
    assert a.tolist() == pytest.approx([0.8, 0.8])
