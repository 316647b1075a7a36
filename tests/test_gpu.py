"""The same rollout, estimates and update on a GPU as on the CPU, from the same weights and noise: the CPU is the oracle."""

import copy

import pytest
import torch

from quantail.config import Config, CriticConfig, EngineConfig, EntropyConfig, NetConfig, OptimConfig, PpoConfig
from quantail.control import Schedules
from quantail.envs.oracles import HiddenRegime, TMaze
from quantail.estimate import estimate
from quantail.loop import Hooks, make_agent, make_optimizer, rollout_noise, train
from quantail.optim import AdaptiveUPGD
from quantail.rollout import collect, start_carry
from quantail.statistics import crossed
from quantail.stepper import Stepper
from quantail.streams import Stream, generator
from quantail.trees import tree_map
from quantail.update import sequences, update
from rivers import disturb, turned

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
B, T = 7, 19
CLOSE = {"rtol": 1e-9, "atol": 1e-9}
WORLDS = {
    "weights": lambda device: HiddenRegime(B, horizon=8, dtype=torch.float64, device=device),
    "choices": lambda device: TMaze(B, length=3, dtype=torch.float64, device=device),
}


def settings(kind: str, memory: str) -> Config:
    """One batch of everything: a random order of it changes no more than rounding. No noise in the targets."""
    return Config(
        net=NetConfig(memory=memory, hidden=6, encoder_sizes=(5,)),
        critic=CriticConfig(kind=kind, targets="lambda_return"),
        ppo=PpoConfig(n_steps=T, batch_size=B * T, n_epochs=3),
    )


def iteration(config, env, agent, noise):
    """One iteration up to the new weights: the rollout, the batch, the statistics of each step."""
    carry = start_carry(env, agent, noise.environment[0], config)  # a device's own random numbers would start other episodes
    rollout, carry = collect(env, agent, carry, noise, config)
    source = generator(0, Stream.TARGETS, 0, env.device)
    batch, _ = estimate(rollout, agent, carry.scale, source, config)
    groups = sequences(batch, rollout.memory, noise.dropout, config.ppo)
    order = generator(0, Stream.ORDER, 0, env.device)
    knobs = tree_map(lambda knob: knob.to(env.device), turned())
    learned = update(Stepper(agent, make_optimizer(agent, config.optim), config), groups, order, knobs, epochs=3)
    return rollout, batch, learned.steps


def on_cpu(record):
    """A record of tensors, brought here."""
    return tree_map(lambda x: x.cpu(), record)


@pytest.mark.parametrize("memory", ["lstm", "gru", "mingru", "none"])
@pytest.mark.parametrize("kind", ["quantile", "categorical", "scalar"])
@pytest.mark.parametrize("world", WORLDS)
def test_an_iteration_is_the_same_on_both_devices(world, kind, memory):
    config, here, there = settings(kind, memory), WORLDS[world]("cpu"), WORLDS[world]("cuda")
    ours = disturb(make_agent(config, here).double(), 0.2)
    theirs = copy.deepcopy(ours).to("cuda")
    noise = rollout_noise(config, here, ours, 0)
    rollout, batch, steps = iteration(config, here, ours, noise)
    other = iteration(config, there, theirs, tree_map(lambda x: x.to("cuda"), noise))
    torch.testing.assert_close(tuple(on_cpu(other[0].critics)), tuple(rollout.critics), **CLOSE)
    for name in ("action", "log_prob", "reward", "terminated", "truncated", "valid", "policy_weight", "value_weight"):
        torch.testing.assert_close(on_cpu(getattr(other[0], name)), getattr(rollout, name), **CLOSE)
    torch.testing.assert_close(on_cpu(other[1].advantage), batch.advantage, **CLOSE)
    torch.testing.assert_close(on_cpu(other[1].target), batch.target, **CLOSE)
    for step, same in zip(steps, other[2], strict=True):
        torch.testing.assert_close(on_cpu(same), step, equal_nan=True, **CLOSE)
    for (name, weight), moved in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(moved.cpu(), weight, msg=name, **CLOSE)


@pytest.mark.parametrize("memory", ["lstm", "gru", "mingru"])
def test_it_learns_to_remember_on_a_gpu(memory):
    """A corridor of four steps: any of three seeds that failed would be one too many."""
    for seed in range(3):
        config = Config(
            seed=seed,
            total_timesteps=250_000,
            net=NetConfig(memory=memory, hidden=32),
            ppo=PpoConfig(n_steps=32, batch_size=1024),
            entropy=EntropyConfig(coef=0.01),
            optim=OptimConfig(learning_rate=1e-3),
        )
        *_, report = train(config, TMaze(256, length=4, device="cuda"))
        assert report.metrics["rollout/ep_rew_mean"] > 0.9, seed
        assert all(weight.is_cuda and bool(weight.isfinite().all()) for weight in report.agent.parameters())


# --- engines ----------------------------------------------------------------------------------------------------------


def engines_of(kind, memory="lstm", iterations=6, begun=None, **options):
    """Reports of so many iterations on a device, and the weights after them."""
    config = Config(
        total_timesteps=10**6,
        net=NetConfig(memory=memory, hidden=32),
        critic=CriticConfig(),
        ppo=PpoConfig(n_steps=8, batch_size=8 * 24, n_epochs=2),
        engine=EngineConfig(kind),
        **options,
    )
    env = HiddenRegime(64, horizon=6, device="cuda")
    found = []
    for _, report in zip(range(iterations), train(config, env, progress=begun), strict=False):
        found.append({name: value for name, value in report.metrics.items() if not name.startswith("time/")})
    return found, report


