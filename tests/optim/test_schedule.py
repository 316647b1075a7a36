"""Learning rates: their course against torch's schedulers and numbers by hand, and that the one that is set is the one used."""

import copy
import dataclasses
import itertools
import math

import pytest
import torch

from quantail import checkpoint
from quantail.config import Config, KlConfig, KlRateConfig, OptimConfig, ScheduleConfig, UpgdConfig, VarianceConfig
from quantail.control import Schedules, knobs, start_control, steer
from quantail.loop import Hooks, begin, make_optimizer, train
from quantail.optim.schedule import answered, scheduled, set_rates
from rivers import Ragged, configured, settings

NAMES = ("adam", "adamw", "sgd", "muon", "upgd", "upgdw", "adaptive_upgd")
CPU = torch.device("cpu")


def course(schedule, start=8.0, points=41):
    return [scheduled(start, schedule, i / (points - 1)) for i in range(points)]


def torchs(scheduler, points=41, start=8.0):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], start)
    schedule, found = scheduler(optimizer), []
    for i in range(points):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if i < points - 1:
            schedule.step()
    return found


def test_one_cycle_is_torchs():
    def judge(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(
            optimizer, 8.0, total_steps=41, pct_start=11 / 41, div_factor=20.0, final_div_factor=1e15
        )

    found = course(ScheduleConfig("one_cycle", cycle_peak=0.25, cycle_start=0.05))
    assert found == pytest.approx(torchs(judge), rel=1e-9, abs=1e-9)
    assert (found[0], found[10]) == (pytest.approx(0.4), 8.0)


def test_cosine_is_torchs():
    assert course(ScheduleConfig("cosine")) == pytest.approx(
        torchs(lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 40)), abs=1e-12
    )


@pytest.mark.parametrize("kind", ["constant", "linear", "cosine", "one_cycle"])
def test_a_warm_up_goes_before_any_schedule(kind):
    plain, warm = ScheduleConfig(kind), ScheduleConfig(kind, warmup=0.2, warmup_start=0.25)
    first = scheduled(8.0, plain, 0.0)
    assert [scheduled(8.0, warm, d) for d in (0.0, 0.1, 0.2)] == pytest.approx([0.25 * first, 0.625 * first, first])
    assert [scheduled(8.0, warm, 0.2 + 0.8 * d) for d in (0.25, 0.5, 1.0)] == pytest.approx(
        [scheduled(8.0, plain, d) for d in (0.25, 0.5, 1.0)], abs=1e-12
    )


@pytest.mark.parametrize("kind", ["linear", "cosine", "one_cycle"])
def test_floors_hold_everywhere(kind):
    found = course(ScheduleConfig(kind, floor=1.5, warmup=0.3, warmup_start=0.0))
    assert min(found) == found[0] == found[-1] == 1.5
    assert max(found) == pytest.approx(8.0, rel=0.03)


def test_the_rate_answers_the_kl():
    config = KlRateConfig(1.5, 2.0, 4.0)

    def run(kls, target=0.01):
        return list(itertools.accumulate(kls, lambda f, kl: answered(f, kl, target, config), initial=1.0))

    assert run([0.03, 0.011, 0.004, 0.004]) == pytest.approx([1, 1 / 1.5, 1 / 1.5, 1, 1.5])
    assert run([0.0, math.nan, 0.02, 0.005]) == [1.0] * 5
    assert run([1.0] * 9)[-1] == 0.25
    assert run([1e-9] * 9)[-1] == 4.0
    assert run([1.0] * 3, target=None) == [1.0] * 4
    assert answered(1.0, 1.0, 0.01, KlRateConfig()) == 1.0


def test_an_answer_is_multiplied_onto_the_schedule_and_the_floor_holds():
    optim = OptimConfig(learning_rate=0.1, schedule=ScheduleConfig("linear", 0.02), kl_rate=KlRateConfig(2.0))
    config = Config(total_timesteps=1000, optim=optim, kl=KlConfig(target=0.01))
    control, found = start_control(config), []
    for i, kl in enumerate((1.0, 1.0, 1.0, 1e-4, 1e-4)):
        found.append(float(knobs(control, i, 500, config, CPU).learning_rate))
        figures = {"policy/entropy_mean": 1.0, "train/explained_variance": 0.5, "train/approx_kl": kl}
        control = steer(control, i, figures, False, config)
    assert found == pytest.approx([0.05, 0.025, 0.02, 0.02, 0.02])
    assert control.rate_factor == 0.5
    outside = knobs(control, 0, 500, config, CPU, Schedules(lambda left: 0.3))
    assert float(outside.learning_rate) == pytest.approx(0.15)


# --- the rate that is set is the one used -----------------------------------------------------------------------------


