"""Stacked recurrent layers against torch's own, and the helpers around the state."""

import math

import pytest
import torch

from nets.cases import MEMORIES, B, T, ragged
from quantail.errors import InputError
from quantail.nets.memory import STATES, MemoryNet, memory_statistics, select_envs

INPUTS, HIDDEN = 4, 3


def make(kind: str, layers: int = 2) -> MemoryNet:
    return MemoryNet(kind, INPUTS, HIDDEN, layers).double()


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_stacked_layers_are_torchs_own(kind) -> None:
    net, x = make(kind), torch.randn(T, B, INPUTS, dtype=torch.float64)
    theirs = (torch.nn.LSTM if kind == "lstm" else torch.nn.GRU)(INPUTS, HIDDEN, num_layers=2, dtype=torch.float64)
    with torch.no_grad():
        for i, layer in enumerate(net.layers):
            layer.b.normal_()
            getattr(theirs, f"weight_ih_l{i}").copy_(layer.w_x)
            getattr(theirs, f"weight_hh_l{i}").copy_(layer.w_h)
            getattr(theirs, f"bias_ih_l{i}").copy_(layer.b)
            getattr(theirs, f"bias_hh_l{i}").zero_()
            if kind == "gru":
                getattr(theirs, f"bias_hh_l{i}")[2 * HIDDEN :] = layer.b_hn.normal_()
    first = tuple(torch.randn_like(state) for state in net.initial(B))
    y, after = net(x, first, torch.zeros(T, B, dtype=torch.bool))
    expected, last = theirs(x, first if kind == "lstm" else first[0])
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(after, last if kind == "lstm" else (last,), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", MEMORIES)
def test_initial_memory_is_empty_and_has_the_right_shape(kind) -> None:
    states = make(kind).initial(B)
    assert len(states) == STATES[kind]
    assert all(state.shape == (2, B, HIDDEN) and not state.any() and state.dtype == torch.float64 for state in states)
    assert make(kind).width == (INPUTS if kind == "none" else HIDDEN)


@pytest.mark.parametrize("kind", ["lstm", "gru", "mingru"])
def test_a_new_memory_keeps_most_of_itself(kind) -> None:
    """With nothing coming in, a row leaves σ(1) of what was there; with a bias of 0 it would be half."""
    net = make(kind, layers=1)
    for name, weight in net.named_parameters():
        if ".w_" in name:
            torch.nn.init.zeros_(weight)
    before = tuple(torch.randn_like(state) for state in net.initial(B))
    _, after = net(torch.randn(1, B, INPUTS, dtype=torch.float64), before, torch.zeros(1, B, dtype=torch.bool))
    torch.testing.assert_close(after[-1], before[-1] / (1 + math.exp(-1)), rtol=1e-12, atol=1e-12)


def test_no_memory_passes_its_input_on() -> None:
    x = torch.randn(T, B, INPUTS)
    y, after = make("none")(x, (), ragged())
    assert y is x
    assert after == ()


def test_select_envs() -> None:
    memory = (torch.randn(2, B, HIDDEN), torch.randn(2, B, HIDDEN))
    chosen = select_envs(memory, torch.tensor([3, 0]))
    assert all(
        torch.equal(part, torch.stack([state[:, 3], state[:, 0]], 1)) for part, state in zip(chosen, memory, strict=True)
    )


def test_statistics_of_a_state() -> None:
    state = torch.tensor([[[3.0, 4.0], [0.0, 1.0]], [[0.0, 0.0], [0.0, 2.0]]], requires_grad=True)
    found = memory_statistics(state)
    assert found.mean.tolist() == [2.0, 0.5]
    assert found.norm.tolist() == [3.0, 1.0]
    torch.testing.assert_close(found.std, torch.tensor([2.5, 0.75]).sqrt())
    assert not found.norm.requires_grad


@pytest.mark.parametrize(
    ("argument", "bad"), [("kind", "rnn"), ("hidden", 0), ("layers", 0), ("hidden", 2.5), ("layers", True)]
)
def test_bad_setting_is_named(argument, bad) -> None:
    good = {"kind": "lstm", "inputs": INPUTS, "hidden": HIDDEN, "layers": 1}
    with pytest.raises(InputError, match="memory" if argument == "kind" else argument):
        MemoryNet(**{**good, argument: bad})


def test_bad_mask_and_state_are_named() -> None:
    net, x = make("gru"), torch.randn(T, B, INPUTS, dtype=torch.float64)
    good = {"x": x, "memory": net.initial(B), "start": ragged(), "dropout_mask": torch.ones(2, B, HIDDEN)}
    net(**good)
    for name, bad in (("dropout_mask", torch.ones(B, HIDDEN)), ("memory", net.initial(B + 1)), ("memory", ())):
        with pytest.raises(InputError, match=f"^{name} has"):
            net(**{**good, name: bad})
