"""Which outcome's tail is minded, and how: as a part of the objective, or as a limit that is kept."""

import math
from dataclasses import dataclass

from quantail.errors import ConfigError
from quantail.settings import check_choice, check_counts, check_within

HORIZONS = ("step", "window", "episode")
TAIL_SAMPLES = 20  # that the worst α of the remembered outcomes hold at least


@dataclass(frozen=True)
class RiskConfig:
    """The outcome X is a sum of the environment's raw gains (`pnl`, else the reward) over the horizon; CVaR_α(X) is the mean of
    its worst α.
    """

    horizon: str = "episode"  # step | window | episode: what one outcome is the sum of
    window: int = 20  # rows of one episode, for horizon=window; overlapping
    alpha: float = 0.05  # the share of outcomes that is the tail
    weight: float = 0.0  # w: maximise (1 − w)·mean + w·CVaR
    limit: float | None = None  # keep CVaR at least this; a mean loss in the tail of at most 5 is -5
    observe: bool = True  # the running sum is shown to the agent, where an environment made by name does not do so itself
    alpha_decay: float = 0.0  # share of training over which the tail shrinks from all outcomes to alpha; 0: it is alpha at once
    memory: int | None = None  # so many latest outcomes are the sample; None: 20/alpha; or all of the last rollout's, if more
    nu_rate: float = 0.5  # of the moving average of the sample's α-quantile, per iteration
    kp: float = 1.0  # the price of risk answers the violation, in deviations of X: in proportion,
    ki: float = 0.01  # by its sum,
    kd: float = 0.0  # by its growth
    delay: int = 10  # iterations over which growth is measured
    smoothing: float = 0.5  # of the violation, for kp and kd
    cap: float = 20.0  # of the price

    def __post_init__(self) -> None:
        check_choice("horizon", self.horizon, HORIZONS)
        check_counts(window=self.window, delay=self.delay)
        check_within("alpha", self.alpha, 0.0, 1.0, low_open=True, high_open=True)
        check_within("weight", self.weight, 0.0, 1.0)
        check_within("alpha_decay", self.alpha_decay, 0.0, 1.0)
        check_within("nu_rate", self.nu_rate, 0.0, 1.0, low_open=True)
        check_within("smoothing", self.smoothing, 0.0, 1.0, high_open=True)
        for name, gain in (("kp", self.kp), ("ki", self.ki), ("kd", self.kd)):
            check_within(name, gain, 0.0)
        check_within("cap", self.cap, 0.0, low_open=True)
        if self.limit is not None:
            check_within("limit", self.limit)
        if self.memory is not None and self.memory < self.least:
            raise ConfigError(
                f"memory={self.memory} outcomes leave {self.memory * self.alpha:g} for the worst {self.alpha:g}; use at least "
                f"{self.least}, or None"
            )

    @property
    def least(self) -> int:
        """The fewest outcomes that say something of the tail."""
        return math.ceil(TAIL_SAMPLES / self.alpha)

    @property
    def used(self) -> bool:
        """Whether risk reaches the policy."""
        return self.weight > 0 or self.limit is not None

    @property
    def ratio(self) -> bool:
        """Whether an episode holds many outcomes, so that CVaR is that of a mean over rows, however many there are."""
        return self.horizon != "episode"
