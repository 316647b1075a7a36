"""Integrals and roots that the optima need, in float64: how exact they are decides how exact an optimum is."""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

INNER_NODES = 32  # Gauss points per piece; exact for polynomials of degree 63
TAIL = 9.0  # standard deviations beyond which a normal law has no mass that float64 could add: 1e-19


def nodes(low: float, high: float, piece: float) -> tuple[Tensor, Tensor]:
    """Points and weights of ∫_low^high: Gauss–Legendre on equal pieces no longer than `piece`."""
    count = max(1, math.ceil((high - low) / piece))
    unit, weight = np.polynomial.legendre.leggauss(INNER_NODES)
    half = (high - low) / (2 * count)
    middles = low + half * (2 * np.arange(count) + 1)
    points = (middles[:, None] + half * unit).reshape(-1)
    return torch.from_numpy(points), torch.from_numpy(np.tile(half * weight, count))


def normal_nodes() -> tuple[Tensor, Tensor]:
    """Points and weights of E g(z), z standard normal."""
    points, weights = nodes(-TAIL, TAIL, 1.5)
    return points, weights * density(points)


def density(z: Tensor) -> Tensor:
    """Of the standard normal law: φ(z)."""
    return torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)


def cdf(z: Tensor) -> Tensor:
    """Of the standard normal law: Φ(z)."""
    chance: Tensor = torch.special.ndtr(z)
    return chance


def root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function crosses 0, by bisection; the nearer end if it does not cross inside."""
    if rising(low) >= 0:
        return low
    if rising(high) <= 0:
        return high
    while (middle := 0.5 * (low + high)) not in (low, high):
        low, high = (low, middle) if rising(middle) >= 0 else (middle, high)
    return middle


def lowest(convex: Callable[[float], float], low: float, high: float) -> float:
    """Where a convex function is least, by golden section; right to half the digits, its value to all of them."""
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(120):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        low, high = (low, right) if convex(left) <= convex(right) else (left, high)
    return 0.5 * (low + high)
