"""The rollout, the surrogate and everything that steers it."""

from dataclasses import dataclass

from quantail.errors import ConfigError
from quantail.settings import check_choice, check_counts, check_within


@dataclass(frozen=True)
class PpoConfig:
    """The rollout and the clipped surrogate."""

    n_steps: int = 128
    n_epochs: int = 4
    batch_size: int = 2048  # rows: at or above n_steps whole environments, below it chunks of time
    micro_batches: int = 1  # a batch in so many parts, their gradients summed: the same step in less memory
    burn_in: int = 0  # rows before a chunk that only warm up its memory
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    clip_start: float | None = None  # clip_range at the first iteration, then linearly to clip_range
    clip_warmup: int = 0  # over so many iterations
    normalize_advantage: str = "global"  # global | env | off
    log_ratio_clamp: str = "hard"  # hard | tanh

    def __post_init__(self) -> None:
        check_counts(n_steps=self.n_steps, n_epochs=self.n_epochs, batch_size=self.batch_size, micro_batches=self.micro_batches)
        check_within("burn_in", self.burn_in, 0)
        check_within("gamma", self.gamma, 0.0, 1.0)
        check_within("gae_lambda", self.gae_lambda, 0.0, 1.0)
        check_within("clip_range", self.clip_range, 0.0, low_open=True)
        check_within("clip_warmup", self.clip_warmup, 0)
        check_choice("normalize_advantage", self.normalize_advantage, ("global", "env", "off"))
        check_choice("log_ratio_clamp", self.log_ratio_clamp, ("hard", "tanh"))
        if (self.clip_start is None) != (self.clip_warmup == 0):
            raise ConfigError(f"clip_start={self.clip_start} with clip_warmup={self.clip_warmup}: set both or neither")
        if self.clip_start is not None:
            check_within("clip_start", self.clip_start, 0.0, low_open=True)


@dataclass(frozen=True)
class KlConfig:
    """When the policy has moved far enough, and what holds it back."""

    target: float | None = None  # None: never stop
    absolute_factor: float = 1.5  # a batch with KL above factor·target stops the update (SB3's rule)
    consecutive: int = 0  # so many batches above the target in a row stop it too; 0: off
    fraction: float = 1.0  # an epoch with more than this share of batches above the target is the last
    smoothing: float = 0.0  # of the KL that `consecutive` and `fraction` look at
    epoch_decay: float = 1.0  # a stopped update shortens the next by this factor; a quiet one lengthens it again
    penalty: float = 0.0  # initial weight of a KL penalty in the loss
    penalty_max: float = 1.0
    penalty_kp: float = 0.0  # PID control of the penalty on KL − target
    penalty_ki: float = 0.0
    penalty_kd: float = 0.0

    def __post_init__(self) -> None:
        if self.target is not None:
            check_within("target", self.target, 0.0, low_open=True)
        check_within("absolute_factor", self.absolute_factor, 0.0, low_open=True)
        check_within("consecutive", self.consecutive, 0)
        check_within("fraction", self.fraction, 0.0, 1.0)
        check_within("smoothing", self.smoothing, 0.0, 1.0, high_open=True)
        check_within("epoch_decay", self.epoch_decay, 0.0, 1.0, low_open=True)
        check_within("penalty_max", self.penalty_max, 0.0)
        check_within("penalty", self.penalty, 0.0, self.penalty_max)
        check_within("penalty_kp", self.penalty_kp, 0.0)
        check_within("penalty_ki", self.penalty_ki, 0.0)
        check_within("penalty_kd", self.penalty_kd, 0.0)
        if self.target is None and (self.consecutive or self.fraction < 1 or self.epoch_decay < 1):
            raise ConfigError(
                f"consecutive={self.consecutive}, fraction={self.fraction} and epoch_decay={self.epoch_decay} measure the KL "
                "against kl.target, which is not set; set it, or leave them at 0, 1 and 1"
            )
        if self.target is None and self.steered:
            raise ConfigError(
                "penalty_kp, penalty_ki and penalty_kd steer towards kl.target, which is not set; set it, or all of them to 0"
            )

    @property
    def steered(self) -> bool:
        """Whether the penalty's weight answers the KL."""
        return bool(self.penalty_kp or self.penalty_ki or self.penalty_kd)

    @property
    def penalized(self) -> bool:
        """Whether the loss ever holds a penalty."""
        return bool(self.penalty or self.steered)


@dataclass(frozen=True)
class EntropyConfig:
    """The entropy bonus: start, decay once the policy's entropy has settled, floor, and a boost when the critic is lost."""

    coef: float = 0.0
    final: float | None = None  # None: no decay
    floor: float = 0.0
    decay_iterations: int = 0
    plateau_window: int = 0  # 0: the decay starts at once; else when the entropy's slope over the window is small
    plateau_tolerance: float = 0.0
    boost_factor: float = 1.0  # per iteration of negative explained variance beyond `boost_patience`
    boost_patience: int = 2
    boost_cap: float = 5.0  # times coef

    def __post_init__(self) -> None:
        check_within("coef", self.coef, 0.0)
        check_within("floor", self.floor, 0.0)
        if self.final is not None:
            check_within("final", self.final, 0.0)
            if self.decay_iterations < 1:
                raise ConfigError(f"final={self.final} with decay_iterations={self.decay_iterations}; say over how many")
        check_within("decay_iterations", self.decay_iterations, 0)
        check_within("plateau_window", self.plateau_window, 0)
        check_within("plateau_tolerance", self.plateau_tolerance, 0.0)
        check_within("boost_factor", self.boost_factor, 1.0)
        check_within("boost_patience", self.boost_patience, 0)
        check_within("boost_cap", self.boost_cap, 1.0)
        if self.plateau_window == 1:
            raise ConfigError("plateau_window=1 has no slope; use 0 for no plateau, or at least 2")
        if self.floor > self.coef:
            raise ConfigError(
                f"floor={self.floor} lies above coef={self.coef}, where the coefficient starts; lower it, or raise coef"
            )

    @property
    def used(self) -> bool:
        """Whether the loss ever holds a bonus."""
        return bool(self.coef or self.final)


@dataclass(frozen=True)
class CloneConfig:
    """Advantage-weighted cloning of the rollout's own actions."""

    coef: float = 0.0
    final: float = 0.0
    warmup_steps: int = 0  # environment steps at `coef`
    decay_steps: int = 0  # then linearly to `final`; 0: stays
    beta: float = 1.0  # temperature, in standard deviations of the advantage
    max_weight: float = 20.0

    def __post_init__(self) -> None:
        check_within("coef", self.coef, 0.0)
        check_within("final", self.final, 0.0)
        check_within("warmup_steps", self.warmup_steps, 0)
        check_within("decay_steps", self.decay_steps, 0)
        check_within("beta", self.beta, 0.0, low_open=True)
        check_within("max_weight", self.max_weight, 0.0, low_open=True)

    @property
    def used(self) -> bool:
        """Whether the loss ever holds cloning."""
        return bool(self.coef or self.final)
