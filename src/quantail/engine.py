"""Who executes an iteration: the host, call by call; torch's compiler; or a device, from graphs captured once.

All three run the same functions. `eager` is the reference. `compile` has the row of a rollout compiled: the environment's
arithmetic, hundreds of small calls, becomes a few. `graph` captures the rollout, the estimates, each optimizer step
and the figures as CUDA graphs, what is compiled inside, and replays them: the host launches four things an iteration in place
of a hundred thousand, and waits for the device once, when the figures cross.

What a graph gives lies in memory that its next replay overwrites: the records of an iteration last until the next begins.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from quantail import ranks
from quantail.compiling import Compiled, can_compile
from quantail.config import Config
from quantail.envs.base import TensorEnv
from quantail.errors import ConfigError
from quantail.figures import Figures, figures_of
from quantail.graphs import Graphed, Shared
from quantail.losses import Knobs, LossTerm
from quantail.nets.agent import Agent, Trunk
from quantail.normaliser import frozen
from quantail.reading import Reading, read
from quantail.rollout import Carry, Noise, Rollout, Row, RowOf, collect, collect_row
from quantail.stepper import Pick, Stepped, Stepper
from quantail.stops import Stops

Function = Callable[..., Any]
RENAMED = hasattr(torch.backends.cuda.matmul, "fp32_precision")  # since torch 2.9


class Engine(NamedTuple):
    """The four parts of an iteration, as somebody executes them."""

    collect: Callable[[Carry, Noise], tuple[Rollout, Carry]]
    read: Callable[[Rollout, Carry, torch.Generator, Tensor | None, float, bool], Reading]
    figures: Callable[[Rollout, Reading, tuple[Sequence[str], Tensor], Knobs, int], Figures]
    step: Stepper


def captured(parts: list[Function]) -> list[Function]:
    """The parts as graphs; with the first of them an iteration begins."""
    shared = Shared()
    first, *rest = (Graphed(part, shared) for part in parts)

    def begin(*given: Any) -> Any:
        shared.iterations += 1
        return first(*given)

    return [begin, *rest]


def with_matmuls(kind: str, function: Function) -> Function:
    """The function, its products on a device as exact as asked for; what others asked for comes back after it."""

    def exactly(*parts: Any) -> Any:
        settings = torch.backends.cuda.matmul
        name, rounded, whole = ("fp32_precision", "tf32", "ieee") if RENAMED else ("allow_tf32", True, False)
        before = getattr(settings, name)
        setattr(settings, name, whole if kind == "float32" else rounded)
        try:
            return function(*parts)
        finally:
            setattr(settings, name, before)

    return exactly


def engine_for(
    config: Config, env: TensorEnv, agent: Agent, optimizer: torch.optim.Optimizer, loss_terms: Sequence[LossTerm] = ()
) -> Engine:
    """The engine that the config asks for; `auto` takes graphs where a device can replay them."""
    kind = chosen(config.engine.kind, env)
    row = compiled_row(env, agent, config) if kind != "eager" and can_compile(env.device) else collect_row

    def collected(carry: Carry, noise: Noise) -> tuple[Rollout, Carry]:
        return collect(env, agent, carry, noise, config, row)

    def understood(*parts: Any) -> Reading:
        return read(agent, config, *parts)

    def summed(*parts: Any) -> Figures:
        return figures_of(agent, optimizer, config, *parts)

    step = Stepper(agent, optimizer, config, loss_terms)
    parts: list[Function] = [collected, understood, summed, step]
    for trunk in agent.trunks.values():
        cast(Trunk, trunk).rounded = on_device(env) and config.engine.matmul == "bfloat16"
    if on_device(env):
        parts = [with_matmuls(config.engine.matmul, part) for part in parts]
    if kind == "graph":
        parts = captured(parts)
    return Engine(*counted(config, *parts[:3]), step if parts[3] is step else Executed(step, parts[3]))


def on_device(env: TensorEnv) -> bool:
    """Whether the host has to wait to see what happens."""
    return env.device.type == "cuda"


def chosen(kind: str, env: TensorEnv) -> str:
    """The engine's name, `auto` made up."""
    if kind == "graph" and ranks.count() > 1:
        raise ConfigError(
            f"engine.kind='graph' captures what one process does, and {ranks.count()} train together, each with another share "
            "of every batch; use engine.kind='auto'"
        )
    replayed = on_device(env) and env.is_pure and ranks.count() == 1
    if kind == "graph" and not replayed:
        raise ConfigError(
            f"engine.kind='graph' captures what a CUDA device does, and {type(env).__name__} lives on {env.device.type}"
            f"{'' if env.is_pure else ' and outside of torch'}; use a native environment on a device, or engine.kind='auto'"
        )
    return ("graph" if replayed else "eager") if kind == "auto" else kind


def compiled_row(env: TensorEnv, agent: Agent, config: Config) -> RowOf:
    """`collect_row`, compiled; what the row does not read stays outside."""
    apart = ("return_moments", "return_history", "risk", "iteration")
    fast = Compiled("a row of the rollout", lambda carry, noise: collect_row(env, agent, carry, noise, config))

    blank: Any = dict.fromkeys(apart)

    def row(env: TensorEnv, agent: Agent, carry: Carry, noise: Noise, config: Config) -> tuple[Row, Carry]:
        made, after = fast(carry._replace(**blank), noise)
        return made, after._replace(**{name: getattr(carry, name) for name in apart})

    return row


class Executed(Stepper):
    """A stepper whose steps somebody else takes; statistics are copied out, for the next step may overwrite them."""

    def __init__(self, step: Stepper, execute: Function) -> None:
        self.agent, self.optimizer, self.config, self.owners, self.execute = (
            step.agent, step.optimizer, step.config, step.owners, execute,
        )  # fmt: skip

    def __call__(self, pick: Pick, knobs: Knobs, stops: Stops) -> Stepped:
        done: Stepped = self.execute(pick, knobs, stops)
        return done._replace(values=done.values.clone(), finite=done.finite.clone())


def counted(config: Config, collect: Function, read: Function, figures: Function) -> tuple[Function, Function, Function]:
    """The parts with everything that counts on, which no graph can: they see what depends on it, and only that."""
    decays = config.risk.alpha_decay > 0

    def collected(carry: Carry, noise: Noise) -> tuple[Rollout, Carry]:
        rollout, after = collect(carry._replace(iteration=0), noise)
        return rollout, after._replace(iteration=carry.iteration + 1)

    def understood(rollout: Rollout, carry: Carry, levels: torch.Generator, dropout: Any, done: float, first: bool) -> Reading:
        reading: Reading
        reading = read(rollout, carry._replace(iteration=0), levels, dropout, min(done, 1.0) if decays else 1.0, first)
        return reading._replace(carry=reading.carry._replace(iteration=carry.iteration))

    def summed(rollout: Rollout, reading: Reading, steps: Any, knobs: Knobs, lost: int) -> Figures:
        i, rests = reading.carry.iteration, frozen(reading.carry.iteration, lost, config.critic)
        found: Figures = figures(rollout, reading._replace(carry=reading.carry._replace(iteration=0)), steps, knobs, rests)
        return found._replace(later=found.later._replace(iteration=i))

    return collected, understood, summed
