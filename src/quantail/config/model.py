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
    atoms: int = 32  # quantiles, or atoms of a categorical critic
    levels: str = "tail"  # tail | midpoint
    twin: bool = True
    twin_reduce: str = "mean"  # mean | min: which law of the two the advantages see
    noncrossing: bool = False
    kappa: float = 0.01  # Huber width, in standard deviations of the return
    targets: str = "distributional"  # distributional | lambda_return
    particles: int = 32
    support_width: float = 5.0  # categorical atoms span ± so many standard deviations
    vf_coef: float = 0.5
    normalize_returns: bool = True
    return_rate: float = 0.1  # of the moving average of the return's moments, per iteration
    clip: str = "off"  # off | mean_only | mean_and_variance | per_quantile: predictions stay near the rollout's
    clip_radius: float = 0.2  # in standard deviations of the return

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, ("scalar", "quantile", "categorical"))
        check_choice("levels", self.levels, ("tail", "midpoint"))
        check_choice("twin_reduce", self.twin_reduce, ("mean", "min"))
        check_choice("targets", self.targets, ("distributional", "lambda_return"))
        check_counts(atoms=self.atoms, particles=self.particles)
        check_within("kappa", self.kappa, 0.0)
        check_within("support_width", self.support_width, 0.0, low_open=True)
        check_within("vf_coef", self.vf_coef, 0.0)
        check_within("return_rate", self.return_rate, 0.0, 1.0, low_open=True)
        check_choice("clip", self.clip, ("off", "mean_only", "mean_and_variance", "per_quantile"))
        check_within("clip_radius", self.clip_radius, 0.0, low_open=True)
        if self.kind == "categorical" and self.atoms < 2:
            raise ConfigError(f"atoms={self.atoms} cannot hold a categorical law; use at least 2, better 101")
