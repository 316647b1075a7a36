"""Whoever executes it, an iteration is the same. Captured graphs are played on the CPU: a record that runs again in place."""

import contextlib
import dataclasses
import functools

import pytest
import torch
from torch.overrides import TorchFunctionMode

from quantail import engine
from quantail.compiling import Compiled, can_compile
from quantail.config import (
    Config,
    EngineConfig,
    KlConfig,
    NetConfig,
    OptimConfig,
    PpoConfig,
    RiskConfig,
    VarianceConfig,
)
from quantail.engine import chosen
from quantail.envs.oracles import HiddenRegime
from quantail.errors import ConfigError
from quantail.graphs import CALLED, Graphed
from quantail.loop import begin, make_agent, train
from quantail.optim import gated
from quantail.trees import flatten, tree_map
from rivers import Ragged, settings

SETTINGS = {
    "plain": settings("real"),
    "recurrent": settings("tanh", net={"memory": "lstm", "dropout": 0.2}),
    "remainders": settings("real", ppo={"batch_size": 22}),
    "many parts": settings("choices", {"kind": "categorical"}, ppo={"batch_size": 7, "burn_in": 2, "micro_batches": 2}),
    "stopped": settings("real", kl=KlConfig(target=1e-5, consecutive=2)),
    "gated": settings("real", optim=OptimConfig(name="adaptive_upgd", variance=VarianceConfig(estimator="elementwise"))),
    "limited": settings("real", risk=RiskConfig(limit=-0.1, horizon="window", window=3, alpha_decay=0.5)),
    "frozen": settings("real", {"return_freeze": 2, "return_thaw": 1}),
}


class Played:
    """Stands for a device: what is captured is not executed, and a replay writes where the capture's results lie."""

    def __init__(self, moving):
        self.moving, self.standing, self.iterations, self.captures, self.replays = moving, {}, 0, 0, 0

    def warm(self, function):
        return function()

    def pool(self):
        return None

    def record(self, function, generators, pool):
        kept = [x.clone() for x in self.moving()]
        places = [source.get_state() for source in generators]
        given = tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, function())
        for x, old in zip(self.moving(), kept, strict=True):
            x.detach().copy_(old)
        for source, place in zip(generators, places, strict=True):
            source.set_state(place)
        self.captures += 1

        def replay():
            self.replays += 1
            for mine, new in zip(flatten(given)[0], flatten(function())[0], strict=True):
                if isinstance(mine, torch.Tensor):
                    mine.copy_(new.clone())
                else:
                    assert mine == new

        return given, replay


def trained(config, env, monkeypatch=None, iterations=6):
    """Metrics of each iteration, the weights after them, and the device that was played."""
    agent = make_agent(config, env)
    progress, device = begin(config, env, agent), None
    if monkeypatch is not None:
        device = Played(lambda: [*agent.parameters(), *gated.moved_by(progress.optimizer, [])])
        monkeypatch.setattr(engine, "chosen", lambda kind, env: "graph")
        monkeypatch.setattr(engine, "Shared", lambda: device)
        monkeypatch.setattr(engine, "can_compile", lambda device: False)
        for module in ("intake", "optim.gated", "rollout", "update"):
            monkeypatch.setattr(f"quantail.{module}.free_to_look", lambda flag: False)
    found = []
    for _, report in zip(range(iterations), train(config, env, progress=progress), strict=False):
        found.append({name: value for name, value in report.metrics.items() if not name.startswith("time/")})
    return found, [p.detach().clone() for p in agent.parameters()], device


@pytest.mark.parametrize("name", SETTINGS)
def test_replayed_graphs_learn_bit_for_bit_what_calls_learn(name, monkeypatch):
    config = dataclasses.replace(SETTINGS[name], total_timesteps=10**6)
    action = {"recurrent": "tanh", "many parts": "choices"}.get(name, "real")
    expected, weights, _ = trained(config, Ragged(action))
    found, same, device = trained(config, Ragged(action), monkeypatch)
    for before, after in zip(expected, found, strict=True):
        assert list(after) == list(before)
        torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(same, weights, rtol=0, atol=0)
    assert device.captures >= 4 - 2 * (name == "limited")  # an α that shrinks is another in every iteration
    assert device.replays > device.captures


def test_a_graph_is_captured_for_each_shape_and_constant_and_reads_what_it_is_given():
    device = Played(list)
    device.iterations = CALLED + 1
    calls = []

    def function(pair, scale, source):
        calls.append(scale)
        return {"sum": pair[0] + scale * pair[1], "drawn": torch.rand(2, generator=source), "what": "kept"}

    graphed = Graphed(function, device)
    for i in range(12):
        n, scale = 2 + i % 2, float(i % 3)
        x, y = torch.randn(n), torch.randn(n)
        given = graphed((x, y), scale, torch.Generator().manual_seed(i))
        torch.testing.assert_close(given["sum"], x + scale * y, rtol=0, atol=0)
        torch.testing.assert_close(given["drawn"], torch.rand(2, generator=torch.Generator().manual_seed(i)), rtol=0, atol=0)
        assert given["what"] == "kept"
    assert (device.captures, device.replays) == (6, 6)


def test_what_one_graph_gives_another_reads_where_it_lies():
    device = Played(list)
    device.iterations = CALLED + 1
    first, second = Graphed(lambda x: 2 * x, device), Graphed(lambda x: x + 1, device)
    for i in range(4):
        x = torch.full((3,), float(i))
        torch.testing.assert_close(second(first(x)), 2 * x + 1, rtol=0, atol=0)
    (captured,) = second.seen.values()
    assert captured.inputs[0] is next(iter(first.seen.values())).given
    other = torch.full((3,), 7.0)
    torch.testing.assert_close(second(other), other + 1, rtol=0, atol=0)


