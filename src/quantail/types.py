"""The records that flow through the library, a shape beside every field.

T time, B environments, N quantiles or atoms, A actions or assets, F features, H memory.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

# --- spaces: what an observation or an action may be ------------------------------------------------------------------


@dataclass(frozen=True)
class Box:
    """Numbers, or an image of bytes; `low` and `high` hold for all entries, or one number for each, row by row."""

    shape: tuple[int, ...]
    low: float | tuple[float, ...] = -math.inf
    high: float | tuple[float, ...] = math.inf
    dtype: str = "float32"  # or "uint8": an image, 0..255, [height, width, channels]


@dataclass(frozen=True)
class Discrete:
    """One choice among n, as an index."""

    n: int


@dataclass(frozen=True)
class MultiDiscrete:
    """Several choices side by side, as indices."""

    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Group:
    """Named observations side by side, in the order of their names."""

    parts: tuple[tuple[str, "Box | Discrete | MultiDiscrete"], ...]


Space = Box | Discrete | MultiDiscrete | Group
Observation = Tensor | Mapping[str, Tensor]  # [..., *shape] float32, uint8 or int64; a Group as a mapping

# --- environments ---------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """What one step of B environments gives."""

    obs: Observation  # [B, ...] the next row: after an end the final one (NEXT_STEP) or the next episode's first (SAME_STEP)
    reward: Tensor  # [B]
    terminated: Tensor  # [B] bool
    truncated: Tensor  # [B] bool
    pnl: Tensor | None = None  # [B] raw gain, for risk; the reward if none
    final_obs: Observation | None = None  # [B, ...] SAME_STEP only: the last observation, read where an episode was truncated
    policy_weight: Tensor | None = None  # [B] 0 where the action had no effect (no trade allowed); 1 if none
    action_mask: Tensor | None = None  # [B, ΣK] bool, which choices the *next* row allows; all if none
    info: Mapping[str, Tensor] = {}  # [B] each: figures for the log


# --- laws and statistics --------------------------------------------------------------------------------------------


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
