"""How much each weight may move: from traces of utility to gates, for all tensors of a kind together and without host syncs."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

Number = float | Tensor  # a Tensor where a captured graph has to follow it
GATES = {"sigmoid": 1.0, "tanh": 2.0}  # 2·σ(−x) = 2·(1 − σ(x));  2·σ(−2x) = 1 − tanh(x)


class Bucket(NamedTuple):
    """Parameters of one group, device and dtype that have seen equally many steps."""

    group: dict[str, Any]
    params: list[Tensor]
    grads: list[Tensor]
    states: list[dict[str, Tensor]]
    begins: list[int]  # the number of the first weight of each among all of them
    curvature: list[Tensor] | None
    step: Number

    @property
    def device(self) -> torch.device:
        return self.params[0].device

    @property
    def kind(self) -> tuple[Any, ...]:
        """Buckets of one kind look for the largest utility together."""
        return self.device, self.group["normaliser"], self.group["population"]

    def state(self, name: str) -> list[Tensor]:
        """One of the tensors kept for each parameter."""
        return [state[name] for state in self.states]

    def correction(self, beta: float) -> Number:
        """1 − β^t, in float64: in float32 it is off by 6e-5 at the first step of β = 0.999."""
        return 1 - beta**self.step if isinstance(self.step, float) else 1 - beta ** self.step.double()

    def scalar(self, value: Number) -> Number:
        """A factor for all of its tensors."""
        return value.to(self.params[0].dtype) if isinstance(value, Tensor) else value


def trace(bucket: Bucket) -> None:
    """u ← β·u + (1 − β)·(−g·w + ½·h·w²), with the weights from before the step."""
    beta, traces = bucket.group["utility_beta"], bucket.state("utility")
    torch._foreach_mul_(traces, beta)
    torch._foreach_addcmul_(traces, bucket.grads, bucket.params, value=beta - 1)
    if bucket.curvature is not None:
        bent = torch._foreach_mul(bucket.curvature, bucket.params)
        torch._foreach_addcmul_(traces, bent, bucket.params, value=(1 - beta) / 2)


class Largest(NamedTuple):
    """What the traces of a kind of bucket are divided by."""

    value: Tensor  # [] or [P]
    of_traces: bool  # it is the largest u where one correction holds for all, which then cancels; else the largest û


def largest_utilities(buckets: Iterable[Bucket]) -> dict[tuple[Any, ...], Largest]:
    """M of each kind of bucket whose scale is global: the largest |û|; `reference`: the largest u, or |u| where no u > 0."""
    found: dict[tuple[Any, ...], list[Bucket]] = {}
    for bucket in buckets:
        if bucket.group["scale"] == "global":
            found.setdefault(bucket.kind, []).append(bucket)
    return {kind: _reference(alike) if kind[1] == "reference" else _corrected(alike) for kind, alike in found.items()}


def _reference(buckets: list[Bucket]) -> Largest:
    group = buckets[0].group
    traces = [u.double() for bucket in buckets for u in bucket.state("utility")]
    top, size = (
        torch.stack([per_agent(u, group, "max") for u in some]).amax(0) for some in (traces, [u.abs() for u in traces])
    )
    return Largest(torch.where(top > 0, top, size), of_traces=False)


def _corrected(buckets: list[Bucket]) -> Largest:
    first, betas = buckets[0], {bucket.group["utility_beta"] for bucket in buckets}
    together = all(one.step is first.step or (isinstance(one.step, float) and one.step == first.step) for one in buckets)
    sizes = [_sizes(bucket.state("utility"), bucket.group) for bucket in buckets]
    if together and len(betas) == 1 and len({one.params[0].dtype for one in buckets}) == 1:
        return Largest(torch.stack([size for some in sizes for size in some]).amax(0), of_traces=True)
    tops = [
        torch.stack(some).amax(0).double() / one.correction(one.group["utility_beta"])
        for some, one in zip(sizes, buckets, strict=True)
    ]
    return Largest(torch.stack(tops).amax(0), of_traces=False)


def half_gates(bucket: Bucket, largest: Largest | None) -> list[Tensor]:
    """σ(−c·û/M), half a gate, for every weight; ½ where nothing is known."""
    group, traces = bucket.group, bucket.state("utility")
    steep = -group["strength"] * GATES[group["gate"]]
    if largest is not None and group["scale"] == "global":
        whole = largest.value if largest.of_traces else largest.value * bucket.correction(group["utility_beta"])
        factor = (steep / _positive(whole, traces[0].dtype)).to(traces[0].dtype)
        alike = factor.ndim == 0
        gates = list(torch._foreach_mul(traces, factor)) if alike else [u * spread(factor, u) for u in traces]
    else:
        correction = bucket.correction(group["utility_beta"])
        gates = [u * spread(steep / _positive(own_scale(u, group, correction), u.dtype), u) for u in traces]
    torch._foreach_sigmoid_(gates)
    return gates


def own_scale(u: Tensor, group: dict[str, Any], correction: Number) -> Tensor:
    """M·(1 − β^t) of a tensor that looks at nothing but itself; of a unit's weights the paper takes the Euclidean norm."""
    if group["scale"] == "unit":
        dims = unit_dims(u, group["population"])
        if group["normaliser"] == "reference":
            return torch.linalg.vector_norm(u, dim=dims, keepdim=True) if dims else u.abs()
        return u.abs().amax(dims, keepdim=True) if dims else u.abs()
    if group["normaliser"] == "reference":
        top = per_agent(u, group, "max")
        return torch.where(top > 0, top, per_agent(u.abs(), group, "max")) * correction
    return _sizes([u], group)[0]