def used(agent, optimizer):
    """The rate by how far a step goes: 1 − |w′|/|w| of a decay of 1 where gradients are 0."""
    before = [p.detach().clone() for p in agent.parameters()]
    for p in agent.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    pairs = zip(agent.parameters(), before, strict=True)
    return [float(1 - p.detach().norm() / old.norm()) for p, old in pairs if old.norm() > 0]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "adam"])
def test_from_the_config_to_the_weights(name):
    """Gradients of 0 and a decay of 1: every weight shrinks by lr."""
    optim = OptimConfig(name, 0.01, weight_decay=1.0, upgd=UpgdConfig(sigma=0.0))
    config = settings("real", optim=optim)
    progress = begin(config, Ragged("real"))
    agent, optimizer = progress.agent.double(), progress.optimizer
    assert {group["lr"] for group in optimizer.param_groups} == {0.01}
    assert all(x == pytest.approx(0.01, rel=1e-6) for x in used(agent, optimizer))
    set_rates(optimizer, 0.002, optim)
    assert all(x == pytest.approx(0.002, rel=1e-6) for x in used(agent, optimizer))


@pytest.mark.parametrize("variance", ["off", "elementwise"])
@pytest.mark.parametrize("name", NAMES)
def test_after_every_path_the_group_has_the_rate(name, variance):
    """Constructor, schedule, resume, another config, a copy of the state."""
    values = {"optim.name": name, "optim.learning_rate": 0.02, "optim.critic_learning_rate": 0.005, "total_timesteps": 400}
    values |= {"optim.schedule.kind": "linear", "optim.schedule.floor": 0.001, "optim.variance.estimator": variance}
    config, env = configured("real", values), Ragged("real")

    def rates(optimizer):
        found = {(group.get("name", ""), round(group["lr"], 12)) for group in optimizer.param_groups}
        assert len(found) == 2
        return dict(found)

    assert rates(begin(config, env).optimizer) == {"": 0.02, "critic": 0.005}
    first, second = itertools.islice(train(config, env), 2)
    rate = 0.02 * (1 - first.env_steps / 400)
    assert second.metrics["train/learning_rate"] == pytest.approx(rate)
    assert second.metrics["optim/critic_learning_rate"] == pytest.approx(rate / 4)
    assert rates(second.optimizer) == {"": pytest.approx(rate), "critic": pytest.approx(rate / 4)}

    saved = checkpoint.from_bytes(checkpoint.to_bytes(first.progress, config, env))
    faster = dataclasses.replace(config, optim=dataclasses.replace(config.optim, learning_rate=0.04, critic_learning_rate=0.03))
    for chosen in (config, faster):
        progress = checkpoint.restore(saved, Ragged("real"), chosen)
        again = next(train(chosen, Ragged("real"), progress=progress))
        done = 1 - saved.env_steps / 400
        assert rates(again.optimizer)[""] == pytest.approx(chosen.optim.learning_rate * done)
        assert rates(again.optimizer)["critic"] == pytest.approx(chosen.optim.critic_learning_rate * done)

    copied = make_optimizer(second.agent, faster.optim)
    copied.load_state_dict(copy.deepcopy(second.optimizer.state_dict()))
    set_rates(copied, 0.04, faster.optim)
    assert rates(copied) == {"": 0.04, "critic": 0.03}


def test_a_schedule_from_outside_reaches_every_group():
    values = {"optim.learning_rate": 0.02, "optim.critic_learning_rate": 0.005}
    hooks = Hooks(Schedules(lambda left: 0.5))
    report = next(train(configured("real", values), Ragged("real"), hooks=hooks))
    assert [group["lr"] for group in report.optimizer.param_groups] == [0.5, 0.125]


def test_the_critics_group_holds_what_is_the_critics_alone():
    for trunks in ("shared", "actor_critic", "each"):
        config = settings("real", net={"trunks": trunks}, optim=OptimConfig(critic_learning_rate=0.5))
        progress = begin(config, Ragged("real"))
        others, critic = progress.optimizer.param_groups
        mine = [p for name, ps in progress.agent.parameter_groups().items() if name.startswith("critic") for p in ps]
        assert set(map(id, critic["params"])) == set(map(id, mine))
        assert len(others["params"]) + len(mine) == len(list(progress.agent.parameters()))


def test_a_rate_on_the_device_is_filled_and_not_replaced():
    rate = torch.tensor(0.1)
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))], rate, capturable=False, foreach=False)
    set_rates(optimizer, 0.3, OptimConfig())
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(0.3)


def test_a_factor_leaves_the_groups_rate_alone():
    config = settings("real", optim=OptimConfig(learning_rate=0.02, variance=VarianceConfig("elementwise", warmup=0)))
    report = next(train(config, Ragged("real")))
    assert report.optimizer.param_groups[0]["lr"] == report.metrics["train/learning_rate"] == 0.02
    assert report.metrics["optim/variance_factor"] < 1
