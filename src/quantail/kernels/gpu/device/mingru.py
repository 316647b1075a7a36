"""The minimal GRU in Triton: each thread walks through the rows of a few entries of the memory."""

import triton
import triton.language as tl

from quantail.kernels.gpu.device.maths import both_sides


@triton.jit(do_not_specialize=["steps"])
def sequence_forward(inner, start, h0, h_rows, steps, count, H, BLOCK: tl.constexpr):
    """inner [T, B, 2H], the inputs of gate and candidate; start [T, B], h0 [B, H] -> h_rows [T, B, H].  count = B·H."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    env = at // H
    at_inner = at + env * H
    envs = count // H
    h = tl.load(h0 + at, mask=inside, other=0.0)
    for _ in range(steps):
        z = tl.load(inner + at_inner, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(inner + H + at_inner, mask=inside, other=0.0).to(tl.float32)
        empty = tl.load(start + env, mask=inside, other=1) != 0
        z, rest = both_sides(z)
        h = rest * tl.where(empty, 0.0, h) + z * g
        tl.store(h_rows + at, h, mask=inside)
        inner += 2 * count
        start += envs
        h_rows += count


@triton.jit(do_not_specialize=["steps"])
def sequence_backward(dh_rows, dh_last, inner, start, h0, h_rows, slopes, dh0, steps, count, H, BLOCK: tl.constexpr):
    """dh_rows [T, B, H], dh_last [B, H], and the forward pass's inner, h0, h_rows -> slopes [T, B, 2H], dh0 [B, H]."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    env = at // H
    at_inner = at + env * H
    envs = count // H
    final = (steps - 1).to(tl.int64)
    inner += final * 2 * count
    slopes += final * 2 * count
    start += final * envs
    dh_rows += final * count
    h_rows += final * count
    dh = tl.load(dh_last + at, mask=inside, other=0.0)
    for back in range(steps):
        above = h_rows - count
        if back == steps - 1:
            above = h0
        before = tl.load(above + at, mask=inside, other=0.0)
        z = tl.load(inner + at_inner, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(inner + H + at_inner, mask=inside, other=0.0).to(tl.float32)
        empty = tl.load(start + env, mask=inside, other=1) != 0
        dh += tl.load(dh_rows + at, mask=inside, other=0.0).to(tl.float32)
        z, rest = both_sides(z)
        before = tl.where(empty, 0.0, before)
        tl.store(slopes + at_inner, (dh * (g - before) * z * rest).to(slopes.dtype.element_ty), mask=inside)
        tl.store(slopes + H + at_inner, (dh * z).to(slopes.dtype.element_ty), mask=inside)
        dh = tl.where(empty, 0.0, dh * rest)
        inner -= 2 * count
        slopes -= 2 * count
        start -= envs
        dh_rows -= count
        h_rows -= count
    tl.store(dh0 + at, dh, mask=inside)
