"""What the recurrent kernels compute in registers: gates, what is stored of them, and tanh.

A gate σ(a) is stored as the smaller of σ and 1 − σ, with a minus sign if that is 1 − σ: in sixteen bits the slope σ·(1 − σ) of
a gate that is nearly open would be lost in the rounding of σ = 0.998. Both are found again without an exponential.
"""

import triton
import triton.language as tl


@triton.jit
def lesser_side(a, NATIVE: tl.constexpr):
    """σ(−|a|), the smaller of σ and 1 − σ.  NATIVE: by the chip's own 2ˣ and 1/x, as right, and a third of the instructions."""
    if NATIVE:
        power = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [tl.abs(a) * -1.4426950408889634], dtype=tl.float32, is_pure=True, pack=1
        )
        return power * tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [1 + power], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        e = tl.exp(-tl.abs(a))
        return e / (1 + e)


@triton.jit
def gate(a, NATIVE: tl.constexpr = False):
    """-> σ(a), and what is stored of it."""
    small = lesser_side(a, NATIVE)
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
    small = lesser_side(a, False)
    return tl.where(a < 0, small, 1 - small), tl.where(a < 0, 1 - small, small)


@triton.jit
def tanh(x, NATIVE: tl.constexpr = False):
    """To 2e-7, also of small numbers: there a series, since 1 − e^(−2x) would lose digits.  NATIVE: the chip's, to 5e-4."""
    if NATIVE:
        return tl.inline_asm_elementwise("tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)
    else:
        e = tl.exp(-2 * tl.abs(x))
        far = (1 - e) / (1 + e)
        s = x * x
        near = x * (1 - s * (0.33333334 - s * (0.13333334 - s * (0.053968254 - s * 0.021869488))))
        return tl.where(s < 0.0625, near, tl.where(x < 0, -far, far))


@triton.jit
def beside(value, anchor, zero):
    """The value as float32, laid out as the anchor at once, in its own few bits: Triton would else move what is made of it."""
    return tl.where(zero != 0, anchor, value.to(tl.float32))