def unit_dims(u: Tensor, population: bool) -> tuple[int, ...]:
    """The axes of the weights into one unit: [out, in, ...] all but the first; a bias is one unit."""
    own = u.ndim - population
    return tuple(range(population + (own > 1), u.ndim))


def per_agent(x: Tensor, group: dict[str, Any], how: str) -> Tensor:
    """Over all axes, but for the first where that counts agents: [] or [P]."""
    dims = tuple(range(int(group["population"]), x.ndim))
    if not dims:
        return x
    return x.amax(dims) if how == "max" else x.mean(dims)


def spread(value: Tensor, x: Tensor) -> Tensor:
    """A number for each agent, [P], before the other axes of x; anything else as it is."""
    return value.reshape(-1, *[1] * (x.ndim - 1)) if value.ndim == 1 < x.ndim else value


def add_product(params: list[Tensor], one: list[Tensor], other: list[Tensor] | None, value: Number) -> None:
    """w ← w + value·one·other; `other` may change."""
    if isinstance(value, Tensor):
        one = list(torch._foreach_mul(one, value.to(params[0])))
        value = 1.0
    if other is None:
        torch._foreach_add_(params, one, alpha=value)
    else:
        torch._foreach_addcmul_(params, one, other, value=value)


def hutchinson(loss: Tensor, params: Sequence[Tensor], probes: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """The diagonal of the Hessian, h = E[z ∘ (∇²L·z)] over probes of ±1: unbiased, exact if it is diagonal   (Hutchinson 1989).

    probes: for each sample a tensor of ±1 like each parameter -> like the parameters. The loss can still be differentiated.
    """
    slopes = torch.autograd.grad(loss, params, create_graph=True, materialize_grads=True)
    total = [torch.zeros_like(p) for p in params]
    for signs in probes:
        inner = torch.stack([(slope * sign).sum() for slope, sign in zip(slopes, signs, strict=True)]).sum()
        bent = torch.autograd.grad(inner, params, retain_graph=True, materialize_grads=True)
        torch._foreach_addcmul_(total, list(bent), list(signs), value=1 / len(probes))
    return total


def _sizes(traces: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
    """max |u| of each tensor: [] or [P]. On a GPU one call for all; on a CPU two passes that keep nothing are the fastest."""
    if group["population"]:
        return [per_agent(u.abs(), group, "max") for u in traces]
    if traces[0].is_cuda:
        return list(torch._foreach_norm(traces, float("inf")))
    return [torch.maximum(u.amax(), -u.amin()) for u in traces]


def _positive(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """A divisor that is never 0, nor so small that a factor overflows."""
    return scale.clamp_min(1024 * torch.finfo(dtype).tiny)
