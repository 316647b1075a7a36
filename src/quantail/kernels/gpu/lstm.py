"""The LSTM on a GPU: one kernel for the whole sequence, or one for each row beside cuBLAS, as registers and memory allow."""

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd import Function

from quantail.kernels.gpu import launch
from quantail.kernels.gpu.device.lstm import row_backward, row_forward, sequence_backward, sequence_forward
from quantail.kernels.roads import product_dtype
from quantail.kernels.sequence import apply, refuse_second_derivative


def lstm_sequence(
    x: Tensor, start: Tensor, h0: Tensor, c0: Tensor, w_x: Tensor, w_h: Tensor, b: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """`kernels.lstm.lstm_sequence` for one agent: x [T, B, I], start [T, B], h0, c0 [B, H] -> h [T, B, H], h_T, c_T [B, H].

    Products take operands of autocast's dtype where autocast is on; they sum in float32, and h and c are float32.
    """
    save = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (x, h0, c0, w_x, w_h, b))
    h, h_last, c_last, *_ = apply(_Lstm, x, start, h0, c0, w_x, w_h, b, save, product_dtype(h0))
    return h, h_last, c_last


class _Lstm(Function):
    @staticmethod
    def forward(
        x: Tensor,
        start: Tensor,
        h0: Tensor,
        c0: Tensor,
        w_x: Tensor,
        w_h: Tensor,
        b: Tensor,
        save: bool,
        dtype: torch.dtype,
    ) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = lstm_forward(x, start, h0, c0, w_x, w_h, b, save, dtype)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, start, _, _, w_x, w_h, *_ = inputs
        ctx.save_for_backward(start, w_x, w_h, *output[3:])
        ctx.mark_non_differentiable(*output[3:])
        ctx.set_materialize_grads(False)  # of what is not differentiable nobody wants a gigabyte of zeros
        ctx.dtype_of_x = x.dtype

    @staticmethod
    def backward(ctx: Any, dh: Tensor | None, dh_last: Tensor | None, dc_last: Tensor | None, *_: Any) -> tuple[Any, ...]:
        start, w_x, w_h, gates, c_rows, rows = ctx.saved_tensors
        dh = torch.zeros_like(c_rows[1:]) if dh is None else dh
        dh_last, dc_last = (torch.zeros_like(c_rows[0]) if part is None else part for part in (dh_last, dc_last))
        wanted = ctx.needs_input_grad[0]
        dx, dh0, dc0, dw_x, dw_h, db = lstm_backward(dh, dh_last, dc_last, start, w_x, w_h, gates, c_rows, rows, wanted)
        return dx.to(ctx.dtype_of_x) if wanted else None, None, dh0, dc0, dw_x, dw_h, db, None, None


