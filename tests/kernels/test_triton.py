"""The Triton kernels, imitated on the CPU by its interpreter (`TRITON_INTERPRET=1`), against the torch road in float64."""

import os
from importlib.util import find_spec

import pytest
import torch

from kernels.judges import ragged, results_and_gradients
from quantail.errors import InputError
from quantail.functional import quantile as plain_quantile
from quantail.functional import returns as plain_returns
from quantail.kernels import gru_sequence, lstm_sequence, mingru_sequence
from quantail.types import Law

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


def scenes(blocks, states, recurrent, *more):
    """x, states, weights, and starts of every sort."""
    torch.manual_seed(1)
    x, memory = torch.randn(T, B, F), [torch.randn(B, H) for _ in range(states)]
    w_h = [0.5 * torch.randn(blocks * H, recurrent)] * bool(recurrent)
    weights = [0.5 * torch.randn(blocks * H, F), *w_h, torch.randn(blocks * H)]
    start = torch.rand(T, B) < 0.2
    start[:, :5] = ragged(T)
    return [x, *memory, *weights, *(torch.randn(n) for n in more)], start


def close(found, expected, digits):
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        assert (ours - theirs).abs().max() <= digits * theirs.abs().max()


def on_gpu(kind):
    from quantail.kernels.gpu import gru, lstm, mingru

    return {"lstm": lstm.lstm_sequence, "gru": gru.gru_sequence, "mingru": mingru.mingru_sequence}[kind]


# the torch road; blocks, states, width of W_h, further vectors
KINDS = {"lstm": (lstm_sequence, (4, 2, H)), "gru": (gru_sequence, (3, 1, H, H)), "mingru": (mingru_sequence, (2, 1, 0))}


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
def test_a_second_derivative_is_refused(road, kind):
    arguments, start = scenes(*KINDS[kind][1])
    leaves = [part.requires_grad_() for part in arguments]
    value = on_gpu(kind)(leaves[0], start, *leaves[1:])[0].square().sum()
    (slope,) = torch.autograd.grad(value, leaves[0], create_graph=True)
    with pytest.raises(InputError, match=f"{kind}_sequence has no second derivative"):
        torch.autograd.grad(slope.sum(), leaves[1])


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


# --- the loss --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kappa", [0.0, 0.01, 0.3, 1.0])
def test_loss_and_slope_are_those_of_the_plain_loss(kappa):
    from quantail.kernels.gpu import quantile as ours

    taus = plain_quantile.tail_levels(7)[0]
    quantiles, targets = torch.randn(3, 131, 7, requires_grad=True), torch.randn(3, 131, 5)
    with torch.no_grad():
        targets[..., 0] = quantiles[..., 2]  # hits
    found = ours.quantile_huber_loss(quantiles, targets, taus, kappa)
    exact = quantiles.detach().double().requires_grad_()
    expected = plain_quantile.quantile_huber_loss(exact, targets.double(), taus.double(), kappa)
    close([found], [expected], 1e-6)
    slopes = [
        torch.autograd.grad((loss**2).sum(), q, create_graph=True)[0] for loss, q in ((found, quantiles), (expected, exact))
    ]
    close(slopes[:1], slopes[1:], 2e-6)
    with pytest.raises(InputError, match="quantile_huber_loss has no second derivative"):
        torch.autograd.grad(slopes[0].sum(), quantiles)


def test_a_row_that_is_nan_is_nan_alone():
    from quantail.kernels.gpu.quantile import quantile_huber_loss

    taus, quantiles, targets = torch.tensor([0.2, 0.5, 0.9]), torch.randn(4, 3, requires_grad=True), torch.randn(4, 5)
    targets[1, 2] = torch.nan
    for kappa in (0.0, 0.1):
        loss = quantile_huber_loss(quantiles, targets, taus, kappa)
        (slope,) = torch.autograd.grad(loss.sum(), quantiles)
        assert loss.isnan().tolist() == slope.isnan().all(-1).tolist() == [False, True, False, False]


# --- returns ---------------------------------------------------------------------------------------------------------


def episodes(shape, seed=0):
    """Rewards and both kinds of end, also two in a row, also on the last row."""
    torch.manual_seed(seed)
    rewards, terminated, truncated = torch.randn(shape), torch.rand(shape) < 0.2, torch.rand(shape) < 0.2
    return rewards, terminated, truncated & ~terminated


