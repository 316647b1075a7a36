"""What the Triton kernels buy: `python benchmarks/gpu_kernels.py --device cuda [--only lstm] [--json FILE]`.

Each kernel beside the torch road of the same function, both in CUDA graphs, at the sizes of training on one GPU: T = 64 rows of
16,384 environments, H = 128, 64 inputs, 32 quantiles or particles. Bytes are those that must cross memory once (inputs, results
and what the backward pass keeps), operations those of the products; the roofline is the time that the slower of both would take
at the rates measured on the spot, and `share` is that time over the kernel's. The torch road of memory has no bfloat16: it
stays in float32.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from quantail.functional.quantile import tail_levels
from quantail.kernels import gru_sequence, lstm_sequence, mingru_sequence, returns, roads
from quantail.kernels.quantile import quantile_huber_loss
from quantail.types import Law

TIME, ENVS, INPUTS, HIDDEN, QUANTILES = 64, 16_384, 64, 128, 32
ROWS = TIME * ENVS
STARTS = 0.005  # of the rows begin an episode


class Case(NamedTuple):
    """One line: what is called, and the bytes and operations that it cannot do without."""

    call: Callable[[], object]
    bytes: float
    operations: float = 0.0


def learn(call: Callable[[], Tensor], leaves: list[Tensor]) -> Callable[[], object]:
    """Forward and backward, from a slope that is there already."""
    with torch.no_grad():
        slope = torch.randn_like(call())
    return lambda: torch.autograd.grad(call(), leaves, slope)


def quiet(call: Callable[[], object]) -> Callable[[], object]:
    """Without gradients, as in a rollout."""

    def run() -> object:
        with torch.no_grad():
            return call()

    return run


class Memory(NamedTuple):
    """A layer: its kernel, its blocks of gates, its states, the width of W_h in memories, and weights of [H] beyond b."""

    kernel: Callable[..., tuple[Tensor, ...]]
    blocks: int
    states: int
    recurrent: int
    more: int = 0


LAYERS = {
    "lstm": Memory(lstm_sequence, 4, 2, 1),
    "gru": Memory(gru_sequence, 3, 1, 1, 1),
    "mingru": Memory(mingru_sequence, 2, 1, 0),
}


def recurrent(name: str, layer: Memory, dtype: torch.dtype) -> Iterator[tuple[str, Case]]:
    """Forward and backward of a rollout, its forward pass alone, and one row."""
    x = torch.randn(TIME, ENVS, INPUTS, device="cuda")
    start = torch.rand(TIME, ENVS, device="cuda") < STARTS
    memory = [torch.zeros(ENVS, HIDDEN, device="cuda") for _ in range(layer.states)]
    width = layer.blocks * HIDDEN
    shapes = [(width, INPUTS), *[(width, HIDDEN)] * layer.recurrent, (width,), *[(HIDDEN,)] * layer.more]
    weights = [(0.1 * torch.randn(shape, device="cuda")).requires_grad_() for shape in shapes]
    products, size = 2 * ROWS * width * (layer.recurrent * HIDDEN + INPUTS), dtype.itemsize

    def rows(count: int) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=dtype == torch.bfloat16):
            return layer.kernel(x[:count], start[:count], *memory, *weights)[0]

    gates, state = width * size, HIDDEN * 4
    forward = INPUTS * 4 + state + 2 * gates  # x, h; what enters the gates is written and read
    kept = (layer.states - 1) * state + gates + (HIDDEN + INPUTS) * size
    learning = forward + 2 * kept + state + 2 * gates  # the gradients of the gates are written and read
    label = f"{name} {str(dtype).removeprefix('torch.')}"
    yield f"{label}, learning", Case(learn(lambda: rows(TIME), weights), ROWS * learning, 3 * products)
    yield f"{label}, forward", Case(quiet(lambda: rows(TIME)), ROWS * forward, products)
    yield f"{label}, one row", Case(quiet(lambda: rows(1)), ENVS * (forward + 2 * layer.states * state), products / TIME)


def loss() -> Iterator[tuple[str, Case]]:
    """A critic's quantile-Huber loss of all rows, with its gradient."""
    taus = tail_levels(QUANTILES)[0].cuda()
    quantiles = torch.randn(ROWS, QUANTILES, device="cuda", requires_grad=True)
    targets = torch.randn(ROWS, QUANTILES, device="cuda")
    learning = learn(lambda: quantile_huber_loss(quantiles, targets, taus, 0.01), [quantiles])
    yield "quantile-Huber loss, learning", Case(learning, ROWS * (5 * QUANTILES * 4 + 8))


