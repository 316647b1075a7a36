"""Which road a kernel takes: Triton where a GPU, Triton and a C compiler (which Triton needs) are there; else plain torch."""

import os
import shutil
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec

import torch
from torch import Tensor

COMPILERS = ("cc", "gcc", "clang")
TRITON = find_spec("triton") is not None and any(map(shutil.which, [os.environ.get("CC", "cc"), *COMPILERS]))


def takes_triton(*tensors: Tensor) -> bool:
    """Whether Triton kernels serve these tensors: all float32 on a GPU, outside torch's function transforms."""
    if not (TRITON and all(tensor.is_cuda and tensor.dtype == torch.float32 for tensor in tensors)):
        return False
    return not torch._C._are_functorch_transforms_active()


def product_dtype(x: Tensor) -> torch.dtype:
    """What the operands of products are rounded to: autocast's dtype where autocast is on, else that of x."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def exactly(x: Tensor) -> AbstractContextManager[None]:
    """Inside, autocast rounds nothing: what is rounded is said by name."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
