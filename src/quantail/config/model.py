"""What the agent is: encoder, memory, policy and critic."""

from dataclasses import dataclass

from quantail.errors import ConfigError
from quantail.settings import check_choice, check_counts, check_sizes, check_within

MEMORIES = ("lstm", "gru", "mingru", "none")
TRUNKS = ("shared", "actor_critic", "each")


@dataclass(frozen=True)
class NetConfig:
    """Encoder, memory and the layers after it."""

    encoder_sizes: tuple[int, ...] = (64,)
    memory: str = "lstm"  # lstm | gru | mingru | none
    hidden: int = 64
    layers: int = 1
    dropout: float = 0.0  # of the memory's outputs, one mask per environment and iteration
    trunks: str = "actor_critic"  # shared | actor_critic | each: who has an encoder and a memory of its own
    critic_memory: bool = True  # False: critics see the present only; needs trunks of their own
    critic_moves_trunk: bool = True  # False: critics read the trunk they share, and only the actor shapes it
    actor_sizes: tuple[int, ...] = (64,)
    critic_sizes: tuple[int, ...] = (64,)
    activation: str = "tanh"
    squash: str = "none"  # of continuous actions: tanh | sigmoid | none
    log_std_init: float = 0.0
    state_dependent_std: bool = False
    gsde: bool = False  # exploration noise that depends on the state and is held over a rollout
    ortho_init: bool = True

    def __post_init__(self) -> None:
        check_sizes(encoder_sizes=self.encoder_sizes, actor_sizes=self.actor_sizes, critic_sizes=self.critic_sizes)
        check_counts(hidden=self.hidden, layers=self.layers)
        check_choice("memory", self.memory, MEMORIES)
        check_choice("trunks", self.trunks, TRUNKS)
        check_choice("activation", self.activation, ("tanh", "relu", "elu", "gelu", "silu", "leaky_relu"))
        check_choice("squash", self.squash, ("tanh", "sigmoid", "none"))
        check_within("dropout", self.dropout, 0.0, 1.0, high_open=True)
        check_within("log_std_init", self.log_std_init)
        if self.trunks == "shared" and not self.critic_memory:
            raise ConfigError("critic_memory=False needs a trunk without memory for the critics; set trunks='actor_critic'")
        if self.trunks != "shared" and not self.critic_moves_trunk:
            raise ConfigError(f"critic_moves_trunk=False needs a trunk that critics share; trunks={self.trunks!r} has none")


@dataclass(frozen=True)
class CriticConfig:
    """What the critic predicts, from what it learns, and in which units."""

    kind: str = "quantile"  # scalar | quantile | categorical
    atoms: int | None = None  # quantiles, or atoms of a categorical critic; None: 32 and 101
    levels: str = "tail"  # tail | midpoint
    twin: bool = True
    twin_reduce: str = "mean"  # mean | min: which law of the two the advantages see
    noncrossing: bool = False  # quantiles as steps that never go down
    sorting: bool = False  # or put in order after the head
    kappa: float = 0.01  # Huber width, in standard deviations of the return
    targets: str = "distributional"  # distributional | lambda_return
    particles: int = 32
    support_width: float = 5.0  # categorical atoms span ± so many standard deviations
    vf_coef: float = 0.5
    normalize_returns: bool = True
    return_rate: float = 0.1  # of the moving average of the return's moments, per iteration
    return_window: int = 0  # the last so many iterations, all alike, in place of the moving average; 0: the average
    return_max_step: float | None = None  # per iteration: the mean by so many deviations, the deviation by this factor less 1
    return_freeze: int = 0  # after so many iterations the scale rests; 0: never
    return_thaw: int = 0  # but it moves while explained variance was negative so many iterations in a row; 0: never
    ret_clip: float | None = None  # targets within ± so many standard deviations; None: off, for clipping biases the tail
    clip: str = "off"  # off | mean_only | mean_and_variance | per_quantile: predictions stay near the rollout's
    clip_radius: float = 0.2  # in standard deviations of the return
    clip_variance_factor: float = 2.0  # of mean_and_variance: so much wider than the rollout's law at most
    clip_warmup: int = 0  # so many first iterations clip nothing
    clip_explained: float | None = None  # nor does one after an explained variance below this

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, ("scalar", "quantile", "categorical"))
        check_choice("levels", self.levels, ("tail", "midpoint"))
        check_choice("twin_reduce", self.twin_reduce, ("mean", "min"))
        check_choice("targets", self.targets, ("distributional", "lambda_return"))
        check_counts(atoms=self.size if self.atoms is None else self.atoms, particles=self.particles)
        check_within("kappa", self.kappa, 0.0)
        check_within("support_width", self.support_width, 0.0, low_open=True)
        check_within("vf_coef", self.vf_coef, 0.0)
        self._check_returns()
        self._check_clip()
        if self.kind == "categorical" and self.size < 2:
            raise ConfigError(f"atoms={self.atoms} cannot hold a categorical law; use at least 2, better 101")
        if self.noncrossing and self.sorting:
            raise ConfigError("noncrossing and sorting: quantiles that cannot cross need no sorting; choose one of the two")

    @property
    def size(self) -> int:
        """How many numbers a critic says about a row."""
        if self.kind == "scalar":
            return 1
        return self.atoms if self.atoms is not None else {"quantile": 32, "categorical": 101}[self.kind]

    def _check_returns(self) -> None:
        check_within("return_rate", self.return_rate, 0.0, 1.0, low_open=True)
        check_within("return_window", self.return_window, 0)
        check_within("return_freeze", self.return_freeze, 0)
        check_within("return_thaw", self.return_thaw, 0)
        for name, value in (("return_max_step", self.return_max_step), ("ret_clip", self.ret_clip)):
            if value is not None:
                check_within(name, value, 0.0, low_open=True)
        if self.return_thaw and not self.return_freeze:
            raise ConfigError(f"return_thaw={self.return_thaw} thaws a scale that never freezes; set return_freeze, or 0")

    def _check_clip(self) -> None:
        check_choice("clip", self.clip, ("off", "mean_only", "mean_and_variance", "per_quantile"))
        check_within("clip_radius", self.clip_radius, 0.0, low_open=True)
        check_within("clip_variance_factor", self.clip_variance_factor, 1.0)
        check_within("clip_warmup", self.clip_warmup, 0)
        if self.clip_explained is not None:
            check_within("clip_explained", self.clip_explained, -1.0, 1.0)
