"""Features in units of the training window: fitted there and nowhere else, a value that is saved with the agent."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from quantail.errors import InputError
from quantail.market.rules import moment
from quantail.market.series import Bars, Features
from quantail.settings import to_plain


@dataclass(frozen=True)
class Normalisation:
    """(x − mean)/scale for each feature, then limited to ±clip. Plain numbers: JSON keeps them to the last bit."""

    names: tuple[str, ...]  # F
    mean: tuple[float, ...]  # F
    scale: tuple[float, ...]  # F, > 0
    clip: float = 10.0  # a feature that was calm in training may explode later
    since: str = ""  # the first bar of the training window, and
    until: str = ""  # when its last one is over, in UTC; not known if empty

    def __post_init__(self) -> None:
        if not len(self.names) == len(self.mean) == len(self.scale):
            raise InputError(f"{len(self.names)} names, {len(self.mean)} means, {len(self.scale)} scales; needs one of each")
        if not all(map(math.isfinite, (*self.mean, *self.scale))) or min(self.scale, default=1.0) <= 0:
            raise InputError(f"mean={self.mean}, scale={self.scale}; needs finite numbers, scales above 0")
        if not self.clip > 0:
            raise InputError(f"clip={self.clip}; needs a limit above 0, math.inf for none")

    def apply(self, features: Features) -> Features:
        """The same features in units of the training window; they must be the ones it was fitted on, in the same order."""
        if features.names != self.names:
            raise InputError(f"features are {features.names}; this normalisation was fitted on {self.names}")
        mean, scale = (
            torch.tensor(part, dtype=torch.float64, device=features.values.device) for part in (self.mean, self.scale)
        )
        scaled = ((features.values.double() - mean) / scale).clamp(-self.clip, self.clip)
        return Features(scaled.float(), features.names, features.warmup)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return to_plain(self)  # type: ignore[no-any-return]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Normalisation":
        """The inverse of `to_dict`."""
        try:
            names, mean, scale = (tuple(values[name]) for name in ("names", "mean", "scale"))
            window = (str(values.get("since", "")), str(values.get("until", "")))
            return cls(names, tuple(map(float, mean)), tuple(map(float, scale)), float(values["clip"]), *window)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"this is no saved normalisation ({error!r}); needs names, mean, scale and clip") from error


def fit(features: Features, bars: Bars, train: range, clip: float = 10.0) -> Normalisation:
    """Mean and deviation of each feature over the training rows that are warm and in which the asset has a bar."""
    if not 0 <= train.start < train.stop <= len(bars) or len(features.values) != len(bars):
        raise InputError(f"rows {train.start} to {train.stop} of {len(bars)} bars and {len(features.values)} rows of features")
    start = max(train.start, features.warmup)
    if start >= train.stop:
        raise InputError(f"training ends at row {train.stop} and features are warm from row {start} on; needs a longer window")
    rows = slice(start, train.stop)
    seen: Tensor = features.values[rows][bars.valid[rows].to(features.values.device)].double()  # [n, F]
    if len(seen) < 2:
        raise InputError(f"{len(seen)} bars lie in the rows {start} to {train.stop}; needs at least two to know a scale")
    mean, spread = seen.mean(0), seen.std(0, correction=0)
    flat = spread <= 1e-6 * (1 + mean.abs())  # float32 holds no more
    scale = torch.where(flat, torch.ones_like(spread), spread)
    window = moment(int(bars.time[start])), moment(int(bars.end[train.stop - 1]))
    return Normalisation(features.names, tuple(mean.tolist()), tuple(scale.tolist()), clip, *window)
