"""The LSTM over whole sequences, with episodes that start inside them and a backward pass written by hand."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from quantail.kernels.roads import exactly, takes_triton
from quantail.kernels.sequence import (
    add_product_,
    apply,
    check_rows,
    check_weight,
    input_gradient,
    population_first,
    project,
    refuse_second_derivative,
    reset_rows,
    states_before,
    weight_gradient,
)

CELL_ENVS = (
    32  # up to so many environments torch's cell is the faster road for a row of a rollout: half of the layer's time at 8
)
FUSED_ROWS = 4  # from so many rows between starts on, torch's fused layer is the faster road (benchmarks/recurrent.py)


def lstm_sequence(
    x: Tensor, start: Tensor, h0: Tensor, c0: Tensor, w_x: Tensor, w_h: Tensor, b: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """LSTM over T rows, its memory emptied before every row with `start`   (Hochreiter & Schmidhuber 1997; Gers et al. 2000).

        i, f, o = σ(W_x·x_t + W_h·h_{t−1} + b)     g = tanh(…)     c_t = f·c_{t−1} + i·g     h_t = o·tanh(c_t)

    x [T, B, I], start [T, B] bool, h0, c0 [B, H], w_x [4H, I], w_h [4H, H], b [4H], gates in torch's order i, f, g, o
    -> h [T, B, H], h_T [B, H], c_T [B, H]. Everything may carry a population axis [P] in front. What a `start` discards may
    be NaN. One saved tensor holds the gates of all rows; the gradient of each weight is one product over T·B.
    """
    check_rows(x, start, h0=h0, c0=c0)
    hidden, inputs = h0.shape[-1], x.shape[-1]
    check_weight("w_x", w_x, x, (4 * hidden, inputs), "four gates of the memory, inputs")
    check_weight("w_h", w_h, x, (4 * hidden, hidden), "four gates of the memory, memory")
    check_weight("b", b, x, (4 * hidden,), "four gates of the memory")
    if x.ndim == 3 and takes_triton(h0, c0, w_x, w_h, b):
        from quantail.kernels.gpu.lstm import lstm_sequence as on_gpu

        return on_gpu(x, start, h0, c0, w_x, w_h, b)
    x = x.to(h0.dtype)
    with exactly(x):
        if _fused_layer_fits(x):
            if len(x) == 1 and x.shape[1] <= CELL_ENVS and not torch.is_grad_enabled():
                return _one_row(x[0], start, h0, c0, w_x, w_h, b)
            cuts = [t for t, reset in enumerate(reset_rows(start)) if reset and t > 0]
            if FUSED_ROWS * len(cuts) <= len(x):
                return _by_stretches(x, start, h0, c0, w_x, w_h, b, [0, *cuts])
        h, c, _ = apply(_Lstm, x, start, h0, c0, w_x, w_h, b)
    return h, h.select(-3, -1), c.select(-3, -1)


def _fused_layer_fits(x: Tensor) -> bool:
    """Whether torch has a faster layer for these rows: oneDNN's, for float32 on the CPU, one agent, outside any transform."""
    if x.device.type != "cpu" or x.dtype != torch.float32 or x.ndim != 3 or torch.compiler.is_compiling():
        return False
    there: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return there and not torch._C._are_functorch_transforms_active()


