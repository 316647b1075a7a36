"""The wired agent: replay, resets, who is moved by which loss, and agents side by side."""

import copy
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nets.cases import (
    ACTIONS,
    CRITICS,
    MANY,
    MEMORIES,
    OBS,
    TRUNKS,
    B,
    T,
    extras,
    kinds,
    make,
    observe,
    parts,
    ragged,
    remember,
    take,
)
from quantail.errors import ConfigError, InputError
from quantail.functional.quantile import quantile_huber_loss
from quantail.nets import Agent, select_envs
from quantail.types import Box, Discrete

EXACT = {"rtol": 1e-12, "atol": 1e-12}


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("memory", "trunks"), kinds())
def test_replay_is_what_was_said_row_by_row(memory: str, trunks: str, layers: int) -> None:
    """For every head, with dropout and masks: T rows at once, and in two chunks, equal T unrolls of one row."""
    for action in ACTIONS:
        agent = make(action, memory=memory, trunks=trunks, layers=layers, dropout=0.4)
        obs, start, first, more = observe(), ragged(), remember(agent), extras(agent, action)
        whole, last = agent.unroll(obs, first, start, **more)
        held = {"dropout": more["dropout"], "explore": more["explore"]}
        for cuts in (range(T + 1), (0, 2, T)):
            now, pieces = first, []
            for begin, end in pairwise(cuts):
                rows = slice(begin, end)
                said, now = agent.unroll(obs[rows], now, start[rows], take(more["action_mask"], rows), **held)
                pieces.append(parts(said))
            together = {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]}
            torch.testing.assert_close(together, parts(whole), **EXACT)
            torch.testing.assert_close(now, last, **EXACT)


@pytest.mark.parametrize(("memory", "trunks"), kinds())
def test_environments_do_not_see_each_other(memory: str, trunks: str) -> None:
    agent = make("gsde", memory=memory, trunks=trunks, layers=2, dropout=0.4)
    obs, start, first, more = observe(), ragged(), remember(agent), extras(agent, "gsde")
    whole, last = agent.unroll(obs, first, start, **more)
    for env in range(B):
        one = slice(env, env + 1)
        alone, after = agent.unroll(
            obs[:, one],
            select_envs(first, one),
            start[:, one],
            dropout=take(more["dropout"], (slice(None), one)),
            explore=more["explore"][one],
        )
        torch.testing.assert_close(parts(alone), {name: x[:, one] for name, x in parts(whole).items()}, **EXACT)
        torch.testing.assert_close(after, select_envs(last, one), **EXACT)


@pytest.mark.parametrize(("memory", "trunks"), kinds())
def test_a_start_forgets_everything_and_only_a_start_forgets(memory: str, trunks: str) -> None:
    agent = make(memory=memory, trunks=trunks, layers=2)
    obs, start = observe(), ragged()
    fresh, _ = agent.unroll(obs, agent.initial_memory(B), start)
    full, _ = agent.unroll(obs, remember(agent), start)
    nothing = tuple(torch.full_like(state, torch.nan) for state in agent.initial_memory(B))
    spoiled, after = agent.unroll(obs, nothing, start)
    for name, value in parts(spoiled).items():
        assert value[start.cumsum(0) > 0].isfinite().all(), name
        assert torch.equal(parts(full)[name][start.cumsum(0) > 0], parts(fresh)[name][start.cumsum(0) > 0])
    for state in after:
        assert state[:, start.any(0)].isfinite().all()
        assert state[:, ~start.any(0)].isnan().all()
    if memory != "none":
        differs = (full.critics != fresh.critics).any(-1).any(0)
        assert torch.equal(differs, start.cumsum(0) == 0)


def moved(agent: Agent, loss: Tensor) -> set[str]:
    """Names of the groups that a loss has a gradient for."""
    gradients = torch.autograd.grad(loss, list(agent.parameters()), retain_graph=True, allow_unused=True)
    by_id = {id(p): g for p, g in zip(agent.parameters(), gradients, strict=True)}
    return {
        name
        for name, group in agent.parameter_groups().items()
        if any(by_id[id(p)] is not None and by_id[id(p)].abs().max() > 0 for p in group)
    }


def losses(agent: Agent, action: str) -> dict[str, Tensor]:
    """A loss of the actor and one of each critic."""
    out, _ = agent.unroll(observe(), remember(agent), ragged(), **extras(agent, action))
    noise = torch.rand(T, B, agent.policy.noise_dim, dtype=torch.float64)
    raw = agent.policy.sample(out.policy, noise).detach()
    draws = torch.randn(2, T, B, agent.policy.noise_dim, dtype=torch.float64)
    actor = agent.policy.log_prob(out.policy, raw).sum() + agent.policy.entropy(out.policy, draws).sum()
    weights = torch.randn(out.critics.shape[-1], dtype=torch.float64)
    return {"actor": actor, **{f"critic_{i}": (one * weights).sum() for i, one in enumerate(out.critics)}}


