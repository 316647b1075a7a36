"""Running mean and variance, and PopArt: what was known and what was seen go in, what is known now comes out.

One rule does it all, the mean and variance of a mixture of two laws: merging mixes them by their counts, a moving
average mixes the new one in at a fixed rate.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from quantail.errors import InputError
from quantail.functional.checks import (
    bad_shape,
    check_count,
    check_number,
    check_rank,
    check_record,
    check_shape,
    check_tensor,
)
from quantail.types import Moments, Scale

ROUNDING = 2.0**-23  # relative spread below which float32 numbers are equal


def no_moments(shape: Sequence[int] = (), *, device: torch.device | None = None) -> Moments:
    """The moments of nothing: mean = 0, variance = 1, weight = 0; `standardize` by them changes nothing   (Source: definition).

    -> mean, variance, weight [*shape] float64.
    """
    for size in shape:
        check_count("shape", size, 0)
    zero = torch.zeros(tuple(shape), dtype=torch.float64, device=device)
    return Moments(zero, torch.ones_like(zero), zero.clone())


def batch_moments(x: Tensor, dims: int | Sequence[int] = 0, weights: Tensor | None = None) -> Moments:
    """Weighted mean and variance over some axes: μ = Σw·x/Σw, σ² = Σw·(x − μ)²/Σw   (two passes; Chan et al. 1983).

    x [..., F]; weights >= 0, as x or over its leading axes only -> [F], or whatever `dims` leaves of x. What has weight 0
    may hold anything. No weight at all gives `no_moments`, which merges as nothing.
    """
    check_rank("x", x, 1, "[...]")
    dims = (dims,) if isinstance(dims, int) else tuple(dims)
    if not all(isinstance(dim, int) and -x.ndim <= dim < x.ndim for dim in dims):
        raise InputError(f"dims={dims}; needs axes of x, whole numbers from {-x.ndim} to {x.ndim - 1}")
    weight = torch.ones_like(x, dtype=torch.float64)
    if weights is not None:
        check_tensor("weights", weights)
        if weights.shape != x.shape[: weights.ndim]:
            bad_shape("weights", weights, f"{list(x.shape)} or its leading axes")
        weight = weight * weights.reshape(*weights.shape, *(1,) * (x.ndim - weights.ndim))
    x = torch.where(weight > 0, x, 0.0).double()
    total = weight.sum(dims, keepdim=True)
    share = weight / torch.where(total > 0, total, 1.0)
    mean = (share * x).sum(dims, keepdim=True)
    variance = (share * (x - mean).square()).sum(dims, keepdim=True)
    return Moments(mean.squeeze(dims), torch.where(total > 0, variance, 1.0).squeeze(dims), total.squeeze(dims))


def finite_moments(moments: Moments) -> Moments:
    """Moments as they are, or with weight = 0 where mean or variance is not finite: what overflowed is merged as nothing.

    moments [...] -> [...], there those of `no_moments`   (Source: definition).
    """
    _check_parts("moments", moments, moments)
    sound = moments.mean.isfinite() & moments.variance.isfinite()
    values = zip(moments, (0.0, 1.0, 0.0), strict=True)
    return Moments(*(torch.where(sound, value, nothing) for value, nothing in values))


def merge_moments(a: Moments, b: Moments) -> Moments:
    """Moments of two batches together, whatever their order or size: a mixture by their counts   (Chan, Golub & LeVeque 1983).

        μ = μ_a + s·(μ_b − μ_a)     σ² = (1 − s)·σ_a² + s·σ_b² + s·(1 − s)·(μ_b − μ_a)²     s = n_b/(n_a + n_b)

    both [...] -> [...], of weight n_a + n_b. Two empty ones stay empty.
    """
    _check_pair(a, b)
    total = a.weight + b.weight
    return _mix(a, b, b.weight / torch.where(total > 0, total, 1.0), total)


def average_moments(a: Moments, b: Moments, rate: float) -> Moments:
    """Debiased moving average of moments: s = β/(1 − (1 − β)ⁿ) in `merge_moments`' mixture   (van Hasselt et al. 2016).

    both [...], rate β in (0, 1] -> [...], of weight n. An average of the first and *second* moments: the variance holds the
    drift of the mean too. The first step takes b whole; an empty b is no step.
    """
    _check_pair(a, b)
    check_number("rate", rate, 0.0, 1.0, low_open=True)
    seen = b.weight > 0
    steps = a.weight + seen
    share = torch.where(seen, rate / (1 - (1 - rate) ** steps.clamp_min(1.0)), 0.0)
    return _mix(a, b, share, steps)


def pool_moments(moments: Moments) -> Moments:
    """Moments of all batches together, each counted by its weight: `merge_moments` of them all   (Chan, Golub & LeVeque 1983).

        μ = Σw·μ_i/Σw     σ² = Σw·(σ_i² + (μ_i − μ)²)/Σw

    all [..., K] -> [...]. None of any weight gives `no_moments`.
    """
    check_record("moments", moments, Moments)
    for field, value in zip(moments._fields, moments, strict=True):
        check_shape(f"moments.{field}", value, moments.mean.shape, "all parts alike, batches last")
    check_rank("moments.mean", moments.mean, 1, "[..., batches]")
    total = moments.weight.sum(-1)
    share = moments.weight / torch.where(total > 0, total, 1.0)[..., None]
    mean = (share * moments.mean).sum(-1)
    variance = (share * (moments.variance + (moments.mean - mean[..., None]).square())).sum(-1)
    return Moments(mean, torch.where(total > 0, variance, 1.0), total)


def standardize(x: Tensor, moments: Moments, clip: float | None = None) -> Tensor:
    """x in units of what was seen: (x − μ)/σ, within ±clip   (Source: definition; as VecNormalize, Raffin et al. 2021).

    x [..., F], moments [F] -> [..., F] in x's dtype. A feature that never moved (σ <= 2⁻²³·|μ|) is 0; there is no constant
    in the denominator, so that features of any scale come out alike.
    """
    check_tensor("x", x)
    check_record("moments", moments, Moments)
    _check_trailing(x, moments.mean)
    if clip is not None:
        check_number("clip", clip, 0.0, low_open=True)
    std = moments.variance.sqrt()
    moves = std > ROUNDING * moments.mean.abs()
    scaled = torch.where(moves, (x - moments.mean) / torch.where(moves, std, 1.0), 0.0).to(x.dtype)
    return scaled if clip is None else scaled.clamp(-clip, clip)


def scale_of(moments: Moments, std_floor: float = 1e-4, std_cap: float = 1e6) -> Scale:
    """The scale to normalise by: mean, and std = clip(σ, floor, cap)   (van Hasselt et al. 2016).

    moments [...] -> mean, std [...].
    """
    check_record("moments", moments, Moments)
    check_number("std_floor", std_floor, 0.0, low_open=True)
    check_number("std_cap", std_cap, std_floor)
    return Scale(moments.mean, moments.variance.sqrt().clamp(std_floor, std_cap))


def limit_scale(old: Scale, new: Scale, step: float) -> Scale:
    """A scale on its way to another, one step at a time   (Source: definition).

        |μ' − μ| <= step·max(σ, σ')      σ/(1 + step) <= σ' <= σ·(1 + step)

    scales [...] -> [...].
    """
    check_number("step", step, 0.0, low_open=True)
    for name, scale in (("old", old), ("new", new)):
        check_record(name, scale, Scale)
        for field, value in zip(scale._fields, scale, strict=True):
            check_shape(f"{name}.{field}", value, old.mean.shape, "all parts of both alike")
    std = torch.minimum(torch.maximum(new.std, old.std / (1 + step)), old.std * (1 + step))
    most = step * torch.maximum(old.std, std)
    return Scale(old.mean + torch.minimum(torch.maximum(new.mean - old.mean, -most), most), std)


def popart_rescale(weight: Tensor, bias: Tensor, old: Scale, new: Scale) -> tuple[Tensor, Tensor]:
    """A linear head that says the same in new units: W' = W·σ/σ', b' = (σ·b + μ − μ')/σ'   (PopArt; van Hasselt et al. 2016).

    weight [..., N, H], bias [..., N], scales scalar or [...] -> weight', bias'. Then σ'·(W'h + b') + μ' = σ·(Wh + b) + μ for
    every h. Computed in float64, returned in the head's dtype.
    """
    check_rank("weight", weight, 2, "[..., outputs, inputs]")
    check_shape("bias", bias, weight.shape[:-1], "as weight without its inputs")
    for name, scale in (("old", old), ("new", new)):
        _check_scale(name, scale, weight.shape[:-2])
    ratio = old.std / new.std
    shift = (old.mean - new.mean) / new.std
    new_weight = weight.double() * ratio[..., None, None]
    new_bias = bias.double() * ratio[..., None] + shift[..., None]
    return new_weight.to(weight.dtype), new_bias.to(bias.dtype)


def _mix(a: Moments, b: Moments, share: Tensor, weight: Tensor) -> Moments:
    gap = b.mean - a.mean
    variance = (1 - share) * a.variance + share * b.variance + share * (1 - share) * gap.square()
    return Moments(a.mean + share * gap, variance, weight)


def _check_pair(a: Moments, b: Moments) -> None:
    _check_parts("a", a, a)
    _check_parts("b", b, a)


def _check_parts(name: str, moments: Moments, like: Moments) -> None:
    check_record(name, moments, Moments)
    for field, value in zip(moments._fields, moments, strict=True):
        check_shape(f"{name}.{field}", value, like.mean.shape, "all parts alike")


def _check_scale(name: str, scale: Scale, heads: Sequence[int]) -> None:
    check_record(name, scale, Scale)
    for field, value in zip(scale._fields, scale, strict=True):
        check_tensor(f"{name}.{field}", value)
        if tuple(value.shape) not in ((), tuple(heads)):
            bad_shape(f"{name}.{field}", value, f"[] or {list(heads)} (for all heads, or each)" if heads else "[] (a scalar)")


def _check_trailing(x: Tensor, mean: Tensor) -> None:
    if x.shape[x.ndim - mean.ndim :] != mean.shape:
        bad_shape("x", x, f"[..., {', '.join(map(str, mean.shape))}], ending as the moments")