@pytest.mark.parametrize("kind", ["graph", "compile"])
@pytest.mark.parametrize("memory", ["lstm", "mingru", "none"])
def test_every_engine_learns_the_same(memory, kind):
    """Compiled arithmetic rounds otherwise, so only the first iterations are near."""
    expected, _ = engines_of("eager", memory, 3)
    found, _ = engines_of(kind, memory, 3)
    for before, after in zip(expected, found, strict=True):
        for name in ("rollout/valid_rows", "train/loss", "train/value_loss", "critic/return_mean", "policy/entropy_mean"):
            assert after[name] == pytest.approx(before[name], rel=2e-3, abs=2e-4), name


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "adaptive_upgd", "muon"])
def test_every_optimizer_steps_in_a_graph(name):
    options = {"optim": OptimConfig(name=name)}
    expected, _ = engines_of("eager", "none", 3, **options)
    found, report = engines_of("graph", "none", 3, **options)
    assert found[-1]["train/loss"] == pytest.approx(expected[-1]["train/loss"], rel=5e-3, abs=5e-4)
    assert found[-1]["optim/steps"] == 6
    assert all(bool(weight.isfinite().all()) for weight in report.agent.parameters())


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "adaptive_upgd", "muon"])
def test_a_graph_goes_at_the_rate_that_is_set_now(name):
    """A rate of 0 after the capture: the actor stands still."""
    rates = iter([1e-3] * 4 + [0.0] * 2)
    config = Config(
        total_timesteps=10**6,
        net=NetConfig(memory="none", hidden=32),
        ppo=PpoConfig(n_steps=8, batch_size=8 * 24, n_epochs=2),
        engine=EngineConfig("graph"),
        optim=OptimConfig(name=name),
    )
    hooks, seen = Hooks(Schedules(lambda left: next(rates))), []
    for _, report in zip(range(6), train(config, HiddenRegime(64, horizon=6, device="cuda"), hooks=hooks), strict=False):
        actor = [p for owner, ps in report.agent.parameter_groups().items() if owner.startswith("actor") for p in ps]
        seen.append(torch.cat([p.detach().flatten().clone() for p in actor]))
    assert not torch.equal(seen[3], seen[2])
    torch.testing.assert_close(seen[4:], [seen[3]] * 2, rtol=0, atol=0)


def test_a_graph_goes_on_bit_for_bit_from_where_it_was():
    """Saved after three iterations and begun anew: the first of the new ones is called, the others are replayed."""
    expected, _ = engines_of("graph", iterations=6)
    found, report = engines_of("graph", iterations=3)
    kept = copy.deepcopy(report.progress)
    more, _ = engines_of("graph", iterations=3, begun=kept)
    for before, after in zip(expected, [*found, *more], strict=True):
        torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)


def test_nothing_waits_for_the_device_inside_an_iteration():
    config = Config(
        total_timesteps=10**6,
        net=NetConfig(hidden=32),
        ppo=PpoConfig(n_steps=8, batch_size=8 * 24),
        engine=EngineConfig("graph"),
    )
    env = HiddenRegime(64, horizon=6, device="cuda")
    crossing, waits = [], []

    def reading(names, values):
        torch.cuda.set_sync_debug_mode("default")
        crossing.append(len(names))
        return crossed(names, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("quantail.loop.crossed", reading)
        reports = train(config, env)
        for _ in range(3):
            next(reports)
        torch.cuda.set_sync_debug_mode("error")
        try:
            next(reports)
        except RuntimeError as error:
            waits.append(str(error))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert waits == []
    assert len(crossing) == 4


# --- optimizers -------------------------------------------------------------------------------------------------------

GATED = {
    "plain": {},
    "tensor": {"scale": "tensor"},
    "unit": {"scale": "unit"},
    "reference": {"normaliser": "reference"},
    "tracked": {"noise": "tracked"},
    "noise alone": {"protecting": False},
}


def walked(device, steps=6, graph=False, **options):
    """Weights after so many steps with gradients that are a function of the weights."""
    source = torch.Generator().manual_seed(1)
    shapes = ((5, 3), (4,), (2, 3, 2))
    params = [torch.nn.Parameter(torch.randn(shape, generator=source, dtype=torch.float64).to(device)) for shape in shapes]
    optimizer = AdaptiveUPGD(params, 0.01, sigma=0.1, utility_beta=0.9, **options)

    def step():
        for p in params:
            slope = p.detach().sin() + 0.1
            if p.grad is None:
                p.grad = slope
            else:
                p.grad.copy_(slope)
        optimizer.step()

    if not graph:
        for _ in range(steps):
            step()
        return [p.detach().cpu() for p in params]
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        step()
    for _ in range(steps - 2):
        captured.replay()
    return [p.detach().cpu() for p in params]


@pytest.mark.parametrize("option", GATED)
def test_an_optimizer_walks_the_same_way_on_both_devices_and_in_a_graph(option):
    expected = walked("cpu", **GATED[option])
    for found in (
        walked("cuda", **GATED[option]),
        walked("cuda", foreach=False, **GATED[option]),
        walked("cuda", capturable=True, **GATED[option]),
        walked("cuda", capturable=True, graph=True, **GATED[option]),
    ):
        torch.testing.assert_close(found, expected, **CLOSE)