def owners(agent: Agent, trunk: str, head: str) -> set[str]:
    return {name for name in agent.parameter_groups() if name.startswith(f"{trunk}/") and name != f"{trunk}/head"} | {head}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("trunks", TRUNKS)
def test_each_loss_moves_its_own_and_nothing_else(trunks: str, action: str) -> None:
    agent = make(action, trunks=trunks, layers=2)
    loss = losses(agent, action)
    of = {
        "shared": {"actor": "shared", "critic_0": "shared", "critic_1": "shared"},
        "actor_critic": {"actor": "actor", "critic_0": "critic", "critic_1": "critic"},
        "each": {"actor": "actor", "critic_0": "critic_0", "critic_1": "critic_1"},
    }[trunks]
    for name, trunk in of.items():
        assert moved(agent, loss[name]) == owners(agent, trunk, f"{name}/head")


@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.parametrize(("memory", "trunks"), kinds())
def test_all_losses_together_move_every_parameter(memory: str, trunks: str, critic: str) -> None:
    for action in ACTIONS:
        agent = make(action, critic, obs_space=MANY, memory=memory, trunks=trunks, layers=2, noncrossing=True)
        out, _ = agent.unroll(observe(MANY), remember(agent), ragged(), **extras(agent, action))
        raw = agent.policy.sample(out.policy, torch.rand(T, B, agent.policy.noise_dim, dtype=torch.float64)).detach()
        law = agent.values.law(out.critics)
        values = (law.masses * (law.locations - 1).square()).sum()
        (values - agent.policy.log_prob(out.policy, raw).sum()).backward()
        dead = [name for name, p in agent.named_parameters() if p.grad is None or not (p.grad != 0).any()]
        assert dead == []


@pytest.mark.parametrize("trunks", ["actor_critic", "each"])
def test_critics_without_memory_see_the_present_only(trunks: str) -> None:
    agent = make(trunks=trunks, critic_memory=False, layers=2, dropout=0.4)
    assert [len(state) for state in agent.initial_memory(B)] == [2, 2]  # h and c of the actor's two layers
    assert agent.dropout_shape(B) == (2, B, 3)
    memory, other = remember(agent), remember(agent)
    obs, start = observe(rows=1), torch.zeros(1, B, dtype=torch.bool)
    (one, _), (two, _) = agent.unroll(obs, memory, start), agent.unroll(obs, other, start)
    assert torch.equal(one.critics, two.critics)
    assert not torch.allclose(one.policy.mean, two.policy.mean)
    row_by_row = torch.cat([agent.unroll(observed[None], memory, start)[0].critics for observed in observe()], 1)
    assert row_by_row.shape[1] == T


def test_critics_that_only_read_a_shared_trunk_do_not_move_it() -> None:
    for moves in (True, False):
        agent = make(trunks="shared", critic_moves_trunk=moves)
        agent.unroll(observe(), agent.initial_memory(B), ragged())[0].critics.square().sum().backward()
        trunk = [p.grad is not None and bool(p.grad.abs().sum() > 0) for p in agent.trunks.parameters()]
        assert all(trunk) if moves else not any(trunk)
        assert all(p.grad is not None for p in agent.values.parameters())


def test_groups_hold_every_parameter_once() -> None:
    for memory, trunks in kinds():
        agent = make(memory=memory, trunks=trunks, layers=2, state_dependent_std=True)
        grouped = [id(p) for group in agent.parameter_groups().values() for p in group]
        assert sorted(grouped) == sorted(id(p) for p in agent.parameters())
    assert set(make(trunks="each").parameter_groups()) == {
        *(f"{who}/{what}" for who in ("actor", "critic_0", "critic_1") for what in ("encoder", "memory_0", "head"))
    }


