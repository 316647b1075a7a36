"""Block sizes, launches and products that the recurrent kernels on the GPU share."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from quantail.kernels.roads import exactly

ENTRIES = 1024  # of a pointwise kernel's program
RESIDENT = 128 << 10  # bytes of W_h that shared memory holds beside a block's h
LEAST_ROWS = 16  # of a tensor-core product
MULTIPLE = 8  # columns: rows of sixteen-bit numbers begin at multiples of 16 bytes


@contextmanager
def on(x: Tensor) -> Iterator[None]:
    """Launches go to the GPU of x, and autocast rounds nothing."""
    with torch.cuda.device(x.device) if x.is_cuda else nullcontext(), exactly(x):
        yield


def stays(hidden: int, blocks: int, dtype: torch.dtype) -> bool:
    """Whether a whole sequence fits on a processor: tiles of powers of two in tensor-core precision, W_h in shared memory."""
    fast = dtype.itemsize == 2 or tensor_cores_take_float32()
    power_of_two = hidden & (hidden - 1) == 0
    return fast and power_of_two and hidden >= LEAST_ROWS and blocks * hidden * hidden * dtype.itemsize <= RESIDENT


def tensor_cores_take_float32() -> bool:
    """Whether torch lets them, rounding operands to ten bits; since torch 2.9 its setting has a new name."""
    settings = torch.backends.cuda.matmul
    return bool(settings.fp32_precision == "tf32" if hasattr(settings, "fp32_precision") else settings.allow_tf32)


def precision(x: Tensor) -> str:
    """How Triton multiplies float32: as tensor cores do, or on the CPU, where it only imitates, in full."""
    return "tf32" if x.is_cuda else "ieee"


def block_of(envs: int, hidden: int, x: Tensor) -> tuple[int, int]:
    """Environments and warps of one program: large tiles, but a program for every processor."""
    most, warps = (64, 8) if hidden >= 128 else (64, 4)
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 1
    while most > LEAST_ROWS and -(-envs // most) < processors:
        most //= 2
    return most, warps


def operand_width(used: int) -> int:
    """Columns of `operands`: the used ones, the ones, and zeros up to a multiple that tensor cores like."""
    return -(-(used + 1) // MULTIPLE) * MULTIPLE


def operands(x: Tensor, hidden: int, dtype: torch.dtype) -> Tensor:
    """What the weights meet in each row, side by side: h (still empty), x, 1.  [T, B, I] -> [T, B, H + I + 1 and some zeros].

    The gradient of all weights is then one product with it.
    """
    used = hidden + x.shape[-1]
    rows = torch.empty((*x.shape[:-1], operand_width(used)), dtype=dtype, device=x.device)
    rows[..., hidden:used] = x
    rows[..., used + 1 :] = 0
    rows[..., used] = 1
    return rows


def project(x: Tensor, w_x: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """x·W_xᵀ + b in the dtype of products: [T, B, I], [K, I], [K] -> [T, B, K]."""
    flat = torch.addmm(b.to(dtype), x.flatten(0, 1), w_x.to(dtype).mT)
    return flat.view(*x.shape[:-1], len(b))


def weight_gradients(slopes: Tensor, rows: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Of W_h, W_x and b, as one product over T·B in float32: [T, B, K], [T, B, H + I + 1 …] -> [K, H], [K, I], [K, 1]."""
    left, right = slopes.flatten(0, 1).mT, rows.flatten(0, 1)
    found = product(left, right).narrow(1, 0, sum(sizes))
    return [part.contiguous() for part in torch.split(found, list(sizes), 1)]


def product(left: Tensor, right: Tensor) -> Tensor:
    """left·right in float32, whatever the operands."""
    if left.dtype != torch.float32 and left.is_cuda:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def input_gradient(slopes: Tensor, w_x: Tensor, wanted: bool) -> Tensor:
    """slopes·W_x: [T, B, K], [K, I] -> [T, B, I]; nothing where nobody asks."""
    if not wanted:
        return slopes.new_empty(0)
    flat = slopes.flatten(0, 1) @ w_x.to(slopes.dtype)
    return flat.view(*slopes.shape[:-1], w_x.shape[1])
