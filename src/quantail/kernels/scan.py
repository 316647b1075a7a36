"""The minimal GRU, whose memory is a linear recurrence and therefore a scan: no row waits for the product of another."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from quantail.functional.checks import bad_shape, check_rank, check_shape
from quantail.kernels.roads import exactly, takes_triton
from quantail.kernels.sequence import (
    apply,
    check_dtype,
    check_rows,
    check_weight,
    population_first,
    project,
    refuse_second_derivative,
    reset_rows,
)


def mingru_sequence(x: Tensor, start: Tensor, h0: Tensor, w_x: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Minimal GRU over T rows, its memory emptied before every row with `start`   (Feng et al. 2024, signed candidates).

        z = σ(W_z·x_t + b_z)     g = W_g·x_t + b_g     h_t = (1 − z)·h_{t−1} + z·g

    x [T, B, I], start [T, B] bool, h0 [B, H], w_x [2H, I], b [2H], blocks z, g -> h [T, B, H], h_T [B, H]. Everything may
    carry a population axis [P] in front. What a `start` discards may be NaN. The memory stays within the range of g.
    """
    check_rows(x, start, h0=h0)
    hidden = h0.shape[-1]
    check_weight("w_x", w_x, x, (2 * hidden, x.shape[-1]), "gate and candidate of the memory, inputs")
    check_weight("b", b, x, (2 * hidden,), "gate and candidate of the memory")
    if x.ndim == 3 and takes_triton(h0, w_x, b):
        from quantail.kernels.gpu.mingru import mingru_sequence as on_gpu

        return on_gpu(x, start, h0, w_x, b)
    with exactly(x):
        gate, candidate = project(x.to(h0.dtype), w_x, b).chunk(2, -1)
    # 1 − σ(y) = σ(−y), without the cancellation where the gate is nearly closed
    h = linear_scan(torch.sigmoid(-gate), torch.sigmoid(gate) * candidate, start, h0)
    return h, h.select(-3, -1)


def linear_scan(decay: Tensor, inflow: Tensor, start: Tensor, h0: Tensor) -> Tensor:
    """Linear recurrence h_t = a_t·h_{t−1} + b_t, with a_t := 0 where `start`   (Blelloch 1990; resets as in Lu et al. 2023).

    decay, inflow [T, B, H], start [T, B] bool, h0 [B, H] -> [T, B, H]; population axes in front are welcome. On the CPU one
    pass over the rows, elsewhere pairs of rows are merged and the halves solved: log₂ T dependent steps. Nothing of a
    discarded state survives, not even NaN.
    """
    check_rows(decay, start, h0=h0)
    check_shape("inflow", inflow, decay.shape, "as decay")
    check_dtype("inflow", inflow, decay)
    check_rank("h0", h0, 2, "[..., environments, memory]")
    if h0.shape[-1] != decay.shape[-1]:
        bad_shape("h0", h0, f"[..., {decay.shape[-1]}], as decay")
    h: Tensor = apply(_Scan, decay, inflow, start, h0)
    return h


class _Scan(Function):
    @staticmethod
    def forward(decay: Tensor, inflow: Tensor, start: Tensor, h0: Tensor) -> Tensor:
        return _scan(decay, inflow, start, h0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        decay, _, start, h0 = inputs
        ctx.save_for_backward(decay, start, h0, output)

    @staticmethod
    def backward(ctx: Any, dh: Tensor) -> tuple[Tensor | None, ...]:
        d_decay, d_inflow, dh0 = apply(_ScanGradients, dh, *ctx.saved_tensors)
        return d_decay, d_inflow, None, dh0

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Tensor) -> tuple[Tensor, int]:
        return apply(_Scan, *population_first(info.batch_size, in_dims, arguments)), 0


