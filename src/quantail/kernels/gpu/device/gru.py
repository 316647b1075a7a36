"""The GRU in Triton: a whole sequence for a block of environments, and one row of it beside a product of cuBLAS.

Blocks n, r, z, u lie side by side, [B, 4H] a row: the first three meet the input, the last three the memory; u = W_hn·h + b_hn.
"""

import triton
import triton.language as tl

from quantail.kernels.gpu.device.maths import gate, stored_gate, tanh


@triton.jit
def cell(n, r, z, u, h):
    """Inputs of the gates, memory -> h, and what is stored of n, r, z."""
    r, r_kept = gate(r)
    z, z_kept = gate(z)
    n = tanh(n + r * u)
    return n + z * (h - n), n, r_kept, z_kept


@triton.jit
def cell_slopes(n, r_kept, z_kept, u, h_before, dh):
    """-> gradients of the inputs of n, r, z, u, and of the memory before, as far as z hands it on."""
    r, r_slope = stored_gate(r_kept)
    z, z_slope = stored_gate(z_kept)
    dn = dh * (1 - z) * (1 - n * n)
    return dn, dn * u * r_slope, dh * (h_before - n) * z_slope, dn * r, dh * z


@triton.jit(do_not_specialize=["steps"])
def sequence_forward(
    gates, start, h0, w_h, b_hn, h_rows, operands, steps, envs, width,
    H: tl.constexpr, BLOCK: tl.constexpr, SAVE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """All rows of BLOCK environments: h and the three tiles of W_h never leave the processor.

    gates [T, B, 4H] in: W_x·x + b of n, r, z; out (SAVE): n, what `gate` stores of r and z, and u; start [T, B], h0 [B, H],
    w_h [3H, H], b_hn [H] -> h_rows [T, B, H]; (SAVE) operands [T, B, width], whose first H columns become the h before a row.
    """
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.arange(0, H)
    live = rows < envs
    inside = live[:, None]
    at = rows[:, None] * H + cols[None, :]
    at_gates = rows[:, None] * (4 * H) + cols[None, :]
    at_operand = rows[:, None] * width + cols[None, :]
    tile = cols[None, :] * H + cols[:, None]  # W_hᵀ: [memory, gate]
    w_r = tl.load(w_h + tile)
    w_z = tl.load(w_h + H * H + tile)
    w_u = tl.load(w_h + 2 * H * H + tile)
    bias = tl.load(b_hn + cols)[None, :]
    h = tl.load(h0 + at, mask=inside, other=0.0)
    for _ in range(steps):
        empty = (tl.load(start + rows, mask=live, other=1) != 0)[:, None]
        h = tl.where(empty, 0.0, h)
        x = h.to(w_r.dtype)
        r = tl.load(gates + H + at_gates, mask=inside, other=0.0).to(tl.float32)
        z = tl.load(gates + 2 * H + at_gates, mask=inside, other=0.0).to(tl.float32)
        r = tl.dot(x, w_r, r, input_precision=PRECISION)
        z = tl.dot(x, w_z, z, input_precision=PRECISION)
        u = tl.dot(x, w_u, input_precision=PRECISION) + bias
        n = tl.load(gates + at_gates, mask=inside, other=0.0).to(tl.float32)
        h, n, r, z = cell(n, r, z, u, h)
        tl.store(h_rows + at, h, mask=inside)
        if SAVE:
            tl.store(operands + at_operand, x, mask=inside)
            tl.store(gates + at_gates, n.to(x.dtype), mask=inside)
            tl.store(gates + H + at_gates, r.to(x.dtype), mask=inside)
            tl.store(gates + 2 * H + at_gates, z.to(x.dtype), mask=inside)
            tl.store(gates + 3 * H + at_gates, u.to(x.dtype), mask=inside)
            operands += envs * width
        start += envs
        gates += envs * (4 * H)
        h_rows += envs * H


@triton.jit(do_not_specialize=["steps"])
def sequence_backward(
    dh_rows, dh_last, gates, start, operands, w_h, slopes, dh0, steps, envs, width,
    H: tl.constexpr, BLOCK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The same rows from the last to the first: dh never leaves the processor.

    dh_rows [T, B, H], dh_last [B, H], gates and operands as `sequence_forward` stored them -> slopes [T, B, 4H], dh0 [B, H].
    """
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    cols = tl.arange(0, H)
    live = rows < envs
    inside = live[:, None]
    at = rows[:, None] * H + cols[None, :]
    at_gates = rows[:, None] * (4 * H) + cols[None, :]
    at_operand = rows[:, None] * width + cols[None, :]
    tile = cols[:, None] * H + cols[None, :]  # W_h: [gate, memory]
    w_r = tl.load(w_h + tile)
    w_z = tl.load(w_h + H * H + tile)
    w_u = tl.load(w_h + 2 * H * H + tile)
    final = (steps - 1).to(tl.int64) * envs
    start += final
    dh_rows += final * H
    gates += final * (4 * H)
    slopes += final * (4 * H)
    operands += final * width
    dh = tl.load(dh_last + at, mask=inside, other=0.0)
    for _ in range(steps):
        empty = (tl.load(start + rows, mask=live, other=1) != 0)[:, None]
        dh += tl.load(dh_rows + at, mask=inside, other=0.0).to(tl.float32)
        before = tl.load(operands + at_operand, mask=inside, other=0.0).to(tl.float32)
        n = tl.load(gates + at_gates, mask=inside, other=0.0).to(tl.float32)
        r = tl.load(gates + H + at_gates, mask=inside, other=0.5).to(tl.float32)
        z = tl.load(gates + 2 * H + at_gates, mask=inside, other=0.5).to(tl.float32)
        u = tl.load(gates + 3 * H + at_gates, mask=inside, other=0.0).to(tl.float32)
        n, r, z, u, dh = cell_slopes(n, r, z, u, before, dh)
        r = r.to(w_r.dtype)
        z = z.to(w_r.dtype)
        u = u.to(w_r.dtype)
        tl.store(slopes + at_gates, n.to(w_r.dtype), mask=inside)
        tl.store(slopes + H + at_gates, r, mask=inside)
        tl.store(slopes + 2 * H + at_gates, z, mask=inside)
        tl.store(slopes + 3 * H + at_gates, u, mask=inside)
        dh = tl.dot(r, w_r, dh, input_precision=PRECISION)
        dh = tl.dot(z, w_z, dh, input_precision=PRECISION)
        dh = tl.dot(u, w_u, dh, input_precision=PRECISION)
        dh = tl.where(empty, 0.0, dh)
        start -= envs
        dh_rows -= envs * H
        gates -= envs * (4 * H)
        slopes -= envs * (4 * H)
        operands -= envs * width
    tl.store(dh0 + at, dh, mask=inside)


@triton.jit
def row_forward(
    gates, start, next_start, h_before, h, operand, count, H, width,
    SAVE: tl.constexpr, MORE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row after its product: gates [B, 4H] (overwritten as stored if SAVE), h_before [B, H] -> h [B, H].

    MORE: the next row's operand [B, width] gets h, empty where that row starts anew.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    env = at // H
    col = at - env * H
    at_gates = env * (4 * H) + col
    n = tl.load(gates + at_gates, mask=inside, other=0.0).to(tl.float32)
    r = tl.load(gates + H + at_gates, mask=inside, other=0.0).to(tl.float32)
    z = tl.load(gates + 2 * H + at_gates, mask=inside, other=0.0).to(tl.float32)
    u = tl.load(gates + 3 * H + at_gates, mask=inside, other=0.0).to(tl.float32)
    empty = tl.load(start + env, mask=inside, other=1) != 0
    before = tl.where(empty, 0.0, tl.load(h_before + at, mask=inside, other=0.0))
    y, n, r, z = cell(n, r, z, u, before)
    tl.store(h + at, y, mask=inside)
    if SAVE:
        tl.store(gates + at_gates, n.to(gates.dtype.element_ty), mask=inside)
        tl.store(gates + H + at_gates, r.to(gates.dtype.element_ty), mask=inside)
        tl.store(gates + 2 * H + at_gates, z.to(gates.dtype.element_ty), mask=inside)
    if MORE:
        leaves = tl.load(next_start + env, mask=inside, other=1) != 0
        tl.store(operand + env * width + col, tl.where(leaves, 0.0, y).to(operand.dtype.element_ty), mask=inside)


@triton.jit
def row_backward(
    dh_rows, dh_next, kept, gates, next_start, operand, slopes, count, H, width,
    MORE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One row before its product: dh_next and kept [B, H] from the row below, where (MORE) it did not start anew.

    -> slopes [B, 4H]; kept, what z hands on, in place.
    """
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    env = at // H
    at_gates = env * (3 * H) + at
    n = tl.load(gates + at_gates, mask=inside, other=0.0).to(tl.float32)
    r = tl.load(gates + H + at_gates, mask=inside, other=0.5).to(tl.float32)
    z = tl.load(gates + 2 * H + at_gates, mask=inside, other=0.5).to(tl.float32)
    u = tl.load(gates + 3 * H + at_gates, mask=inside, other=0.0).to(tl.float32)
    below = tl.load(dh_next + at, mask=inside, other=0.0) + tl.load(kept + at, mask=inside, other=0.0)
    if MORE:
        below = tl.where(tl.load(next_start + env, mask=inside, other=1) != 0, 0.0, below)
    dh = below + tl.load(dh_rows + at, mask=inside, other=0.0).to(tl.float32)
    before = tl.load(operand + env * width + (at - env * H), mask=inside, other=0.0).to(tl.float32)
    n, r, z, u, dh = cell_slopes(n, r, z, u, before, dh)
    tl.store(slopes + at_gates, n.to(slopes.dtype.element_ty), mask=inside)
    tl.store(slopes + H + at_gates, r.to(slopes.dtype.element_ty), mask=inside)
    tl.store(slopes + 2 * H + at_gates, z.to(slopes.dtype.element_ty), mask=inside)
    tl.store(slopes + 3 * H + at_gates, u.to(slopes.dtype.element_ty), mask=inside)
    tl.store(kept + at, dh, mask=inside)
