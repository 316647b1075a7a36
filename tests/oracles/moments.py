"""Mean and variance of weighted numbers in exact fractions, and moving averages written out as sums."""

from collections.abc import Sequence
from fractions import Fraction


def exact_moments(numbers: Sequence[float], weights: Sequence[float] | None = None) -> tuple[float, float]:
    """Population mean and variance, rounded once at the end."""
    x = [Fraction(n) for n in numbers]
    w = [Fraction(1)] * len(x) if weights is None else [Fraction(n) for n in weights]
    mean = sum(a * b for a, b in zip(x, w, strict=True)) / sum(w)
    return float(mean), float(sum(b * (a - mean) ** 2 for a, b in zip(x, w, strict=True)) / sum(w))


def debiased_average(moments: Sequence[tuple[float, float]], rate: float) -> tuple[float, float]:
    """First and second moment averaged with weights β·(1 − β)^age that are made to sum to one; variance = second − first²."""
    ages = range(len(moments) - 1, -1, -1)
    b = Fraction(rate)
    weights = [b * (1 - b) ** age for age in ages]
    first = sum(w * Fraction(mean) for w, (mean, _) in zip(weights, moments, strict=True)) / sum(weights)
    second = sum(w * (Fraction(v) + Fraction(mean) ** 2) for w, (mean, v) in zip(weights, moments, strict=True)) / sum(weights)
    return float(first), float(second - first**2)
