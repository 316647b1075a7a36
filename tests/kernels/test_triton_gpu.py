"""The Triton kernels on a GPU against the torch road in float64 on the same GPU."""

from importlib.util import find_spec

import pytest
import torch

from kernels.judges import ragged, results_and_gradients
from quantail.engine import with_matmuls
from quantail.functional import quantile as plain_quantile
from quantail.functional import returns as plain_returns
from quantail.kernels import gru_sequence, lstm_sequence, mingru_sequence, returns, roads
from quantail.kernels.quantile import quantile_huber_loss
from quantail.types import Law

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or find_spec("triton") is None, reason="needs a CUDA device and Triton"),
]
T, B, F = 9, 203, 7
# kernel; blocks, states, width of W_h in memories, further vectors
KINDS = {"lstm": (lstm_sequence, (4, 2, 1)), "gru": (gru_sequence, (3, 1, 1, 1)), "mingru": (mingru_sequence, (2, 1, 0))}
SIZES = (16, 32, 50, 64, 128, 256)


def scenes(hidden, blocks, states, recurrent, *more):
    """x, states, weights, and starts of every sort."""
    torch.manual_seed(1)
    x, memory = torch.randn(T, B, F), [torch.randn(B, hidden) for _ in range(states)]
    size = hidden**-0.5
    w_h = [size * torch.randn(blocks * hidden, hidden)] * recurrent
    weights = [torch.randn(blocks * hidden, F), *w_h, torch.randn(blocks * hidden)]
    start = torch.rand(T, B) < 0.1
    start[:, :5] = ragged(T)
    return [part.cuda() for part in [x, *memory, *weights, *(torch.randn(n * hidden) for n in more)]], start.cuda()


def close(found, expected, digits):
    worst = [
        ((ours.double() - theirs).abs().max() / theirs.abs().max()).item() for ours, theirs in zip(found, expected, strict=True)
    ]
    assert max(worst) <= digits, worst


