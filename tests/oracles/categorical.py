"""Slow roads to the numbers of `functional/categorical.py`: plain Python, one row at a time."""

import math
from bisect import bisect_right
from collections.abc import Sequence

from oracles.quantile import moved_points, near

Row = Sequence[float]


def project(masses: Row, points: Row, support: Row) -> list[float]:
    """Each mass split between the two atoms around its point, by the lever rule."""
    out = [0.0] * len(support)
    for mass, point in zip(masses, points, strict=True):
        inside = min(max(point, support[0]), support[-1])
        right = min(bisect_right(support, inside), len(support) - 1)
        share = (inside - support[right - 1]) / (support[right] - support[right - 1])
        out[right - 1] += mass * (1 - share)
        out[right] += mass * share
    return out


def coupled(new_masses: Row, old_masses: Row, atoms: Row) -> list[tuple[float, float, float]]:
    """(atom of Q, atom of Q_old, mass): the two quantile functions walked together, level after level."""
    steps = []
    i = j = 0
    new_left, old_left = new_masses[0], old_masses[0]
    while True:
        mass = min(new_left, old_left)
        steps.append((atoms[i], atoms[j], mass))
        new_left, old_left = new_left - mass, old_left - mass
        if new_left <= 0:
            i += 1
        if old_left <= 0:
            j += 1
        if max(i, j) == len(atoms):
            return steps
        new_left = new_left if new_left > 0 else new_masses[i]
        old_left = old_left if old_left > 0 else old_masses[j]


def clipped_law(new_masses: Row, old_masses: Row, atoms: Row, radius: float, mode: str, factor: float) -> list[float]:
    """One row of `clip_categorical`, as probabilities."""
    if mode == "off":
        return list(new_masses)
    if mode == "per_quantile":
        steps = coupled(new_masses, old_masses, atoms)
        return project([mass for _, _, mass in steps], [near(z, w, radius) for z, w, _ in steps], atoms)
    factor = factor if mode == "mean_and_variance" else math.inf
    return project(new_masses, moved_points(atoms, new_masses, atoms, old_masses, radius, factor), atoms)


def first_above(masses: Row, u: float) -> int:
    """Inverse transform as a walk along the cells."""
    reached = 0.0
    for i, mass in enumerate(masses):
        reached += mass
        if reached > u * sum(masses):
            return i
    raise AssertionError(f"u={u} is not below 1")
