"""The optimizer step and the schedule of a quantity."""

from dataclasses import dataclass, field

from quantail.settings import check_choice, check_counts, check_within


@dataclass(frozen=True)
class ScheduleConfig:
    """How a quantity runs from its start value over training."""

    kind: str = "constant"  # constant | linear | cosine | one_cycle
    floor: float = 0.0  # it never falls below
    warmup: float = 0.0  # over this share of training it rises to the start value; the schedule has the rest
    warmup_start: float = 0.1  # from this part of it
    cycle_peak: float = 0.3  # one_cycle: the start value is reached after this share, and falls to 0 by the end
    cycle_start: float = 0.04  # from this part of it

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, ("constant", "linear", "cosine", "one_cycle"))
        check_within("floor", self.floor, 0.0)
        check_within("warmup", self.warmup, 0.0, 1.0, high_open=True)
        check_within("warmup_start", self.warmup_start, 0.0, 1.0)
        check_within("cycle_peak", self.cycle_peak, 0.0, 1.0, low_open=True, high_open=True)
        check_within("cycle_start", self.cycle_start, 0.0, 1.0)


@dataclass(frozen=True)
class KlRateConfig:
    """A learning rate that answers the KL: divided by `factor` above band·target, multiplied by it below target/band."""

    factor: float = 1.0  # 1: it does not; rsl_rl has 1.5
    band: float = 2.0
    limit: float = 100.0  # never further than so many times from the schedule

    def __post_init__(self) -> None:
        check_within("factor", self.factor, 1.0)
        check_within("band", self.band, 1.0)
        check_within("limit", self.limit, 1.0)


@dataclass(frozen=True)
class UpgdConfig:
    """How upgd, upgdw and adaptive_upgd protect what is useful; the formulas are in docs/optimizers.md."""

    utility_beta: float = 0.999  # of the utility's trace
    gate: str = "sigmoid"  # sigmoid | tanh
    strength: float = 1.0  # of the gate; 0: plain SGD or AdamW with noise
    scale: str = "global"  # global | tensor | unit: among which weights the most useful is sought
    normaliser: str = "corrected"  # corrected | reference, the paper's
    protecting: bool = True  # the gate holds the whole step; else only the noise
    sigma: float = 1e-3  # of the noise
    noise: str = "fixed"  # fixed | tracked: in units of the step

    def __post_init__(self) -> None:
        check_within("utility_beta", self.utility_beta, 0.0, 1.0, high_open=True)
        check_choice("gate", self.gate, ("sigmoid", "tanh"))
        check_within("strength", self.strength, 0.0)
        check_choice("scale", self.scale, ("global", "tensor", "unit"))
        check_choice("normaliser", self.normaliser, ("corrected", "reference"))
        check_within("sigma", self.sigma, 0.0)
        check_choice("noise", self.noise, ("fixed", "tracked"))


@dataclass(frozen=True)
class VarianceConfig:
    """Shorter steps where the gradient is noise: by max(floor, 1/(1 + alpha·min(noise/signal, cap)))."""

    estimator: str = "off"  # off | elementwise | two_batch
    apply_to: str = "step"  # step | gradient
    alpha: float = 0.1
    decay: float = 0.99  # of the memory
    warmup: int = 100  # optimizer steps
    floor: float = 0.1
    cap: float = 50.0

    def __post_init__(self) -> None:
        check_choice("estimator", self.estimator, ("off", "elementwise", "two_batch"))
        check_choice("apply_to", self.apply_to, ("step", "gradient"))
        check_within("alpha", self.alpha, 0.0)
        check_within("decay", self.decay, 0.0, 1.0, high_open=True)
        check_within("warmup", self.warmup, 0)
        check_within("floor", self.floor, 0.0, 1.0, low_open=True)
        check_within("cap", self.cap, 0.0, low_open=True)


@dataclass(frozen=True)
class OptimConfig:
    """The optimizer step."""

    name: str = "adam"  # adam | adamw | sgd | muon | upgd | upgdw | adaptive_upgd
    learning_rate: float = 3e-4
    critic_learning_rate: float | None = None  # of what belongs to the critics alone; None: as all; the schedule holds for both
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    kl_rate: KlRateConfig = field(default_factory=KlRateConfig)
    beta1: float = 0.9  # of the moments of adam, adamw, adaptive_upgd, and of muon where a parameter is no matrix
    beta2: float = 0.999
    eps: float = 1e-5
    weight_decay: float = 0.0
    max_grad_norm: float | None = 0.5  # None or <= 0: off
    patience: int = 10  # so many void steps, or rollouts of which nothing can be learnt, in a row stop training
    upgd: UpgdConfig = field(default_factory=UpgdConfig)
    variance: VarianceConfig = field(default_factory=VarianceConfig)

    def __post_init__(self) -> None:
        check_choice("name", self.name, ("adam", "adamw", "sgd", "muon", "upgd", "upgdw", "adaptive_upgd"))
        check_within("learning_rate", self.learning_rate, 0.0, low_open=True)
        if self.critic_learning_rate is not None:
            check_within("critic_learning_rate", self.critic_learning_rate, 0.0)
        check_within("beta1", self.beta1, 0.0, 1.0, high_open=True)
        check_within("beta2", self.beta2, 0.0, 1.0, high_open=True)
        check_within("eps", self.eps, 0.0, low_open=True)
        check_within("weight_decay", self.weight_decay, 0.0)
        check_counts(patience=self.patience)
        if self.max_grad_norm is not None:
            check_within("max_grad_norm", self.max_grad_norm)
