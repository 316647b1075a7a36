"""What the recurrent kernels compute in registers: gates, what is stored of them, and tanh.

A gate σ(a) is stored as the smaller of σ and 1 − σ, with a minus sign if that is 1 − σ: in sixteen bits the slope σ·(1 − σ) of
a gate that is nearly open would be lost in the rounding of σ = 0.998. Both are found again without an exponential.
"""

import triton
import triton.language as tl


@triton.jit
def gate(a):
    """-> σ(a), and what is stored of it."""
    e = tl.exp(-tl.abs(a))
    small = e / (1 + e)
    kept = tl.maximum(small, 1e-7)  # not 0, which has no sign
    return tl.where(a < 0, small, 1 - small), tl.where(a < 0, kept, -kept)


@triton.jit
def stored_gate(v):
    """What was stored -> σ, and its slope σ·(1 − σ)."""
    small = tl.abs(v)
    return tl.where(v < 0, 1 - small, small), small * (1 - small)


@triton.jit
def both_sides(a):
    """-> σ(a) and 1 − σ(a), both to all their digits."""
    e = tl.exp(-tl.abs(a))
    small = e / (1 + e)
    return tl.where(a < 0, small, 1 - small), tl.where(a < 0, 1 - small, small)


@triton.jit
def tanh(x):
    """To 2e-7, also of small numbers: there a series, since 1 − e^(−2x) would lose their digits."""
    e = tl.exp(-2 * tl.abs(x))
    far = (1 - e) / (1 + e)
    s = x * x
    near = x * (1 - s * (0.33333334 - s * (0.13333334 - s * (0.053968254 - s * 0.021869488))))
    return tl.where(s < 0.0625, near, tl.where(x < 0, -far, far))
