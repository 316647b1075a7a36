"""Value heads: one or two critics, each a number, a set of quantiles or a law on atoms, in normalised units."""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from quantail.config import CriticConfig, NetConfig
from quantail.errors import InputError
from quantail.functional.categorical import support
from quantail.functional.moments import popart_rescale
from quantail.functional.quantile import midpoint_levels, sort_quantiles, tail_levels
from quantail.nets.encoder import linear, mlp
from quantail.types import Law, Scale

VALUE_GAIN = 1.0


class ValueHeads(nn.Module):
    """The last layer of each critic: latents, one [..., D] for each critic -> outputs [C, ..., N]."""

    def __init__(self, widths: Sequence[int], critic: CriticConfig, ortho_init: bool = True) -> None:
        super().__init__()
        self.kind = critic.kind
        self.count = len(widths)
        self.noncrossing = critic.noncrossing and critic.kind == "quantile"
        self.sorting = critic.sorting and critic.kind == "quantile"
        atoms = critic.size
        self.heads = nn.ModuleList(linear(width, atoms, VALUE_GAIN, ortho_init) for width in widths)
        levels = tail_levels if critic.levels == "tail" and critic.kind == "quantile" else midpoint_levels
        # Kept in float64, handed out in the dtype of the weights: a float64 agent has float64 levels.
        taus, masses = levels(atoms, dtype=torch.float64)
        width = critic.support_width
        grid = support(-width, width, atoms, dtype=torch.float64) if critic.kind == "categorical" else torch.zeros(1)
        if critic.kind == "categorical":
            self._start_normal(grid)
        probits = math.sqrt(2) * torch.erfinv(2 * taus - 1)
        self.register_buffer("exact_taus", taus, persistent=False)
        self.register_buffer("exact_masses", masses, persistent=False)
        self.register_buffer("exact_atoms", grid.double(), persistent=False)
        self.register_buffer("exact_gaps", probits.diff(), persistent=False)
        if self.noncrossing:  # the affine that a change of units is folded into: no weight of a softplus can hold it
            self.register_buffer("gain", torch.ones(self.count))
            self.register_buffer("shift", torch.zeros(self.count))

    @torch.no_grad()
    def _start_normal(self, atoms: Tensor) -> None:
        """Let a categorical critic begin near the standard normal law, in normalised units.

        Equal logits say a law of 2.9 deviations on ±5: drawn from for the first targets, it would widen the atoms for good.
        """
        for head in self.heads:
            cast(nn.Linear, head).bias.copy_(-0.5 * atoms.square())

    @property
    def taus(self) -> Tensor:
        """[N] levels of a quantile critic."""
        return self._cast(self.exact_taus)

    @property
    def masses(self) -> Tensor:
        """[N] cell masses of a quantile critic's levels."""
        return self._cast(self.exact_masses)

    @property
    def levels(self) -> Tensor:
        """[N] levels of a quantile critic, float64."""
        return cast(Tensor, self.exact_taus)

    @property
    def atoms(self) -> Tensor:
        """[N] atoms of a categorical critic, in normalised units."""
        return self._cast(self.exact_atoms)

    def forward(self, latents: Sequence[Tensor]) -> Tensor:
        if len(latents) != self.count:
            raise InputError(f"latents has {len(latents)} tensors; needs {self.count}, one for each critic")
        raw = torch.stack([head(latent) for head, latent in zip(self.heads, latents, strict=True)])
        if self.sorting:  # after the head: an affine change of units passes through it
            return sort_quantiles(raw)
        return self._uncross(raw) if self.noncrossing else raw

    def law(self, outputs: Tensor) -> Law:
        """The law each critic predicts: outputs [..., N] -> locations and masses, in normalised units."""
        if self.kind == "categorical":
            return Law(self.atoms, outputs.softmax(-1))
        return Law(outputs, self.masses)

    def mean(self, outputs: Tensor) -> Tensor:
        """The value each critic predicts: outputs [..., N] -> [...]."""
        law = self.law(outputs)
        return (law.locations * law.masses).sum(-1)

    @torch.no_grad()
    def rescale_(self, old: Scale, new: Scale) -> None:
        """Change the units of the outputs and keep what they say in raw units (PopArt; van Hasselt et al. 2016).

        A categorical critic keeps its atoms where they are, in normalised units: its laws move with the units.
        """
        if self.kind == "categorical":
            return
        if self.noncrossing:
            gain, shift = cast(Tensor, self.gain), cast(Tensor, self.shift)
            moved, offset = popart_rescale(gain[:, None], shift, old, new)
            gain.copy_(moved[:, 0])
            shift.copy_(offset)
            return
        for head in self.heads:
            layer = cast(nn.Linear, head)
            weight, bias = popart_rescale(layer.weight, layer.bias, old, new)
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)

    def _uncross(self, raw: Tensor) -> Tensor:
        """Mean plus steps that never go down: θ_i = gain·(x_0 + s_i − E[s]) + shift, s_i = Σ_{j≤i} gap_j·softplus(x_j)/ln 2.

        At x = 0 the law is the standard normal's, for the gaps are its.
        """
        steps = self._cast(self.exact_gaps) * nn.functional.softplus(raw[..., 1:]) / math.log(2)
        shape = nn.functional.pad(steps.cumsum(-1), (1, 0))
        quantiles = raw[..., :1] + shape - (shape * self.masses).sum(-1, keepdim=True)
        axes = (self.count, *[1] * (raw.ndim - 1))
        return cast(Tensor, self.gain).view(axes) * quantiles + cast(Tensor, self.shift).view(axes)

    def _cast(self, exact: Tensor | nn.Module) -> Tensor:
        return cast(Tensor, exact).to(cast(nn.Linear, self.heads[0]).weight.dtype)


class CostHead(nn.Module):
    """The critic of the charges for risk: hidden layers, then one number, in units of its own.  [..., D] -> [...]."""

    def __init__(self, width: int, net: NetConfig) -> None:
        super().__init__()
        self.hidden = mlp(width, net.critic_sizes, net.activation, net.ortho_init)
        self.head = linear([width, *net.critic_sizes][-1], 1, VALUE_GAIN, net.ortho_init)

    def forward(self, latent: Tensor) -> Tensor:
        cost: Tensor = self.head(self.hidden(latent))[..., 0]
        return cost

    @torch.no_grad()
    def rescale_(self, old: Scale, new: Scale) -> None:
        """Change the units of the output and keep what it says (PopArt; van Hasselt et al. 2016)."""
        weight, bias = popart_rescale(self.head.weight, self.head.bias, old, new)
        self.head.weight.copy_(weight)
        self.head.bias.copy_(bias)
