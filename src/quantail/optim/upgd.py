"""Gradient steps that are smaller where a weight is of use: UPGD, UPGDW, AdaptiveUPGD   (Elsayed & Mahmood 2024).

    U = −g·w (+ ½·h·w²)             what the loss would rise by, were the weight removed
    u ← β·u + (1 − β)·U             its trace; û = u/(1 − β^t)
    k = 2·σ(−strength·û/M)          the gate (or 1 − tanh): 1 where nothing is known, < 1 where useful, > 1 where harmful
    w ← w − lr·k·(d + ξ)            ξ ~ N(0, σ²);  w − lr·(d + k·ξ) if not protecting
    d = g                           UPGD: a step of SGD, weight decay in the gradient
    d = g, w ← (1 − lr·λ)·w         UPGDW: the decay apart from the gradient, before the step
    d = m̂/(√v̂ + ε), the same decay  AdaptiveUPGD: a step of AdamW

A gate of 1 is thus exactly the step of torch's SGD or AdamW. M is the largest |û| of all weights, of the tensor, or of the
unit. The paper divides û by the largest *uncorrected u*: 1000 times too small at the first step, which freezes half of the
weights and doubles the rate of the others, and below 0 where every utility is, which turns protection around.
`normaliser="reference"` keeps the first, to compare with; nothing keeps the second.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor

from quantail.errors import ConfigError
from quantail.optim.gates import Bucket, Largest, Number, add_product, half_gates, largest_utilities, per_agent, spread, trace
from quantail.optim.gating import DEFAULTS, Gating, check_group
from quantail.optim.noise import Tape

BLOCK = 1 << 17  # weights that a processor takes together: what it makes on the way stays in its cache
Owners = list[tuple[dict[str, Any], Tensor]]  # each parameter with its group


class UPGD(torch.optim.Optimizer):
    """SGD whose steps are gated by utility; weight decay belongs to the gradient, as torch's SGD has it."""

    moments: tuple[str, ...] = ()
    decoupled = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: Number = 1e-2,
        weight_decay: float = 0.0,
        **gating: Unpack[Gating],
    ) -> None:
        self._start(params, {"lr": lr, "weight_decay": weight_decay}, gating)

    def _start(self, params: Iterable[Any], own: dict[str, Any], gating: Gating) -> None:
        unknown = [name for name in gating if name not in DEFAULTS]
        if unknown:
            raise TypeError(f"{type(self).__name__} takes no {unknown[0]!r}; it takes {', '.join([*own, *DEFAULTS])}")
        self.tapes: dict[tuple[Any, ...], Tape] = {}
        super().__init__(params, {**own, **DEFAULTS, **gating})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Checks the group's settings; what it does not say is as for all."""
        super().add_param_group(param_group)
        try:
            check_group(self.param_groups[-1])
        except ConfigError:
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None, curvature: Sequence[Tensor] | None = None) -> Any:
        """One step; `curvature` has the diagonal of the Hessian for each parameter, in order: see `hutchinson`."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        owners = self._owners()
        here = [i for i, (_, p) in enumerate(owners) if p.grad is not None and p.numel()]
        self._count(owners, here)
        buckets = self._buckets(owners, here, curvature)
        for bucket in buckets:
            trace(bucket)
        largest = largest_utilities(buckets)
        for bucket in buckets:
            self._move(bucket, largest.get(bucket.kind))
        return loss

    @torch.no_grad()
    def gates(self) -> list[Tensor]:
        """k of every weight as the traces stand: a tensor for each parameter that had a gradient, in no particular order."""
        owners = self._owners()
        buckets = self._buckets(owners, [i for i, (_, p) in enumerate(owners) if p in self.state], None)
        largest = largest_utilities(buckets)
        return [2 * half for bucket in buckets for half in half_gates(bucket, largest.get(bucket.kind))]

    def _move(self, bucket: Bucket, largest: Largest | None) -> None:
        """Decay, direction, noise, gate; the gate is halved, so the step is doubled."""
        group, params, lr = bucket.group, bucket.params, bucket.group["lr"]
        halves = half_gates(bucket, largest)
        if self.decoupled and group["weight_decay"]:
            torch._foreach_mul_(params, bucket.scalar(1 - lr * group["weight_decay"]))
        direction, (shaken, size) = self._direction(bucket), (None, 0.0)
        if group["sigma"]:
            shaken, size = self._noise(bucket, direction)
        if not group["protecting"]:
            add_product(params, direction, None, -lr)
            direction = [] if shaken is None else list(torch._foreach_mul(shaken, size))
        elif shaken is not None and direction is bucket.grads:
            direction = list(torch._foreach_add(direction, shaken, alpha=size))
        elif shaken is not None:
            torch._foreach_add_(direction, shaken, alpha=size)
        if direction:
            add_product(params, direction, halves, -2 * lr)

    def _direction(self, bucket: Bucket) -> list[Tensor]:
        """What the learning rate multiplies: the gradient with its decay."""
        if not bucket.group["weight_decay"] or self.decoupled:
            return bucket.grads
        return list(torch._foreach_add(bucket.grads, bucket.params, alpha=bucket.group["weight_decay"]))

    def _noise(self, bucket: Bucket, direction: list[Tensor]) -> tuple[list[Tensor], float]:
        """The numbers of this step, in units of the direction's tracked size if asked, and what to multiply them by: ±σ."""
        group, step = bucket.group, bucket.step
        tape, shapes = self._tape(bucket), [p.shape for p in bucket.params]
        if isinstance(step, Tensor):
            shaken, sign = tape.gather(step, bucket.begins, shapes), 1.0
        else:
            shaken, sign = tape.read(step, bucket.begins, shapes)
        if group["noise"] == "tracked":
            beta, sizes = group["utility_beta"], bucket.state("size")
            for size, d in zip(sizes, direction, strict=True):
                size.lerp_(per_agent(d.square(), group, "mean"), 1 - beta)
            correction = bucket.scalar(bucket.correction(beta))
            shaken = [x * spread((size / correction).sqrt(), x) for x, size in zip(shaken, sizes, strict=True)]
        return shaken, sign * group["sigma"]

    # --- what is kept -----------------------------------------------------------------------------------------------------

    def _owners(self) -> Owners:
        return [(group, p) for group in self.param_groups for p in group["params"]]

    def _buckets(self, owners: Owners, here: list[int], curvature: Sequence[Tensor] | None) -> list[Bucket]:
        """These parameters, those together that can be."""
        if curvature is not None and len(curvature) != len(owners):
            raise ConfigError(f"curvature has {len(curvature)} tensors; needs one for each of {len(owners)} parameters")
        begins = list(itertools.accumulate((p.numel() for _, p in owners), initial=0))
        found: dict[tuple[Any, ...], list[int]] = {}
        filled = 0
        for i in here:
            group, p = owners[i]
            key = (id(group), p.device, p.dtype, id(self.state[p]["step"]), filled // BLOCK) if group["foreach"] else (i,)
            filled += p.numel() * (p.device.type == "cpu")
            found.setdefault(key, []).append(i)
        return [self._bucket(owners, begins, curvature, members) for members in found.values()]

    def _bucket(self, owners: Owners, begins: list[int], curvature: Sequence[Tensor] | None, members: list[int]) -> Bucket:
        group, params = owners[members[0]][0], [owners[i][1] for i in members]
        grads = [p.grad for p in params if p.grad is not None]
        if any(grad.is_sparse for grad in grads):
            raise ConfigError(f"{type(self).__name__} was given a sparse gradient; it needs dense ones: make the layer dense")
        step = self.state[params[0]]["step"]
        return Bucket(
            group=group, params=params, grads=grads,
            states=[self.state[p] for p in params], begins=[begins[i] for i in members],
            curvature=None if curvature is None else [curvature[i] for i in members],
            step=step if group["capturable"] else float(step),
        )  # fmt: skip

    def _count(self, owners: Owners, here: list[int]) -> None:
        """One more step for those that have a gradient. Those that always had one together share one counter."""
        absent = {id(self.state[p]["step"]) for _, p in owners if p.grad is None and p in self.state}
        fresh: dict[Any, Tensor] = {}
        for i in here:
            group, p = owners[i]
            state = self.state[p]
            if not state:
                key = p.device if group["capturable"] else None
                if key not in fresh:
                    fresh[key] = torch.zeros((), dtype=torch.float32, device=key or "cpu")
                state["step"] = fresh[key]
                state["utility"] = torch.zeros_like(p, memory_format=torch.preserve_format)
                state |= {name: torch.zeros_like(p, memory_format=torch.preserve_format) for name in self.moments}
            if group["noise"] == "tracked" and "size" not in state:
                state["size"] = p.new_zeros(p.shape[:1] if group["population"] else ())
            if (old := id(state["step"])) in absent:
                state["step"] = fresh.setdefault(old, state["step"].clone())
        for counter in {id(self.state[owners[i][1]]["step"]): self.state[owners[i][1]]["step"] for i in here}.values():
            counter += 1

    def _tape(self, bucket: Bucket) -> Tape:
        """The table that this bucket reads; made again if there are more weights now."""
        like, numbers = bucket.params[0], sum(p.numel() for group in self.param_groups for p in group["params"])
        key = (bucket.group["seed"], like.device, like.dtype)
        if key not in self.tapes or self.tapes[key].numbers < numbers:
            self.tapes[key] = Tape(bucket.group["seed"], numbers, like)
        return self.tapes[key]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.tapes = {}
        for group in self.param_groups:
            for name, value in DEFAULTS.items():
                group.setdefault(name, value)
        share_counters(self)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Copies what it is given, so that two optimizers never share a moment."""
        state = {i: {k: v.clone() for k, v in one.items()} for i, one in state_dict["state"].items()}
        super().load_state_dict({**state_dict, "state": state})


class UPGDW(UPGD):
    """SGD whose steps are gated by utility; weight decay apart from the gradient: w ← (1 − lr·λ)·w before the step."""

    decoupled = True

    def __init__(self, params: Iterable[Any], lr: Number = 1e-2, weight_decay: float = 1e-3, **gating: Unpack[Gating]) -> None:
        super().__init__(params, lr, weight_decay, **gating)


class AdaptiveUPGD(UPGD):
    """AdamW whose steps are gated by utility."""

    moments = ("exp_avg", "exp_avg_sq")
    decoupled = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: Number = 3e-4,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-5,
        weight_decay: float = 1e-3,
        **gating: Unpack[Gating],
    ) -> None:
        self._start(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, gating)

    def _direction(self, bucket: Bucket) -> list[Tensor]:
        """m̂/(√v̂ + ε), written m/(√v·c₁/√c₂ + ε·c₁) and all in one place: new memory is what costs on a processor.

        Where the step counts on a device it is 1/c₁·m/(√v/√c₂ + ε): a graph can multiply by what it holds there, not add it.
        """
        (beta1, beta2), eps = bucket.group["betas"], bucket.group["eps"]
        means, squares = bucket.state("exp_avg"), bucket.state("exp_avg_sq")
        torch._foreach_lerp_(means, bucket.grads, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, bucket.grads, bucket.grads, value=1 - beta2)
        first, second = bucket.correction(beta1), bucket.correction(beta2)
        roots = torch._foreach_sqrt(squares)
        counted = isinstance(first, Tensor)
        torch._foreach_mul_(roots, bucket.scalar((1.0 if counted else first) / second**0.5))
        torch._foreach_add_(roots, eps if counted else first * eps)
        torch._foreach_reciprocal_(roots)
        torch._foreach_mul_(roots, means)
        if counted:
            torch._foreach_mul_(roots, bucket.scalar(1 / first))
        return list(roots)


def share_counters(optimizer: torch.optim.Optimizer) -> None:
    """Parameters that have seen equally many steps count on one tensor again, as before they were saved."""
    shared: dict[tuple[Any, ...], Tensor] = {}
    for group in optimizer.param_groups:
        for p in group["params"]:
            if state := optimizer.state.get(p):
                place = p.device if group["capturable"] else torch.device("cpu")
                key = (place, float(state["step"]))
                state["step"] = shared.setdefault(key, state["step"].detach().to(place, torch.float32, copy=True))
