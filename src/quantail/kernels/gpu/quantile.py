"""The quantile-Huber loss on a GPU: the loss of each row and its slope, in one kernel."""

from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd import Function

from quantail.kernels.gpu import launch
from quantail.kernels.gpu.device.quantile import huber
from quantail.kernels.sequence import apply, refuse_second_derivative

PAIRS = 2048  # of a row and a quantile, of one program


def quantile_huber_loss(quantiles: Tensor, targets: Tensor, taus: Tensor, kappa: float) -> Tensor:
    """`kernels.quantile.quantile_huber_loss`: quantiles [..., N], targets [..., M], taus [N] without gradient -> [...]."""
    loss: Tensor = apply(_Huber, quantiles, targets, taus, kappa)[0]
    return loss


class _Huber(Function):
    @staticmethod
    def forward(quantiles: Tensor, targets: Tensor, taus: Tensor, kappa: float) -> tuple[Tensor, Tensor]:
        """-> the loss of each row [...], and its slope [..., N]."""
        found: tuple[Tensor, Tensor] = huber_forward(quantiles, targets, taus, kappa)
        return found

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(inputs[0], output[1])
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
        if d_loss is None:
            return None, None, None, None
        return apply(_Scaled, d_loss, *ctx.saved_tensors), None, None, None


class _Scaled(Function):
    """A function of the quantiles too: a second derivative is refused, and not silently zero."""

    @staticmethod
    def forward(d_loss: Tensor, quantiles: Tensor, slope: Tensor) -> Tensor:
        return slope * d_loss.unsqueeze(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Nothing is saved."""

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("quantile_huber_loss")


@torch.library.custom_op("quantail::huber_forward", mutates_args=())
def huber_forward(quantiles: Tensor, targets: Tensor, taus: Tensor, kappa: float) -> tuple[Tensor, Tensor]:
    """Opaque to torch.compile.  -> loss [...], slope [..., N]."""
    many, particles = quantiles.shape[-1], targets.shape[-1]
    quantiles, targets = quantiles.contiguous(), targets.contiguous()
    loss, slope = quantiles.new_empty(quantiles.shape[:-1]), torch.empty_like(quantiles)
    columns = triton.next_power_of_2(many)
    block = max(1, PAIRS // columns)
    with launch.on(quantiles):
        huber[(triton.cdiv(loss.numel(), block),)](
            *(quantiles, targets, taus.contiguous(), loss, slope, loss.numel(), kappa),
            N=many,
            COLUMNS=columns,
            M=particles,
            PINBALL=kappa == 0,
            BLOCK=block,
        )
    return loss, slope


@huber_forward.register_fake
def _(quantiles: Tensor, targets: Tensor, taus: Tensor, kappa: float) -> tuple[Tensor, Tensor]:
    slope = torch.empty_like(quantiles, memory_format=torch.contiguous_format)
    return quantiles.new_empty(quantiles.shape[:-1]), slope
