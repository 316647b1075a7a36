"""How fast learning is on a GPU: `python benchmarks/device.py [--num-envs 32768 --minibatches 2 --epochs 1 ...] [--json FILE]`.

The market with costs, masks and next-open fills and 16 features, episodes of 252 bars, LSTM or minGRU, twin critics of 32
quantiles. Steps that have an effect are counted, over whole iterations as `train` runs them: noise, rollout, estimates, update,
statistics, report. The host waits for nothing but the figures, which lie in "other"; with --phases it waits after every phase,
so that the milliseconds of each are the device's.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from market_speed import environment
from quantail.config import Config, CriticConfig, EngineConfig, NetConfig, PpoConfig
from quantail.loop import Stopwatch, train


def settings(asked: argparse.Namespace) -> Config:
    """As the options say."""
    rows = asked.steps * asked.num_envs
    return Config(
        total_timesteps=10**12,
        net=NetConfig(
            memory=asked.memory, hidden=asked.hidden, encoder_sizes=(64,), actor_sizes=(), critic_sizes=(), trunks="shared"
        ),
        critic=CriticConfig(),
        ppo=PpoConfig(n_steps=asked.steps, batch_size=rows // asked.minibatches, n_epochs=asked.epochs),
        engine=EngineConfig(asked.engine, asked.matmul),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """One line for the whole, one for each phase."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--matmul", default="tf32")
    parser.add_argument("--memory", default="lstm")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--num-envs", type=int, default=32768)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--minibatches", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--profile", action="store_true", help="the kernels that take most of the time")
    parser.add_argument("--phases", action="store_true", help="wait for the device after every phase")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    env = environment(asked.num_envs, asked.device)
    if asked.phases:
        lap = Stopwatch.lap

        def waited(watch: Stopwatch, phase: str) -> None:
            torch.cuda.synchronize()
            lap(watch, phase)

        Stopwatch.lap = waited  # type: ignore[method-assign]  # for this process
    reports = train(settings(asked), env)
    began = time.perf_counter()
    for _ in range(3):
        next(reports)
    warm = time.perf_counter() - began
    best, phases = float("inf"), {}
    before = next(reports).env_steps
    for _ in range(asked.iterations):
        began = time.perf_counter()
        report = next(reports)
        spent = time.perf_counter() - began
        if spent < best:
            best, phases = spent, {n: 1e3 * v for n, v in report.metrics.items() if n.startswith("time/") and "_seconds" in n}
            rows = report.env_steps - before
        before = report.env_steps
    found = {
        **{name: value for name, value in vars(asked).items() if name != "json"},
        "million_steps_a_second": rows / best / 1e6,
        "milliseconds": 1e3 * best,
        "milliseconds_of": phases,
        "warm_up_seconds": warm,
        "gib": torch.cuda.max_memory_allocated() / 2**30 if asked.device == "cuda" else None,
        "torch": torch.__version__,
    }
    print(json.dumps(found), flush=True)
    if asked.profile:
        with torch.profiler.profile(activities=list(torch.profiler.supported_activities())) as profile:
            next(reports)
            next(reports)
        print(profile.key_averages().table(sort_by="self_cuda_time_total", row_limit=45, max_name_column_width=70))
    if asked.json:
        asked.json.write_text(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