class Offline(TorchFunctionMode):
    """Refuses whatever crosses between host and device: what is read there, and what is written from here."""

    READ = tuple(getattr(torch.Tensor, name) for name in ("item", "tolist", "nonzero", "numpy", "cpu", "masked_select"))
    READ = (*READ, *(getattr(torch.Tensor, f"__{name}__") for name in ("bool", "float", "int", "index")), torch.nonzero)
    WRITTEN = (torch.tensor, torch.as_tensor, torch.from_numpy, torch.Tensor.new_tensor)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        assert function not in self.READ, f"{function} waits for the device"
        assert function not in self.WRITTEN or isinstance(args[0], torch.Tensor), f"{function} copies to the device"
        if function is torch.Tensor.__getitem__:
            keys = args[1] if isinstance(args[1], tuple) else (args[1],)
            assert not any(isinstance(key, torch.Tensor) and key.dtype == torch.bool for key in keys), "a mask picks rows"
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", sorted({*SETTINGS} - {"gated"}))  # whose counters are on the host here, and only here
def test_what_is_captured_never_crosses_between_host_and_device(name, monkeypatch):
    """On the CPU, with every shortcut that only the CPU may take forbidden; the first call, which is not captured, may."""
    config, action = SETTINGS[name], {"recurrent": "tanh", "many parts": "choices"}.get(name, "real")
    config = dataclasses.replace(config, engine=EngineConfig("eager"))
    for module in ("functional.checks", "intake", "optim.gated", "rollout", "update"):
        monkeypatch.setattr(f"quantail.{module}.free_to_look", lambda flag: False)
    for module in ("lstm", "gru", "scan"):
        monkeypatch.setattr(f"quantail.kernels.{module}.reset_rows", lambda start: [True] * start.shape[-2])

    def offline(function):
        first = iter([contextlib.nullcontext()])

        def run(*parts):
            with next(first, Offline()):
                return function(*parts)

        return run

    def plain_step(optimizer, step=gated._step):  # an optimizer's own counters are on the host here, and only here
        with torch._C.DisableTorchFunction():
            step(optimizer)

    monkeypatch.setattr(gated, "_step", plain_step)
    plain = engine.with_matmuls
    monkeypatch.setattr(engine, "with_matmuls", lambda kind, function: offline(plain(kind, function)))
    monkeypatch.setattr(engine, "on_device", lambda env: True)
    trained(config, Ragged(action), iterations=3)


def test_auto_is_eager_without_a_device_and_a_graph_needs_one():
    env = HiddenRegime(3)
    assert chosen("auto", env) == "eager"
    assert chosen("compile", env) == "compile"
    with pytest.raises(ConfigError, match=r"engine.kind='graph'.*HiddenRegime lives on cpu.*engine.kind='auto'"):
        chosen("graph", env)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own code
@pytest.mark.skipif(not can_compile(torch.device("cpu")), reason="needs a C++ compiler")
@pytest.mark.parametrize("memory", ["lstm", "gru", "mingru"])
def test_a_compiled_row_is_the_row(memory, caplog):
    config = Config(net=NetConfig(memory=memory, hidden=8), ppo=PpoConfig(n_steps=6, batch_size=30))
    eager, _, _ = trained(config, HiddenRegime(5, horizon=4), iterations=3)
    compiled, _, _ = trained(
        dataclasses.replace(config, engine=EngineConfig("compile")), HiddenRegime(5, horizon=4), iterations=3
    )
    assert not [record for record in caplog.records if record.name == "quantail.engine"]  # it was compiled, and not just called
    for before, after in zip(eager, compiled, strict=True):
        assert after["train/loss"] == pytest.approx(before["train/loss"], rel=1e-4)
        assert after["rollout/ep_rew_mean"] == pytest.approx(before["rollout/ep_rew_mean"], rel=1e-4)


def test_products_are_as_exact_as_asked_for_and_only_inside():
    seen, settings = [], torch.backends.cuda.matmul
    before = settings.fp32_precision
    for asked in ("tf32", "float32", "bfloat16"):
        engine.with_matmuls(asked, lambda: seen.append(settings.fp32_precision))()
        assert settings.fp32_precision == before
    assert seen == ["tf32", "ieee", "tf32"]


def test_what_cannot_be_compiled_is_called_as_it_is_and_said_once(caplog, monkeypatch):
    def refuses(flat, **options):
        def run(*tensors):
            raise torch._dynamo.exc.Unsupported("no such luck\nand more")

        return run

    monkeypatch.setattr(torch, "compile", refuses)
    double = Compiled("doubling", lambda pair, by: {"x": by * pair[0], "why": "kept"})
    for i in range(3):
        given = double((torch.full((2,), float(i)), None), 2.0)
        assert given["x"].tolist() == [2.0 * i] * 2
        assert given["why"] == "kept"
    assert [record.message for record in caplog.records] == ["doubling cannot be compiled and is called as it is: no such luck"]


def test_a_function_is_compiled_for_what_it_first_saw_and_there_is_no_end_of_functions(monkeypatch):
    """torch compiles one code for a few callers only; every engine brings its own."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    for _ in range(12):

        def sums(record, by):
            return {"sum": record["a"] + by * record["b"], "by": by}

        fast = Compiled("sums", sums)
        for n, by in ((3, 2.0), (3, 2.0), (4, 2.0), (3, 5.0)):
            a, b = torch.randn(n), torch.randn(n)
            given = fast({"a": a, "b": b}, by)
            torch.testing.assert_close(given["sum"], a + by * b)
            assert given["by"] == by
