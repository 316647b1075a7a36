"""Slow roads to the same numbers: torch's own cells, one environment and one episode at a time."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

T, B, H, F, P = 7, 5, 3, 4, 2  # all different, so that no axis can stand in for another


def normal(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype)


def ragged(rows: int = T, envs: int = B) -> Tensor:
    """Starts nowhere, on the first row, on two rows in a row, on every row, on the last row."""
    start = torch.zeros(rows, envs, dtype=torch.bool)
    start[0, 1] = start[3:4, 1] = True
    start[2, 2] = start[3, 2] = True
    start[:, 3] = True
    start[-1, 4] = True
    return start


def episodes(start: Tensor) -> Iterator[tuple[int, int, bool]]:
    """(first row, end, memory empty) of each stretch of one environment."""
    cuts = [t for t in range(len(start)) if start[t] or t == 0]
    for first, end in zip(cuts, [*cuts[1:], len(start)], strict=True):
        yield first, end, bool(start[first])


def by_episode(module: torch.nn.Module, x: Tensor, start: Tensor, states: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """torch.nn.LSTM or GRU over every stretch of every environment by itself -> h [T, B, H] and the last states [B, H]."""
    rows, last = [], []
    for env in range(x.shape[1]):
        memory = tuple(state[None, env] for state in states)
        pieces = []
        for first, end, empty in episodes(start[:, env]):
            if empty:
                memory = tuple(torch.zeros_like(state) for state in memory)
            y, after = module(x[first:end, env], memory if len(memory) == 2 else memory[0])
            memory = after if isinstance(after, tuple) else (after,)
            pieces.append(y)
        rows.append(torch.cat(pieces))
        last.append(torch.stack([state[0] for state in memory]))
    return torch.stack(rows, 1), *torch.stack(last, 1)


def mingru_by_row(x: Tensor, start: Tensor, h0: Tensor, w_x: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The recurrence as it is written, one row and one environment after the other."""
    hidden, envs = h0.shape[-1], []
    for env in range(x.shape[1]):
        h, rows = h0[env], []
        for t in range(x.shape[0]):
            if start[t, env]:
                h = torch.zeros_like(h)
            y = w_x @ x[t, env] + b
            z = 1 / (1 + torch.exp(-y[:hidden]))
            h = (1 - z) * h + z * y[hidden:]
            rows.append(h)
        envs.append(torch.stack(rows))
    out = torch.stack(envs, 1)
    return out, out[-1]


def results_and_gradients(call: Callable[..., tuple[Tensor, ...]], inputs: list[Tensor], start: Tensor) -> list[Tensor]:
    """Values of the call and, through a fixed smooth function of all of them, the gradient of every input."""
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    values = call(leaves[0], start, *leaves[1:])
    total = sum((value * torch.cos(torch.arange(value.numel()).to(value)).view(value.shape)).sum() for value in values)
    return [*(value.detach() for value in values), *torch.autograd.grad(total, leaves, materialize_grads=True)]
