"""A step that a flag on the device allows or forbids: without it neither weights nor moments nor counters move."""

from collections.abc import Callable, Hashable, Sequence

import torch
from torch import Tensor

from quantail.functional.checks import free_to_look
from quantail.optim.joint import members_of, scaler_of


def step_if(go: Tensor, optimizer: torch.optim.Optimizer, params: Sequence[Tensor], before: Callable[[], None]) -> None:
    """`before`, which may touch gradients and what is measured of them, then the optimizer's step; all of it or nothing.

    Where the flag can be read for nothing it is. Elsewhere torch's fused optimizers skip their step by themselves, and for
    all others what they move is kept and, where the flag forbids, put back.
    """
    if free_to_look(go):
        if bool(go):
            before()
            _step(optimizer)
        return
    with torch.no_grad():
        if _skips_by_itself(optimizer):
            before()
            optimizer.grad_scale, optimizer.found_inf = None, (~go).float()  # type: ignore[attr-defined]  # read by torch's step
            optimizer.step()
            optimizer.found_inf = None  # type: ignore[attr-defined]  # who steps without a flag is not held by this one
            return
        places = _places(optimizer, params)
        kept = {id(x): (x, x.clone()) for x in places.values()}
        before()
        _step(optimizer)
        for x, place in {id(x): (x, place) for place, x in _places(optimizer, params).items()}.values():
            if place in places:  # also where another tensor has taken its place: a counter that was shared until now
                x.copy_(torch.where(go, x, kept[id(places[place])][1]))
            else:  # moments that this step began start at 0
                x.masked_fill_(~go, 0.0)


def moved_by(optimizer: torch.optim.Optimizer, params: Sequence[Tensor]) -> list[Tensor]:
    """Everything that a step changes, each tensor once."""
    return list({id(x): x for x in _places(optimizer, params).values()}.values())


def _places(optimizer: torch.optim.Optimizer, params: Sequence[Tensor]) -> dict[Hashable, Tensor]:
    """Where what a step changes is kept; a tensor may have several places."""
    found: dict[Hashable, Tensor] = {("weight", i): p for i, p in enumerate(params)}
    for member in members_of(optimizer):
        for p, state in member.state.items():
            found |= {(id(p), name): x for name, x in state.items() if isinstance(x, Tensor)}
    scaler = scaler_of(optimizer)
    return found if scaler is None else found | {("measured", name): x for name, x in scaler.memory.items()}


def _step(optimizer: torch.optim.Optimizer) -> None:
    scaler = scaler_of(optimizer)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)


def _skips_by_itself(optimizer: torch.optim.Optimizer) -> bool:
    """torch's fused optimizers read `found_inf` as they do for a gradient scaler of mixed precision."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False)) and scaler_of(optimizer) is None
