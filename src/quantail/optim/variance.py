"""How noisy is the gradient? The noise-to-signal ratio ρ = tr Cov(g)/|E g|², and shorter steps where it is large.

    factor f = max(floor, 1/(1 + alpha·min(ρ, cap)))           1 during the warm-up

`elementwise` keeps mean and variance of every gradient element over time (Welford's recursion, started at g₁, with the weight
of a new gradient r = max(1/t, 1 − decay)):

    δ = g − m;  m ← m + r·δ;  v ← (1 − r)·(v + r·δ²);  q ← (1 − r)²·q + r², the sum of squared weights, 1 at first
    σ² = v/(1 − q), for E v = (1 − q)·σ²;  |E g|² = m² − q·σ², for E m² = (E g)² + q·σ²
    ρ = Σσ²/Σ|E g|² of a tensor; of all tensors the 90th percentile

`two_batch` keeps two numbers: k micro-batches with gradients gᵢ (their sum is the batch's G) and shares sᵢ of its rows
scatter by

    S/B = (Σ|gᵢ|²/sᵢ − |G|²)/(k − 1),  |E g|² = |G|² − S/B,  ρ = EMA(S/B)/EMA(|E g|²)   (McCandlish et al. 2018)

Both are 0 for a constant gradient and see noise that cancels in the mean. They differ in what they call noise: the first also
what moves because the weights do. What is measured is the raw gradient, accumulated, before any scaling and clipping.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict, Unpack

import torch
from torch import Tensor

from quantail.errors import ConfigError
from quantail.optim.gates import spread
from quantail.optim.gating import check_agents
from quantail.settings import check_choice, check_within

ESTIMATORS = ("elementwise", "two_batch")
TARGETS = ("step", "gradient")
PERCENTILE = 0.9
TINY = 1e-300  # of a signal, in float64
LARGEST = 1e9
SMALLEST_SHARE = 1e-12  # a part without rows has no gradient either


class Scaling(TypedDict, total=False):
    """What is done about the noise."""

    apply_to: str  # step: everything that the step changes is shortened; gradient: the gradient is, before clipping
    alpha: float  # 0.1: how strongly
    decay: float  # 0.99: of the memory
    warmup: int  # 100: so many measurements change nothing
    floor: float  # 0.1: f never falls below
    cap: float  # 50: what ρ counts for at most
    population: bool  # False; the first axis of every parameter counts agents, each with a ratio of its own


DEFAULTS = Scaling(apply_to="step", alpha=0.1, decay=0.99, warmup=100, floor=0.1, cap=50.0, population=False)


class Parts(NamedTuple):
    """Micro-batches so far."""

    before: list[Tensor]  # their gradients' sum
    scatter: Tensor | None  # Σ|gᵢ|²/sᵢ
    number: int


NO_PARTS = Parts([], None, 0)


class VarianceScaler:
    """Measures gradients and shortens steps.

    After each backward: `observe`, then `scale_gradients`, clip, and `step(optimizer)` in place of `optimizer.step()`. For
    `two_batch`, `add_part` after the backward of each micro-batch. Nothing here waits for a device.
    """

    def __init__(self, params: Iterable[Tensor], estimator: str = "elementwise", **scaling: Unpack[Scaling]) -> None:
        unknown = [name for name in scaling if name not in DEFAULTS]
        if unknown:
            raise TypeError(f"VarianceScaler takes no {unknown[0]!r}; it takes estimator, {', '.join(DEFAULTS)}")
        self.params, self.estimator, self.scaling = list(params), estimator, Scaling(**{**DEFAULTS, **scaling})
        check_scaling(estimator, self.scaling)
        check_measured(self.params, self.scaling)
        self.parts = NO_PARTS
        self.memory = self._nothing()

    # --- measuring --------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def add_part(self, share: float | Tensor) -> None:
        """`two_batch`: the gradient now holds one more micro-batch, with this share of the batch's rows."""
        before, now = self.parts.before, self._gradients()
        own = self._sum([(g - b).square() for g, b in zip(now, before, strict=True)] if before else [g.square() for g in now])
        own = own / torch.as_tensor(share, dtype=torch.float64).clamp_min(SMALLEST_SHARE)
        scatter = own if self.parts.scatter is None else self.parts.scatter + own
        self.parts = Parts([g.clone() for g in now], scatter, self.parts.number + 1)

    def parts_of_a_batch(self) -> Callable[[Tensor], None] | None:
        """A new batch begins; what has to be told of its parts, if anything."""
        self.parts = NO_PARTS
        return self.add_part if self.estimator == "two_batch" else None

    @torch.no_grad()
    def observe(self) -> None:
        """Measure the gradient of the whole batch, before it is scaled or clipped. One part alone tells `two_batch` nothing."""
        if self.estimator == "two_batch":
            _, scatter, count = self.parts
            self.parts = NO_PARTS
            if scatter is None:
                raise ConfigError("two_batch was told of no micro-batch; call add_part after the backward of each")
            if count < 2:
                return
            whole = self._sum([g.square() for g in self._gradients()])
            noise = (scatter - whole) / (count - 1)
            self.observe_pair(noise, whole - noise)
            return
        memory, gradients = self.memory, self._gradients()
        rate = self._count()
        memory["weight"].copy_((1 - rate).square() * memory["weight"] + rate.square())
        for i, g in enumerate(gradients):
            mean, variance, r = memory[f"mean_{i}"], memory[f"variance_{i}"], rate.to(g.dtype)
            delta = g - mean
            mean.addcmul_(delta, r)
            variance.addcmul_(delta.square_(), r).mul_(1 - r)

    @torch.no_grad()
    def observe_pair(self, noise: Tensor, signal: Tensor) -> None:
        """`two_batch` from outside: unbiased estimates of tr Cov(g) and |E g|², [] or [P]."""
        rate = self._count()
        for name, value in (("noise", noise), ("signal", signal)):
            self.memory[name].lerp_(value.double(), rate)

    @torch.no_grad()
    def ratio(self) -> Tensor:
        """ρ so far, [] or [P] float64; at most LARGEST, where no signal is left."""
        memory = self.memory
        if self.estimator == "two_batch":
            return _ratio(memory["noise"], memory["signal"])
        q, ratios = memory["weight"], []
        for i in range(len(self.params)):
            noise = self._sum([memory[f"variance_{i}"]]) / (1 - q).clamp_min(TINY)
            ratios.append(_ratio(noise, self._sum([memory[f"mean_{i}"].square()]) - q * noise))
        ordered, place = torch.stack(ratios).sort(0).values, PERCENTILE * (len(ratios) - 1)
        below, above = ordered[int(place)], ordered[min(int(place) + 1, len(ratios) - 1)]
        return below + (place - int(place)) * (above - below)

    def factor(self) -> Tensor:
        """f, [] or [P] float64."""
        wanted = 1 / (1 + self.scaling["alpha"] * self.ratio().clamp_max(self.scaling["cap"]))
        wanted = wanted.clamp_min(self.scaling["floor"])
        return torch.where(self.memory["count"] <= self.scaling["warmup"], torch.ones_like(wanted), wanted)

    # --- acting -----------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def scale_gradients(self) -> Tensor:
        """g ← f·g, if that is what the factor applies to; and by what it was multiplied."""
        factor = self.factor()
        if self.scaling["apply_to"] == "step":
            return torch.ones_like(factor)
        for p in self.params:
            if p.grad is not None:
                p.grad.mul_(spread(factor, p).to(p.dtype))
        return factor

    @torch.no_grad()
    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer's step at the learning rate lr·f: steps are linear in the rate, so w ← w + f·(w′ − w) is that step."""
        if self.scaling["apply_to"] == "gradient":
            optimizer.step()
            return
        before, factor = [p.clone() for p in self.params], self.factor()
        optimizer.step()
        for p, old in zip(self.params, before, strict=True):
            p.lerp_(old, spread(1 - factor, p).to(p.dtype))

    # --- memory -----------------------------------------------------------------------------------------------------------

    def relink(self, params: Iterable[Tensor]) -> None:
        """Measure these from now on. Where they are of the same kind as before, what is known stays; else it begins anew."""
        before = [(p.shape, p.dtype, p.device) for p in self.params]
        self.params, self.parts = list(params), NO_PARTS
        if [(p.shape, p.dtype, p.device) for p in self.params] != before:
            self.memory = self._nothing()

    def state_dict(self) -> dict[str, Any]:
        """All that is known, as copies."""
        return {"estimator": self.estimator, **{name: value.clone() for name, value in self.memory.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        kept = {name: value for name, value in state.items() if name != "estimator"}
        shapes = {name: value.shape for name, value in kept.items()}
        own = {name: value.shape for name, value in self.memory.items()}
        if state.get("estimator") != self.estimator or shapes != own:
            raise ConfigError(
                f"the state of a {state.get('estimator')} scaler of {len(kept)} tensors does not fit this one, "
                f"{self.estimator} of {len(own)}; use the estimator and the parameters it was saved with"
            )
        for name, value in kept.items():
            self.memory[name].copy_(value)

    def _nothing(self) -> dict[str, Tensor]:
        """Nothing seen yet."""
        first = self.params[0]
        scalar = torch.zeros((), dtype=torch.float64, device=first.device)
        each = scalar.expand(first.shape[:1]) if self.scaling["population"] else scalar
        if self.estimator == "two_batch":
            return {"count": scalar, "noise": each.clone(), "signal": each.clone()}
        moments = {f"{name}_{i}": torch.zeros_like(p) for i, p in enumerate(self.params) for name in ("mean", "variance")}
        return {"count": scalar, "weight": scalar.clone(), **{name: x.detach() for name, x in moments.items()}}

    def _count(self) -> Tensor:
        """One more; and how much it weighs."""
        self.memory["count"] += 1
        return (1 / self.memory["count"]).clamp_min(1 - self.scaling["decay"])

    def _gradients(self) -> list[Tensor]:
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in self.params]

    def _sum(self, tensors: list[Tensor]) -> Tensor:
        """Over everything, or everything of each agent."""
        lead = int(self.scaling["population"])
        return torch.stack(
            [x.flatten(lead).sum(-1, dtype=torch.float64) if x.ndim > lead else x.double() for x in tensors]
        ).sum(0)


def check_scaling(estimator: str, scaling: Scaling) -> None:
    """Refuse what makes no sense."""
    check_choice("estimator", estimator, ESTIMATORS)
    check_choice("apply_to", scaling["apply_to"], TARGETS)
    check_within("alpha", scaling["alpha"], 0.0)
    check_within("decay", scaling["decay"], 0.0, 1.0, high_open=True)
    check_within("warmup", scaling["warmup"], 0)
    check_within("floor", scaling["floor"], 0.0, 1.0, low_open=True)
    check_within("cap", scaling["cap"], 0.0, low_open=True)


def check_measured(params: Sequence[Tensor], scaling: Scaling) -> None:
    """Refuse parameters whose gradients have no ratio."""
    if not params:
        raise ConfigError("VarianceScaler was given no parameter; pass those that the optimizer steps")
    if scaling["population"]:
        check_agents(params)


def _ratio(noise: Tensor, signal: Tensor) -> Tensor:
    """noise/signal where there is a signal."""
    return (noise.clamp_min(0.0) / signal.clamp_min(TINY)).clamp_max(LARGEST)
