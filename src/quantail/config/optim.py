"""The optimizer step and the schedule of a quantity."""

from dataclasses import dataclass, field

from quantail.settings import check_choice, check_counts, check_within


@dataclass(frozen=True)
class ScheduleConfig:
    """How a quantity runs from its start value over training."""

    kind: str = "constant"  # constant | linear | cosine
    floor: float = 0.0  # it never falls below

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, ("constant", "linear", "cosine"))
        check_within("floor", self.floor, 0.0)


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer step."""

    name: str = "adam"  # adam | adamw | sgd
    learning_rate: float = 3e-4
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    eps: float = 1e-5
    weight_decay: float = 0.0
    max_grad_norm: float | None = 0.5  # None or <= 0: off
    patience: int = 10  # so many void steps, or rollouts of which nothing can be learnt, in a row stop training

    def __post_init__(self) -> None:
        check_choice("name", self.name, ("adam", "adamw", "sgd"))
        check_within("learning_rate", self.learning_rate, 0.0, low_open=True)
        check_within("eps", self.eps, 0.0, low_open=True)
        check_within("weight_decay", self.weight_decay, 0.0)
        check_counts(patience=self.patience)
        if self.max_grad_norm is not None:
            check_within("max_grad_norm", self.max_grad_norm)
