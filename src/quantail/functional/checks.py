"""What every function here asks of its arguments, and the one helper that looks into tensors.

Shapes, dtypes and Python scalars are known without looking at a device, so they are checked always and cost nothing
inside a captured graph. The *content* of tensors is another matter: reading it makes the host wait for the device.
`check_finite` does so when called; `check_increasing` looks only where looking is free (CPU, outside a compiled region).
"""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, NoReturn

import torch
from torch import Tensor

from quantail.errors import InputError
from quantail.types import Law


def check_finite(**tensors: Tensor) -> None:
    """Refuse NaN and infinity, naming the array, how many of its entries are bad, and the first of them.

    Reads the tensors on the host: call it between iterations, never inside a captured region.

    >>> check_finite(rewards=torch.tensor([[0.0, 1.0], [float("nan"), 2.0]]))
    Traceback (most recent call last):
    ...
    quantail.errors.InputError: rewards has 1 non-finite entry of 4, the first is nan at [1, 0]; remove it or mask its row
    """
    for name, tensor in tensors.items():
        check_tensor(name, tensor)
        bad = ~torch.isfinite(tensor)
        count = int(bad.sum())
        if count:
            where = bad.nonzero()[0].tolist()
            value = tensor[tuple(where)].item()
            entries, remedy = ("entry", "it or mask its row") if count == 1 else ("entries", "them or mask their rows")
            raise InputError(
                f"{name} has {count} non-finite {entries} of {tensor.numel()}, the first is {value} at {where}; remove {remedy}"
            )


def check_increasing(**levels: Tensor) -> None:
    """Refuse levels or atoms that do not increase strictly. Looks only on the CPU and outside compiled regions."""
    for name, values in levels.items():
        if not free_to_look(values):
            continue
        steps = values.detach().diff(dim=-1)
        if not bool((steps > 0).all()):
            at = (~(steps > 0)).nonzero()[0].tolist()
            raise InputError(f"{name} must increase strictly, but does not after index {at}; sort it and drop duplicates")


def check_levels(name: str, taus: Tensor) -> None:
    """Quantile levels [N]: increasing, strictly between 0 and 1."""
    check_rank(name, taus, 1, "[levels]")
    if taus.ndim != 1:
        bad_shape(name, taus, "[levels]")
    check_increasing(**{name: taus})
    if free_to_look(taus) and not (taus[0] > 0 and taus[-1] < 1):
        raise InputError(f"{name} runs from {taus[0]:g} to {taus[-1]:g}; needs levels strictly between 0 and 1")


def check_tensor(name: str, tensor: Tensor) -> None:
    """Floating-point tensor or an error that says what came instead."""
    if not isinstance(tensor, Tensor):
        raise InputError(f"{name} is a {type(tensor).__name__}; needs a torch.Tensor: pass torch.as_tensor({name})")
    if not tensor.dtype.is_floating_point:
        raise InputError(f"{name} is {tensor.dtype}; needs floating point: pass {name}.float() or {name}.double()")


def check_shape(name: str, tensor: Tensor, shape: Sequence[int], axes: str) -> None:
    """Floating-point tensor of exactly this shape; `axes` says in letters what the shape means."""
    check_tensor(name, tensor)
    if tuple(tensor.shape) != tuple(shape):
        bad_shape(name, tensor, f"{list(shape)} ({axes})")


def check_rank(name: str, tensor: Tensor, least: int, axes: str) -> None:
    """Floating-point tensor with at least so many axes, none of them empty."""
    check_tensor(name, tensor)
    if tensor.ndim < least or 0 in tensor.shape:
        bad_shape(name, tensor, f"{axes}, no axis empty")


def check_last(name: str, tensor: Tensor, like: Sequence[int], axes: str) -> None:
    """Floating-point tensor that is either the shape `like` or just its last axis [N], shared by all rows."""
    check_tensor(name, tensor)
    if tuple(tensor.shape) not in (tuple(like), tuple(like[-1:])):
        bad_shape(name, tensor, f"{list(like)} or {list(like[-1:])} ({axes})")


def check_record(name: str, record: object, kind: type[tuple[Any, ...]]) -> None:
    """A record of this kind, not a bare tuple: the fields of one are easily mistaken for those of another."""
    if not isinstance(record, kind):
        fields = ", ".join(getattr(kind, "_fields", ()))
        raise InputError(f"{name} is a {type(record).__name__}; needs {kind.__name__}({fields})")


def check_law(name: str, law: Law, rows: Sequence[int]) -> None:
    """A law for these rows: locations and masses alike in their last axis, each of all rows or shared by them."""
    check_record(name, law, Law)
    check_rank(f"{name}.locations", law.locations, 1, "[..., atoms]")
    atoms = law.locations.shape[-1]
    check_last(f"{name}.locations", law.locations, (*rows, atoms), "rows, atoms")
    check_last(f"{name}.masses", law.masses, (*rows, atoms), "rows, atoms")


def check_mask(name: str, mask: Tensor, shape: Sequence[int], axes: str) -> Tensor:
    """A mask as bool: bool as it is, 0/1 numbers as bool. Returns the bool mask."""
    if not isinstance(mask, Tensor):
        raise InputError(f"{name} is a {type(mask).__name__}; needs a bool torch.Tensor: pass torch.as_tensor({name})")
    if mask.is_complex():
        raise InputError(f"{name} is {mask.dtype}; needs a bool tensor")
    if tuple(mask.shape) != tuple(shape):
        bad_shape(name, mask, f"{list(shape)} ({axes})")
    return mask.bool()


def check_number(
    name: str, value: float, low: float = -math.inf, high: float = math.inf, *, low_open: bool = False, high_open: bool = False
) -> None:
    """A Python number inside the interval, else an error that shows the interval."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InputError(f"{name} is {type(value).__name__} {value!r}; needs a Python number")
    low_side = value > low if low_open else value >= low
    high_side = value < high if high_open else value <= high
    if not (low_side and high_side) or math.isinf(value):
        opening, closing = "(" if low_open or math.isinf(low) else "[", ")" if high_open or math.isinf(high) else "]"
        raise InputError(f"{name}={value} is outside {opening}{low:g}, {high:g}{closing}; choose a finite value inside")


def check_knob(
    name: str, value: float | Tensor, low: float = -math.inf, high: float = math.inf, *, low_open: bool = False
) -> None:
    """A Python number, or a 0-d tensor that a schedule may change under a captured graph (its content is not read)."""
    if isinstance(value, Tensor):
        check_shape(name, value, (), "a scalar")
    else:
        check_number(name, value, low, high, low_open=low_open)


def check_count(name: str, value: int, least: int = 1) -> None:
    """A whole number of things."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{name}={value!r}; needs a whole number of at least {least}")


def check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    """One of a few words."""
    if value not in choices:
        raise InputError(f"{name}={value!r}; needs one of {', '.join(map(repr, choices))}")


def bad_shape(name: str, tensor: Tensor, needed: str) -> NoReturn:
    """Say which shape came and which is needed."""
    raise InputError(f"{name} has shape {list(tensor.shape)}; needs {needed}")


def free_to_look(tensor: Tensor) -> bool:
    """Whether reading the content costs nothing: no device to wait for, no graph to break."""
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()
