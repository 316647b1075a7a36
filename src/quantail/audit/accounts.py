"""Does the money add up? Markets in which every figure is known beforehand."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from quantail.audit.leaks import random_actions
from quantail.audit.subject import GRID, LONG, SHORT, Subject, alone, blank
from quantail.audit.tossed import Tossed
from quantail.market.costs import BP, Costs, free
from quantail.market.desk import Order
from quantail.market.env import MarketEnv
from quantail.market.portfolio import live
from quantail.market.series import Bars
from quantail.market.terms import Episode, Reward, Rules
from quantail.market.world import Recorded
from quantail.monitor.install import Check
from quantail.types import Step

MARKETS, ROWS = 1024, 60
SURE = 4.0  # standard errors
EXACT = 1e-9
ASSETS = 8  # that are looked at
BARS = 400  # of each, the last ones
BEFORE = 40  # rows before a purchase, from which impact is estimated
PLAYED = 100  # rows with random actions
SIDES = 128  # bars at which both sides are taken
PLAIN = Rules(levels=GRID, ruin=0.0)


def null_market(subject: Subject) -> Check:
    """Where a coin says which way each of your bars goes, random trading gains nothing and pays: E[E'/E − 1 − paid] = 0.

    Your assets, rules and costs, but for margin and delisting: what they take is no cost of a trade.
    """
    rules = replace(subject.rules, maintenance=0.0, delisted_after=0, haircut=0.0)
    world = Tossed(subject.bars.rows(max(0, len(subject.bars) - ROWS - 1), len(subject.bars)).to("cpu"), MARKETS, subject.seed)
    env = MarketEnv(MARKETS, world, costs=subject.costs, rules=rules, episode=Episode(0, starts="fixed"))
    gains, paid = [], []
    noise = subject.noise(env, ROWS)
    state, _ = env.reset(noise[0])
    for action, luck in zip(random_actions(env, ROWS, subject.seed), noise[1:], strict=True):
        state, step = env.step(state, action, luck)
        kept = kept_of(step)
        gains.append(kept * step.info["gap"] * step.info["intrabar"] - 1)
        paid.append(kept - 1)
    left = (torch.stack(gains) - torch.stack(paid)).mean(0)  # [B], independent markets
    error = float(left.std() / MARKETS**0.5)
    score = float(left.mean()) / error if error else 0.0
    said = f"net {1e4 * float(torch.stack(gains).mean()):+.2f} bp a bar, costs {1e4 * float(torch.stack(paid).mean()):+.2f} bp"
    said += f", {score:+.1f} standard errors apart"
    return Check("null market", abs(score) <= SURE, said, f"at most {SURE:g}: something pays that should not")


def kept_of(step: Step) -> Tensor:
    """What costs, financing and liquidation leave of 1: [B]."""
    one = torch.ones_like(step.info["equity"])
    return torch.stack([step.info.get(name, one) for name in ("overnight", "cost", "financing", "liquidation")]).prod(0)


def invariances(subject: Subject) -> Check:
    """A market that stands still, another currency, buying and holding, the other side of a trade: one right answer each."""
    worst = {"standing still": 0.0, "currency": 0.0, "other side": 0.0}
    count = min(len(subject.bars.symbols), ASSETS)
    for asset in range(count):
        bars = alone(subject.bars, asset, BARS)
        for name, gap in (
            ("standing still", standing_still(subject, bars)),
            ("currency", currency(subject, bars)),
            ("other side", other_side(subject, bars)),
        ):
            worst[name] = max(worst[name], gap)
    worst["buy and hold"] = buy_and_hold(subject)
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
        worst = max(worst, float(((state.equity / before - kept_of(step)).abs() * running).max()))
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


def buy_and_hold(subject: Subject) -> float:
    """All assets bought once and held: equity is cash and Σ units·price at every close, by prices, fees and units alone.

    Your bars, rules and costs, without ruin and delisting; what financing took is read from the flows.
    """
    bars = subject.bars.rows(max(0, len(subject.bars) - BARS), len(subject.bars)).to("cpu")
    rules = replace(subject.rules, ruin=0.0, delisted_after=0, haircut=0.0)
    world = Recorded(bars, blank(bars), within=range(BEFORE, len(bars)))
    env = MarketEnv(1, world, None, subject.costs, rules, Reward(), Episode(0, "fixed"), torch.float64)
    state, _ = env.reset(torch.zeros(1, env.noise_dim))
    count = len(bars.symbols)
    weight = min(1.0 / count, *(cap for cap in (rules.max_weight, rules.max_net) if cap is not None), 1.0)
    like = state.holdings
    order = Order(torch.full_like(like, weight), luck=torch.zeros_like(like), cost_factor=torch.ones_like(state.equity))
    units, worst = torch.zeros(count, dtype=torch.float64), 0.0
    for row in range(BEFORE, len(bars) - 1):
        market = env.bar_at(state.row)
        lived = live(env.desk, env.terms, state, market, order)
        before, after, flows = float(state.equity), float(lived.after.equity), lived.flows
        held = (lived.after.holdings.reshape(-1) / bars.close[row + 1]).nan_to_num()
        known = before + float(torch.as_tensor(flows.overnight + flows.financing))
        if row == BEFORE:
            at = {"next_open": bars.open[row + 1], "next_close": bars.close[row + 1], "same_close": bars.close[row]}[rules.fill]
            known -= entry_cost(subject.costs, (held * at).nan_to_num(), market.impact)
            known += float((held * (bars.close[row + 1] - at)).nan_to_num().sum())
            units = held
            order = order._replace(stay=torch.ones_like(like, dtype=torch.bool))
        else:
            known += float((units * (bars.close[row + 1] - bars.close[row])).nan_to_num().sum())
            worst = max(worst, float((held - units).abs().max() / units.abs().max().clamp(min=1e-300)))
        worst, state = max(worst, abs(after - known) / env.episode.equity), lived.after
    return worst


def entry_cost(costs: Costs, bought: Tensor, impact: Tensor | None) -> float:
    """Of purchases [A] in currency, without slippage: concession and the fee on what is paid."""
    rate = costs.half_spread_bps * BP + (0.0 if impact is None else impact.reshape(-1) * bought.sqrt())
    return float((bought * rate + costs.fee_bps * BP * bought * (1 + rate)).sum())


def other_side(subject: Subject, bars: Bars) -> float:
    """Without costs, what the long of a bar gains the short loses: E₊'/E + E₋'/E = 2 from cash."""
    ends = []
    for choice in (LONG, SHORT):
        terms = Episode(1, "fixed", equity=1.0)  # each portfolio at its own bar
        env = MarketEnv(SIDES, bars, blank(bars), costs=free(), rules=replace(PLAIN, fill=subject.rules.fill), episode=terms)
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
