"""The LSTM in Triton: a whole sequence for a block of environments, and one row of it beside a product of cuBLAS.

Gates i, f, g, o lie side by side, [B, 4H] a row. What a `start` discards is dropped by `where`, so NaN ends there.
"""

import triton
import triton.language as tl

from quantail.kernels.gpu.device.maths import gate, stored_gate, tanh


@triton.jit
def cell(i, f, g, o, c):
    """Inputs of the gates, memory -> h, c, and what is stored of the gates."""
    i, i_kept = gate(i)
    f, f_kept = gate(f)
    o, o_kept = gate(o)
    g = tanh(g)
    c = f * c + i * g
    return o * tanh(c), c, i_kept, f_kept, g, o_kept


@triton.jit
def cell_slopes(i_kept, f_kept, g, o_kept, c, c_before, dh, dc):
    """-> gradients of the inputs of the gates, and of the memory before."""
    i, i_slope = stored_gate(i_kept)
    f, f_slope = stored_gate(f_kept)
    o, o_slope = stored_gate(o_kept)
    tanh_c = tanh(c)
    dc += dh * o * (1 - tanh_c * tanh_c)
    return dc * g * i_slope, dc * c_before * f_slope, dc * i * (1 - g * g), dh * tanh_c * o_slope, dc * f


