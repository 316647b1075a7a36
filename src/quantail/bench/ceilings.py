"""What this machine does at best, measured on the spot: products of matrices, and memory read and written."""

import time
from collections.abc import Callable
from typing import NamedTuple

import torch

SIDE = {"cpu": 1024, "cuda": 8192}  # of square matrices
COPIED = {"cpu": 1 << 25, "cuda": 1 << 29}  # numbers: far more than any cache holds
ROUNDS = 12


class Ceilings(NamedTuple):
    """The two sides of a roofline (Williams, Waterman & Patterson 2009)."""

    flops: float  # a second, of float32 products
    bytes: float  # a second, read and written

    def seconds(self, work: "Work") -> float:
        """The least time for this work: as long as the slower of the two takes."""
        return max(work.flops / self.flops, work.bytes / self.bytes)


class Work(NamedTuple):
    """What has to be computed and moved."""

    flops: float
    bytes: float


def clock(device: torch.device) -> Callable[[], float]:
    """Seconds: on one thread those of the process, so that a busy machine does not count; otherwise those of the wall."""
    if device.type == "cpu" and torch.get_num_threads() == 1:
        return time.process_time

    def waited() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    return waited


def ceilings(device: torch.device) -> Ceilings:
    """Best of several rounds of each."""
    side, numbers = SIDE[device.type], COPIED[device.type]
    a, b, product = (torch.rand(side, side, device=device) for _ in range(3))
    source, copied = torch.zeros(numbers, device=device), torch.empty(numbers, device=device)
    multiply = _best(lambda: torch.mm(a, b, out=product), clock(device))
    copy = _best(lambda: copied.copy_(source), clock(device))
    return Ceilings(2.0 * side**3 / multiply, 8.0 * numbers / copy)


def _best(call: Callable[[], object], now: Callable[[], float]) -> float:
    call()
    times = []
    for _ in range(ROUNDS):
        began = now()
        call()
        times.append(now() - began)
    return min(times)