def test_number_of_critics_and_of_trunks() -> None:
    for twin, count in ((False, 1), (True, 2)):
        for trunks, sets in zip(TRUNKS, (1, 2, 1 + count), strict=True):
            agent = make(trunks=trunks, twin=twin)
            out, memory = agent.unroll(observe(), agent.initial_memory(B), ragged())
            assert out.critics.shape == (count, T, B, 6)
            assert len(memory) == 2 * sets


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("memory", MEMORIES)
def test_a_population_is_agents_side_by_side(memory: str) -> None:
    """vmap over stacked weights equals each agent alone, gradients included."""
    agents = [make("choice", obs_space=MANY, memory=memory, layers=2) for _ in range(3)]
    obs, start, first = observe(MANY), ragged(), [remember(agent) for agent in agents]
    stacked, buffers = torch.func.stack_module_state(agents)
    shell = copy.deepcopy(agents[0]).to("meta")

    def run(parameters: Any, own_buffers: Any, memory: Any) -> Any:
        return torch.func.functional_call(shell, (parameters, own_buffers), (obs, memory, start))

    together, after = torch.vmap(run)(stacked, buffers, tuple(map(torch.stack, zip(*first, strict=True))))
    (together.critics.square().sum() + together.policy.logits.square().sum()).backward()
    for i, agent in enumerate(agents):
        alone, own = agent.unroll(obs, first[i], start)
        torch.testing.assert_close(take(together.policy, i), alone.policy, **EXACT)
        torch.testing.assert_close(together.critics[i], alone.critics, **EXACT)
        torch.testing.assert_close(tuple(state[i] for state in after), own, **EXACT)
        (alone.critics.square().sum() + alone.policy.logits.square().sum()).backward()
        for name, parameter in agent.named_parameters():
            torch.testing.assert_close(stacked[name].grad[i], parameter.grad, **EXACT)


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch.compile does it to trace
@pytest.mark.parametrize("memory", MEMORIES)
def test_unroll_traces_as_one_graph(memory: str) -> None:
    space, action = (MANY, "choices") if memory == "none" else (OBS, "gsde")
    agent = make(action, obs_space=space, memory=memory, dropout=0.4, trunks="shared", twin=False)
    obs, start, first, more = observe(space, 2), ragged(2), remember(agent), extras(agent, action, 2)
    torch.compiler.reset()
    traced = torch.compile(agent.unroll, fullgraph=True, backend="aot_eager")
    plain, compiled = agent.unroll(obs, first, start, **more), traced(obs, first, start, **more)
    torch.testing.assert_close(compiled, plain, **EXACT)
    theirs = torch.autograd.grad(plain[0].critics.square().sum(), list(agent.critics.parameters()))
    ours = torch.autograd.grad(compiled[0].critics.square().sum(), list(agent.critics.parameters()))
    torch.testing.assert_close(ours, theirs, **EXACT)


def test_unroll_leaves_nothing_behind() -> None:
    agent = make("gsde", layers=2, dropout=0.4)
    before, attributes = copy.deepcopy(agent.state_dict()), {name: set(vars(m)) for name, m in agent.named_modules()}
    inputs = (observe(), remember(agent), ragged())
    more = extras(agent, "gsde")
    first, second = agent.unroll(*inputs, **more), agent.unroll(*inputs, **more)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.testing.assert_close(dict(agent.state_dict()), dict(before), rtol=0, atol=0)
    assert {name: set(vars(m)) for name, m in agent.named_modules()} == attributes


def test_dropout_keeps_the_mean_and_stays_out_of_the_state() -> None:
    agent = make(dropout=0.25, layers=2, trunks="each")
    shape = agent.dropout_shape(B)
    assert shape == (6, B, 3)
    mask = agent.dropout_mask(torch.rand(6, 1000, 3, dtype=torch.float64))
    assert set(mask.unique().tolist()) == {0.0, 1 / 0.75}
    assert abs(mask.mean() - 1) < 0.05
    obs, first, start = observe(), remember(agent), ragged()
    plain, after = agent.unroll(obs, first, start)
    dropped, after_dropped = agent.unroll(obs, first, start, dropout=agent.dropout_mask(torch.rand(shape, dtype=torch.float64)))
    assert (plain.critics != dropped.critics).any(-1).any()
    for state, other in zip(after, after_dropped, strict=True):
        assert torch.equal(state[0], other[0])  # the first layer sees no dropout
        assert not torch.equal(state[1], other[1])
    everything = agent.dropout_mask(torch.zeros(shape, dtype=torch.float64))
    assert (agent.unroll(obs, first, start, dropout=everything)[0].policy.mean.std((0, 1)) < 1e-12).all()


