"""The Triton kernels, imitated on the CPU by its interpreter (`TRITON_INTERPRET=1`), against the torch road in float64."""

import os
from importlib.util import find_spec

import pytest
import torch

from kernels.judges import ragged, results_and_gradients
from quantail.kernels import lstm_sequence

pytestmark = pytest.mark.skipif(
    find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs Triton and TRITON_INTERPRET=1",
)
T, B, F, H = 7, 37, 6, 16


@pytest.fixture(params=["whole", "row by row"])
def road(request, monkeypatch):
    """One kernel for the sequence, or one for each row."""
    from quantail.kernels.gpu import launch

    monkeypatch.setattr(launch, "stays", lambda *_: request.param == "whole")


def scenes(blocks, states, *more):
    """x, states, weights, and starts of every sort."""
    torch.manual_seed(1)
    x, memory = torch.randn(T, B, F), [torch.randn(B, H) for _ in range(states)]
    weights = [0.5 * torch.randn(blocks * H, F), 0.5 * torch.randn(blocks * H, H), torch.randn(blocks * H)]
    start = torch.rand(T, B) < 0.2
    start[:, :5] = ragged(T)
    return [x, *memory, *weights, *(torch.randn(n) for n in more)], start


def close(found, expected, digits):
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        assert (ours - theirs).abs().max() <= digits * theirs.abs().max()


def on_gpu(kind):
    from quantail.kernels.gpu import lstm

    return {"lstm": lstm.lstm_sequence}[kind]


KINDS = {"lstm": (lstm_sequence, (4, 2))}


@pytest.mark.parametrize("kind", KINDS)
def test_values_and_gradients_are_those_of_the_torch_road(road, kind):
    plain, shape = KINDS[kind]
    arguments, start = scenes(*shape)
    expected = results_and_gradients(plain, [part.double() for part in arguments], start)
    close(results_and_gradients(on_gpu(kind), arguments, start), expected, 2e-6)
    with torch.no_grad():
        close(on_gpu(kind)(arguments[0], start, *arguments[1:]), expected[: 1 + shape[1]], 2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_rounded_operands_change_no_more_than_their_rounding(road, kind):
    """float16, which the interpreter knows, in place of bfloat16."""
    plain, shape = KINDS[kind]
    arguments, start = scenes(*shape)
    expected = results_and_gradients(plain, [part.double() for part in arguments], start)
    with torch.autocast("cpu", torch.float16):
        found = results_and_gradients(on_gpu(kind), arguments, start)
    assert all(part.dtype == torch.float32 for part in found)
    close(found, expected, 5e-3)
    exact = results_and_gradients(on_gpu(kind), arguments, start)
    assert not torch.equal(found[0], exact[0])


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_start_discards_may_be_nan(road, kind):
    (x, *rest), start = scenes(*KINDS[kind][1])
    states, weights = rest[: KINDS[kind][1][1]], rest[KINDS[kind][1][1] :]
    start[0, 3] = start[4] = True
    clean = on_gpu(kind)(x, start, *states, *weights)
    lost = [state.index_fill(0, torch.tensor([3]), torch.nan) for state in states]
    leaves = [tensor.clone().requires_grad_() for tensor in [x, *lost, *weights]]
    dirty = on_gpu(kind)(leaves[0], start, *leaves[1:])
    torch.testing.assert_close(dirty, clean, rtol=0, atol=0)
    gradients = torch.autograd.grad(dirty[0].sum(), leaves)
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert all((gradient[3] == 0).all() for gradient in gradients[1 : 1 + len(states)])
    after = on_gpu(kind)(x.index_fill(0, torch.tensor([3]), torch.nan), start, *states, *weights)
    assert after[0][3].isnan().all()
    torch.testing.assert_close(after[0][4:], clean[0][4:], rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_the_last_state_alone_reach_every_input(road, kind):
    plain, shape = KINDS[kind]
    arguments, start = scenes(*shape)
    start[:] = False
    leaves = [part.requires_grad_() for part in arguments]
    exact = [part.detach().double().requires_grad_() for part in arguments]
    for index in range(1, 1 + shape[1]):
        expected = torch.autograd.grad(plain(exact[0], start, *exact[1:])[index].sum(), exact)
        close(torch.autograd.grad(on_gpu(kind)(leaves[0], start, *leaves[1:])[index].sum(), leaves), expected, 2e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_what_no_gradient_is_asked_of_costs_none(road, kind):
    arguments, start = scenes(*KINDS[kind][1])
    leaves = [arguments[0], *(part.requires_grad_() for part in arguments[1:])]
    found = torch.autograd.grad(on_gpu(kind)(leaves[0], start, *leaves[1:])[0].sum(), leaves[1:])
    leaves[0].requires_grad_()
    expected = torch.autograd.grad(on_gpu(kind)(leaves[0], start, *leaves[1:])[0].sum(), leaves[1:])
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_gates_keep_the_digits_of_their_slopes():
    """Stored in eleven bits, σ′ of a gate that is nearly open is right to eleven bits."""
    from quantail.kernels.gpu.lstm import lstm_forward

    a = torch.linspace(-9, 9, 64).half().float()
    pre = a.repeat(4)[None, None]
    nothing = torch.zeros(1, 64)
    out = lstm_forward(
        pre,
        torch.ones(1, 1, dtype=torch.bool),
        nothing,
        nothing,
        torch.eye(256),
        torch.zeros(256, 64),
        torch.zeros(256),
        True,
        torch.float16,
    )
    stored = out[3].double().view(4, 64)
    small = stored.abs()
    exact = torch.sigmoid(a.double())
    for block in (0, 1, 3):
        assert ((small * (1 - small))[block] / (exact * (1 - exact)) - 1).abs().max() < 2e-3
        torch.testing.assert_close(torch.where(stored < 0, 1 - small, small)[block], exact, rtol=1e-3, atol=0)
