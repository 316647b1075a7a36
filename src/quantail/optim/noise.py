"""Noise that is a function of (seed, step): a table of normal numbers, read from a place and with a sign that the step decides.

Drawing a normal number for every weight in every step costs more than the rest of an optimizer step (2.2 ms against 1.0 ms
for AdamW on 10⁶ weights). So they are drawn once, 2²⁰ more of them than there are weights, and step t reads them from place
h(t) on, all with the sign s(t), h and s from a hash of t (Salimans et al. 2017 share such a table among workers). Within a
step the numbers are independent; between two steps they are uncorrelated, for their signs are. A table is a function of the
seed alone, made on the host, so every device reads the same numbers, and the step counter is the whole state.
"""

from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor

from quantail.streams import Stream, generator, normal

Whole = TypeVar("Whole", int, Tensor)
PLACES = 1 << 20  # from which a step may begin to read
WORD = 0xFFFFFFFF


class Tape:
    """The table of one seed on one device: normal numbers [n + PLACES]."""

    def __init__(self, seed: int, numbers: int, like: Tensor) -> None:
        length = -(-(numbers + PLACES) // 16) * 16  # drawn by sixteens: a longer tape begins as a shorter one does
        self.values = normal((length,), generator(seed, Stream.OPTIM, 0)).to(like)
        self.numbers = numbers
        self.places: dict[tuple[int, ...], Tensor] = {}

    def read(self, step: float, begins: Sequence[int], shapes: Sequence[torch.Size]) -> tuple[list[Tensor], float]:
        """What weights of these shapes, the first of each with this number, see in a step, but for the sign; and the sign."""
        word = mixed(int(step))
        at, counts = word % PLACES, [shape.numel() for shape in shapes]
        if sum(counts[:-1]) == begins[-1] - begins[0]:  # neighbours: one look instead of many
            parts = torch.split(self.values[at + begins[0] : at + begins[-1] + counts[-1]], counts)
        else:
            parts = tuple(self.values[at + begin : at + begin + n] for begin, n in zip(begins, counts, strict=True))
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)], 1.0 - 2.0 * (word >> 31)

    def gather(self, step: Tensor, begins: Sequence[int], shapes: Sequence[torch.Size]) -> list[Tensor]:
        """The same with the step on the device, sign included: nothing is read on the host, so a captured graph can do it."""
        key = tuple(begins)
        if key not in self.places:
            ranges = [torch.arange(at, at + shape.numel()) for at, shape in zip(begins, shapes, strict=True)]
            self.places[key] = torch.cat(ranges).to(step.device)
        word = mixed(step.long())
        flat = self.values.index_select(0, self.places[key] + word % PLACES) * (1 - 2 * (word >> 31)).to(self.values)
        parts = torch.split(flat, [shape.numel() for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]


def mixed(x: Whole) -> Whole:
    """32 bits that look random from 32 that count, by a bijection: two rounds of xor-shift and multiply (Mueller 2012)."""
    x = x & WORD
    x = ((x ^ (x >> 16)) * 0x45D9F3B) & WORD
    x = ((x ^ (x >> 16)) * 0x45D9F3B) & WORD
    return x ^ (x >> 16)