def test_each_layer_and_trunk_has_its_own_part_of_the_dropout_mask() -> None:
    agent = make(dropout=0.5, layers=2, trunks="each")
    obs, first, start = observe(), remember(agent), ragged()
    ones = torch.ones(agent.dropout_shape(B), dtype=torch.float64)
    plain, _ = agent.unroll(obs, first, start, dropout=ones)
    for layer in range(6):
        changed, _ = agent.unroll(obs, first, start, dropout=ones.index_fill(0, torch.tensor([layer]), 2.0))
        differs = [not torch.equal(changed.policy.mean, plain.policy.mean)]
        differs += [not torch.equal(new, old) for new, old in zip(changed.critics, plain.critics, strict=True)]
        assert differs == [layer // 2 == trunk for trunk in range(3)]


def test_orthogonal_start() -> None:
    agent = make("tanh", hidden=8, trunks="shared", layers=2)
    gains = {"actor.0": 2**0.5, "critics.0.0": 2**0.5, "policy.mean": 0.01, "values.heads.0": 1.0, "values.heads.1": 1.0}
    for name, gain in gains.items():
        layer = agent.get_submodule(name)
        assert torch.allclose(torch.linalg.svdvals(layer.weight), torch.tensor(gain, dtype=torch.float64), atol=1e-5), name
        assert (layer.bias == 0).all()
    for name, weight in agent.named_parameters():
        if name.endswith(("w_x", "w_h")):
            values = torch.linalg.svdvals(weight)
            assert torch.allclose(values, torch.ones_like(values), atol=1e-5), name
    plain = make("tanh", hidden=8, trunks="shared", ortho_init=False)
    assert (plain.get_submodule("policy.mean").bias != 0).any()


def test_memory_kinds_are_different_networks() -> None:
    torch.manual_seed(3)
    obs, start = observe(), ragged()
    seen = []
    for memory in MEMORIES:
        torch.manual_seed(3)
        agent = make(memory=memory)
        seen.append(agent.unroll(obs, agent.initial_memory(B), start)[0].critics.sum().item())
    assert len(set(seen)) == len(MEMORIES)


def test_a_small_agent_learns_to_remember() -> None:
    """Every recurrent memory carries the first observation over 8 rows; without memory it cannot be known."""
    torch.manual_seed(1)
    signal = torch.randint(2, (32,)).double() * 2 - 1
    obs = torch.zeros(8, 32, 4, dtype=torch.float64)
    obs[0, :, 0] = signal
    start = (torch.arange(8) == 0)[:, None].expand(8, 32)
    final = {}
    for memory in MEMORIES:
        agent = make(memory=memory, hidden=8, trunks="shared")
        optimizer = torch.optim.Adam(agent.parameters(), 0.02)
        for _ in range(60):
            out, _ = agent.unroll(obs, agent.initial_memory(32), start)
            loss = quantile_huber_loss(out.critics[0, -1], signal[:, None], agent.values.taus).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        final[memory] = loss.item()
    assert final.pop("none") > 0.03
    assert max(final.values()) < 0.01


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "bad", "words"),
    [
        ("obs", torch.zeros(T, B, 3), "obs has shape"),
        ("obs", {"a": torch.zeros(T, B, 4)}, "obs is a dict"),
        ("obs", torch.zeros(B, 4), "start has shape"),
        ("memory", (), "memory has 0 tensors"),
        ("memory", tuple(torch.zeros(1, B + 1, 3, dtype=torch.float64) for _ in range(4)), "memory has shape"),
        ("memory", tuple(torch.zeros(1, B, 3) for _ in range(4)), "h0 is torch.float32"),
        ("start", torch.zeros(T, B), "start is torch.float32"),
        ("start", torch.zeros(B, T, dtype=torch.bool), "start has shape"),
        ("start", None, "start is NoneType"),
        ("action_mask", torch.ones(T, B, 2, dtype=torch.bool), "action_mask is given"),
        ("dropout", torch.ones(1, B, 3), "dropout has shape"),
        ("explore", torch.ones(B, 8, 3), "explore has shape"),
    ],
)
def test_bad_argument_of_unroll_is_named(argument: str, bad: Any, words: str) -> None:
    agent = make("gsde", dropout=0.1)
    good = {"obs": observe(), "memory": remember(agent), "start": ragged(), **extras(agent, "gsde")}
    agent.unroll(**good)
    with pytest.raises(InputError, match=words):
        agent.unroll(**{**good, argument: bad})


def test_noise_that_nobody_asked_for_is_refused() -> None:
    agent = make("choice")
    assert agent.dropout_shape(B) is agent.explore_shape(B) is None
    with pytest.raises(InputError, match="no noise at all"):
        agent.dropout_mask(torch.rand(1, B, 3))
    with pytest.raises(InputError, match="needs None"):
        agent.unroll(observe(), remember(agent), ragged(), dropout=torch.ones(2, B, 3))
    with pytest.raises(InputError, match="explore is given"):
        agent.unroll(observe(), remember(agent), ragged(), explore=torch.ones(B, 8, 2))
    with pytest.raises(InputError, match="noise has shape"):
        make(dropout=0.5).dropout_mask(torch.rand(1, B, 3))
    for count in (0, 2.0, True):
        with pytest.raises(InputError, match="batch="):
            agent.initial_memory(count)


def test_unknown_spaces_are_refused() -> None:
    with pytest.raises(ConfigError, match="observation space"):
        Agent("CartPole-v1", Discrete(2))
    with pytest.raises(ConfigError, match="action space"):
        Agent(OBS, MANY)
    assert isinstance(Agent(Box((2,)), Box((1,))), nn.Module)
