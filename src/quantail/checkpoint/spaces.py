"""Spaces as plain values and back, and in a few words for messages."""

import math
from collections.abc import Mapping
from typing import Any

from quantail.types import Box, Discrete, Group, MultiDiscrete, Space


def space_to(space: Space) -> dict[str, Any]:
    """A space as nested plain values; equal spaces give equal values."""
    match space:
        case Box():
            low, high = (_side(side, space.shape) for side in (space.low, space.high))
            return {"kind": "Box", "shape": list(space.shape), "low": low, "high": high, "dtype": space.dtype}
        case Discrete():
            return {"kind": "Discrete", "n": space.n}
        case MultiDiscrete():
            return {"kind": "MultiDiscrete", "sizes": list(space.sizes)}
        case Group():
            return {"kind": "Group", "parts": [[name, space_to(part)] for name, part in space.parts]}


def space_from(plain: Mapping[str, Any]) -> Space:
    """The inverse of `space_to`."""
    match plain["kind"]:
        case "Box":
            low, high = (tuple(side) if isinstance(side, list) else float(side) for side in (plain["low"], plain["high"]))
            return Box(tuple(plain["shape"]), low, high, plain["dtype"])
        case "Discrete":
            return Discrete(plain["n"])
        case "MultiDiscrete":
            return MultiDiscrete(tuple(plain["sizes"]))
        case "Group":
            return Group(tuple((name, space_from(part)) for name, part in plain["parts"]))  # type: ignore[misc]
    raise ValueError(f"{plain['kind']!r} is no kind of space")


def described(space: Space) -> str:
    """A space in a few words."""
    match space:
        case Box():
            ends = (_side(side, space.shape) for side in (space.low, space.high))
            low, high = (f"{side:g}" if isinstance(side, float) else str([round(x, 4) for x in side]) for side in ends)
            return f"Box{list(space.shape)} of {space.dtype} from {low} to {high}"
        case Discrete():
            return f"Discrete({space.n})"
        case MultiDiscrete():
            return f"MultiDiscrete({list(space.sizes)})"
        case Group():
            return f"Group({', '.join(f'{name}: {described(part)}' for name, part in space.parts)})"


def _side(side: float | tuple[float, ...], shape: tuple[int, ...]) -> float | list[float]:
    """One bound: a number where all entries share it, else one for each."""
    values = [float(side)] * max(math.prod(shape), 1) if isinstance(side, int | float) else [float(x) for x in side]
    return values[0] if values and all(x == values[0] for x in values) else values
