"""The records that flow through the library, a shape beside every field.

T time, B environments, N quantiles or atoms, A actions or assets, F features, H memory.
"""

from typing import NamedTuple

from torch import Tensor


class Law(NamedTuple):
    """A discrete probability law per row: what every distributional critic predicts, whichever kind it is.

    A quantile critic has its own locations in each row and shares the cell masses of its levels; a categorical critic
    shares the atoms and has its own probabilities in each row.
    """

    locations: Tensor  # [..., N] or [N] shared by all rows
    masses: Tensor  # [..., N] or [N] shared by all rows; >= 0, summing to 1


class Moments(NamedTuple):
    """Mean and variance of what was seen, and how much that was; float64, so that long runs do not drift."""

    mean: Tensor  # [...] float64
    variance: Tensor  # [...] float64, of the population: divided by the weight, not by one less
    weight: Tensor  # [...] float64: total weight merged, or the number of averaging steps


class Scale(NamedTuple):
    """The units of a normalised quantity: raw = normalised·std + mean."""

    mean: Tensor  # [...] float64
    std: Tensor  # [...] float64, > 0
