"""How fast the mathematics is: `python benchmarks/functions.py [--device cuda] [--json FILE]`.

Median wall time of each function at the shapes of one rollout, one thread on the CPU, and rows (time × environments)
per second. Ratios between functions travel between machines; the times do not.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from quantail.functional import actions, categorical, moments, policy, quantile, returns, risk
from quantail.types import Law

TIME, ENVS, ATOMS, PARTICLES, ACTIONS = 128, 64, 32, 32, 4


def cases(device: torch.device) -> dict[str, Callable[[], object]]:
    """Every case at T = 128, B = 64, N = M = 32; float32."""
    torch.manual_seed(0)
    rows = (TIME, ENVS)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(*shape, device=device)

    rewards, values = normal(*rows), normal(TIME + 1, ENVS)
    ends, never = uniform(*rows) < 0.01, torch.zeros(rows, dtype=torch.bool, device=device)
    taus, masses = quantile.tail_levels(ATOMS, device=device)
    quantiles = normal(TIME + 1, ENVS, ATOMS)
    particles, follow, level = (uniform(*rows, PARTICLES) for _ in range(3))
    atoms = categorical.support(-5, 5, 101, device=device)
    logits, old_probs = normal(*rows, 101), normal(*rows, 101).softmax(-1)
    mean, log_std, raw = normal(*rows, ACTIONS), normal(ACTIONS), normal(*rows, ACTIONS)
    shares = torch.full_like(particles, 1 / PARTICLES)
    target = categorical.project(shares, particles, atoms)
    return {
        "returns.gae": lambda: returns.gae(rewards, values, ends, never, 0.99, 0.95),
        "returns.distributional_targets": lambda: returns.distributional_targets(
            rewards, Law(quantiles, masses), ends, never, 0.99, 0.95, follow, level
        ),
        "returns.normalize_advantages": lambda: returns.normalize_advantages(rewards),
        "quantile.quantile_huber_loss": lambda: quantile.quantile_huber_loss(quantiles[:-1], particles, taus, 0.01),
        "quantile.clip_quantiles": lambda: quantile.clip_quantiles(
            quantiles[1:], quantiles[:-1], 0.2, "mean_and_variance", masses=masses
        ),
        "categorical.project": lambda: categorical.project(shares, particles, atoms),
        "categorical.categorical_loss": lambda: categorical.categorical_loss(logits, target),
        "categorical.clip_categorical": lambda: categorical.clip_categorical(logits, old_probs, atoms, 0.2, "per_quantile"),
        "risk.cvar_from_quantiles": lambda: risk.cvar_from_quantiles(quantiles, 0.05, taus),
        "risk.cvar_of_samples": lambda: risk.cvar_of_samples(rewards.flatten(), 0.05),
        "policy.clipped_surrogate": lambda: policy.clipped_surrogate(rewards, rewards, 0.2),
        "actions.squashed_log_prob": lambda: actions.squashed_log_prob(raw, mean, log_std, "tanh"),
        "actions.categorical_sample": lambda: actions.categorical_sample(logits, uniform(*rows)),
        "moments.batch_moments": lambda: moments.batch_moments(raw, (0, 1)),
    }


def median_seconds(call: Callable[[], object], device: torch.device, repeats: int = 15) -> float:
    """Median of repeated calls after a warm-up, the device idle before and after each."""
    times = []
    for i in range(repeats + 3):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        if i >= 3:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="write the figures there")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(chosen.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"one thread, {platform.machine()}"
    print(f"torch {torch.__version__}, {name}; T = {TIME}, B = {ENVS}, N = M = {ATOMS}, float32\n")
    print(f"{'function':32} {'ms':>9} {'M rows/s':>9}")
    figures = {}
    for label, call in cases(device).items():
        seconds = median_seconds(call, device)
        figures[label] = seconds
        print(f"{label:32} {1e3 * seconds:9.3f} {TIME * ENVS / seconds / 1e6:9.2f}")
    if chosen.json:
        chosen.json.write_text(json.dumps({"torch": torch.__version__, "device": name, "seconds": figures}, indent=1), "utf-8")


if __name__ == "__main__":
    main()
