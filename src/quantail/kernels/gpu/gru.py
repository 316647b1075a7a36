"""The GRU on a GPU: one kernel for the whole sequence, or one for each row beside cuBLAS, as registers and memory allow."""

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd import Function

from quantail.kernels.gpu import launch
from quantail.kernels.gpu.device.gru import row_backward, row_forward, sequence_backward, sequence_forward
from quantail.kernels.roads import product_dtype
from quantail.kernels.sequence import apply, refuse_second_derivative


def gru_sequence(
    x: Tensor, start: Tensor, h0: Tensor, w_x: Tensor, w_h: Tensor, b: Tensor, b_hn: Tensor
) -> tuple[Tensor, Tensor]:
    """`kernels.gru.gru_sequence` for one agent: x [T, B, I], start [T, B], h0 [B, H] -> h [T, B, H], h_T [B, H].

    Products take operands of autocast's dtype where autocast is on; they sum in float32, and h is float32.
    """
    save = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, h0, w_x, w_h, b, b_hn))
    h, h_last, *_ = apply(_Gru, x, start, h0, w_x, w_h, b, b_hn, save, product_dtype(h0))
    return h, h_last


class _Gru(Function):
    @staticmethod
    def forward(
        x: Tensor,
        start: Tensor,
        h0: Tensor,
        w_x: Tensor,
        w_h: Tensor,
        b: Tensor,
        b_hn: Tensor,
        save: bool,
        dtype: torch.dtype,
    ) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = gru_forward(x, start, h0, w_x, w_h, b, b_hn, save, dtype)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, start, _, w_x, w_h, *_ = inputs
        ctx.save_for_backward(start, w_x, w_h, *output[2:])
        ctx.mark_non_differentiable(*output[2:])
        ctx.set_materialize_grads(False)  # of what is not differentiable nobody wants a gigabyte of zeros
        ctx.dtype_of_x = x.dtype

    @staticmethod
    def backward(ctx: Any, dh: Tensor | None, dh_last: Tensor | None, *_: Any) -> tuple[Any, ...]:
        start, w_x, w_h, gates, rows = ctx.saved_tensors
        shape = (*gates.shape[:-1], w_h.shape[-1])
        dh = w_h.new_zeros(shape) if dh is None else dh
        dh_last = w_h.new_zeros(shape[1:]) if dh_last is None else dh_last
        wanted = ctx.needs_input_grad[0]
        dx, dh0, dw_x, dw_h, db, db_hn = gru_backward(dh, dh_last, start, w_x, w_h, gates, rows, wanted)
        return dx.to(ctx.dtype_of_x) if wanted else None, None, dh0, dw_x, dw_h, db, db_hn, None, None


