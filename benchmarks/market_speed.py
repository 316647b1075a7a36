"""How fast the market is: `python benchmarks/market_speed.py [--device cuda] [--num-envs N ...] [--peers PYTHON]`.

The full model: fees, half-spread, a calendar with its masks, fills at the next open, 16 features, random actions, one asset,
one thread. What is counted is rows that have an effect (the row after an end has none). On a GPU `--rows` rows are captured
once as a CUDA graph and replayed; `--compile` lets torch.compile fuse them first. The best of several rounds counts: what
disturbs a round is not the code's. On a processor the time is that of the process, so that a busy machine does not count.

--peers names a Python that has TorchTrade, Gym-Trading-Env, gym-anytrading or FinRL; each is stepped with random actions in
the same command (`market_peers.py`), and what is missing there is named.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from quantail.compiling import Compiled
from quantail.market.candles import simulate
from quantail.market.env import MarketEnv
from quantail.market.portfolio import Portfolio
from quantail.market.presets import MARKETS
from quantail.market.series import Bars, Features
from quantail.market.terms import Episode, Rules
from quantail.market.world import Recorded

FEATURES = 16
HISTORY = 20_000
LENGTH = 252
CLOSED = 21  # every so many bars the calendar forbids to trade
MADE = ("gbm", "hidden_drift", "bull_bear", "anchored", "signal", "sp500", "sp500_heston", "sp500_jumps")
PEERS = Path(__file__).parent / "market_peers.py"


def history() -> tuple[Bars, Features, Tensor]:
    """Bars, 16 features and a calendar."""
    bars = simulate(MARKETS["sp500"](), HISTORY, 1, torch.Generator().manual_seed(0), overnight=0.2).bars(86_400.0)
    log_price = bars.close.log()
    seen = torch.zeros(HISTORY, 1, FEATURES)
    for i in range(FEATURES):
        back = 1 + 2 * i
        seen[back:, :, i] = (log_price[back:] - log_price[:-back]).float()
    calendar = (torch.arange(HISTORY) % CLOSED != 0)[:, None]
    return bars, Features(seen, tuple(f"return_{1 + 2 * i}" for i in range(FEATURES)), 2 * FEATURES), calendar


def environment(num_envs: int, device: str) -> MarketEnv:
    """The full model."""
    bars, features, calendar = history()
    return MarketEnv(
        num_envs,
        Recorded(bars, features, calendar),
        rules=Rules(),
        episode=Episode(length=LENGTH, starts="random"),
        device=device,
    )


def on_processor(num_envs: int, rows: int, rounds: int) -> dict[str, float]:
    """Rows a second on one thread."""
    torch.set_num_threads(1)
    env = environment(num_envs, "cpu")
    actions, noise = torch.randint(0, 4, (rows, num_envs)), torch.randn(rows, num_envs, env.noise_dim)
    state, _ = env.reset(noise[0])
    best = float("inf")
    for _ in range(rounds):
        processor, wall = time.process_time(), time.perf_counter()
        for t in range(rows):
            state, _ = env.step(state, actions[t], noise[t])
        best = min(best, time.process_time() - processor, time.perf_counter() - wall)
    counted = rows * num_envs * LENGTH / (LENGTH + 1)
    return {"million rows a second": counted / best / 1e6, "microseconds a row of all": best / rows * 1e6}


def on_gpu(num_envs: int, rows: int, rounds: int, compiled: bool) -> dict[str, float]:
    """Rows a second under CUDA graphs."""
    env = environment(num_envs, "cuda")
    actions = torch.randint(0, 4, (rows, num_envs), device="cuda")
    noise = torch.randn(rows, num_envs, env.noise_dim, device="cuda")
    step = Compiled("a row of the market", env.step) if compiled else env.step
    state, _ = env.reset(noise[0])
    state = Portfolio(*(part.clone() for part in state))

    def body() -> tuple[Portfolio, Tensor, Tensor]:
        now, total, void = state, torch.zeros(num_envs, device="cuda"), torch.zeros(num_envs, device="cuda")
        for t in range(rows):
            void = void + now.done
            now, told = step(now, actions[t], noise[t])
            total = total + told.reward + 0.0 * told.obs[:, 0]
        return now, total, void

    def whole() -> None:
        after, total, void = body()
        for mine, new in zip(state, after, strict=True):
            mine.copy_(new)
        sums.add_(total.sum())
        voids.add_(void.sum())

    sums, voids = torch.zeros((), device="cuda"), torch.zeros((), device="cuda", dtype=torch.float64)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            whole()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        whole()
    best = float("inf")
    replays = 8
    voids.zero_()
    for _ in range(rounds):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(replays):
            graph.replay()
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    share = 1 - float(voids) / (rounds * replays * rows * num_envs)
    if not bool(torch.isfinite(sums)):
        raise RuntimeError(f"the rewards add up to {float(sums)}; the figures above would mean nothing")
    return {
        "million rows a second": replays * rows * num_envs * share / best / 1e6,
        "microseconds a row of all": best / replays / rows * 1e6,
    }


def one_at_a_time(rounds: int, steps: int = 2000) -> float:
    """Steps a second of one portfolio made by Gymnasium, its wrappers included."""
    import gymnasium  # here, so that a machine with nothing but torch and numpy can measure the rest

    env = gymnasium.make("quantail.market.ids:quantail/Market-v0")
    env.reset(seed=0)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(steps)]
    best = float("inf")
    for _ in range(rounds):
        began = time.process_time()
        for action in actions:
            *_, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
        best = min(best, time.process_time() - began)
    return steps / best


def made(name: str, rounds: int, bars: int = 512, paths: int = 1024) -> float:
    """Bars a second that a synthetic market makes, candles and all."""
    source, best = torch.Generator().manual_seed(0), float("inf")
    for _ in range(rounds):
        began = time.process_time()
        simulate(MARKETS[name](), bars, paths, source)
        best = min(best, time.process_time() - began)
    return bars * paths / best


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one line for each number of environments, then the peers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--num-envs", type=int, nargs="+", default=[4096])
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--peers", help="a Python that has the peers")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    name = torch.cuda.get_device_name() if asked.device == "cuda" else platform.processor() or platform.machine()
    print(f"torch {torch.__version__}, {asked.device}: {name}")
    found: dict[str, dict[str, float]] = {}
    for num_envs in asked.num_envs:
        key = f"quantail, {num_envs} environments{', compiled' if asked.compile else ''}"
        found[key] = (
            on_gpu(num_envs, asked.rows, asked.rounds, asked.compile)
            if asked.device == "cuda"
            else on_processor(num_envs, asked.rows, asked.rounds)
        )
        print(f"{key:48}" + "  ".join(f"{value:12.3f} {what}" for what, value in found[key].items()), flush=True)
    if asked.device == "cpu":
        rates = {"one portfolio through Gymnasium, steps": one_at_a_time(min(asked.rounds, 8))}
        rates |= {f"bars of {name}": made(name, min(asked.rounds, 8)) for name in MADE}
        for what, rate in rates.items():
            found[what] = {"million rows a second": rate / 1e6}
            print(f"{what:48}{rate / 1e6:12.3f} million a second", flush=True)
    if asked.peers:
        answer = subprocess.run([asked.peers, str(PEERS)], capture_output=True, text=True, check=False)
        for line in answer.stdout.splitlines():
            peer = json.loads(line)
            text = f"{peer['rate'] / 1e6:12.6f} million rows a second" if "rate" in peer else f"not measured: {peer['why']}"
            print(f"{peer['name']:48}{text}")
            found[peer["name"]] = {"million rows a second": peer.get("rate", float("nan")) / 1e6}
        if answer.returncode:
            print(f"the peers broke off: {answer.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