def backwards() -> Iterator[tuple[str, Case]]:
    """Advantages and sample replacement of a rollout."""
    rewards, values = torch.randn(TIME, ENVS, device="cuda"), torch.randn(TIME + 1, ENVS, device="cuda")
    terminated, truncated = (torch.rand(TIME, ENVS, device="cuda") < STARTS for _ in range(2))
    ends = (terminated, truncated & ~terminated, 0.99, 0.95)
    masses = tail_levels(QUANTILES)[1].cuda()
    law = Law(torch.randn(TIME + 1, ENVS, QUANTILES, device="cuda"), masses)
    noise = [torch.rand(TIME, ENVS, QUANTILES, device="cuda") for _ in range(2)]
    yield "advantages", Case(lambda: returns.gae(rewards, values, *ends), ROWS * 18)
    replaced = Case(lambda: returns.distributional_targets(rewards, law, *ends, *noise), ROWS * (6 + 4 * QUANTILES * 4))
    yield "sample replacement", replaced


def cases() -> Iterator[tuple[str, Case]]:
    """Every line, made when its turn comes."""
    for name, layer in LAYERS.items():
        for dtype in (torch.float32, torch.bfloat16):
            yield from recurrent(name, layer, dtype)
    yield from loss()
    yield from backwards()


@contextmanager
def torch_road() -> Iterator[None]:
    """No kernel of ours."""
    there, roads.TRITON = roads.TRITON, False
    try:
        yield
    finally:
        roads.TRITON = there


def milliseconds(call: Callable[[], object], repeats: int) -> float:
    """Median of replays of one captured graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 3)]
    for mark in marks:
        mark.record()
        graph.replay()
    torch.cuda.synchronize()
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(marks[1:]))


def ceilings(repeats: int) -> tuple[float, float]:
    """Bytes per second of a copy, and operations per second of a bfloat16 product of random numbers."""
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    copied = 2 * source.nbytes / milliseconds(lambda: target.copy_(source), repeats)
    left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 1e3 * copied, 1e3 * 2 * 8192**3 / milliseconds(lambda: left @ right, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(description="time of the Triton kernels beside plain torch")
    parser.add_argument("--device", default="cuda", choices=["cuda"])
    parser.add_argument("--only", default="", help="lines that contain this")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if not torch.cuda.is_available() or not roads.TRITON:
        parser.error("needs a CUDA device, Triton and a C compiler; the torch road is measured by benchmarks/recurrent.py")
    bandwidth, rate = ceilings(arguments.repeats)
    print(f"T={TIME} B={ENVS} I={INPUTS} H={HIDDEN}, torch {torch.__version__}, {torch.cuda.get_device_name()}")
    print(f"measured ceilings: copy {bandwidth / 1e12:.2f} TB/s, bfloat16 product {rate / 1e12:.0f} TFLOP/s\n")
    print("| what | torch ms | kernel ms | ratio | TB/s | TFLOP/s | share |", "|---|---:|---:|---:|---:|---:|---:|", sep="\n")
    found = {}
    for name, case in cases():
        if arguments.only not in name:
            continue
        with torch_road():
            plain = milliseconds(case.call, arguments.repeats)
        ours = milliseconds(case.call, arguments.repeats)
        share = 1e3 * max(case.bytes / bandwidth, case.operations / rate) / ours
        found[name] = {"torch_ms": plain, "kernel_ms": ours, "roofline_share": share}
        rates = f"{case.bytes / ours / 1e9:.2f} | {case.operations / ours / 1e9:.0f}"
        print(f"| {name} | {plain:.3f} | {ours:.3f} | {plain / ours:.1f} | {rates} | {share:.0%} |", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
