"""What the agent remembers inside an episode: stacked recurrent layers whose state comes in and goes out."""

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from quantail.errors import InputError
from quantail.functional.checks import bad_shape, check_choice, check_count
from quantail.kernels import gru_sequence, lstm_sequence, mingru_sequence

Memory = tuple[Tensor, ...]  # each [layers, B, hidden]: environments are axis 1 everywhere

KINDS = ("lstm", "gru", "mingru", "none")
STATES = {"lstm": 2, "gru": 1, "mingru": 1, "none": 0}  # tensors that make up the state
BLOCKS = {"lstm": 4, "gru": 3, "mingru": 2}  # gates and candidates, each as wide as the state
KEEP = {"lstm": (1, 1.0), "gru": (1, 1.0), "mingru": (0, -1.0)}  # the block that forgets, and the bias at which it keeps


class MemoryNet(nn.Module):
    """Recurrent layers over whole sequences: x [T, B, inputs], memory, start [T, B] -> [T, B, width], memory after row T−1."""

    def __init__(self, kind: str, inputs: int, hidden: int, layers: int = 1, ortho_init: bool = True) -> None:
        super().__init__()
        check_choice("memory", kind, KINDS)
        check_count("hidden", hidden)
        check_count("layers", layers)
        self.kind = kind
        self.depth = layers if kind != "none" else 0
        self.width = hidden if self.depth else inputs
        widths = [inputs, *[hidden] * self.depth]
        self.layers = nn.ModuleList(_Layer(kind, widths[i], hidden, ortho_init) for i in range(self.depth))

    @property
    def states(self) -> int:
        """How many tensors make up the memory."""
        return STATES[self.kind]

    def initial(self, batch: int) -> Memory:
        """The empty memory of so many environments."""
        check_count("batch", batch)
        if not self.depth:
            return ()
        like = cast(_Layer, self.layers[0]).b
        return tuple(like.new_zeros(self.depth, batch, self.width) for _ in range(self.states))

    def forward(self, x: Tensor, memory: Memory, start: Tensor, dropout_mask: Tensor | None = None) -> tuple[Tensor, Memory]:
        """dropout_mask [layers, B, hidden], divided by the share kept, multiplies what each layer gives, in every row."""
        self._check(x, memory, dropout_mask)
        after = []
        for index, layer in enumerate(self.layers):
            x, states = layer(x, tuple(state[index] for state in memory), start)
            after.append(states)
            if dropout_mask is not None:
                x = x * dropout_mask[index]
        return x, tuple(torch.stack(states) for states in zip(*after, strict=True))

    def _check(self, x: Tensor, memory: Memory, dropout_mask: Tensor | None) -> None:
        shape = (self.depth, x.shape[-2], self.width)
        if len(memory) != self.states:
            raise InputError(f"memory has {len(memory)} tensors; {self.kind} needs {self.states}: start from initial(batch)")
        for state in memory:
            if tuple(state.shape) != shape:
                bad_shape("memory", state, f"{list(shape)} (layers, environments, hidden)")
        if dropout_mask is not None and tuple(dropout_mask.shape) != shape and self.depth:
            bad_shape("dropout_mask", dropout_mask, f"{list(shape)} (layers, environments, hidden)")


class _Layer(nn.Module):
    """One recurrent layer."""

    def __init__(self, kind: str, inputs: int, hidden: int, ortho_init: bool) -> None:
        super().__init__()
        self.kind = kind
        self.w_x = nn.Parameter(torch.empty(BLOCKS[kind] * hidden, inputs))
        self.w_h = nn.Parameter(torch.empty(BLOCKS[kind] * hidden, hidden)) if kind != "mingru" else None
        self.b = nn.Parameter(torch.zeros(BLOCKS[kind] * hidden))
        self.b_hn = nn.Parameter(torch.zeros(hidden)) if kind == "gru" else None
        for weight in (self.w_x, self.w_h):
            if weight is not None and ortho_init:
                nn.init.orthogonal_(weight)
            elif weight is not None:
                nn.init.uniform_(weight, -(hidden**-0.5), hidden**-0.5)
        # A new memory keeps 73 % of itself per row rather than half (Gers et al. 2000; Jozefowicz et al. 2015).
        block, bias = KEEP[kind]
        nn.init.constant_(self.b[block * hidden : (block + 1) * hidden], bias)

    def forward(self, x: Tensor, states: Sequence[Tensor], start: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        if self.w_h is None:
            y, *after = mingru_sequence(x, start, states[0], self.w_x, self.b)
        elif self.b_hn is None:
            y, *after = lstm_sequence(x, start, states[0], states[1], self.w_x, self.w_h, self.b)
        else:
            y, *after = gru_sequence(x, start, states[0], self.w_x, self.w_h, self.b, self.b_hn)
        return y, tuple(after)


class MemoryStatistics(NamedTuple):
    """How full a memory is, layer by layer."""

    mean: Tensor  # [layers] of all entries
    std: Tensor  # [layers]
    norm: Tensor  # [layers] Euclidean, the mean of the environments


def memory_statistics(state: Tensor) -> MemoryStatistics:
    """Mean, deviation and norm of a state tensor, norm = 1/B·Σ_b |h_b|.  [layers, B, H] -> [layers] each."""
    state = state.detach()
    return MemoryStatistics(
        state.mean((-2, -1)), state.std((-2, -1), correction=0), torch.linalg.vector_norm(state, dim=-1).mean(-1)
    )


def memory_sums(memory: Memory) -> Tensor | None:
    """Σ h and Σ h² of each environment, from which mean, deviation and norm follow: [2, states, layers, B]; None without."""
    if not memory:
        return None
    states = torch.stack(memory).detach()
    return torch.stack([states.sum(-1), states.square().sum(-1)])


def select_envs(memory: Memory, index: Tensor | slice) -> Memory:
    """The memory of some environments.  [layers, B, H] each -> [layers, len(index), H]."""
    return tuple(state[:, index] for state in memory)
