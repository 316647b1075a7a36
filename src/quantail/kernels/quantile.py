"""The quantile-Huber loss and its gradient in one pass, and pooled critics: what is asked for thousands of times a second."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from quantail.functional import quantile as plain
from quantail.kernels import native
from quantail.kernels.roads import takes_triton
from quantail.kernels.sequence import apply, population_first, refuse_second_derivative

PAIRS_AT_ONCE = {"cpu": 1 << 17, "cuda": 1 << 26}  # of a quantile and a target: what a cache holds


def quantile_huber_loss(quantiles: Tensor, targets: Tensor, taus: Tensor, kappa: float) -> Tensor:
    """`functional.quantile.quantile_huber_loss`, without its checks and with no gradient for the targets.

        1/NM·Σ_ij |τ_i − 1{u_ij < 0}|·L_κ(u_ij),   u_ij = y_j − θ_i

    quantiles [..., N], targets [..., M], taus [N] -> [...]. The table u [rows, N, M] is made for a few rows at a time and
    only once: its slope c = clip(u, ±κ), or sign u for κ = 0, gives L_κ = c·(u − c/2), or c·u, and the gradient −c.
    """
    if taus.requires_grad:
        return plain.quantile_huber_loss(quantiles, targets.detach(), taus, float(kappa))
    if takes_triton(quantiles, targets, taus):
        from quantail.kernels.gpu.quantile import quantile_huber_loss as on_gpu

        return on_gpu(quantiles, targets.detach(), taus, float(kappa))
    loss: Tensor
    loss, _ = apply(_Huber, quantiles, targets.detach(), taus, float(kappa))
    return loss


def pool_quantiles(critics: Tensor, reduce: str, masses: Tensor) -> Tensor:
    """`functional.quantile.pool_quantiles`, its rows sorted faster where that can be done; [C, ..., N] -> [..., N]."""
    learns = critics.requires_grad and torch.is_grad_enabled()
    if reduce != "mean" or learns or critics.shape[-1] > native.SORTED or not native.fits(critics):
        return plain.pool_quantiles(critics, reduce, masses)
    return native.sort_rows(critics).mean(0)


class _Huber(Function):
    """The loss of each row, and how it falls as each quantile rises: [...] and [..., N]."""

    @staticmethod
    def forward(quantiles: Tensor, targets: Tensor, taus: Tensor, kappa: float) -> tuple[Tensor, Tensor]:
        if taus.ndim == 1 and native.fits(quantiles, targets, taus):
            return native.quantile_huber(quantiles, targets, taus, kappa)
        many = targets.shape[-1]
        rows = max(1, PAIRS_AT_ONCE.get(quantiles.device.type, 1 << 26) // (quantiles.shape[-1] * many))
        each = torch.full((many, 1), 1 / many, dtype=targets.dtype, device=targets.device)
        flat = (torch.split(x.reshape(-1, x.shape[-1]), rows) for x in (quantiles, targets))
        parts = zip(*flat, strict=True)
        sums = (
            torch.cat(part).view(quantiles.shape) for part in zip(*(_sums(q, y, each, kappa) for q, y in parts), strict=True)
        )
        below, above, down, up = sums
        return (taus * above + (1 - taus) * below).mean(-1), (taus * up + (1 - taus) * down) / quantiles.shape[-1]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(inputs[0], output[1])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, d_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        quantiles, slopes = ctx.saved_tensors
        return apply(_Gradient, d_loss, slopes, quantiles), None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], quantiles: Tensor, targets: Tensor, taus: Tensor, kappa: float
    ) -> tuple[tuple[Tensor, ...], tuple[int, int]]:
        sides = zip((quantiles, targets), in_dims, strict=False)
        rows = [x.movedim(dim, 0) if dim is not None else x.expand(info.batch_size, *x.shape) for x, dim in sides]
        if in_dims[2] is not None:
            taus = taus.movedim(in_dims[2], 0).reshape(info.batch_size, *[1] * (rows[0].ndim - 2), -1)
        return apply(_Huber, *rows, taus, kappa), (0, 0)


class _Gradient(Function):
    """A function of its own, and of the quantiles too: a second derivative is refused, and not silently zero."""

    @staticmethod
    def forward(d_loss: Tensor, slopes: Tensor, quantiles: Tensor) -> Tensor:
        return slopes * -d_loss.unsqueeze(-1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Nothing is saved."""

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("quantile_huber_loss")

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Tensor) -> tuple[Tensor, int]:
        d_loss, slopes = population_first(info.batch_size, in_dims, arguments)[:2]
        return apply(_Gradient, d_loss, slopes, arguments[2]), 0


def _sums(quantiles: Tensor, targets: Tensor, each: Tensor, kappa: float) -> tuple[Tensor, ...]:
    """Of rows [R, N] and [R, M]: loss below, loss above, slope below, slope above, each [R, N] and a mean over M.

    No comparison and no mask: on a CPU those cost five times as much as arithmetic.
    """
    error = targets[:, None, :] - quantiles[:, :, None]
    slope = error.clamp(-kappa, kappa) if kappa > 0 else error.sign()
    means = []
    for side in (slope.clamp_max(0.0), slope.clamp_min_(0.0)):
        size = torch.sub(error, side, alpha=0.5) if kappa > 0 else error.clone()
        means += [(size.mul_(side) @ each)[..., 0], (side @ each)[..., 0]]
    below, down, above, up = means
    return below, above, down, up
