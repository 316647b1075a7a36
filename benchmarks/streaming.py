"""A year of bars one by one, beside the backtest on all of them: how far apart, and how long a bar takes.

python benchmarks/streaming.py [--bars 8760] [--file BARS]
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from quantail import DistributionalPPO, MarketEnv, Runner, load_bars
from quantail.config import Config, PpoConfig
from quantail.evaluation import act
from quantail.market.candles import simulate
from quantail.market.features import compute
from quantail.market.normalise import fit
from quantail.market.synthetic import Garch
from quantail.market.terms import Episode, Rules
from quantail.market.world import Recorded

BEFORE = 1000


def main() -> None:
    """Train a little, then walk the same bars on both roads."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bars", type=int, default=8760)
    parser.add_argument("--file", type=Path)
    asked = parser.parse_args()
    bars = load_bars(asked.file) if asked.file else simulate(Garch(), BEFORE + asked.bars, 1, seeded(0)).bars(3600)
    seen = compute(bars)
    units = fit(seen, bars, range(BEFORE))
    rules, horizon = Rules(actions="long_short"), 252
    trained = Recorded(bars.rows(0, BEFORE), seen.rows(0, BEFORE), units=units)
    config = Config(ppo=PpoConfig(n_steps=64, batch_size=64))
    market = MarketEnv(8, trained, rules=rules, episode=Episode(length=horizon))
    model = DistributionalPPO("MlpLstmPolicy", market, config=config, seed=0).learn(20_000)
    whole = Recorded(bars, seen, within=range(BEFORE, len(bars)), units=units)
    judge = MarketEnv(1, whole, rules=rules, episode=Episode(length=0, starts="fixed", horizon=horizon))
    weights, equity = backtest(model, judge)
    runner = Runner(model, bars.rows(0, BEFORE), ends_in=len(weights))
    found, account, took = [], [], []
    for row in range(BEFORE, len(bars)):
        began = time.perf_counter()
        found.append(runner.on_bar(bars.rows(row, row + 1)))
        took.append(1000 * (time.perf_counter() - began))
        account.append(runner.account["equity"])
    apart = np.abs(np.array(found)[:-1] - weights).max()
    money = np.abs(np.array(account)[1:] / equity - 1).max()
    print(f"{len(weights)} bars; weights from {weights.min():.2f} to {weights.max():.2f}, their mean move {moves(weights):.4f}")
    print(
        f"largest difference of a weight {apart:.1e}, of equity {money:.1e}; equal to the last bit: {share(found, weights):.4%}"
    )
    print(
        f"a bar takes {np.median(took):.1f} ms, the slowest hundredth {np.quantile(took, 0.99):.1f}; window {runner.rows} bars"
    )


@torch.no_grad()
def backtest(model: DistributionalPPO, env: MarketEnv) -> tuple[np.ndarray, np.ndarray]:
    """The environment over all bars: weights as decided [T, A], equity after each [T]."""
    agent, moments = model.policy, model.progress.carry.obs_moments
    still = torch.zeros(1, env.noise_dim)
    state, obs = env.reset(still)
    memory, start, weights, equity = agent.initial_memory(1), torch.tensor([True]), [], []
    for _ in range(int(state.stop - state.row)):
        action, memory = act(agent, obs, memory, start, moments, model.config)
        weights.append(env.orders(action)[0].numpy())
        state, step = env.step(state, action, still)
        obs, start = step.obs, torch.tensor([False])
        equity.append(float(state.equity))
    return np.array(weights), np.array(equity)


def moves(weights: np.ndarray) -> float:
    """Mean change of a weight from bar to bar."""
    return float(np.abs(np.diff(weights, axis=0)).mean())


def share(found: list[np.ndarray], weights: np.ndarray) -> float:
    """Of the bars, where all weights are the same numbers."""
    return float((np.array(found)[:-1] == weights).all(1).mean())


def seeded(seed: int) -> torch.Generator:
    """A stream of its own."""
    return torch.Generator().manual_seed(seed)


if __name__ == "__main__":
    main()
