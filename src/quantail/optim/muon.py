"""Muon at a rate that lies on a device."""

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch.optim import Muon
else:
    Muon = getattr(torch.optim, "Muon", torch.optim.Optimizer)  # torch has it since 2.9


class MuonOnDevice(Muon):
    """torch's Muon with rates that are tensors: torch reads them on the host, and a captured graph would keep them for ever.

    Its step is linear in the rate. So it is taken at a rate of 1, decay included, and of that way w goes the share lr.
    """

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        rates = [group["lr"] for group in self.param_groups]
        before = [[p.clone() for p in group["params"]] for group in self.param_groups]
        for group in self.param_groups:
            group["lr"] = 1.0
        super().step()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        for group, rate, kept in zip(self.param_groups, rates, before, strict=True):
            group["lr"] = rate
            for p, old in zip(group["params"], kept, strict=True):
                p.copy_(old.lerp(p, rate.to(p.dtype)))
        return loss