class _ScanGradients(Function):
    @staticmethod
    def forward(dh: Tensor, decay: Tensor, start: Tensor, h0: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """-> gradients of decay, inflow, h0: the same recurrence run backwards, λ_t = dh_t + a_{t+1}·λ_{t+1}."""
        rows = h.shape[-3]
        later = torch.cat([decay.narrow(-3, 1, rows - 1), torch.zeros_like(decay.narrow(-3, 0, 1))], -3)
        cut = torch.cat([start.narrow(-2, 1, rows - 1), torch.ones_like(start.narrow(-2, 0, 1))], -2)
        d_inflow = _scan(later.flip(-3), dh.flip(-3), cut.flip(-2), torch.zeros_like(h0)).flip(-3)
        before = torch.cat([h0.unsqueeze(-3), h.narrow(-3, 0, rows - 1)], -3)
        d_decay = (d_inflow * before).masked_fill(start.unsqueeze(-1), 0.0)
        first = (d_inflow.select(-3, 0) * decay.select(-3, 0)).masked_fill(start.select(-2, 0).unsqueeze(-1), 0.0)
        return d_decay, d_inflow, first

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        """Nothing is saved: there is no second derivative."""

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("linear_scan")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Tensor) -> tuple[tuple[Tensor, ...], int]:
        return apply(_ScanGradients, *population_first(info.batch_size, in_dims, arguments)), 0


def _scan(decay: Tensor, inflow: Tensor, start: Tensor, h0: Tensor) -> Tensor:
    if decay.device.type == "cpu" and not torch.compiler.is_compiling():
        return scan_rows(decay, inflow, start, h0)
    return scan_pairs(decay, inflow, start, h0)


def scan_rows(decay: Tensor, inflow: Tensor, start: Tensor, h0: Tensor) -> Tensor:
    """Row by row: h_t = a_t·h_{t−1} + b_t   (Source: definition).  [..., T, B, H] -> [..., T, B, H]."""
    empty = start.unsqueeze(-1).unbind(-3)
    a, b, h, rows = decay.unbind(-3), inflow.unbind(-3), h0, []
    for t, reset in enumerate(reset_rows(start)):
        if reset:
            h = h.masked_fill(empty[t], 0.0)
        h = torch.addcmul(b[t], a[t], h)
        rows.append(h)
    return torch.stack(rows, -3)


def scan_pairs(decay: Tensor, inflow: Tensor, start: Tensor, h0: Tensor) -> Tensor:
    """Rows 2k and 2k + 1 as one: a = a₁·a₀, b = a₁·b₀ + b₁; then the even rows   (Blelloch 1990).

    decay, inflow [..., T, B, H], start [..., T, B], h0 [..., B, H] -> [..., T, B, H].
    """
    first = torch.addcmul(inflow.select(-3, 0), decay.select(-3, 0), h0)
    first = torch.where(start.select(-2, 0).unsqueeze(-1), inflow.select(-3, 0), first)
    inflow = torch.cat([first.unsqueeze(-3), inflow.narrow(-3, 1, inflow.shape[-3] - 1)], -3)
    return _merge_pairs(decay, inflow, start.unsqueeze(-1))


def _merge_pairs(a: Tensor, b: Tensor, cut: Tensor) -> Tensor:
    """h of every row from h of every second; where `cut`, nothing from before enters."""
    rows = b.shape[-3]
    if rows == 1:
        return b
    even, odd = slice(0, rows - 1, 2), slice(1, rows, 2)
    cut_odd = cut[..., odd, :, :]
    pair_b = torch.where(cut_odd, b[..., odd, :, :], torch.addcmul(b[..., odd, :, :], a[..., odd, :, :], b[..., even, :, :]))
    h_odd = _merge_pairs(a[..., odd, :, :] * a[..., even, :, :], pair_b, cut_odd | cut[..., even, :, :])
    later = slice(2, rows, 2)
    above = h_odd.narrow(-3, 0, (rows - 1) // 2)
    h_even = torch.addcmul(b[..., later, :, :], a[..., later, :, :], above)
    h_even = torch.where(cut[..., later, :, :], b[..., later, :, :], h_even)
    h_even = torch.cat([b.narrow(-3, 0, 1), h_even], -3)
    pairs = torch.stack([h_even.narrow(-3, 0, h_odd.shape[-3]), h_odd], -3).flatten(-4, -3)
    return torch.cat([pairs, h_even.narrow(-3, rows // 2, rows % 2)], -3)
