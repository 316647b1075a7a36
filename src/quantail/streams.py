"""Randomness as values: iteration i draws everything it needs from streams seeded by (seed, stream, i).

The counter i is the whole state of the random numbers: a resumed run draws what the uninterrupted one would have.
"""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np
import torch
from torch import Tensor


class Stream(IntEnum):
    """What is drawn. The numbers are part of every saved run and never change."""

    INIT = 0
    RESET = 1
    ACT = 2
    ENVIRONMENT = 3
    TARGETS = 4
    ORDER = 6  # of the mini-batches, and the entropy of a squashed policy
    DROPOUT = 7
    EXPLORE = 8
    PLAY = 9
    PLAY_ACT = 10
    OPTIM = 16  # the noise of an optimizer


def generator(seed: int, stream: Stream, iteration: int, device: torch.device | None = None) -> torch.Generator:
    """A fresh generator, independent of that of any other stream, iteration or seed (mixed by NumPy's SeedSequence)."""
    word = np.random.SeedSequence(seed, spawn_key=(int(stream), iteration)).generate_state(1, np.uint64)[0]
    return torch.Generator(device or "cpu").manual_seed(int(word >> np.uint64(1)))


def normal(shape: Sequence[int], source: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(tuple(shape), generator=source, dtype=dtype, device=source.device)


def uniform(shape: Sequence[int], source: torch.Generator, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers in [0, 1)."""
    return torch.rand(tuple(shape), generator=source, dtype=dtype, device=source.device)
