"""Who executes an iteration: the host, call by call; torch's compiler; or a device, from graphs captured once.

All three run the same functions. `eager` is the reference. `compile` has the row of a rollout compiled: the environment's
arithmetic, hundreds of small calls, becomes a few. `graph` captures the rollout, the estimates, each optimizer step and the
figures as CUDA graphs, the compiled row inside, and replays them: the host launches four things an iteration in place of a
hundred thousand, and waits for the device once, when the figures cross.

What a graph gives lies in memory that its next replay overwrites: the records of an iteration last until the next begins.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from quantail import ranks
from quantail.config import Config
from quantail.envs.base import TensorEnv
from quantail.errors import ConfigError
from quantail.figures import Figures, figures_of
from quantail.losses import Knobs, LossTerm
from quantail.nets.agent import Agent, Trunk
from quantail.normaliser import frozen
from quantail.reading import Reading, read
from quantail.rollout import Carry, Noise, Rollout, collect, collect_row
from quantail.stepper import Pick, Stepped, Stepper
from quantail.stops import Stops
from quantail.trees import Build, flatten, leaves_of

Function = Callable[..., Any]
RENAMED = hasattr(torch.backends.cuda.matmul, "fp32_precision")  # since torch 2.9
CALLED = 2  # iterations before anything is captured: the first is like no other


class Engine(NamedTuple):
    """The four parts of an iteration, as somebody executes them."""

    kind: str
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
    row = collect_row if kind == "eager" or not can_compile(env.device) else CompiledRow()

    def collected(carry: Carry, noise: Noise) -> tuple[Rollout, Carry]:
        rollout, after = collect(env, agent, carry, noise, config, row)
        return rollout, after

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
    return Engine(kind, *counted(config, *parts[:3]), step if parts[3] is step else Executed(step, parts[3]))


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


def can_compile(device: torch.device) -> bool:
    """Whether torch's compiler finds what it needs: Triton on a GPU, a C++ compiler on a processor."""
    if device.type == "cuda":
        return torch.utils._triton.has_triton()
    from torch._inductor import config, cpp_builder

    try:
        cpp_builder.get_cpp_compiler()
    except (RuntimeError, OSError):
        return False
    return config.cpp.cxx is not None


# --- compiled ---------------------------------------------------------------------------------------------------------


class CompiledRow:
    """`collect_row`, compiled for the records of its first call; what the row does not read stays outside."""

    def __init__(self) -> None:
        self.fast: Function | None = None
        self.shape: Build = lambda leaves: leaves  # known after the first call

    def __call__(self, env: TensorEnv, agent: Agent, carry: Carry, noise: Noise, config: Config) -> tuple[Any, Carry]:
        apart = ("return_moments", "return_history", "risk", "iteration")
        blank: dict[str, Any] = dict.fromkeys(apart)
        seen = carry._replace(**blank)
        given, build = flatten((seen, noise))
        if self.fast is None:
            self.shape = flatten(collect_row(env, agent, seen, noise, config))[1]

            def flat(*tensors: Tensor) -> list[Tensor]:  # records are nothing that every compiler can hand out
                inner, drawn = build(list(tensors))
                return leaves_of(collect_row(env, agent, inner, drawn, config))

            self.fast = torch.compile(flat, dynamic=False, fullgraph=True)
        row, after = self.shape(self.fast(*given))
        return row, after._replace(**{name: getattr(carry, name) for name in apart})


# --- captured ---------------------------------------------------------------------------------------------------------


class Shared:
    """What the graphs of one engine share: the iteration they are in, and their results, which stay where they are.

    Nothing is captured before every part has been called with what later iterations look like, and then all of it in the
    order in which it is replayed, so that a graph reads what another gives where it lies.
    """

    def __init__(self) -> None:
        self.iterations = 0
        self.standing: dict[int, Tensor] = {}

    def pool(self) -> Any:
        """Memory of the graphs of one function, and of no other: another's replay would write over what these give."""
        return torch.cuda.graph_pool_handle()

    def record(
        self, function: Callable[[], Any], generators: Sequence[torch.Generator], pool: Any
    ) -> tuple[Any, Callable[[], None]]:
        """What the function gives, and how to do it again."""
        graph = torch.cuda.CUDAGraph()
        for source in generators:
            graph.register_generator_state(source)
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            given = function()
        return given, graph.replay

    def warm(self, function: Callable[[], Any]) -> Any:
        """The function called once where a capture would take place: libraries and moments are made ready by that."""
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            given = function()
        torch.cuda.current_stream().wait_stream(side)
        return given


class _Captured(NamedTuple):
    """A graph: where it reads, what it gives, how it is replayed."""

    inputs: list[Any]
    given: Any
    replay: Callable[[], None]


class Graphed:
    """A function of nested records of tensors: called at first, captured once, replayed from then on.

    For each shape of its arguments, and for each value of those that are no tensors, there is a graph of its own. A generator
    is reseeded before a replay, so that a graph draws what the function would have.
    """

    def __init__(self, function: Function, shared: Shared) -> None:
        self.function, self.shared = function, shared
        self.seen: dict[Hashable, _Captured | None] = {}
        self.pool = shared.pool()

    def __call__(self, *given: Any) -> Any:
        leaves, build = flatten(given)
        key = tuple(map(_kind, leaves))
        if key not in self.seen or self.shared.iterations <= CALLED:
            self.seen.setdefault(key, None)
            return self.shared.warm(lambda: self.function(*given))
        captured = self.seen[key]
        if captured is None:
            captured = self.seen[key] = self._capture(leaves, build)
        _load(captured.inputs, leaves)
        captured.replay()
        return captured.given

    def _capture(self, leaves: list[Any], build: Build) -> _Captured:
        inputs = [self._place(leaf) for leaf in leaves]
        sources = [leaf for leaf in inputs if isinstance(leaf, torch.Generator)]
        given, replay = self.shared.record(lambda: self.function(*build(inputs)), sources, self.pool)
        self.shared.standing |= {id(leaf): leaf for leaf in flatten(given)[0] if isinstance(leaf, Tensor)}
        return _Captured(inputs, given, replay)

    def _place(self, leaf: Any) -> Any:
        """Where a graph reads an argument: what another graph gives where it lies, all else in a place of its own."""
        if isinstance(leaf, torch.Generator):
            return torch.Generator(leaf.device)
        return leaf.clone() if isinstance(leaf, Tensor) and id(leaf) not in self.shared.standing else leaf


class Executed(Stepper):
    """A stepper whose steps somebody else takes; statistics are copied out, for the next step may overwrite them."""

    def __init__(self, step: Stepper, execute: Function) -> None:
        super().__init__(step.agent, step.optimizer, step.config, step.loss_terms)
        self.execute = execute

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


def _kind(leaf: Any) -> Hashable:
    if isinstance(leaf, Tensor):
        return (leaf.shape, leaf.dtype)
    return torch.Generator if isinstance(leaf, torch.Generator) else leaf


def _load(inputs: list[Any], leaves: list[Any]) -> None:
    """The arguments of this call where the graph reads them; all of one type with one call."""
    moved: dict[torch.dtype, list[tuple[Tensor, Tensor]]] = {}
    for mine, given in zip(inputs, leaves, strict=True):
        if isinstance(mine, torch.Generator):
            mine.manual_seed(given.initial_seed())
        elif isinstance(mine, Tensor) and mine is not given:
            moved.setdefault(mine.dtype, []).append((mine, given))
    for pairs in moved.values():
        torch._foreach_copy_([mine for mine, _ in pairs], [given for _, given in pairs])
