"""In which environment a run takes place, and what happens beside the learning: checkpoints, evaluation, logs."""

from dataclasses import dataclass, field

from quantail.errors import ConfigError
from quantail.settings import check_choice, check_counts, check_within

ENGINES = ("auto", "eager", "compile", "graph")
SINKS = ("console", "jsonl", "tensorboard", "wandb", "mlflow")


@dataclass(frozen=True)
class EnvConfig:
    """Which environment, and how many of it side by side."""

    id: str = ""  # a Gymnasium id, or quantail/NAME for a native one; empty: it is handed over as an object
    num_envs: int = 8
    options: dict[str, bool | int | float | str] = field(default_factory=dict)  # arguments of the environment
    subprocesses: bool = False  # a process of its own for each copy; Gymnasium's only
    pnl: str | None = None  # which figure of the infos is a step's raw gain, for risk; None: the reward; Gymnasium's only

    def __post_init__(self) -> None:
        check_counts(num_envs=self.num_envs)


@dataclass(frozen=True)
class EngineConfig:
    """Who executes an iteration, and how exactly it multiplies."""

    kind: str = "auto"  # auto | eager | compile | graph; auto: graph where a CUDA device can replay it, else eager
    matmul: str = "float32"  # float32 | tf32 | bfloat16: factors of products on a CUDA device, bfloat16 not those of the heads

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, ENGINES)
        check_choice("matmul", self.matmul, ("float32", "tf32", "bfloat16"))


@dataclass(frozen=True)
class RunConfig:
    """What a run writes into its folder, and when it stops early."""

    save_every: int = 10  # iterations between two checkpoints
    keep: int = 3  # so many latest checkpoints; the best is kept beside them
    evaluate_every: int = 0  # iterations between two evaluations; 0: none
    evaluate_rows: int = 1000  # of each evaluation, in every one of its environments
    evaluate_envs: int = 8
    evaluate_seed: int = 0  # its streams are never those of training
    deterministic: bool = True  # the evaluated policy does not explore
    judge: str = "episode"  # episode | step: what the best checkpoint is best in, the mean return or the mean reward
    patience: int = 0  # so many evaluations in a row without a better one stop the run; 0: none do
    sinks: tuple[str, ...] = ("console", "jsonl", "tensorboard")  # console | jsonl | tensorboard | wandb | mlflow
    threads: int | str = 1  # of the processor, or auto: measured; sums depend on it, so a resumed run takes the number it had

    def __post_init__(self) -> None:
        check_counts(save_every=self.save_every, keep=self.keep)
        if isinstance(self.threads, str) and self.threads != "auto":
            raise ConfigError(f"threads={self.threads!r}; needs a number, or auto to have it measured")
        check_counts(threads=1 if isinstance(self.threads, str) else self.threads)
        check_counts(evaluate_rows=self.evaluate_rows, evaluate_envs=self.evaluate_envs)
        check_within("evaluate_every", self.evaluate_every, 0)
        check_within("evaluate_seed", self.evaluate_seed, 0)
        check_within("patience", self.patience, 0)
        check_choice("judge", self.judge, ("episode", "step"))
        for sink in self.sinks:
            check_choice("sinks", sink, SINKS)
        if self.patience and not self.evaluate_every:
            raise ConfigError(f"patience={self.patience} counts evaluations and there are none; set run.evaluate_every too")
