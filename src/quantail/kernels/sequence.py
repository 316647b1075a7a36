"""What the recurrent kernels share: the row loop's resets, the batched products, the population axis, the refusals.

Every kernel takes [T, B, ...] rows or [P, T, B, ...]: a population of P agents, each with weights of its own. One code path
serves both, because time is addressed from the right and the products are batched. `torch.vmap` lands on the same axis.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import Function

from quantail.errors import InputError
from quantail.functional.checks import bad_shape, check_rank, check_shape
from quantail.kernels.roads import product_dtype


def check_rows(x: Tensor, start: Tensor, **states: Tensor) -> None:
    """Rows x [..., T, B, I] with a bool `start` [..., T, B] and states [..., B, H] of one dtype."""
    check_rank("x", x, 3, "[..., time, environments, inputs]")
    if not isinstance(start, Tensor) or start.dtype != torch.bool:
        kind = start.dtype if isinstance(start, Tensor) else type(start).__name__
        raise InputError(f"start is {kind}; needs a bool tensor, true where the memory is empty before the row")
    if start.shape != x.shape[:-1]:
        bad_shape("start", start, f"{list(x.shape[:-1])} (the rows of x)")
    rows = (*x.shape[:-3], x.shape[-2])
    for name, state in states.items():
        check_rank(name, state, 2, "[..., environments, memory]")
        check_shape(name, state, (*rows, state.shape[-1]), "environments, memory")
        check_shape(name, state, next(iter(states.values())).shape, "all states alike")
        check_dtype(name, state, x)


def check_weight(name: str, weight: Tensor, x: Tensor, shape: Sequence[int], axes: str) -> None:
    """A weight of this shape, behind the population axes of x, in the dtype of x."""
    check_shape(name, weight, (*x.shape[:-3], *shape), axes)
    check_dtype(name, weight, x)


def check_dtype(name: str, tensor: Tensor, x: Tensor) -> None:
    """The dtype of the rows, which autocast may have rounded: a silent float32 inside a float64 sequence costs nine digits."""
    rounded = tensor.dtype == torch.float32 and product_dtype(tensor) == x.dtype
    if tensor.dtype != x.dtype and not rounded:
        raise InputError(f"{name} is {tensor.dtype} and x is {x.dtype}; convert one of them")


def reset_rows(start: Tensor) -> list[bool]:
    """For each of the T rows, whether any state must be emptied before it: known where looking is free, else assumed."""
    if start.device.type != "cpu" or torch.compiler.is_compiling():
        return [True] * start.shape[-2]
    flags: list[bool] = start.movedim(-2, 0).flatten(1).any(1).tolist()
    return flags


def project(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """All T input projections as one product: x·Wᵀ + b.  x [..., T, B, I], weight [..., K, I] -> [..., T, B, K], new memory."""
    rows = x.flatten(-3, -2)
    flat = torch.addmm(bias, rows, weight.mT) if weight.ndim == 2 else rows @ weight.mT + bias.unsqueeze(-2)
    return flat.reshape(*x.shape[:-1], bias.shape[-1])


def add_product_(out: Tensor, left: Tensor, right: Tensor) -> None:
    """out += left·right in place, as one call where torch has one."""
    if out.ndim == 2:
        out.addmm_(left, right)
    elif out.ndim == 3:
        out.baddbmm_(left, right)
    else:
        out.add_(left @ right)


def states_before(first: Tensor, states: Tensor, start: Tensor) -> Tensor:
    """The state each row began with: `first`, then the row above; empty where `start`.  -> [..., T, B, H]."""
    before = torch.cat([first.unsqueeze(-3), states.narrow(-3, 0, states.shape[-3] - 1)], -3)
    return before.masked_fill(start.unsqueeze(-1), 0.0)


def weight_gradient(slopes: Tensor, inputs: Tensor) -> Tensor:
    """Σ over all rows of slopesᵀ·inputs, as one product.  [..., T, B, K], [..., T, B, I] -> [..., K, I]."""
    return slopes.flatten(-3, -2).mT @ inputs.flatten(-3, -2)


def input_gradient(slopes: Tensor, weight: Tensor) -> Tensor:
    """slopes·W for all rows, as one product.  [..., T, B, K], [..., K, I] -> [..., T, B, I]."""
    return (slopes.flatten(-3, -2) @ weight).reshape(*slopes.shape[:-1], weight.shape[-1])


def apply(kernel: type[Function], *arguments: Any) -> Any:
    """Run a kernel so that gradients know of it; where none are wanted, without that detour (40 µs a call)."""
    transformed = not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()
    if not (torch.is_grad_enabled() or transformed):
        return kernel.forward(*arguments)
    return kernel.apply(*arguments)  # type: ignore[no-untyped-call]  # torch leaves it untyped


def population_first(size: int, dims: Sequence[int | None], arguments: Sequence[Any]) -> list[Any]:
    """The arguments of a `vmap`ped kernel with the mapped axis in front of each tensor: the kernels' population axis."""
    return [
        value if not isinstance(value, Tensor) else value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)
        for value, dim in zip(arguments, dims, strict=True)
    ]


def refuse_second_derivative(kernel: str) -> NoReturn:
    """The backward pass is written by hand and has no backward pass of its own."""
    raise InputError(f"{kernel} has no second derivative; take the first without create_graph=True, or use torch.nn instead")
