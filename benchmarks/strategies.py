"""What known policies earn on the synthetic markets: `python benchmarks/strategies.py [--paths 512] [--years 20]`.

Net Sharpe ratios per year at 5 bp one way, the mean over paths of daily bars, its standard error, and beside it the figure of
the reference (512 paths, its own simulator and seeds) with z = (ours − reference)/√(both squared standard errors). The book is
the simplest one, w·R − c·|Δw|, as in the reference; the last column is the same policy played through `MarketEnv`, which lets
a position drift until its target changes.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from quantail.market import policies
from quantail.market.candles import Candles
from quantail.market.costs import Costs
from quantail.market.env import MarketEnv
from quantail.market.series import Bars, Features
from quantail.market.synthetic import GBM, Anchored, BullBear, HiddenDrift, Model, Signal
from quantail.market.terms import Episode, Rules
from quantail.market.world import Synthetic

COST_BPS = 5.0
DAYS = 252
REFERENCE_PATHS = 512
UNTOLD = ("D anchored",)  # the reference does not say how its anchor moves: 6 % and 12 % a year fit buying and holding


class Cell(NamedTuple):
    """One figure of the table."""

    market: str
    policy: str
    sharpe: float
    error: float
    paths: int
    reference: float
    through_env: float = math.nan

    @property
    def z(self) -> float:
        """How far off the reference is, in standard errors of both."""
        theirs = self.error * math.sqrt(self.paths / REFERENCE_PATHS)
        return (self.sharpe - self.reference) / math.hypot(self.error, theirs)


Policy = Callable[[Model, Candles, Tensor], Tensor]  # model, candles, uniforms [T, P] -> weights [T, P]


def common(momentum: Sequence[float], others: Mapping[str, float]) -> dict[str, tuple[float, Policy]]:
    """The policies that need no model."""
    rows: dict[str, tuple[float, Policy]] = {
        "buy & hold": (others["hold"], lambda m, c, u: policies.buy_and_hold(c.close)),
        "random": (others["random"], lambda m, c, u: policies.random_positions(u)),
    }
    for bars, figure in zip((20, 60, 120), momentum, strict=True):
        rows[f"momentum {bars}"] = figure, lambda m, c, u, bars=bars: policies.momentum(c.close, bars)
    rows["reversal 5"] = others["reversal"], lambda m, c, u: policies.reversal(c.close)
    rows["vol-target"] = others["vol"], lambda m, c, u: policies.vol_target(c.close, DAYS, leverage=2.0)
    return rows


def filtered(model: Model, made: Candles) -> Tensor:
    """Expected drift by the market's own filter."""
    odds = (policies.hidden_drift_odds if isinstance(model, HiddenDrift) else policies.bull_bear_odds)(model, made.close)
    return policies.expected_drift(model, odds)


def bayes(sign: float, band: float, width: float, clairvoyant: float) -> dict[str, tuple[float, Policy]]:
    """The filters, and who sees the hidden state of the bar to come."""
    return {
        "Bayes filter, sign": (sign, lambda m, c, u: policies.sign_with_band(filtered(m, c))),
        "Bayes filter, band": (band, lambda m, c, u: policies.sign_with_band(filtered(m, c), width)),
        "clairvoyant": (clairvoyant, lambda m, c, u: torch.cat([c.hidden[1:], c.hidden[-1:]]).double()),
    }


def adjusted(best: float, sign: float) -> dict[str, tuple[float, Policy]]:
    """What a signal is worth that is traded towards in part."""
    return {
        "sign of the signal": (sign, lambda m, c, u: c.signal.double().sign()),
        "partial adjustment": (best, lambda m, c, u: policies.partial_adjustment(c.signal.double().clamp(-1, 1), 0.3)),
        "buy & hold": (0.36, lambda m, c, u: policies.buy_and_hold(c.close)),
    }


