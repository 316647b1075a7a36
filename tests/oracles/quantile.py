"""Slow roads to the numbers of `functional/quantile.py`: plain Python, one row at a time, from the formulas."""

import math
from collections.abc import Sequence

Row = Sequence[float]


def huber(u: float, kappa: float) -> float:
    """L_κ(u) of Dabney et al. 2018, eq. 9; at κ = 0 the absolute value."""
    if kappa == 0:
        return abs(u)
    return u * u / 2 if abs(u) <= kappa else kappa * (abs(u) - kappa / 2)


def quantile_huber_loss(quantiles: Row, targets: Row, taus: Row, kappa: float) -> float:
    """Eq. 10 of Dabney et al. 2018 without its 1/κ, averaged over both loops."""
    total = 0.0
    for theta, tau in zip(quantiles, taus, strict=True):
        for target in targets:
            u = target - theta
            total += abs(tau - (1.0 if u < 0 else 0.0)) * huber(u, kappa)
    return total / (len(quantiles) * len(targets))


def crps(points: Row, outcome: float) -> float:
    """Of equally likely points, in the energy form E|X − y| − ½·E|X − X′|   (Gneiting & Raftery 2007, eq. 21)."""
    n = len(points)
    spread = sum(abs(a - b) for a in points for b in points) / n**2
    return sum(abs(a - outcome) for a in points) / n - spread / 2


def mean_and_std(points: Row, masses: Row) -> tuple[float, float]:
    """Of a discrete law."""
    mean = sum(z * m for z, m in zip(points, masses, strict=True))
    return mean, math.sqrt(sum(m * (z - mean) ** 2 for z, m in zip(points, masses, strict=True)))


def near(value: float, centre: float, radius: float) -> float:
    """The value, or the nearer end of [centre − radius, centre + radius]."""
    return min(max(value, centre - radius), centre + radius)


def moved_points(new: Row, new_masses: Row, old: Row, old_masses: Row, radius: float, factor: float = math.inf) -> list[float]:
    """Points put back around the clipped mean, their spread at most `factor` times the old one."""
    mean, std = mean_and_std(new, new_masses)
    old_mean, old_std = mean_and_std(old, old_masses)
    shrink = factor * old_std / std if std > factor * old_std else 1.0
    return [near(mean, old_mean, radius) + shrink * (z - mean) for z in new]


def clipped_quantiles(new: Row, old: Row, radius: float, mode: str, factor: float, masses: Row) -> list[float]:
    """One row of `clip_quantiles`."""
    if mode == "off":
        return list(new)
    if mode == "per_quantile":
        return [near(z, w, radius) for z, w in zip(new, old, strict=True)]
    return moved_points(new, masses, old, masses, radius, factor if mode == "mean_and_variance" else math.inf)
