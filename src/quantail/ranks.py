"""Several processes that train one agent: which of them this one is, and what all of them say together.

`torchrun` starts them; a process that is alone gets back what it brings. The environments stand side by side over the ranks: of
a whole of R·B, rank r has columns r·B to (r + 1)·B − 1. Noise is drawn for the whole and each rank keeps its columns, so that
all ranks together are one process with all environments.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch import distributed as dist

Draw = Callable[[Sequence[int], torch.Generator], Tensor]


def count() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def place() -> int:
    """Which of them this is; 0 is the one that writes."""
    return dist.get_rank() if count() > 1 else 0


def writes() -> bool:
    """Whether this process may print and write: the only one, or the first that `torchrun` started."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def joined(device: torch.device | str = "cpu") -> Iterator[None]:
    """With the others that `torchrun` started, where it did; gloo between processors, nccl between GPUs."""
    if count() > 1 or int(os.environ.get("WORLD_SIZE", "1")) < 2:
        yield
        return
    dist.init_process_group("nccl" if torch.device(device).type == "cuda" else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def total(x: Tensor) -> Tensor:
    """The sum over all ranks, the same bits on each."""
    if count() == 1:
        return x
    found = x.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(found)
    return found


def whole(x: Tensor, dim: int) -> Tensor:
    """The parts of all ranks side by side; they are of one shape."""
    if count() == 1:
        return x
    mine = x.contiguous()
    parts = [torch.empty_like(mine) for _ in range(count())]
    dist.all_gather(parts, mine)
    return torch.cat(parts, dim)


def own(x: Tensor, dim: int) -> Tensor:
    """This rank's part of a whole."""
    return x if count() == 1 else x.chunk(count(), dim)[place()]


def drawn(draw: Draw, shape: Sequence[int], source: torch.Generator, dim: int) -> Tensor:
    """This rank's part of what a process with all environments would draw; `shape` is that of the part."""
    sizes = list(shape)
    sizes[dim] *= count()
    return own(draw(sizes, source), dim)


def chosen(index: Tensor, envs: int) -> tuple[Tensor, Tensor | None]:
    """Of sequences of the whole those of this rank by its own numbers, and which those were; None: all.

    index [n] counts span by span, in each environment by environment; `envs` is the number of this rank's environments.
    """
    if count() == 1:
        return index, None
    every = envs * count()
    env = index % every - envs * place()
    kept = (env >= 0) & (env < envs)
    return (index // every * envs + env)[kept], kept


def joint(names: Sequence[str], values: Tensor, mean: bool = False) -> Tensor:
    """Figures of all ranks: the largest of what ends with "_max", the smallest of "_min", else the sum, or the mean of numbers.

    values [names] -> [names].
    """
    if count() == 1:
        return values
    every = whole(values[None], 0)
    least, most = (torch.tensor([name.endswith(end) for name in names], device=values.device) for end in ("_min", "_max"))
    found = every.nanmean(0) if mean else every.sum(0)
    return torch.where(most, every.amax(0), torch.where(least, every.amin(0), found))


def same(text: str) -> str:
    """What the first rank says."""
    told = [text]
    if count() > 1:
        dist.broadcast_object_list(told, 0)
    return told[0]
