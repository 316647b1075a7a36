"""Does the money add up? Markets in which every figure is known beforehand."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from quantail.audit.leaks import random_actions
from quantail.audit.subject import GRID, HOLD, LONG, SHORT, Subject, alone, blank
from quantail.market.costs import free
from quantail.market.env import MarketEnv
from quantail.market.series import Bars
from quantail.market.synthetic import GBM
from quantail.market.terms import Episode, Rules
from quantail.market.world import Synthetic
from quantail.monitor.install import Check

MARKETS, ROWS = 2048, 40
SURE = 4.0  # standard errors
EXACT = 1e-9
ASSETS = 8  # that are looked at
BARS = 400  # of each
PLAYED = 100  # rows with random actions
SIDES = 128  # bars at which both sides are taken
PLAIN = Rules(levels=GRID, ruin=0.0)


def null_market(subject: Subject) -> Check:
    """In a market that goes nowhere, random trading gains nothing and pays its costs: E[E'/E − 1 − paid] = 0."""
    bars = subject.bars
    move = (bars.close[1:] / bars.close[:-1]).log()
    spread = float(move[bars.valid[1:] & bars.valid[:-1]].std())
    model = GBM(bars_per_year=bars.bars_per_year, drift=0.0, vol=spread * bars.bars_per_year**0.5)
    world = Synthetic(model, paths=MARKETS, bars=ROWS + 62, seed=subject.seed)
    env = MarketEnv(MARKETS, world, costs=subject.costs, rules=subject.rules, episode=Episode(ROWS, starts="fixed"))
    gains, paid = [], []
    noise = subject.noise(env, ROWS)
    state, _ = env.reset(noise[0])
    for action, luck in zip(random_actions(env, ROWS, subject.seed), noise[1:], strict=True):
        state, step = env.step(state, action, luck)
        one = torch.ones(MARKETS, dtype=torch.float64)
        factors = {name: step.info.get(name, one) for name in ("gap", "cost", "intrabar", "financing", "liquidation")}
        kept = factors["cost"] * factors["financing"] * factors["liquidation"]
        gains.append(kept * factors["gap"] * factors["intrabar"] - 1)
        paid.append(kept - 1)
    left = (torch.stack(gains) - torch.stack(paid)).mean(0)  # [B], independent markets
    error = float(left.std() / MARKETS**0.5)
    score = float(left.mean()) / error if error else 0.0
    said = f"net {1e4 * float(torch.stack(gains).mean()):+.2f} bp a bar, costs {1e4 * float(torch.stack(paid).mean()):+.2f} bp"
    said += f", {score:+.1f} standard errors apart"
    return Check("null market", abs(score) <= SURE, said, f"at most {SURE:g}: something pays that should not")


def invariances(subject: Subject) -> Check:
    """A market that stands still, another currency, buying and holding, the other side of a trade: one right answer each."""
    worst = {"standing still": 0.0, "currency": 0.0, "buy and hold": 0.0, "other side": 0.0}
    count = min(len(subject.bars.symbols), ASSETS)
    for asset in range(count):
        bars = alone(subject.bars, asset, BARS)
        for name, gap in (
            ("standing still", standing_still(subject, bars)),
            ("currency", currency(subject, bars)),
            ("buy and hold", buy_and_hold(subject, bars)),
            ("other side", other_side(bars)),
        ):
            worst[name] = max(worst[name], gap)
    said = ", ".join(f"{name} {gap:.0e}" for name, gap in worst.items())
    return Check("invariances", max(worst.values()) <= EXACT, f"{count} assets, errors: {said}", f"at most {EXACT:g}")


def standing_still(subject: Subject, bars: Bars) -> float:
    """With prices that never change, equity changes by what was paid and by nothing else."""
    still: dict[str, Any] = {
        name: torch.full_like(bars.close, float(bars.close[0])) for name in ("open", "high", "low", "close")
    }
    env = subject.env(replace(bars, **still), blank(bars), 4)
    state, worst = env.reset(subject.noise(env, 0)[0])[0], 0.0
    rows = PLAYED
    for action, luck in zip(random_actions(env, rows, subject.seed), subject.noise(env, rows)[1:], strict=True):
        before = state.equity
        running = ~state.done
        state, step = env.step(state, action, luck)
        one = torch.ones_like(before)
        kept = step.info["cost"] * step.info.get("financing", one) * step.info.get("liquidation", one)
        worst = max(worst, float(((state.equity / before - kept).abs() * running).max()))
    return worst


def currency(subject: Subject, bars: Bars) -> float:
    """Prices, equity and smallest amounts in cents instead of dollars: the same gains."""
    rows, factor = PLAYED, 100.0
    cents: dict[str, Any] = {name: getattr(bars, name) * factor for name in ("open", "high", "low", "close")}
    gains = []
    for market, unit in ((bars, 1.0), (replace(bars, **cents), factor)):
        rules = replace(subject.rules, min_notional=subject.rules.min_notional * unit)
        terms: dict[str, Any] = {"costs": subject.costs, "rules": rules, "reward": subject.reward, "dtype": torch.float64}
        env = MarketEnv(4, market, blank(market), **terms, episode=Episode(0, "fixed", equity=1e5 * unit))
        gains.append(pnl(env, random_actions(env, rows, subject.seed), subject.noise(env, rows)))
    return float((gains[0] - gains[1]).abs().max())


def buy_and_hold(subject: Subject, bars: Bars) -> float:
    """Bought at the first open and held, equity ends at the price ratio less one entry cost."""
    costs = replace(free(), fee_bps=subject.costs.fee_bps, half_spread_bps=subject.costs.half_spread_bps)
    env = MarketEnv(
        1, bars, blank(bars), costs=costs, rules=PLAIN, episode=Episode(0, "fixed", equity=1.0), dtype=torch.float64
    )
    state, _ = env.reset(torch.zeros(1, env.noise_dim))
    for row in range(len(bars) - 1):
        state, step = env.step(state, torch.tensor([HOLD if row else LONG]), torch.zeros(1, env.noise_dim))
    spread, fee = costs.half_spread_bps * 1e-4, costs.fee_bps * 1e-4
    entry = spread + fee * (1 + spread)  # of what the position is worth at mid
    known = float(bars.close[-1, 0] / bars.open[1, 0]) - entry
    return abs(float(step.info["equity"][0]) - known)


def other_side(bars: Bars) -> float:
    """Without costs, what the long of a bar gains the short loses: E₊'/E + E₋'/E = 2 from cash."""
    ends = []
    for choice in (LONG, SHORT):
        terms = Episode(1, "fixed", equity=1.0)  # each portfolio at its own bar
        env = MarketEnv(SIDES, bars, blank(bars), costs=free(), rules=PLAIN, episode=terms)
        state, _ = env.reset(torch.zeros(SIDES, env.noise_dim))
        _, step = env.step(state, torch.full((SIDES,), choice), torch.zeros(SIDES, env.noise_dim))
        ends.append(step.info["equity"])
    return float((ends[0] + ends[1] - 2).abs().max())


def pnl(env: MarketEnv, actions: Tensor, noise: Tensor) -> Tensor:
    """Log growth of each row: [rows, B]."""
    state, _ = env.reset(noise[0])
    gains = []
    for action, luck in zip(actions, noise[1:], strict=True):
        state, step = env.step(state, action, luck)
        gains.append(step.pnl)
    return torch.stack(gains)  # type: ignore[arg-type]
