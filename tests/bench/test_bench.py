"""The benchmark counts what torch counts, measures what it says, and changes one size at a time."""

import json
from dataclasses import asdict, replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from quantail import cli
from quantail.bench import ceilings, growth, scene
from quantail.bench.ceilings import Ceilings, Work
from quantail.bench.measure import PHASES, measure, timed
from quantail.bench.scene import Sizes
from quantail.bench.work import FLAGS, PAIR, work_of
from quantail.errors import ConfigError
from quantail.loop import make_agent

SMALL = Sizes(envs=3, steps=8, batch=16, epochs=2, hidden=5, quantiles=4, features=6, episode=7)
SLOW = Ceilings(1e9, 1e8)


@pytest.mark.parametrize("net", ["lean", "deep"])
def test_products_are_counted_as_torch_counts_them(net):
    sizes = replace(SMALL, memory="mingru", net=net)  # into fused layers torch does not see
    env = scene.market_of(sizes)
    agent = make_agent(scene.config_of(sizes), env).double()
    obs = torch.randn(sizes.steps, sizes.envs, env.observation_space.shape[0], dtype=torch.float64)
    start = torch.zeros(sizes.steps, sizes.envs, dtype=torch.bool)
    state = tuple(part.double() for part in agent.initial_memory(sizes.envs))
    work = work_of(sizes, agent)
    with FlopCounterMode(display=False) as counted:
        outputs, _ = agent.unroll(obs, state, start)
    assert work["collect"].flops == counted.get_total_flops()
    learned = work["update"].flops - PAIR * 2 * sizes.quantiles**2 * sizes.rows * sizes.epochs
    with FlopCounterMode(display=False) as counted:
        (outputs.policy.logits.sum() + outputs.critics.sum()).backward()
    least = learned / sizes.epochs - work["collect"].flops
    assert counted.get_total_flops() == least


@pytest.mark.parametrize(("memory", "blocks"), [("lstm", 4), ("gru", 3)])
def test_products_of_fused_layers_by_hand(memory, blocks):
    sizes = replace(SMALL, memory=memory)
    env = scene.market_of(sizes)
    weights = blocks * 5 * (env.observation_space.shape[0] + 5) + 5 * (4 + 2 * 4)
    assert work_of(sizes, make_agent(scene.config_of(sizes), env))["collect"].flops == 2 * weights * 24


def test_bytes_by_hand():
    agent = make_agent(scene.config_of(SMALL), scene.market_of(SMALL))
    seen, said, outputs = agent.trunks["shared"].memory.layers[0].w_x.shape[1], 2 * 4, 4 * 5 * 2 + 4 + 2 * 4
    row = 4 * (seen + said) + FLAGS
    work = work_of(SMALL, agent)
    assert work["collect"].bytes == 24 * (row + 2 * 2 * 4 * 5 + 2 * 4 * outputs)
    assert work["update"].bytes == 2 * 24 * (3 * row + 4 * 4 * outputs)
    assert work["estimate"].bytes == 24 * 4 * (said + 5 * 4)


def test_the_slower_side_of_the_roof_counts():
    assert SLOW.seconds(Work(3e9, 1e8)) == 3.0
    assert SLOW.seconds(Work(1e9, 2e8)) == 2.0


def test_ceilings_are_those_of_products_and_copies(monkeypatch):
    monkeypatch.setattr(ceilings, "SIDE", {"cpu": 10})
    monkeypatch.setattr(ceilings, "COPIED", {"cpu": 7})
    ticks = iter(range(10_000))
    monkeypatch.setattr(ceilings, "clock", lambda device: lambda: next(ticks) / 4)
    assert ceilings.ceilings(torch.device("cpu")) == Ceilings(2 * 10**3 * 4, 2 * 4 * 7 * 4)


def test_phases_are_shares_of_the_iteration():
    class Told:
        metrics = {f"time/{name}_seconds": 0.0 for name in PHASES}  # noqa: RUF012
        env_steps = 9

    clock = iter((10.0, 16.0))
    assert timed(iter([Told]), lambda: next(clock)) == (6.0, dict.fromkeys(PHASES, 0.0), 9)


def test_a_measurement_adds_up():
    found = measure(SMALL, 2, "cpu", SLOW)
    seconds = [one.seconds for one in found.phases.values()]
    valid = SMALL.rows / found.steps_per_second
    assert set(found.phases) == set(PHASES)
    assert min(seconds) > 0
    assert sum(seconds) < 2 * valid  # a row in seven or eight is no step, and what lies between phases is not theirs
    work = work_of(SMALL, make_agent(scene.config_of(SMALL), scene.market_of(SMALL)))
    for name, one in found.phases.items():
        assert one.roofline * one.seconds == pytest.approx(SLOW.seconds(work[name]), rel=1e-12)


def test_one_size_changes_at_a_time():
    start, *others = growth.ways(Sizes())
    assert start == ("start", Sizes())
    assert {name for name, _ in others} == {"envs", "steps", "hidden", "quantiles", "assets", "episode"}
    for name, sizes in others:
        changed = {field for field, value in asdict(sizes).items() if value != asdict(Sizes())[field]}
        assert changed - {"batch"} == {name}
        assert sizes.rows % sizes.batch == 0
    assert [sizes.episode for name, sizes in others if name == "episode"] == [20, 200, 5000]


def test_the_verb_writes_what_it_says(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(growth, "WAYS", {"hidden": (2,)})
    monkeypatch.setattr(growth, "EPISODES", (4,))
    options = [word for name, value in asdict(SMALL).items() for word in (f"--{name}", str(value))]
    files = ["--json", str(tmp_path / "bench.json"), "--page", str(tmp_path / "bench.html")]
    assert cli.main(["bench", *options, "--growth", "--iterations", "1", *files]) == 0
    rows = json.loads((tmp_path / "bench.json").read_text())
    assert [(row["what"], row["hidden"], row["episode"]) for row in rows] == [
        ("start", 5, 7),
        ("hidden", 10, 7),
        ("episode", 5, 4),
    ]
    assert all(row["steps_per_second"] > 0 and set(row["phases"]) == set(PHASES) for row in rows)
    out = capsys.readouterr().out
    assert all(label in out for label in ("| start ", "| hidden 10 ", "| episode 4 ", "GFLOP/s"))
    page = (tmp_path / "bench.html").read_text()
    assert page.count("<figure") == 2
    assert "over hidden" in page


def test_nonsense_is_refused():
    with pytest.raises(ConfigError, match="net"):
        Sizes(net="wide")
    with pytest.raises(ConfigError, match="envs"):
        Sizes(envs=0)
