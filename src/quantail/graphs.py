"""Functions of nested records, captured as CUDA graphs and replayed."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from quantail.trees import Build, flatten, kind_of

Function = Callable[..., Any]
CALLED = 2  # iterations before anything is captured: the first is like no other


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
        key = tuple(map(kind_of, leaves))
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