@torch.library.custom_op("quantail::gru_forward", mutates_args=())
def gru_forward(
    x: Tensor, start: Tensor, h0: Tensor, w_x: Tensor, w_h: Tensor, b: Tensor, b_hn: Tensor, save: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Opaque to torch.compile.  -> h of every row [T, B, H], h_T [B, H]; what the backward pass needs (`save`): gates
    [T, B, 4H], blocks n, r, z, u as `device.gru` stores them, operands [T, B, H+I+1 …].
    """
    (steps, envs, inputs), hidden = x.shape, h0.shape[-1]
    start, h0, w_h, b_hn = start.contiguous(), h0.contiguous(), w_h.to(dtype).contiguous(), b_hn.contiguous()
    with launch.on(x):
        rows = launch.operands(x, hidden, dtype) if save else x.new_empty((1, envs, hidden), dtype=dtype)
        seen = rows[..., hidden : hidden + inputs] if save else x.to(dtype)
        gates, h_rows = x.new_empty((steps, envs, 4 * hidden), dtype=dtype), h0.new_empty((steps, envs, hidden))
        first = gates.flatten(0, 1)[:, : 3 * hidden]
        torch.addmm(_new_first(b).to(dtype), seen.flatten(0, 1), _new_first(w_x).to(dtype).mT, out=first)
        if launch.stays(hidden, 3, dtype):
            block, warps = launch.block_of(envs, hidden, x)
            arguments = (gates, start, h0, w_h, b_hn, h_rows, rows, steps, envs, rows.shape[-1])
            tiles = {"H": hidden, "BLOCK": block, "PRECISION": launch.precision(x), "num_warps": warps}
            sequence_forward[(triton.cdiv(envs, block),)](*arguments, SAVE=save, **tiles)
        else:
            gates[..., 3 * hidden :] = b_hn
            rows[0, :, :hidden] = h0.masked_fill(start[0].unsqueeze(-1), 0.0)
            _each_row_forward(gates, start, w_h, rows, h0, h_rows, save)
        return h_rows, h_rows[-1].clone(), gates, rows


@gru_forward.register_fake
def _(
    x: Tensor, start: Tensor, h0: Tensor, w_x: Tensor, w_h: Tensor, b: Tensor, b_hn: Tensor, save: bool, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    (steps, envs, inputs), hidden = x.shape, h0.shape[-1]
    width = launch.operand_width(hidden + inputs)
    gates = x.new_empty((steps, envs, 4 * hidden), dtype=dtype)
    rows = x.new_empty((steps, envs, width) if save else (1, envs, hidden), dtype=dtype)
    return h0.new_empty((steps, envs, hidden)), h0.new_empty(h0.shape), gates, rows


def _each_row_forward(gates: Tensor, start: Tensor, w_h: Tensor, rows: Tensor, h0: Tensor, h_rows: Tensor, save: bool) -> None:
    """A product and a pointwise kernel for each row; without a backward pass to come, one operand serves all rows."""
    steps, envs, hidden = h_rows.shape
    count, w_ht = envs * hidden, w_h.mT
    for t in range(steps):
        more = t + 1 < steps
        operand = rows[t + more if save else 0]
        gates[t, :, hidden:].addmm_(rows[t if save else 0, :, :hidden], w_ht)
        row_forward[(triton.cdiv(count, launch.ENTRIES),)](
            *(gates[t], start[t], start[t + more], h_rows[t - 1] if t else h0, h_rows[t], operand),
            *(count, hidden, operand.stride(0)),
            SAVE=save,
            MORE=more,
            BLOCK=launch.ENTRIES,
        )


@torch.library.custom_op("quantail::gru_backward", mutates_args=())
def gru_backward(
    dh: Tensor, dh_last: Tensor, start: Tensor, w_x: Tensor, w_h: Tensor, gates: Tensor, rows: Tensor, wanted: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """-> gradients of x (where `wanted`), h0, w_x, w_h, b, b_hn."""
    steps, envs, hidden = dh.shape
    start, dh, dh_last, inputs = start.contiguous(), dh.contiguous(), dh_last.contiguous(), w_x.shape[1]
    w_low = w_h.to(gates.dtype).contiguous()
    with launch.on(dh):
        slopes, dh0 = torch.empty_like(gates), torch.empty_like(dh_last)
        if launch.stays(hidden, 3, gates.dtype):
            block, warps = launch.block_of(envs, hidden, dh)
            arguments = (dh, dh_last, gates, start, rows, w_low, slopes, dh0, steps, envs, rows.shape[-1])
            tiles = {"H": hidden, "BLOCK": block, "PRECISION": launch.precision(dh), "num_warps": warps, "num_stages": 1}
            sequence_backward[(triton.cdiv(envs, block),)](*arguments, **tiles)
        else:
            _each_row_backward(dh, dh_last, gates, start, rows, w_low, slopes, dh0)
        of_h, of_x, of_b = launch.weight_gradients(slopes, rows, (hidden, inputs, 1))
        dx = launch.input_gradient(slopes[..., : 3 * hidden], _new_first(w_x), wanted)
        db, db_hn = (part.clone() for part in torch.split(of_b[:, 0], [3 * hidden, hidden]))
        return dx, dh0, _new_last(of_x[: 3 * hidden]), of_h[hidden:].clone(), _new_last(db), db_hn


@gru_backward.register_fake
def _(
    dh: Tensor, dh_last: Tensor, start: Tensor, w_x: Tensor, w_h: Tensor, gates: Tensor, rows: Tensor, wanted: bool
) -> tuple[Tensor, ...]:
    dx = gates.new_empty((*gates.shape[:-1], w_x.shape[1]) if wanted else (0,))
    weights = (weight.new_empty(weight.shape) for weight in (w_x, w_h, w_x[:, 0], w_h[0]))
    return dx, dh_last.new_empty(dh_last.shape), *weights


@gru_backward.register_autograd
def _(ctx: Any, *_: Any) -> None:
    refuse_second_derivative("gru_sequence")


def _each_row_backward(
    dh_rows: Tensor, dh_next: Tensor, gates: Tensor, start: Tensor, rows: Tensor, w_h: Tensor, slopes: Tensor, dh0: Tensor
) -> None:
    """The rows from the last to the first; dh0 is found."""
    steps, envs, hidden = dh_rows.shape
    count, kept = envs * hidden, torch.zeros_like(dh_next)
    for t in reversed(range(steps)):
        more = t + 1 < steps
        row_backward[(triton.cdiv(count, launch.ENTRIES),)](
            *(dh_rows[t], dh_next, kept, gates[t], start[t + more], rows[t], slopes[t], count, hidden, rows.shape[-1]),
            MORE=more,
            BLOCK=launch.ENTRIES,
        )
        dh_next = launch.product(slopes[t, :, hidden:], w_h)
    dh0.copy_((dh_next + kept).masked_fill_(start[0].unsqueeze(-1), 0.0))


def _new_first(blocks: Tensor) -> Tensor:
    """Blocks r, z, n -> n, r, z."""
    r, z, n = blocks.chunk(3)
    return torch.cat([n, r, z])


def _new_last(blocks: Tensor) -> Tensor:
    """Blocks n, r, z -> r, z, n."""
    n, r, z = blocks.chunk(3)
    return torch.cat([r, z, n])