MARKETS: dict[str, tuple[Model, dict[str, tuple[float, Policy]]]] = {
    "A hidden drift": (
        HiddenDrift(),
        common((0.97, 0.83, 0.56), {"hold": -0.03, "random": -0.86, "reversal": -1.07, "vol": -0.06})
        | bayes(1.02, 1.04, 0.02, 2.53),
    ),
    "B bull and bear": (
        BullBear(),
        common((0.65, 0.92, 0.89), {"hold": 0.79, "random": -0.81, "reversal": -0.74, "vol": 1.35})
        | bayes(1.58, 1.59, 0.15, 1.87),
    ),
    "C signal, IC 0.05": (Signal(ic=0.05), adjusted(0.62, 0.47)),
    "C signal, IC 0.08": (Signal(ic=0.08), adjusted(1.04, 0.84)),
    "C signal, IC 0.12": (Signal(ic=0.12), adjusted(1.63, 1.36)),
    "D anchored": (
        Anchored(),
        common((-0.70, -0.62, -0.45), {"hold": 0.30, "random": -0.71, "reversal": 0.07, "vol": 0.29})
        | {"clairvoyant": (1.54, lambda m, c, u: -c.hidden.double().sign())},
    ),
    "E Brownian, 8 %": (
        GBM(drift=0.08),
        common((-0.12, 0.01, 0.08), {"hold": 0.51, "random": -0.86, "reversal": -0.35, "vol": 0.48}),
    ),
}


def cells(market: str, paths: int, years: int, seed: int = 0, through_env: bool = False) -> list[Cell]:
    """One column of the table."""
    model, rows = MARKETS[market]
    world = Synthetic(model, paths=paths, bars=years * DAYS, seed=seed, features=blind)
    _, made = world.drawn(0, torch.device("cpu"))
    luck = torch.rand(made.close.shape, generator=torch.Generator().manual_seed(seed + 1))
    found = []
    for name, (reference, policy) in rows.items():
        weights = policy(model, made, luck).double()
        sharpe = policies.sharpe(policies.net_returns(weights, made.close, COST_BPS), DAYS)
        played = float(policies.sharpe(played_returns(world, weights), DAYS).mean()) if through_env else math.nan
        found.append(Cell(market, name, float(sharpe.mean()), float(sharpe.std()) / math.sqrt(paths), paths, reference, played))
    return found


def blind(bars: Bars) -> Features:
    """Nothing is seen: the weights are there already."""
    return Features(torch.zeros(len(bars), len(bars.symbols), 0), (), 0)


def played_returns(world: Synthetic, weights: Tensor) -> Tensor:
    """Net returns [T−1, P] of the same targets through `MarketEnv`; where a target stays, the position is left to drift."""
    whole = bool((weights == weights.round()).all())
    rules = Rules(ruin=0.0) if whole else Rules(actions="long_short", leverage=4.0, ruin=0.0)
    episode = Episode(length=0, starts="fixed")
    env = MarketEnv(world.paths, world, costs=Costs(COST_BPS, 0.0), rules=rules, episode=episode, dtype=torch.float64)
    none = torch.zeros(world.paths, env.noise_dim)
    state, _ = env.reset(none)
    equity, before = [state.equity], torch.zeros(world.paths, dtype=torch.float64)
    for target in weights[:-1]:
        said = torch.where(target == before, 3, target.long() + 1) if whole else (target / 4.0)[:, None]
        state, _ = env.step(state, said, none)
        equity.append(state.equity)
        before = target
    curve = torch.stack(equity)
    return curve[1:] / curve[:-1] - 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; fail where a cell lies more than three standard errors off, the column without parameters aside."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--market", nargs="+", default=list(MARKETS), choices=list(MARKETS))
    parser.add_argument("--paths", type=int, default=REFERENCE_PATHS)
    parser.add_argument("--years", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--simple", action="store_true", help="leave out the column through MarketEnv")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found = []
    print("| Market | Policy | Sharpe | ± | Reference | z | Through `MarketEnv` |\n| --- | --- | --- | --- | --- | --- | --- |")
    for market in asked.market:
        for cell in cells(market, asked.paths, asked.years, asked.seed, not asked.simple):
            found.append(cell)
            figures = f"{cell.sharpe:.2f} | {cell.error:.3f} | {cell.reference:.2f} | {cell.z:+.1f} | {cell.through_env:.2f}"
            print(f"| {market} | {cell.policy} | {figures} |", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps([{**cell._asdict(), "z": cell.z} for cell in found], indent=2) + "\n")
    return int(any(abs(cell.z) > 3 for cell in found if cell.market not in UNTOLD))


if __name__ == "__main__":
    sys.exit(main())