@pytest.mark.parametrize("hidden", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_float32_is_right_to_five_digits(kind, hidden):
    call, shape = KINDS[kind]
    arguments, start = scenes(hidden, *shape)
    expected = results_and_gradients(call, [part.double() for part in arguments], start)
    close(results_and_gradients(call, arguments, start), expected, 1e-5)
    with torch.no_grad():
        close(call(arguments[0], start, *arguments[1:]), expected[: 1 + shape[1]], 1e-5)


@pytest.mark.parametrize("hidden", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_operands_are_right_to_their_rounding(kind, hidden):
    call, shape = KINDS[kind]
    arguments, start = scenes(hidden, *shape)
    expected = results_and_gradients(call, [part.double() for part in arguments], start)
    with torch.autocast("cuda", torch.bfloat16):
        found = results_and_gradients(call, arguments, start)
        rounded = results_and_gradients(call, [arguments[0].bfloat16(), *arguments[1:]], start)
        with torch.no_grad():
            close(call(arguments[0], start, *arguments[1:]), found[: 1 + shape[1]], 1e-6)
    close(found, expected, 3e-2)
    close([rounded[0], *rounded[2:]], [found[0].double(), *(part.double() for part in found[2:])], 3e-2)
    assert all(part.dtype == torch.float32 for part in found)


@pytest.mark.parametrize("kind", KINDS)
def test_tensor_cores_take_float32_where_torch_lets_them(kind):
    call, shape = KINDS[kind]
    arguments, start = scenes(64, *shape)
    expected = results_and_gradients(call, [part.double() for part in arguments], start)
    found = with_matmuls("tf32", lambda: results_and_gradients(call, arguments, start))()
    close(found, expected, 5e-3)


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_start_discards_may_be_nan(kind, rounded):
    call, shape = KINDS[kind]
    (x, *rest), start = scenes(32, *shape)
    states, weights = rest[: shape[1]], rest[shape[1] :]
    start[0, 3] = start[4] = True
    at = torch.tensor([3], device="cuda")
    with torch.autocast("cuda", torch.bfloat16, enabled=rounded):
        clean = call(x, start, *states, *weights)
        lost = [state.index_fill(0, at, torch.nan) for state in states]
        leaves = [tensor.clone().requires_grad_() for tensor in [x, *lost, *weights]]
        dirty = call(leaves[0], start, *leaves[1:])
        after = call(x.index_fill(0, at, torch.nan), start, *states, *weights)
    torch.testing.assert_close(dirty, clean, rtol=0, atol=0)
    gradients = torch.autograd.grad(dirty[0].sum(), leaves)
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert all((gradient[3] == 0).all() for gradient in gradients[1 : 1 + len(states)])
    assert after[0][3].isnan().all()
    torch.testing.assert_close(after[0][4:], clean[0][4:], rtol=0, atol=0)


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_captured_graph_repeats_what_was_seen(kind, rounded):
    call, shape = KINDS[kind]
    arguments, start = scenes(64, *shape)
    leaves = [part.requires_grad_() for part in arguments]

    def step():
        with torch.autocast("cuda", torch.bfloat16, enabled=rounded):
            values = call(leaves[0], start, *leaves[1:])
        return [*values, *torch.autograd.grad(sum(value.square().sum() for value in values), leaves)]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        held = step()
    with torch.no_grad():
        leaves[0].copy_(leaves[0].flip(0))
        start.copy_(start.flip(0))
    graph.replay()
    torch.testing.assert_close(held, step(), rtol=0, atol=0)


# --- the loss, and returns --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(32, 32), (7, 5), (1, 64), (200, 3)])
@pytest.mark.parametrize("kappa", [0.0, 0.01, 1.0])
def test_loss_and_slope_are_those_of_the_plain_loss(kappa, sizes):
    many, particles = sizes
    taus = plain_quantile.tail_levels(many)[0].cuda()
    quantiles = torch.randn(2, 1531, many, device="cuda", requires_grad=True)
    targets = torch.randn(2, 1531, particles, device="cuda")
    with torch.no_grad():
        targets[..., 0] = quantiles[..., 0]  # hits
    exact = quantiles.detach().double().requires_grad_()
    found = quantile_huber_loss(quantiles, targets, taus, kappa)
    expected = plain_quantile.quantile_huber_loss(exact, targets.double(), taus.double(), kappa)
    close([found], [expected], 2e-6)
    slopes = [torch.autograd.grad((loss**2).sum(), q)[0] for loss, q in ((found, quantiles), (expected, exact))]
    close(slopes[:1], slopes[1:], 3e-6)


@pytest.mark.parametrize("source", ["next", "same", "given"])
def test_returns_are_the_same_to_the_bit(source):
    torch.manual_seed(0)
    shape, atoms, many = (17, 3, 211), 13, 9
    rewards, terminated, cut = torch.randn(shape).cuda(), torch.rand(shape).cuda() < 0.2, torch.rand(shape).cuda() < 0.2
    longer = (18, *shape[1:])
    values, noise = torch.randn(longer).cuda(), [torch.rand(*shape, many).cuda() for _ in range(2)]
    final_values = torch.randn(shape).cuda() if source == "same" else None
    valid = torch.rand(shape).cuda() < 0.7 if source == "given" else None
    ends = (terminated, cut & ~terminated, 0.97, 0.6)
    expected = plain_returns.gae(rewards, values, *ends, valid=valid, final_values=final_values)
    found = returns.gae(rewards, values, *ends, valid=valid, final_values=final_values)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    for shared in ("masses", "locations"):
        laws = []
        for rows in (longer, shape):
            masses = torch.rand(*(rows if shared == "locations" else ()), atoms).cuda() * (torch.rand(atoms).cuda() < 0.8)
            laws.append(
                Law(torch.randn(*(rows if shared == "masses" else ()), atoms).cuda(), masses / masses.sum(-1, keepdim=True))
            )
        more = {"valid": valid, "final_law": laws[1] if source == "same" else None}
        expected = plain_returns.distributional_targets(rewards, laws[0], *ends, *noise, **more)
        torch.testing.assert_close(
            returns.distributional_targets(rewards, laws[0], *ends, *noise, **more), expected, rtol=0, atol=0
        )


def test_the_kernels_are_in_force():
    """What is compared above are two roads."""
    assert roads.takes_triton(torch.zeros(1, device="cuda"))
    assert not roads.takes_triton(torch.zeros(1, device="cuda").double())
