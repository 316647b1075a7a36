"""From an observation to what the memory says of it: standardisation, encoder, one row of the recurrent layers."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch

from quantail.config import InputConfig
from quantail.errors import ConfigError
from quantail.export.graph import Graph, index, number
from quantail.functional.moments import ROUNDING
from quantail.intake import ObservationMoments
from quantail.nets.agent import Trunk
from quantail.types import Box, Discrete, Group, MultiDiscrete, Space


def parts_of(space: Space) -> dict[str, Space]:
    """Each part by name, in the order in which an encoder reads them; "" where there are no parts."""
    return dict(sorted(space.parts)) if isinstance(space, Group) else {"": space}


def input_name(part: str) -> str:
    """What the graph calls a part of the observation."""
    return f"observation.{part}" if part else "observation"


def observed(write: Graph, space: Space, moments: ObservationMoments, config: InputConfig) -> dict[str, str]:
    """The inputs of each part; real ones in units of what was seen, in float64 as `functional.moments.standardize` does."""
    found = {}
    for name, part in parts_of(space).items():
        shape = {Box: "shape", MultiDiscrete: "sizes"}.get(type(part), "")
        sizes: Sequence[int] = getattr(part, shape) if shape == "shape" else [len(getattr(part, shape))] if shape else []
        x = write.input(input_name(name), part.dtype if isinstance(part, Box) else "int64", ["batch", *sizes])
        if name in moments and config.normalize_observations:
            seen = moments[name]
            std = seen.variance.sqrt()
            moves = std > ROUNDING * seen.mean.abs()
            scaled = write("Div", write("Sub", write.cast(x, "float64"), seen.mean), std.where(moves, 1.0))
            scaled = write("Where", moves, scaled, torch.zeros((), dtype=torch.float64))
            x = write(
                "Clip", write.cast(scaled, "float32"), number(-config.clip_observations), number(config.clip_observations)
            )
        found[name] = x
    return found


def encoded(write: Graph, trunk: Trunk, seen: Mapping[str, str], space: Space) -> str:
    """Each part through its own layers, their results side by side."""
    sides = []
    for (name, part), encoder in zip(parts_of(space).items(), trunk.encoder.parts, strict=True):
        x = seen[name]
        match part:
            case Box(shape=(_, _, _), dtype="uint8"):
                image = write("Transpose", write("Div", write.cast(x, "float32"), number(255.0)), perm=[0, 3, 1, 2])
                flat = write("Flatten", write.layers(cast(Any, encoder.front).layers, image))
            case Box():
                flat = write.cast(write("Flatten", x), "float32")
            case Discrete(n):
                flat = one_hot(write, write("Unsqueeze", x, index(-1)), (n,))
            case MultiDiscrete(sizes):
                flat = one_hot(write, x, sizes)
            case _:
                raise ConfigError(f"observations of {part!r} cannot be exported; use Box, Discrete or MultiDiscrete")
        sides.append(write.layers(cast(Any, encoder.layers), flat))
    return sides[0] if len(sides) == 1 else write("Concat", *sides, axis=-1)


def one_hot(write: Graph, x: str, sizes: Sequence[int]) -> str:
    """Indices [B, K] as a one for each choice, [B, ΣK]."""
    place = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    choice = torch.cat([torch.arange(n) for n in sizes])
    return write.cast(write("Equal", write("Gather", x, place, axis=1), choice), "float32")


def remembered(write: Graph, trunk: Trunk, x: str, start: str, first: int) -> str:
    """What the memory makes of a row; states come in as memory_i, i from `first` on, and go out as memory_i_after."""
    memory = trunk.memory
    if not memory.states:
        return x
    shape: list[int | str] = [memory.depth, "batch", memory.width]
    before = [write.input(f"memory_{first + i}", "float32", shape) for i in range(memory.states)]
    empty = write("Unsqueeze", start, index(-1))
    after: list[list[str]] = [[] for _ in before]
    for depth, layer in enumerate(memory.layers):
        own = [write("Gather", one, torch.tensor(depth), axis=0) for one in before]
        own = [write("Where", empty, number(0.0), one) for one in own]  # what a start discards may be anything
        states = ROWS[memory.kind](write, layer, x, own)
        x = states[0]
        for rows, state in zip(after, states, strict=True):
            rows.append(write("Unsqueeze", state, index(0)))
    for i, rows in enumerate(after):
        write.output(f"memory_{first + i}_after", write("Concat", *rows, axis=0), shape)
    return x


def _lstm(write: Graph, layer: Any, x: str, states: Sequence[str]) -> list[str]:
    """One row of `kernels.lstm`: h and c."""
    h, c = states
    gates = write("Add", write.affine(x, layer.w_x, layer.b), write("MatMul", h, layer.w_h.T))
    i, f, g, o = write.several("Split", gates, axis=-1, outputs=4)
    new = write("Mul", write("Sigmoid", i), write("Tanh", g))
    c = write("Add", write("Mul", write("Sigmoid", f), c), new)
    return [write("Mul", write("Sigmoid", o), write("Tanh", c)), c]


def _gru(write: Graph, layer: Any, x: str, states: Sequence[str]) -> list[str]:
    """One row of `kernels.gru`: h."""
    (h,) = states
    own = torch.cat([torch.zeros(2 * len(layer.b_hn)), layer.b_hn])  # of r and z the bias is with the input
    r_x, z_x, n_x = write.several("Split", write.affine(x, layer.w_x, layer.b), axis=-1, outputs=3)
    r_h, z_h, n_h = write.several("Split", write.affine(h, layer.w_h, own), axis=-1, outputs=3)
    r, z = write("Sigmoid", write("Add", r_x, r_h)), write("Sigmoid", write("Add", z_x, z_h))
    n = write("Tanh", write("Add", n_x, write("Mul", r, n_h)))
    return [write("Add", n, write("Mul", z, write("Sub", h, n)))]


def _mingru(write: Graph, layer: Any, x: str, states: Sequence[str]) -> list[str]:
    """One row of `kernels.scan.mingru_sequence`: h."""
    (h,) = states
    gate, candidate = write.several("Split", write.affine(x, layer.w_x, layer.b), axis=-1, outputs=2)
    kept = write("Mul", write("Sigmoid", write("Neg", gate)), h)
    return [write("Add", kept, write("Mul", write("Sigmoid", gate), candidate))]


ROWS = {"lstm": _lstm, "gru": _gru, "mingru": _mingru}
