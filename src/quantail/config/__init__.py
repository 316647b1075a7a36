"""Every setting of a training run, refused at construction when it makes no sense. No torch here.

One frozen dataclass per concern; `Config` holds them. `to_dict` and `from_dict` are strict inverses: an unknown or
ill-typed key is an error that names the key and the nearest valid one.
"""

from dataclasses import dataclass, field
from typing import Any

from quantail.config.input import InputConfig
from quantail.config.learning import CloneConfig, EntropyConfig, KlConfig, PpoConfig
from quantail.config.model import MEMORIES, TRUNKS, CriticConfig, NetConfig
from quantail.config.optim import KlRateConfig, OptimConfig, ScheduleConfig, UpgdConfig, VarianceConfig
from quantail.config.risk import RiskConfig
from quantail.config.session import SINKS, EngineConfig, EnvConfig, RunConfig
from quantail.errors import ConfigError
from quantail.settings import build, check_counts, check_within, to_plain

__all__ = [
    "MEMORIES",
    "SINKS",
    "TRUNKS",
    "CloneConfig",
    "Config",
    "CriticConfig",
    "EngineConfig",
    "EntropyConfig",
    "EnvConfig",
    "InputConfig",
    "KlConfig",
    "KlRateConfig",
    "NetConfig",
    "OptimConfig",
    "PpoConfig",
    "RiskConfig",
    "RunConfig",
    "ScheduleConfig",
    "UpgdConfig",
    "VarianceConfig",
]


@dataclass(frozen=True)
class Config:
    """A training run."""

    seed: int = 0
    total_timesteps: int = 100_000
    net: NetConfig = field(default_factory=NetConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    ppo: PpoConfig = field(default_factory=PpoConfig)
    risk: RiskConfig = field(default_factory=RiskConfig)
    kl: KlConfig = field(default_factory=KlConfig)
    entropy: EntropyConfig = field(default_factory=EntropyConfig)
    clone: CloneConfig = field(default_factory=CloneConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    input: InputConfig = field(default_factory=InputConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    env: EnvConfig = field(default_factory=EnvConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        check_counts(total_timesteps=self.total_timesteps)
        check_within("seed", self.seed, 0)
        if self.optim.variance.estimator == "two_batch" and self.ppo.micro_batches < 2:
            raise ConfigError(
                f"optim.variance.estimator=two_batch compares micro-batches and ppo.micro_batches={self.ppo.micro_batches}; "
                "set it to 2 or more, or use elementwise"
            )
        if self.optim.kl_rate.factor > 1 and self.kl.target is None:
            raise ConfigError("optim.kl_rate.factor answers the KL's distance from kl.target, which is not set; set it too")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, nested as the fields are; tuples as lists."""
        plain: dict[str, Any] = to_plain(self)
        return plain

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Config":
        """The inverse of `to_dict`; what is left out has its default, anything else unknown is refused."""
        built: Config = build(cls, values, "")
        return built
