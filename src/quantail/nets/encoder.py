"""Observations of any space as one vector per row."""

import math
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from quantail.errors import ConfigError, InputError
from quantail.functional.checks import bad_shape, check_choice
from quantail.types import Box, Discrete, Group, MultiDiscrete, Observation, Space

ACTIVATIONS: Mapping[str, type[nn.Module]] = {
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "leaky_relu": nn.LeakyReLU,
}
CHANNELS = (16, 32, 32)  # of the three convolutions an image goes through, each halving its sides


class Encoder(nn.Module):
    """Observation [T, B, ...] -> [T, B, width]: an encoder for each part, their results side by side in the order of names."""

    def __init__(self, space: Space, sizes: Sequence[int], activation: str, ortho_init: bool = True) -> None:
        super().__init__()
        parts = sorted(space.parts) if isinstance(space, Group) else [("", space)]
        self.names = [name for name, _ in parts] if isinstance(space, Group) else None
        self.parts = nn.ModuleList(_part_encoder(part, sizes, activation, ortho_init) for _, part in parts)
        self.width = sum(cast(_Part, part).width for part in self.parts)

    def forward(self, obs: Observation) -> Tensor:
        if self.names is None:
            if not isinstance(obs, Tensor):
                raise InputError(f"obs is a {type(obs).__name__}; needs one tensor, for its space has no parts")
            whole: Tensor = self.parts[0]("obs", obs)
            return whole
        if not isinstance(obs, Mapping) or sorted(obs) != self.names:
            seen = sorted(obs) if isinstance(obs, Mapping) else type(obs).__name__
            raise InputError(f"obs has the parts {seen}; needs {self.names}")
        return torch.cat([part(f"obs[{name!r}]", obs[name]) for name, part in zip(self.names, self.parts, strict=True)], -1)


class _Part(nn.Module):
    """One part of an observation: its shape is checked, its content made real numbers, then an MLP."""

    def __init__(self, shape: tuple[int, ...], front: nn.Module, layers: nn.Sequential, width: int) -> None:
        super().__init__()
        self.shape = shape
        self.front = front
        self.layers = layers
        self.width = width
        self.register_buffer("unit", torch.ones(()), persistent=False)  # knows the dtype and device of the weights

    def forward(self, name: str, obs: Tensor) -> Tensor:
        if not isinstance(obs, Tensor):
            raise InputError(f"{name} is a {type(obs).__name__}; needs a torch.Tensor")
        if obs.ndim != 2 + len(self.shape) or tuple(obs.shape[2:]) != self.shape:
            bad_shape(name, obs, f"[time, environments{''.join(f', {n}' for n in self.shape)}]")
        encoded: Tensor = self.layers(self.front(obs).to(cast(Tensor, self.unit).dtype))
        return encoded


class _Flat(nn.Module):
    def __init__(self, axes: int) -> None:
        super().__init__()
        self.axes = axes

    def forward(self, obs: Tensor) -> Tensor:
        return obs.flatten(2) if self.axes else obs.unsqueeze(-1)


class _OneHot(nn.Module):
    """Indices [T, B] or [T, B, K] as a one for each choice; an index outside the space is all zeros."""

    def __init__(self, sizes: Sequence[int], single: bool) -> None:
        super().__init__()
        self.single = single
        self.register_buffer("choice", torch.cat([torch.arange(n) for n in sizes]), persistent=False)
        self.register_buffer("place", torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)), persistent=False)

    def forward(self, obs: Tensor) -> Tensor:
        if obs.dtype.is_floating_point or obs.dtype == torch.bool:
            raise InputError(f"obs is {obs.dtype}; needs whole numbers, the indices of the choices")
        index = obs.unsqueeze(-1) if self.single else obs
        return index.index_select(-1, cast(Tensor, self.place)).eq(cast(Tensor, self.choice))


class _Image(nn.Module):
    """Bytes [T, B, height, width, channels] -> three convolutions, each halving the sides -> [T, B, features]."""

    def __init__(self, shape: tuple[int, ...], activation: str, ortho_init: bool) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = shape[2]
        for width in CHANNELS:
            convolution = nn.Conv2d(channels, width, 3, stride=2, padding=1)
            initialize(convolution, math.sqrt(2), ortho_init)
            layers += [convolution, ACTIVATIONS[activation]()]
            channels = width
        self.layers = nn.Sequential(*layers)
        sides = [math.ceil(side / 2 ** len(CHANNELS)) for side in shape[:2]]
        self.features = channels * sides[0] * sides[1]

    def forward(self, obs: Tensor) -> Tensor:
        weight = cast(nn.Conv2d, self.layers[0]).weight
        image = obs.flatten(0, 1).movedim(-1, -3).to(weight.dtype) / 255
        features: Tensor = self.layers(image).flatten(1)
        return features.reshape(*obs.shape[:2], -1)


def mlp(inputs: int, sizes: Sequence[int], activation: str, ortho_init: bool = True) -> nn.Sequential:
    """Linear layers of these sizes, the activation after each, gain √2.  [..., inputs] -> [..., sizes[-1]]."""
    check_choice("activation", activation, tuple(ACTIVATIONS))
    layers: list[nn.Module] = []
    for size in sizes:
        layers += [linear(inputs, size, math.sqrt(2), ortho_init), ACTIVATIONS[activation]()]
        inputs = size
    return nn.Sequential(*layers)


def linear(inputs: int, outputs: int, gain: float, ortho_init: bool = True) -> nn.Linear:
    """A linear layer with orthogonal weights W·Wᵀ = gain² (Saxe et al. 2014), zero bias.  [..., inputs] -> [..., outputs]."""
    layer = nn.Linear(inputs, outputs)
    initialize(layer, gain, ortho_init)
    return layer


def initialize(layer: nn.Linear | nn.Conv2d, gain: float, ortho_init: bool) -> None:
    """Orthogonal weights and zero bias, or torch's own start."""
    if ortho_init and layer.weight.numel():
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(cast(Tensor, layer.bias))


def _part_encoder(space: Box | Discrete | MultiDiscrete, sizes: Sequence[int], activation: str, ortho_init: bool) -> _Part:
    check_choice("activation", activation, tuple(ACTIVATIONS))
    match space:
        case Box(shape=(_, _, _), dtype="uint8"):
            front: nn.Module = _Image(space.shape, activation, ortho_init)
            shape, features = space.shape, cast(_Image, front).features
        case Box():
            shape, features = space.shape, math.prod(space.shape)
            front = _Flat(len(shape))
        case Discrete(n):
            front, shape, features = _OneHot((n,), single=True), (), n
        case MultiDiscrete(choices):
            front, shape, features = _OneHot(choices, single=False), (len(choices),), sum(choices)
        case _:
            raise ConfigError(f"observation space {space!r} is not known; use Box, Discrete, MultiDiscrete or a Group of these")
    layers = mlp(features, sizes, activation, ortho_init)
    return _Part(shape, front, layers, sizes[-1] if sizes else features)
