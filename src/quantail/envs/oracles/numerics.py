"""Integrals and roots that the optima need, in float64: how exact they are decides how exact an optimum is."""

import math
import sys
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

INNER_NODES = 32  # Gauss points per piece; exact for polynomials of degree 63
TAIL = 9.0  # standard deviations beyond which a normal law has no mass that float64 could add: 1e-19

EPS = sys.float_info.epsilon


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
    """Where a rising function crosses 0, to the last digits that matter; the nearer end if it does not cross inside.

    Inverse quadratic interpolation where three points allow it, else bisection (Chandrupatla 1997).
    """
    a, b, f_a, f_b = high, low, rising(high), rising(low)
    if f_b >= 0:
        return low
    if f_a <= 0:
        return high
    c, f_c, part = a, f_a, 0.5
    while True:
        x = a + part * (b - a)
        f_x = rising(x)
        if (f_x > 0) == (f_a > 0):
            c, f_c = a, f_a
        else:
            c, b, f_c, f_b = b, a, f_b, f_a
        a, f_a = x, f_x
        best, f_best = (a, f_a) if abs(f_a) < abs(f_b) else (b, f_b)
        least = EPS * (4 * abs(best) + 1e-3 * (high - low)) / abs(b - c)  # smallest step that still moves
        if least > 0.5 or f_best == 0:
            return best
        xi, phi = (a - b) / (c - b), (f_a - f_b) / (f_c - f_b)
        if phi**2 < xi and (1 - phi) ** 2 < 1 - xi:
            part = f_a / (f_b - f_a) * f_c / (f_b - f_c) + (c - a) / (b - a) * f_a / (f_c - f_a) * f_b / (f_c - f_b)
        else:
            part = 0.5
        part = min(max(part, least), 1 - least)
