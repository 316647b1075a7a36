"""Loops that a compiler makes faster than any chain of tensor operations: `native.c`, where there is a compiler.

It is built once, in less than a second, when it is first asked for, and kept under ~/.cache/quantail (XDG_CACHE_HOME) by
what it was built from and for. Without a compiler, or with QUANTAIL_NATIVE=0, everything runs in torch; the answers agree to
rounding.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quantail.types import Law

SOURCE = Path(__file__).with_name("native.c")
FLAGS = ("-O3", "-march=native", "-ffp-contract=off", "-shared", "-fPIC")  # rounding as written: as torch rounds
KINDS = {torch.float32: "float", torch.float64: "double"}
SORTED = 256  # entries of a row that `sort_rows` takes
PATIENCE = 60.0  # seconds for the compiler


def fits(*tensors: Tensor) -> bool:
    """Whether the loops can take these: real tensors of a processor, of one kind, outside any transform, a compiler at hand."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    kinds = {(x.device.type, x.dtype, type(x)) for x in tensors}
    first = tensors[0]
    return len(kinds) == 1 and first.device.type == "cpu" and first.dtype in KINDS and library() is not None


def quantile_huber(quantiles: Tensor, targets: Tensor, taus: Tensor, kappa: float) -> tuple[Tensor, Tensor]:
    """What `kernels.quantile` wants: [..., N], [..., M], levels [N] -> loss [...], slopes [..., N]."""
    quantiles, targets, taus = quantiles.contiguous(), targets.contiguous(), taus.contiguous()
    loss, slopes = quantiles.new_empty(quantiles.shape[:-1]), torch.empty_like(quantiles)
    sizes = (ctypes.c_int64(size) for size in (loss.numel(), quantiles.shape[-1], targets.shape[-1]))
    run("quantile_huber", (quantiles, targets, taus, loss, slopes), *sizes, ctypes.c_double(kappa))
    return loss, slopes


def sort_rows(x: Tensor) -> Tensor:
    """Each row in order, NaN last, as `sort(-1).values`; for rows of at most `SORTED` entries.  [..., N] -> [..., N]."""
    x = x.contiguous()
    found = torch.empty_like(x)
    n = max(x.shape[-1], 1)
    run("sort_rows", (x, found), ctypes.c_int64(x.numel() // n), ctypes.c_int64(n))
    return found


def sample_replacement(
    rewards: Tensor, law: Law, noise: tuple[Tensor, Tensor], masks: tuple[Tensor, Tensor, Tensor], gamma: float, lam: float
) -> Tensor:
    """`functional.returns.distributional_targets` where all rows share their masses and the next row shows what was reached.

    rewards [T, ...], law of [T+1, ..., N] and [N], noise for following and for levels [T, ..., M], masks terminated, going on
    and valid [T, ...] -> [T, ..., M].
    """
    ends = law.masses.cumsum(-1)
    follow, level = (x.contiguous() for x in noise)
    made = torch.empty_like(level)
    tensors = (rewards.contiguous(), law.locations.contiguous(), ends / ends[-1], follow, level, made)
    steps, rows = len(rewards), max(rewards[0].numel(), 1)
    sizes = (ctypes.c_int64(size) for size in (steps, rows, len(ends), level.shape[-1]))
    run("sample_replacement", (*tensors, *(mask.contiguous() for mask in masks)), *sizes, *map(ctypes.c_double, (gamma, lam)))
    return made


def run(name: str, tensors: tuple[Tensor, ...], *numbers: Any) -> None:
    """A loop of the library by its name, on the memory of contiguous tensors."""
    function = getattr(library(), f"{name}_{KINDS[tensors[0].dtype]}")
    function(*(ctypes.c_void_p(x.data_ptr()) for x in tensors), *numbers)


@cache
def library() -> ctypes.CDLL | None:
    """The library, built if need be; None where that cannot be done, or is not wanted."""
    if os.environ.get("QUANTAIL_NATIVE", "1") == "0":
        return None
    compiler = next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)
    try:
        path = folder() / f"native-{fingerprint(compiler or '')}.so"
        if not path.exists():
            if compiler is None:
                return None
            build(compiler, path)
        return ctypes.CDLL(str(path))
    except (OSError, RuntimeError, subprocess.SubprocessError):  # no home, no room, no luck
        return None


def fingerprint(compiler: str) -> str:
    """What the library depends on: its source, how it is built, and the processor it is built for."""
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), platform.node())
    return hashlib.sha256("\0".join((SOURCE.read_text(), *FLAGS, compiler, features)).encode()).hexdigest()[:16]


def folder() -> Path:
    """Where built libraries are kept."""
    place = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quantail"
    place.mkdir(parents=True, exist_ok=True)
    return place


def build(compiler: str, path: Path) -> None:
    """Compile beside the place and move there: nobody sees a half-written library."""
    with tempfile.TemporaryDirectory(dir=path.parent) as place:
        made = Path(place) / path.name
        command = [compiler, str(SOURCE), "-o", str(made), *FLAGS]
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
        os.replace(made, path)