def _one_row(
    x: Tensor, start: Tensor, h0: Tensor, c0: Tensor, w_x: Tensor, w_h: Tensor, b: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """torch's cell, without the fused layer's preparations."""
    if reset_rows(start)[0]:
        empty = start[0].unsqueeze(-1)
        h0, c0 = h0.masked_fill(empty, 0.0), c0.masked_fill(empty, 0.0)
    h, c = torch.lstm_cell(x, (h0, c0), w_x, w_h, b)
    return h.unsqueeze(0), h, c


def _by_stretches(
    x: Tensor, start: Tensor, h0: Tensor, c0: Tensor, w_x: Tensor, w_h: Tensor, b: Tensor, cuts: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """torch's fused layer from one row with a start to the next."""
    weights, h, c, pieces = [w_x, w_h, b, torch.zeros_like(b)], h0.unsqueeze(0), c0.unsqueeze(0), []
    for begin, end in zip(cuts, [*cuts[1:], len(x)], strict=True):
        empty = start[begin].unsqueeze(-1)
        states = (h.masked_fill(empty, 0.0), c.masked_fill(empty, 0.0))
        rows, h, c = torch.lstm(x[begin:end], states, weights, True, 1, 0.0, False, False, False)
        pieces.append(rows)
    return torch.cat(pieces), h[0], c[0]


class _Lstm(Function):
    @staticmethod
    def forward(
        x: Tensor, start: Tensor, h0: Tensor, c0: Tensor, w_x: Tensor, w_h: Tensor, b: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """-> h, c of every row [..., T, B, H] and the gates [..., T, B, 4H], which the backward pass needs."""
        gates = project(x, w_x, b)
        width, w_ht = h0.shape[-1], w_h.mT
        empty = start.unsqueeze(-1).unbind(-3)
        i, f, g, o = (gate.unbind(-3) for gate in gates.chunk(4, -1))
        inner = gates.narrow(-1, 0, 2 * width).unbind(-3)  # i and f side by side: one sigmoid for both
        h, c, h_rows, c_rows = h0, c0, [], []
        for t, (row, reset) in enumerate(zip(gates.unbind(-3), reset_rows(start), strict=True)):
            if reset:
                h, c = h.masked_fill(empty[t], 0.0), c.masked_fill(empty[t], 0.0)
            add_product_(row, h, w_ht)
            inner[t].sigmoid_()
            c = torch.addcmul(i[t] * g[t].tanh_(), f[t], c)
            h = o[t].sigmoid_() * c.tanh()
            h_rows.append(h)
            c_rows.append(c)
        return torch.stack(h_rows, -3), torch.stack(c_rows, -3), gates

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        x, start, h0, c0, w_x, w_h, _ = inputs
        ctx.save_for_backward(x, start, h0, c0, w_x, w_h, *output)
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx: Any, dh: Tensor, dc: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, start, h0, c0, w_x, w_h, h, c, gates = ctx.saved_tensors
        h_before, c_before = states_before(h0, h, start), states_before(c0, c, start)
        dx, dh0, dc0, dw_x, dw_h, db = apply(_LstmGradients, dh, dc, x, start, h_before, c_before, c, gates, w_x, w_h)
        return dx, None, dh0, dc0, dw_x, dw_h, db

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Tensor) -> tuple[tuple[Tensor, ...], int]:
        return apply(_Lstm, *population_first(info.batch_size, in_dims, arguments)), 0


class _LstmGradients(Function):
    @staticmethod
    def forward(
        dh_rows: Tensor,
        dc_rows: Tensor,
        x: Tensor,
        start: Tensor,
        h_before: Tensor,
        c_before: Tensor,
        c_rows: Tensor,
        gates: Tensor,
        w_x: Tensor,
        w_h: Tensor,
    ) -> tuple[Tensor, ...]:
        """-> gradients of x, h0, c0, w_x, w_h, b."""
        slopes, carry = _slopes(gates, c_rows, c_before)
        empty = start.unsqueeze(-1).unbind(-3)
        by_cell = slopes.narrow(-2, 0, 3).unbind(-4)
        by_output = slopes.select(-2, 3).unbind(-3)
        slopes = slopes.flatten(-2)
        rows, carry_rows = slopes.unbind(-3), carry.unbind(-3)
        forget = gates.chunk(4, -1)[1].unbind(-3)
        dh_above, dc_above = dh_rows.unbind(-3), dc_rows.unbind(-3)
        resets = reset_rows(start)
        dh = dc = torch.zeros_like(h_before.select(-3, 0))
        for t in reversed(range(len(rows))):
            dh = dh + dh_above[t]
            dc = torch.addcmul(dc + dc_above[t], dh, carry_rows[t])
            by_cell[t].mul_(dc.unsqueeze(-2))
            by_output[t].mul_(dh)
            dh, dc = rows[t] @ w_h, dc * forget[t]
            if resets[t]:
                dh, dc = dh.masked_fill(empty[t], 0.0), dc.masked_fill(empty[t], 0.0)
        dw_h = weight_gradient(slopes, h_before)
        return input_gradient(slopes, w_x), dh, dc, weight_gradient(slopes, x), dw_h, slopes.sum((-3, -2))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        """Nothing is saved: there is no second derivative."""

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("lstm_sequence")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Tensor) -> tuple[tuple[Tensor, ...], int]:
        return apply(_LstmGradients, *population_first(info.batch_size, in_dims, arguments)), 0


def _slopes(gates: Tensor, c: Tensor, c_before: Tensor) -> tuple[Tensor, Tensor]:
    """What the backward loop multiplies with, for all rows at once.

    -> how each gate's input moves (c, c, c, h): [..., T, B, 4, H] in the order i, f, g, o; how h moves with c: [..., T, B, H].
    """
    i, _, g, o = gates.chunk(4, -1)
    tanh_c = c.tanh()
    slopes = torch.addcmul(gates, gates, gates, value=-1.0).view(*c.shape[:-1], 4, c.shape[-1])  # σ′ = σ − σ²
    slopes.select(-2, 0).mul_(g)
    slopes.select(-2, 1).mul_(c_before)
    slopes.select(-2, 2).copy_(torch.addcmul(i, i * g, g, value=-1.0))  # i·tanh′ = i − i·g²
    slopes.select(-2, 3).mul_(tanh_c)
    return slopes, torch.addcmul(o, o * tanh_c, tanh_c, value=-1.0)
