"""The minimal GRU on a GPU: its gate, its recurrence and their slopes in one kernel over time each way."""

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd import Function

from quantail.kernels.gpu import launch
from quantail.kernels.gpu.device.mingru import sequence_backward, sequence_forward
from quantail.kernels.roads import product_dtype
from quantail.kernels.sequence import apply, refuse_second_derivative


def mingru_sequence(x: Tensor, start: Tensor, h0: Tensor, w_x: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """`kernels.scan.mingru_sequence` for one agent: x [T, B, I], start [T, B], h0 [B, H] -> h [T, B, H], h_T [B, H].

    The product takes operands of autocast's dtype where autocast is on; it sums in float32, and h is float32.
    """
    h, h_last, *_ = apply(_MinGru, x, start, h0, w_x, b, product_dtype(h0))
    return h, h_last


class _MinGru(Function):
    @staticmethod
    def forward(
        x: Tensor, start: Tensor, h0: Tensor, w_x: Tensor, b: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        found: tuple[Tensor, Tensor, Tensor, Tensor] = mingru_forward(x, start, h0, w_x, b, dtype)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        x, start, h0, w_x, *_ = inputs
        ctx.save_for_backward(start, h0, w_x, output[0], *output[2:])
        ctx.mark_non_differentiable(*output[2:])
        ctx.set_materialize_grads(False)
        ctx.dtype_of_x = x.dtype

    @staticmethod
    def backward(ctx: Any, dh: Tensor | None, dh_last: Tensor | None, *_: Any) -> tuple[Any, ...]:
        start, h0, w_x, h, inner, rows = ctx.saved_tensors
        dh, dh_last = (torch.zeros_like(like) if part is None else part for part, like in ((dh, h), (dh_last, h0)))
        wanted = ctx.needs_input_grad[0]
        dx, dh0, dw_x, db = mingru_backward(dh, dh_last, start, h0, w_x, h, inner, rows, wanted)
        return dx.to(ctx.dtype_of_x) if wanted else None, None, dh0, dw_x, db, None


@torch.library.custom_op("quantail::mingru_forward", mutates_args=())
def mingru_forward(
    x: Tensor, start: Tensor, h0: Tensor, w_x: Tensor, b: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Opaque to torch.compile.  -> h of every row [T, B, H], h_T [B, H], inputs of gate and candidate [T, B, 2H], operands."""
    (steps, envs, inputs), hidden = x.shape, h0.shape[-1]
    start, h0 = start.contiguous(), h0.contiguous()
    with launch.on(x):
        rows = launch.operands(x, 0, dtype)
        inner = launch.project(rows[..., :inputs], w_x, b, dtype)
        h_rows = h0.new_empty((steps, envs, hidden))
        grid = (triton.cdiv(h0.numel(), launch.ENTRIES),)
        sequence_forward[grid](inner, start, h0, h_rows, steps, h0.numel(), hidden, BLOCK=launch.ENTRIES)
        return h_rows, h_rows[-1].clone(), inner, rows


@mingru_forward.register_fake
def _(x: Tensor, start: Tensor, h0: Tensor, w_x: Tensor, b: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
    (*rows, inputs), hidden = x.shape, h0.shape[-1]
    inner, seen = (x.new_empty((*rows, width), dtype=dtype) for width in (2 * hidden, launch.operand_width(inputs)))
    return h0.new_empty((*rows, hidden)), h0.new_empty(h0.shape), inner, seen


@torch.library.custom_op("quantail::mingru_backward", mutates_args=())
def mingru_backward(
    dh: Tensor,
    dh_last: Tensor,
    start: Tensor,
    h0: Tensor,
    w_x: Tensor,
    h_rows: Tensor,
    inner: Tensor,
    rows: Tensor,
    wanted: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """-> gradients of x (where `wanted`), h0, w_x, b."""
    dh, dh_last, start, h0 = dh.contiguous(), dh_last.contiguous(), start.contiguous(), h0.contiguous()
    with launch.on(dh):
        slopes, dh0 = torch.empty_like(inner), torch.empty_like(h0)
        grid = (triton.cdiv(h0.numel(), launch.ENTRIES),)
        arguments = (dh, dh_last, inner, start, h0, h_rows, slopes, dh0, len(dh), h0.numel(), h0.shape[-1])
        sequence_backward[grid](*arguments, BLOCK=launch.ENTRIES)
        dw_x, db = launch.weight_gradients(slopes, rows, (w_x.shape[1], 1))
        return launch.input_gradient(slopes, w_x, wanted), dh0, dw_x, db.flatten()


@mingru_backward.register_fake
def _(dh: Tensor, dh_last: Tensor, start: Tensor, h0: Tensor, w_x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    inner, wanted = rest[1], rest[3]
    dx = inner.new_empty((*inner.shape[:-1], w_x.shape[1]) if wanted else (0,))
    return dx, h0.new_empty(h0.shape), w_x.new_empty(w_x.shape), w_x.new_empty(w_x.shape[:1])


@mingru_backward.register_autograd
def _(ctx: Any, *_: Any) -> None:
    refuse_second_derivative("mingru_sequence")