@torch.library.custom_op("quantail::lstm_forward", mutates_args=())
def lstm_forward(
    x: Tensor, start: Tensor, h0: Tensor, c0: Tensor, w_x: Tensor, w_h: Tensor, b: Tensor, save: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Opaque to torch.compile.  -> h of every row [T, B, H], h_T, c_T [B, H]; what the backward pass needs (`save`):
    gates [T, B, 4H] as `maths.gate` stores them, c before and after each row [T+1, B, H], operands [T, B, H+I+1 …].
    """
    (steps, envs, inputs), hidden = x.shape, h0.shape[-1]
    start, h0, c0, w_h = start.contiguous(), h0.contiguous(), c0.contiguous(), w_h.to(dtype).contiguous()
    with launch.on(x):
        if save:
            rows = launch.operands(x, hidden, dtype)
            gates = launch.project(rows[..., hidden : hidden + inputs], w_x, b, dtype)
        else:
            rows = x.new_empty((1, envs, hidden), dtype=dtype)
            gates = launch.project(x.to(dtype), w_x, b, dtype)
        h_rows, c_rows = (h0.new_empty((steps + more, envs, hidden)) for more in (0, 1 if save else 1 - steps))
        if launch.stays(hidden, 4, dtype):
            c_last, (block, warps) = torch.empty_like(c0), launch.block_of(envs, hidden, x)
            arguments = (gates, start, h0, c0, w_h, h_rows, c_rows, rows, c_last, steps, envs, rows.shape[-1])
            tiles = {"H": hidden, "BLOCK": block, "PRECISION": launch.precision(x), "num_warps": warps}
            sequence_forward[(triton.cdiv(envs, block),)](*arguments, SAVE=save, **tiles)
        else:
            c_rows[0], rows[0, :, :hidden] = c0, h0.masked_fill(start[0].unsqueeze(-1), 0.0)
            _each_row_forward(gates, start, w_h, rows, h_rows, c_rows)
            c_last = c_rows[-1].clone()
        return h_rows, h_rows[-1].clone(), c_last, gates, c_rows, rows


@lstm_forward.register_fake
def _(
    x: Tensor, start: Tensor, h0: Tensor, c0: Tensor, w_x: Tensor, w_h: Tensor, b: Tensor, save: bool, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    (steps, envs, inputs), hidden = x.shape, h0.shape[-1]
    width = launch.operand_width(hidden + inputs)
    gates = x.new_empty((steps, envs, 4 * hidden), dtype=dtype)
    c_rows = h0.new_empty((steps + 1 if save else 1, envs, hidden))
    rows = x.new_empty((steps, envs, width) if save else (1, envs, hidden), dtype=dtype)
    last = torch.empty_like(h0, memory_format=torch.contiguous_format)
    return h0.new_empty((steps, envs, hidden)), last, torch.empty_like(last), gates, c_rows, rows


def _each_row_forward(gates: Tensor, start: Tensor, w_h: Tensor, rows: Tensor, h_rows: Tensor, c_rows: Tensor) -> None:
    """A product and a pointwise kernel for each row; without a backward pass to come, one operand and one c serve all rows."""
    steps, envs, hidden = h_rows.shape
    count, save, w_ht = envs * hidden, len(c_rows) > 1, w_h.mT
    for t in range(steps):
        at, later = (t, t + 1) if save else (0, 0)
        more = t + 1 < steps
        operand = rows[min(later, len(rows) - 1)]
        gates[t].addmm_(rows[min(at, len(rows) - 1), :, :hidden], w_ht)
        row_forward[(triton.cdiv(count, launch.ENTRIES),)](
            *(gates[t], start[t], start[t + more], c_rows[at], h_rows[t], c_rows[later], operand),
            *(count, hidden, operand.stride(0)),
            SAVE=save,
            MORE=more,
            BLOCK=launch.ENTRIES,
        )


@torch.library.custom_op("quantail::lstm_backward", mutates_args=())
def lstm_backward(
    dh: Tensor,
    dh_last: Tensor,
    dc_last: Tensor,
    start: Tensor,
    w_x: Tensor,
    w_h: Tensor,
    gates: Tensor,
    c_rows: Tensor,
    rows: Tensor,
    wanted: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """-> gradients of x (where `wanted`), h0, c0, w_x, w_h, b."""
    steps, envs, hidden = dh.shape
    start, dh, dh_last, dc_last = start.contiguous(), dh.contiguous(), dh_last.contiguous(), dc_last.contiguous()
    w_low = w_h.to(gates.dtype).contiguous()
    with launch.on(dh):
        slopes, dh0, dc0 = torch.empty_like(gates), torch.empty_like(dh_last), dc_last.clone()
        if launch.stays(hidden, 4, gates.dtype):
            block, warps = launch.block_of(envs, hidden, dh)
            arguments = (dh, dh_last, dc_last, gates, start, c_rows, w_low, slopes, dh0, dc0, steps, envs)
            tiles = {"H": hidden, "BLOCK": block, "PRECISION": launch.precision(dh), "num_warps": warps, "num_stages": 1}
            sequence_backward[(triton.cdiv(envs, block),)](*arguments, **tiles)
        else:
            _each_row_backward(dh, dh_last, dc0, gates, start, c_rows, w_low, slopes, dh0)
        dw_h, dw_x, db = launch.weight_gradients(slopes, rows, (hidden, w_x.shape[1], 1))
        return launch.input_gradient(slopes, w_x, wanted), dh0, dc0, dw_x, dw_h, db.flatten()


@lstm_backward.register_fake
def _(
    dh: Tensor,
    dh_last: Tensor,
    dc_last: Tensor,
    start: Tensor,
    w_x: Tensor,
    w_h: Tensor,
    gates: Tensor,
    c_rows: Tensor,
    rows: Tensor,
    wanted: bool,
) -> tuple[Tensor, ...]:
    dx = gates.new_empty((*gates.shape[:-1], w_x.shape[1]) if wanted else (0,))
    state = dh_last.new_empty(dh_last.shape)
    weights = (weight.new_empty(weight.shape) for weight in (w_x, w_h, w_x[:, 0]))
    return dx, state, torch.empty_like(state), *weights


@lstm_backward.register_autograd
def _(ctx: Any, *_: Any) -> None:
    refuse_second_derivative("lstm_sequence")


def _each_row_backward(
    dh_rows: Tensor,
    dh_next: Tensor,
    dc: Tensor,
    gates: Tensor,
    start: Tensor,
    c_rows: Tensor,
    w_h: Tensor,
    slopes: Tensor,
    dh0: Tensor,
) -> None:
    """The rows from the last to the first; dc is overwritten, and dh0 found."""
    steps, envs, hidden = dh_rows.shape
    count = envs * hidden
    for t in reversed(range(steps)):
        more = t + 1 < steps
        row_backward[(triton.cdiv(count, launch.ENTRIES),)](
            *(dh_rows[t], dh_next, dc, gates[t], start[t], start[t + more], c_rows[t], c_rows[t + 1], slopes[t], count, hidden),
            MORE=more,
            BLOCK=launch.ENTRIES,
        )
        dh_next = launch.product(slopes[t], w_h)
    dh0.copy_(dh_next.masked_fill_(start[0].unsqueeze(-1), 0.0))