@triton.jit(do_not_specialize=["steps"])
def sequence_forward(
    gates, start, h0, c0, w_h, h_rows, c_rows, operands, c_last, steps, envs, width,
    H: tl.constexpr, BLOCK: tl.constexpr, SAVE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """All rows of BLOCK environments: h, c and the four tiles of W_h never leave the processor.

    gates [T, B, 4H] in: W_x·x + b, out (SAVE): what `gate` stores, and g; start [T, B], h0, c0 [B, H], w_h [4H, H]
    -> h_rows [T, B, H], c_last [B, H]; (SAVE) c_rows [T+1, B, H], the memory before and after each row, and
    operands [T, B, width], whose first H columns become the h that each row began with.
    """
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.arange(0, H)
    live = rows < envs
    inside = live[:, None]
    at = rows[:, None] * H + cols[None, :]
    at_gates = rows[:, None] * (4 * H) + cols[None, :]
    at_operand = rows[:, None] * width + cols[None, :]
    tile = cols[None, :] * H + cols[:, None]  # W_hᵀ: [memory, gate]
    w_i = tl.load(w_h + tile)
    w_f = tl.load(w_h + H * H + tile)
    w_g = tl.load(w_h + 2 * H * H + tile)
    w_o = tl.load(w_h + 3 * H * H + tile)
    h = tl.load(h0 + at, mask=inside, other=0.0)
    c = tl.load(c0 + at, mask=inside, other=0.0)
    if SAVE:
        tl.store(c_rows + at, c, mask=inside)
        c_rows += envs * H
    for _ in range(steps):
        empty = (tl.load(start + rows, mask=live, other=1) != 0)[:, None]
        h = tl.where(empty, 0.0, h)
        c = tl.where(empty, 0.0, c)
        x = h.to(w_i.dtype)
        i = tl.load(gates + at_gates, mask=inside, other=0.0).to(tl.float32)
        f = tl.load(gates + H + at_gates, mask=inside, other=0.0).to(tl.float32)
        g = tl.load(gates + 2 * H + at_gates, mask=inside, other=0.0).to(tl.float32)
        o = tl.load(gates + 3 * H + at_gates, mask=inside, other=0.0).to(tl.float32)
        i = tl.dot(x, w_i, i, input_precision=PRECISION)
        f = tl.dot(x, w_f, f, input_precision=PRECISION)
        g = tl.dot(x, w_g, g, input_precision=PRECISION)
        o = tl.dot(x, w_o, o, input_precision=PRECISION)
        h, c, i, f, g, o = cell(i, f, g, o, c)
        tl.store(h_rows + at, h, mask=inside)
        if SAVE:
            tl.store(operands + at_operand, x, mask=inside)
            tl.store(c_rows + at, c, mask=inside)
            tl.store(gates + at_gates, i.to(x.dtype), mask=inside)
            tl.store(gates + H + at_gates, f.to(x.dtype), mask=inside)
            tl.store(gates + 2 * H + at_gates, g.to(x.dtype), mask=inside)
            tl.store(gates + 3 * H + at_gates, o.to(x.dtype), mask=inside)
            operands += envs * width
            c_rows += envs * H
        start += envs
        gates += envs * (4 * H)
        h_rows += envs * H
    tl.store(c_last + at, c, mask=inside)


@triton.jit(do_not_specialize=["steps"])
def sequence_backward(
    dh_rows, dh_last, dc_last, gates, start, c_rows, w_h, slopes, dh0, dc0, steps, envs,
    H: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same rows from the last to the first: dh and dc never leave the processor.

    dh_rows [T, B, H], dh_last, dc_last [B, H], gates and c_rows as `sequence_forward` stored them
    -> slopes [T, B, 4H], gradients of the inputs of the gates; dh0, dc0 [B, H].
    """
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.arange(0, H)
    live = rows < envs
    inside = live[:, None]
    at = rows[:, None] * H + cols[None, :]
    at_gates = rows[:, None] * (4 * H) + cols[None, :]
    tile = cols[:, None] * H + cols[None, :]  # W_h: [gate, memory]
    w_i = tl.load(w_h + tile)
    w_f = tl.load(w_h + H * H + tile)
    w_g = tl.load(w_h + 2 * H * H + tile)
    w_o = tl.load(w_h + 3 * H * H + tile)
    final = (steps - 1).to(tl.int64) * envs
    start += final
    dh_rows += final * H
    c_rows += final * H
    gates += final * (4 * H)
    slopes += final * (4 * H)
    dh = tl.load(dh_last + at, mask=inside, other=0.0)
    dc = tl.load(dc_last + at, mask=inside, other=0.0)
    c = tl.load(c_rows + envs * H + at, mask=inside, other=0.0)
    for _ in range(steps):
        empty = (tl.load(start + rows, mask=live, other=1) != 0)[:, None]
        dh += tl.load(dh_rows + at, mask=inside, other=0.0).to(tl.float32)
        c_above = tl.load(c_rows + at, mask=inside, other=0.0)
        i = tl.load(gates + at_gates, mask=inside, other=0.5).to(tl.float32)
        f = tl.load(gates + H + at_gates, mask=inside, other=0.5).to(tl.float32)
        g = tl.load(gates + 2 * H + at_gates, mask=inside, other=0.0).to(tl.float32)
        o = tl.load(gates + 3 * H + at_gates, mask=inside, other=0.5).to(tl.float32)
        i, f, g, o, dc = cell_slopes(i, f, g, o, c, tl.where(empty, 0.0, c_above), dh, dc)
        i = i.to(w_i.dtype)
        f = f.to(w_i.dtype)
        g = g.to(w_i.dtype)
        o = o.to(w_i.dtype)
        tl.store(slopes + at_gates, i, mask=inside)
        tl.store(slopes + H + at_gates, f, mask=inside)
        tl.store(slopes + 2 * H + at_gates, g, mask=inside)
        tl.store(slopes + 3 * H + at_gates, o, mask=inside)
        dh = tl.dot(i, w_i, input_precision=PRECISION)
        dh = tl.dot(f, w_f, dh, input_precision=PRECISION)
        dh = tl.dot(g, w_g, dh, input_precision=PRECISION)
        dh = tl.dot(o, w_o, dh, input_precision=PRECISION)
        dh = tl.where(empty, 0.0, dh)
        dc = tl.where(empty, 0.0, dc)
        c = c_above
        start -= envs
        dh_rows -= envs * H
        c_rows -= envs * H
        gates -= envs * (4 * H)
        slopes -= envs * (4 * H)
    tl.store(dh0 + at, dh, mask=inside)
    tl.store(dc0 + at, dc, mask=inside)


@triton.jit
def row_forward(
    gates, start, next_start, c_before, h, c, operand, count, H, width,
    SAVE: tl.constexpr, MORE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row after its product: gates [B, 4H] (overwritten as stored if SAVE), c_before [B, H] -> h, c [B, H].

    MORE: the next row's operand [B, width] gets h, empty where that row starts anew.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    env = at // H
    col = at - env * H
    at_gates = env * (4 * H) + col
    i = tl.load(gates + at_gates, mask=inside, other=0.0).to(tl.float32)
    f = tl.load(gates + H + at_gates, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gates + 2 * H + at_gates, mask=inside, other=0.0).to(tl.float32)
    o = tl.load(gates + 3 * H + at_gates, mask=inside, other=0.0).to(tl.float32)
    empty = tl.load(start + env, mask=inside, other=1) != 0
    before = tl.where(empty, 0.0, tl.load(c_before + at, mask=inside, other=0.0))
    y, memory, i, f, g, o = cell(i, f, g, o, before)
    tl.store(h + at, y, mask=inside)
    tl.store(c + at, memory, mask=inside)
    if SAVE:
        tl.store(gates + at_gates, i.to(gates.dtype.element_ty), mask=inside)
        tl.store(gates + H + at_gates, f.to(gates.dtype.element_ty), mask=inside)
        tl.store(gates + 2 * H + at_gates, g.to(gates.dtype.element_ty), mask=inside)
        tl.store(gates + 3 * H + at_gates, o.to(gates.dtype.element_ty), mask=inside)
    if MORE:
        leaves = tl.load(next_start + env, mask=inside, other=1) != 0
        tl.store(operand + env * width + col, tl.where(leaves, 0.0, y).to(operand.dtype.element_ty), mask=inside)


@triton.jit
def row_backward(
    dh_rows, dh_next, dc, gates, start, next_start, c_before, c, slopes, count, H, MORE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row before its product: dh_next [B, H] from the row below, where (MORE) it did not start anew; dc [B, H] in place.

    -> slopes [B, 4H].
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    env = at // H
    at_gates = env * (3 * H) + at
    i = tl.load(gates + at_gates, mask=inside, other=0.5).to(tl.float32)
    f = tl.load(gates + H + at_gates, mask=inside, other=0.5).to(tl.float32)
    g = tl.load(gates + 2 * H + at_gates, mask=inside, other=0.0).to(tl.float32)
    o = tl.load(gates + 3 * H + at_gates, mask=inside, other=0.5).to(tl.float32)
    below = tl.load(dh_next + at, mask=inside, other=0.0).to(tl.float32)
    if MORE:
        below = tl.where(tl.load(next_start + env, mask=inside, other=1) != 0, 0.0, below)
    dh = below + tl.load(dh_rows + at, mask=inside, other=0.0).to(tl.float32)
    empty = tl.load(start + env, mask=inside, other=1) != 0
    before = tl.where(empty, 0.0, tl.load(c_before + at, mask=inside, other=0.0))
    memory = tl.load(c + at, mask=inside, other=0.0)
    i, f, g, o, dc_before = cell_slopes(i, f, g, o, memory, before, dh, tl.load(dc + at, mask=inside, other=0.0))
    tl.store(slopes + at_gates, i.to(slopes.dtype.element_ty), mask=inside)
    tl.store(slopes + H + at_gates, f.to(slopes.dtype.element_ty), mask=inside)
    tl.store(slopes + 2 * H + at_gates, g.to(slopes.dtype.element_ty), mask=inside)
    tl.store(slopes + 3 * H + at_gates, o.to(slopes.dtype.element_ty), mask=inside)
    tl.store(dc + at, tl.where(empty, 0.0, dc_before), mask=inside)
