"""A step that a flag on the device allows or forbids: without it neither weights nor moments nor counters move."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from quantail.functional.checks import free_to_look
from quantail.optim.joint import Joint, scaler_of


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
            return
        moving = moved_by(optimizer, params)
        kept = [x.clone() for x in moving]
        before()
        _step(optimizer)
        for x, old in zip(moving, kept, strict=True):
            x.copy_(torch.where(go, x, old))
        known = set(map(id, moving))
        for x in moved_by(optimizer, params):  # moments that this step began start at 0
            if id(x) not in known:
                x.masked_fill_(~go, 0.0)


def moved_by(optimizer: torch.optim.Optimizer, params: Sequence[Tensor]) -> list[Tensor]:
    """Everything that a step changes, each tensor once."""
    members = optimizer.members if isinstance(optimizer, Joint) else [optimizer]
    states = [state for member in members for state in member.state.values()]
    found = [*params, *(x for state in states for x in state.values() if isinstance(x, Tensor))]
    scaler = scaler_of(optimizer)
    found += [] if scaler is None else list(scaler.memory.values())
    return list({id(x): x for x in found}.values())


def _step(optimizer: torch.optim.Optimizer) -> None:
    scaler = scaler_of(optimizer)
    if scaler is None:
        optimizer.step()
    else:
        scaler.step(optimizer)


def _skips_by_itself(optimizer: torch.optim.Optimizer) -> bool:
    """torch's fused optimizers read `found_inf` as they do for a gradient scaler of mixed precision."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False)) and scaler_of(optimizer) is None
