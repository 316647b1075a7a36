"""What a step costs: `python benchmarks/optimizers.py [--device cuda] [--json FILE]`.

Optimizers over a million float32 parameters in ten tensors (the layers of a network), against torch's AdamW(foreach=True):
one step of each in turn, so that whatever disturbs the machine disturbs all; the median of the ratios of neighbours. On the
CPU it is the processor's time of one thread, in which whoever else uses the machine hardly counts. On a GPU under the same
conditions for both: called from Python (`eager`), replayed as a captured graph, where launching costs nothing and both are
capturable (`graph`), and compiled by torch (`compiled`). The promise for AdaptiveUPGD as it comes: at most 2.5 times AdamW
on a CPU, 1.5 times in a graph on a GPU.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from quantail.optim import UPGD, AdaptiveUPGD, VarianceScaler

SHAPES = ((256, 512), (256,), (512, 256), (512,), (512, 512), (512,), (512, 512), (512,), (400, 512), (400,))
PROMISED = {"cpu": 2.5, "cuda": 1.5}
BASE = "AdamW, foreach"
Step = Callable[[], Any]


def parameters(device: torch.device) -> list[torch.nn.Parameter]:
    source = torch.Generator().manual_seed(0)
    found = [torch.nn.Parameter((0.05 * torch.randn(shape, generator=source)).to(device)) for shape in SHAPES]
    for p in found:
        p.grad = (0.01 * torch.randn(p.shape, generator=source)).to(device)
    return found


def cases(device: torch.device, capturable: bool) -> dict[str, Step]:
    """Every case has parameters of its own."""

    def ours(**options: Any) -> Step:
        return AdaptiveUPGD(parameters(device), 1e-4, capturable=capturable, **options).step

    def scaled(estimator: str) -> Step:
        params = parameters(device)
        optimizer, scaler = (
            torch.optim.AdamW(params, 1e-4, foreach=True, capturable=capturable),
            VarianceScaler(params, estimator),
        )

        def step() -> None:
            if estimator == "two_batch":
                for _ in range(2):
                    scaler.add_part(0.5)
            scaler.observe()
            scaler.step(optimizer)

        return step

    return {
        BASE: torch.optim.AdamW(parameters(device), 1e-4, foreach=True, capturable=capturable).step,
        "AdaptiveUPGD": ours(),
        "AdaptiveUPGD, no noise": ours(sigma=0.0),
        "AdaptiveUPGD, tracked noise": ours(noise="tracked"),
        "AdaptiveUPGD, scaled by tensor": ours(scale="tensor"),
        "AdaptiveUPGD, scaled by unit": ours(scale="unit"),
        "UPGD": UPGD(parameters(device), 1e-4, capturable=capturable).step,
        "AdamW, scaled by elementwise variance": scaled("elementwise"),
        "AdamW, scaled by two batches of two parts": scaled("two_batch"),
    }


def captured(step: Step) -> Step:
    """The step as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def compiled(step: Step) -> Step:
    """The step as torch compiles it."""
    fast: Step = torch.compile(step, dynamic=False)
    for _ in range(3):
        fast()
    return fast


def seconds(step: Step, device: torch.device, repeat: int) -> float:
    """Of one step; on a GPU of so many in a row, for one is too short to be timed."""
    if device.type == "cpu":
        began = time.thread_time()
        step()
        return time.thread_time() - began
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(repeat):
        step()
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / repeat


def measure(steps: dict[str, Step], device: torch.device, rounds: int) -> dict[str, dict[str, float]]:
    """Median microseconds of each, and the median of its ratios to the AdamW of the same round."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for i in range(rounds + 3):
        for name, step in steps.items():
            spent = seconds(step, device, 50)
            if i >= 3:
                times[name].append(spent)
    return {
        name: {
            "microseconds": 1e6 * statistics.median(mine),
            "ratio": statistics.median(a / b for a, b in zip(mine, times[BASE], strict=True)),
        }
        for name, mine in times.items()
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; fail where the promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    device = torch.device(asked.device)
    torch.set_num_threads(1)
    roads: dict[str, Callable[[], dict[str, Step]]] = {"eager": lambda: cases(device, False)}
    if device.type == "cuda":
        roads["graph"] = lambda: {name: captured(step) for name, step in cases(device, True).items()}
        roads["compiled"] = lambda: {
            name: compiled(step) for name, step in cases(device, True).items() if name in (BASE, "AdaptiveUPGD")
        }
    found = {}
    for road, make in roads.items():
        try:
            found[road] = measure(make(), device, asked.rounds)
        except RuntimeError as error:
            print(f"{road}: {error}")
            continue
        print(f"{road}, {asked.device}, torch {torch.__version__}")
        for name, figures in found[road].items():
            print(f"  {name:<42} {figures['microseconds']:9.0f} µs {figures['ratio']:6.2f}")
    if asked.json:
        machine = {"device": asked.device, "torch": torch.__version__, "python": platform.python_version()}
        asked.json.write_text(
            json.dumps({**machine, "parameters": sum(torch.Size(shape).numel() for shape in SHAPES), **found})
        )
    judged = found.get("graph" if device.type == "cuda" else "eager")
    return int(judged is None or judged["AdaptiveUPGD"]["ratio"] > PROMISED[device.type])


if __name__ == "__main__":
    sys.exit(main())
