"""The GRU over whole sequences, with episodes that start inside them and a backward pass written by hand."""

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


def gru_sequence(
    x: Tensor, start: Tensor, h0: Tensor, w_x: Tensor, w_h: Tensor, b: Tensor, b_hn: Tensor
) -> tuple[Tensor, Tensor]:
    """GRU over T rows, its memory emptied before every row with `start`   (Cho et al. 2014, in cuDNN's form).

        r, z = σ(W_x·x_t + W_h·h_{t−1} + b)     n = tanh(W_xn·x_t + b_n + r·(W_hn·h_{t−1} + b_hn))     h_t = n + z·(h_{t−1} − n)

    x [T, B, I], start [T, B] bool, h0 [B, H], w_x [3H, I], w_h [3H, H], b [3H], b_hn [H], gates in torch's order r, z, n
    -> h [T, B, H], h_T [B, H]. Everything may carry a population axis [P] in front. What a `start` discards may be NaN. One
    saved tensor holds the gates of all rows; the gradient of each weight is one product over T·B.
    """
    check_rows(x, start, h0=h0)
    hidden, inputs = h0.shape[-1], x.shape[-1]
    check_weight("w_x", w_x, x, (3 * hidden, inputs), "three gates of the memory, inputs")
    check_weight("w_h", w_h, x, (3 * hidden, hidden), "three gates of the memory, memory")
    check_weight("b", b, x, (3 * hidden,), "three gates of the memory")
    check_weight("b_hn", b_hn, x, (hidden,), "memory")
    if x.ndim == 3 and takes_triton(h0, w_x, w_h, b, b_hn):
        from quantail.kernels.gpu.gru import gru_sequence as on_gpu

        return on_gpu(x, start, h0, w_x, w_h, b, b_hn)
    # Four blocks r, z, u, n: u = W_hn·h + b_hn sees no input, and lies beside r and z so that W_h·h is one product.
    gates_x, new_x = torch.split(w_x, [2 * hidden, hidden], -2)
    gates_b, new_b = torch.split(b, [2 * hidden, hidden], -1)
    w4 = torch.cat([gates_x, torch.zeros_like(new_x), new_x], -2)
    with exactly(x):
        h, _ = apply(_Gru, x.to(h0.dtype), start, h0, w4, w_h, torch.cat([gates_b, b_hn, new_b], -1))
    return h, h.select(-3, -1)


class _Gru(Function):
    @staticmethod
    def forward(x: Tensor, start: Tensor, h0: Tensor, w_x: Tensor, w_h: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        """-> h of every row [..., T, B, H] and the blocks r, z, u, n [..., T, B, 4H], which the backward pass needs."""
        gates = project(x, w_x, b)
        width, w_ht = h0.shape[-1], w_h.mT
        empty = start.unsqueeze(-1).unbind(-3)
        r, z, u, n = (gate.unbind(-3) for gate in gates.chunk(4, -1))
        inner = gates.narrow(-1, 0, 3 * width).unbind(-3)
        sigmoids = gates.narrow(-1, 0, 2 * width).unbind(-3)
        h, h_rows = h0, []
        for t, reset in enumerate(reset_rows(start)):
            if reset:
                h = h.masked_fill(empty[t], 0.0)
            add_product_(inner[t], h, w_ht)
            sigmoids[t].sigmoid_()
            h = torch.lerp(n[t].addcmul_(r[t], u[t]).tanh_(), h, z[t])
            h_rows.append(h)
        return torch.stack(h_rows, -3), gates

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        x, start, h0, w_x, w_h, _ = inputs
        ctx.save_for_backward(x, start, h0, w_x, w_h, *output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, dh: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, start, h0, w_x, w_h, h, gates = ctx.saved_tensors
        dx, dh0, dw_x, dw_h, db = apply(_GruGradients, dh, x, start, states_before(h0, h, start), gates, w_x, w_h)
        return dx, None, dh0, dw_x, dw_h, db

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Tensor) -> tuple[tuple[Tensor, ...], int]:
        return apply(_Gru, *population_first(info.batch_size, in_dims, arguments)), 0


class _GruGradients(Function):
    @staticmethod
    def forward(
        dh_rows: Tensor, x: Tensor, start: Tensor, h_before: Tensor, gates: Tensor, w_x: Tensor, w_h: Tensor
    ) -> tuple[Tensor, ...]:
        """-> gradients of x, h0, w_x, w_h, b."""
        slopes = _slopes(gates, h_before)
        empty = start.unsqueeze(-1).unbind(-3)
        blocks = slopes.unbind(-4)
        slopes = slopes.flatten(-2)
        of_state = slopes.narrow(-1, 0, 3 * h_before.shape[-1])  # r, z, u: what h_{t−1} moves
        rows = of_state.unbind(-3)
        keep, dh_above = gates.chunk(4, -1)[1].unbind(-3), dh_rows.unbind(-3)
        resets = reset_rows(start)
        dh = torch.zeros_like(h_before.select(-3, 0))
        for t in reversed(range(len(rows))):
            dh = dh + dh_above[t]
            blocks[t].mul_(dh.unsqueeze(-2))
            dh = dh * keep[t]
            add_product_(dh, rows[t], w_h)
            if resets[t]:
                dh = dh.masked_fill(empty[t], 0.0)
        dw_h = weight_gradient(of_state, h_before)
        return input_gradient(slopes, w_x), dh, weight_gradient(slopes, x), dw_h, slopes.sum((-3, -2))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        """Nothing is saved: there is no second derivative."""

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("gru_sequence")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Tensor) -> tuple[tuple[Tensor, ...], int]:
        return apply(_GruGradients, *population_first(info.batch_size, in_dims, arguments)), 0


def _slopes(gates: Tensor, h_before: Tensor) -> Tensor:
    """How the inputs of r, z, u, n move with h, for all rows at once: [..., T, B, 4, H]."""
    r, z, u, n = gates.chunk(4, -1)
    new = (1 - z) * torch.addcmul(torch.ones_like(n), n, n, value=-1.0)
    inner = new * r
    return torch.stack([inner * u * (1 - r), (h_before - n) * z * (1 - z), inner, new], -2)
