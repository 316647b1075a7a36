"""The quantile-Huber loss and its slope in Triton: the table of errors is never in memory."""

import triton
import triton.language as tl


@triton.jit
def huber(
    quantiles, targets, taus, loss, slope, rows, kappa,
    N: tl.constexpr, COLUMNS: tl.constexpr, M: tl.constexpr, PINBALL: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """quantiles [R, N], targets [R, M], taus [N] -> loss [R], its gradient in the quantiles [R, N].  N quantiles in COLUMNS."""
    row = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    column = tl.arange(0, COLUMNS)
    live = row < rows
    inside = live[:, None] & (column < N)[None, :]
    at = row[:, None] * N + column[None, :]
    q = tl.load(quantiles + at, mask=inside, other=0.0)
    above = tl.load(taus + column, mask=column < N, other=0.0)[None, :]
    below = 1 - above
    cost = tl.zeros([BLOCK, COLUMNS], tl.float32)
    push = tl.zeros([BLOCK, COLUMNS], tl.float32)
    for j in range(M):
        error = tl.load(targets + row * M + j, mask=live, other=0.0)[:, None] - q
        weight = tl.where(error < 0, below, above)
        if PINBALL:
            side = tl.where(error < 0, -weight, tl.where(error > 0, weight, error))  # error: NaN stays
            cost += side * error
        else:
            part = tl.where(tl.abs(error) > kappa, tl.where(error < 0, -kappa, kappa), error)
            side = weight * part
            cost += side * (error - 0.5 * part)
        push += side
    cost = tl.where(inside, cost, 0.0)
    tl.store(loss + row, tl.sum(cost, 1) / (N * M), mask=live)
    tl.store(slope + at, -push / (N * M), mask=inside)
