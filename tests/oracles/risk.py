"""Slow or exact roads to the numbers of `functional/risk.py`: fractions, adaptive integrals, loops."""

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
from scipy import integrate, stats

Row = Sequence[float]


def sorted_law(x: Row, weights: Row) -> list[tuple[Fraction, Fraction]]:
    """(sample, mass) in order, exact; the masses sum to 1."""
    total = sum(map(Fraction, weights))
    return sorted((Fraction(a), Fraction(w) / total) for a, w in zip(x, weights, strict=True) if w)


def exact_cvar(x: Row, alpha: Fraction, weights: Row | None = None) -> float:
    """1/α ∫₀^α F⁻¹: walk up the sorted samples until the mass α is used up."""
    left, total = alpha, Fraction(0)
    for sample, mass in sorted_law(x, weights or [1] * len(x)):
        taken = min(mass, left)
        total, left = total + taken * sample, left - taken
    return float(total / alpha)


def exact_var(x: Row, alpha: Fraction, weights: Row | None = None) -> float:
    """min{x : F(x) >= α}."""
    reached = Fraction(0)
    for sample, mass in sorted_law(x, weights or [1] * len(x)):
        reached += mass
        if reached >= alpha:
            return float(sample)
    raise AssertionError("the masses sum to 1")


def highest_shortfall_value(x: Row, alpha: float, weights: Row | None = None) -> float:
    """max_ν ν − E[(ν − X)⁺]/α over the samples, where the maximum lies   (Rockafellar & Uryasev 2000, theorem 1)."""
    values, masses = np.asarray(x, float), np.asarray(weights or [1] * len(x), float)
    return max(nu - np.average(np.maximum(nu - values, 0), weights=masses) / alpha for nu in values)


def probit_linear(taus: Row, quantiles: Row) -> Callable[[float], float]:
    """Q as a function of z = Φ⁻¹(u): linear between the levels and beyond the outermost two."""
    nodes = stats.norm.ppf(taus)
    slopes = np.diff(quantiles) / np.diff(nodes)

    def at(z: float) -> float:
        if z < nodes[0]:
            return float(quantiles[0] + slopes[0] * (z - nodes[0]))
        if z > nodes[-1]:
            return float(quantiles[-1] + slopes[-1] * (z - nodes[-1]))
        return float(np.interp(z, nodes, quantiles))

    return at


def integrated_cvar(taus: Row, quantiles: Row, alpha: float) -> float:
    """1/α ∫ Q(z)·φ(z) dz up to Φ⁻¹(α) by adaptive quadrature, piece by piece."""
    at, end = probit_linear(taus, quantiles), float(stats.norm.ppf(alpha))
    corners = [-12.0, *(z for z in stats.norm.ppf(taus) if z < end), min(end, 12.0)]
    pieces = [
        integrate.quad(lambda z: at(z) * math.exp(-z * z / 2), low, high, epsabs=1e-14, epsrel=1e-13)[0]
        for low, high in pairwise(corners)
    ]
    return sum(pieces) / math.sqrt(2 * math.pi) / alpha


def tail_mean(law: stats.rv_continuous, alpha: float) -> float:
    """CVaR_α of a continuous law: 1/α ∫₀^α F⁻¹(u) du, with u = α·v³ to tame the tail."""
    return integrate.quad(lambda v: 3 * v * v * law.ppf(alpha * v**3), 0, 1, epsabs=1e-13, epsrel=1e-11)[0]


def pid(violations: Iterable[float], kp: float, ki: float, kd: float, smoothing: float, cap: float, delay: int) -> list[float]:
    """Algorithm 2 of Stooke, Achiam & Abbeel 2020 on plain floats, with a cap and an integral that rests at it."""
    multipliers, integral, average = [], 0.0, None
    past: deque[float] = deque(maxlen=delay + 1)
    for violation in violations:
        average = violation if average is None else smoothing * average + (1 - smoothing) * violation
        past.append(average)
        # what lies before the first violation counts as equal to it, and so does the change from there
        push = kp * average + kd * max(0.0, average - past[0])
        if not (violation > 0 and push + integral >= cap):
            integral = min(max(integral + ki * violation, 0.0), cap)
        multipliers.append(min(max(push + integral, 0.0), cap))
    return multipliers