def law_of(shape, kind, atoms=13):
    """Locations of each row with shared masses, or the other way round; some masses are 0."""
    masses = torch.rand(*(shape if kind == "categorical" else ()), atoms) * (torch.rand(atoms) < 0.8)
    locations = torch.randn(*(shape if kind == "quantile" else ()), atoms)
    return Law(locations, masses / masses.sum(-1, keepdim=True))


@pytest.mark.parametrize("source", ["next", "same", "given"])
def test_advantages_are_the_same_to_the_bit(source):
    from quantail.kernels.gpu.returns import advantages_and_returns

    rewards, terminated, truncated = episodes((9, 3, 67))
    values = torch.randn(10, 3, 67)
    final = torch.randn(9, 3, 67) if source == "same" else None
    valid = torch.rand(9, 3, 67) < 0.7 if source == "given" else None
    ends = (terminated, truncated, 0.97, 0.9)
    expected = plain_returns.gae(rewards, values, *ends, valid=valid, final_values=final)
    torch.testing.assert_close(advantages_and_returns(rewards, values, *ends, valid, final), expected, rtol=0, atol=0)


@pytest.mark.parametrize("kind", ["quantile", "categorical"])
@pytest.mark.parametrize("source", ["next", "same", "given"])
def test_particles_are_the_same_to_the_bit(source, kind):
    from quantail.kernels.gpu.returns import sample_replacement

    rewards, terminated, truncated = episodes((9, 3, 11))
    law, noise = law_of((10, 3, 11), kind), [torch.rand(9, 3, 11, 5) for _ in range(2)]
    noise[1][0, 0, :, 0] = 0.0
    noise[1][1, 0, :, 0] = 1 - 2**-24
    final = law_of((9, 3, 11), kind) if source == "same" else None
    valid = torch.rand(9, 3, 11) < 0.7 if source == "given" else None
    ends = (terminated, truncated, 0.97, 0.6)
    expected = plain_returns.distributional_targets(rewards, law, *ends, *noise, valid=valid, final_law=final)
    found = sample_replacement(rewards, list(law), *ends, noise, valid, list(final or ()))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


# --- as torch sees them ----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch.compile does it to trace
@pytest.mark.parametrize("kind", KINDS)
def test_traces_as_one_graph(kind):
    arguments, start = scenes(*KINDS[kind][1])
    leaves = [part.requires_grad_() for part in arguments]
    compiled = torch.compile(on_gpu(kind), fullgraph=True, backend="aot_eager")
    expected, found = (call(leaves[0], start, *leaves[1:]) for call in (on_gpu(kind), compiled))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    slopes = [torch.autograd.grad(values[0].square().sum(), leaves) for values in (found, expected)]
    torch.testing.assert_close(slopes[0], slopes[1], rtol=0, atol=0)


@pytest.mark.parametrize("save", [True, False])
def test_operators_keep_what_they_promise(save):
    """Shapes without running, no aliases, nothing overwritten (torch's own examination)."""
    from quantail.kernels.gpu import gru, lstm, mingru, quantile, returns

    promises = ("test_schema", "test_faketensor")
    for kind, ahead, back in (
        ("lstm", lstm.lstm_forward, lstm.lstm_backward),
        ("gru", gru.gru_forward, gru.gru_backward),
        ("mingru", mingru.mingru_forward, mingru.mingru_backward),
    ):
        (x, *rest), start = scenes(*KINDS[kind][1])
        states, weights = rest[: KINDS[kind][1][1]], rest[KINDS[kind][1][1] :]
        more = (torch.float32,) if kind == "mingru" else (save, torch.float32)
        torch.library.opcheck(ahead, (x, start, *states, *weights, *more), test_utils=promises)
        if not save:
            continue
        h, *found = ahead(x, start, *states, *weights, *more)
        kept = found[len(states) :]
        given = [torch.randn_like(h), *(torch.randn_like(state) for state in states), start]
        given += [states[0], weights[0], h] if kind == "mingru" else weights[:2]
        torch.library.opcheck(back, (*given, *kept, True), test_utils=promises)
    row, mask = torch.randn(T, B), torch.rand(T, B) < 0.3
    torch.library.opcheck(quantile.huber_forward, (row, torch.randn(T, 5), torch.rand(B), 0.1), test_utils=promises)
    ends = (mask, mask, 0.9, 0.8)
    torch.library.opcheck(returns.advantages_and_returns, (row, torch.randn(T + 1, B), *ends, None, row), test_utils=promises)
    law, noise = list(law_of((T + 1, B), "quantile")), [torch.rand(T, B, 3) for _ in range(2)]
    torch.library.opcheck(returns.sample_replacement, (row, law, *ends, noise, mask, []), test_utils=promises)
