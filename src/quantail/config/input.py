"""What comes in: observations and rewards."""

from dataclasses import dataclass

from quantail.settings import check_within


@dataclass(frozen=True)
class InputConfig:
    """What happens to observations and rewards before anything learns from them."""

    normalize_observations: bool = True
    clip_observations: float = 10.0
    reward_scale: float = 1.0

    def __post_init__(self) -> None:
        check_within("clip_observations", self.clip_observations, 0.0, low_open=True)
        check_within("reward_scale", self.reward_scale, 0.0, low_open=True)
