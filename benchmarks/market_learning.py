"""Does it learn to trade? `python benchmarks/market_learning.py [drift] [null] [risk] [real] [--seeds 10]`.

* drift: `presets.quick` with so many seeds, each on training paths of its own, judged on the same 512 held-out paths of ten
  years beside the strongest Bayes filters (searched on training paths for growth, and for the Sharpe ratio), momentum, holding.
* null: a hundred policies with frozen random weights in a market without drift: how often a verdict claims skill, and whether
  they earn minus their costs. Then `presets.null`, which has learned there.
* risk: `presets.risk_averse` with five limits and with none, on 256 held-out paths: what the limit costs, and whether it holds.
* real: `presets.daily` and `presets.hourly` walk forward over recorded bars, where these lie.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from market_frontier import frontier
from market_runs import growth, held_out, pooled, seeded, trained
from market_walks import walks
from quantail import presets
from quantail.backtest import baselines, known
from quantail.backtest.course import Course
from quantail.backtest.differences import difference
from quantail.backtest.inference import judged
from quantail.backtest.series import Floats
from quantail.backtest.track import Player, Track, as_orders, play
from quantail.backtest.verdict import beside_known, judge
from quantail.config import Config
from quantail.loop import make_agent
from quantail.market import policies

FROZEN = {"paths": 16, "bars": 60 + 504 + 1}  # of each frozen policy: 32 years together
GAIN = 300.0  # of a frozen policy's last layer, that begins at a hundredth: so it trades
MOMENTUM = "momentum 20"


# --- hidden drift -----------------------------------------------------------------------------------------------------


def drift(seeds: int) -> dict[str, Any]:
    """The table of the hidden drift."""
    config = presets.quick()
    test = held_out(config)
    year = test.periods_per_year
    rivals = few_rivals(test)
    print(f"{test.paths} held-out paths of {test.periods / year:.1f} years, {test.market.costs.one_way_bps:g} bp one way\n")
    print("| Policy | Sharpe | Growth a year |\n| --- | --- | --- |")
    for name, rival in rivals.items():
        print(f"| {name} | {pooled(rival.net, year):.3f} | {growth(rival.net, year):.4f} |", flush=True)
    print("\n| Seed | Sharpe | Growth | % of the filter's growth | % of the filter's Sharpe | less momentum | less holding |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    nets: list[Floats] = []
    rows = []
    for seed in range(seeds):
        run = trained(seeded(config, seed))
        nets.append(play(test, run.player._replace(scale=None)).net)
        row = compared(nets[-1:], rivals, year) | {"seconds": run.seconds, "env_steps": run.env_steps}
        rows.append(row)
        print(f"| {seed} | {told(row)} |", flush=True)
    every = compared(nets, rivals, year)
    print(f"| all, mean | {told(every)} |")
    kept = sum(min(row["growth_part"], row["sharpe_part"]) >= 0.95 for row in rows)
    seconds = np.mean([row["seconds"] for row in rows])
    print(f"\nat least 95 % of both: {kept} of {seeds} seeds; {seconds:.0f} s a training")
    return {"rows": rows, "all": every, "kept": kept}


def few_rivals(test: Course) -> dict[str, baselines.Rival]:
    """Holding, cash, momentum, and both filters."""
    closes = torch.from_numpy(test.closes[..., 0])
    return baselines.walked(
        test,
        {
            baselines.HOLD: baselines.held(test),
            baselines.CASH: np.zeros(baselines.shape_of(test)),
            MOMENTUM: as_orders(test, policies.momentum(closes, 20)),
            **{one.name: as_orders(test, one.weights) for one in known.strongest(test)},
        },
    )


def compared(nets: Sequence[Floats], rivals: dict[str, baselines.Rival], year: float) -> dict[str, Any]:
    """One agent, or the mean of several, beside the others: shares and differences with their 95 % intervals, paths paired."""
    mine = beside_known(nets, rivals, year)
    assert mine is not None
    row: dict[str, Any] = {
        "sharpe": float(np.mean([pooled(net, year) for net in nets])),
        "growth": float(np.mean([growth(net, year) for net in nets])),
        "growth_part": mine.growth_part,
        "growth_interval": mine.growth_interval,
        "sharpe_part": mine.sharpe_part,
        "sharpe_interval": mine.sharpe_interval,
    }
    for name, short in ((MOMENTUM, "momentum"), (baselines.HOLD, "hold")):
        lead = difference(name, "Sharpe ratio", nets, [rivals[name].net] * len(nets), year)
        row |= {short: lead.value, f"{short}_interval": lead.interval}
    return row


def told(row: dict[str, Any]) -> str:
    """A row's figures."""
    parts = [f"{row['sharpe']:.3f}", f"{row['growth']:.4f}"]
    for name in ("growth", "sharpe"):
        low, high = row[f"{name}_interval"]
        parts.append(f"{100 * row[f'{name}_part']:.1f} [{100 * low:.1f}, {100 * high:.1f}]")
    for name in ("momentum", "hold"):
        low, high = row[f"{name}_interval"]
        parts.append(f"{row[name]:+.3f} [{low:+.3f}, {high:+.3f}]")
    return " | ".join(parts)


# --- nothing to be learned --------------------------------------------------------------------------------------------


def null(seeds: int) -> dict[str, Any]:
    """Claims of skill where there is none, and what costs nobody can escape."""
    claims, surplus, costs = [], [], []
    for seed in range(seeds):
        config = seeded(presets.null(), seed)
        test = held_out(config, seed=seed, **FROZEN)
        track = play(test, frozen(config, test), seed=seed)
        claims.append(verdict_of(test, track, seed))
        paid = track.factors["cost"] - 1
        surplus.append((track.net - paid).mean(0))
        costs.append(paid.mean())
    found = judged(np.concatenate(surplus)[None].repeat(8, 0))
    year = test.periods_per_year
    z = found.value / found.error
    print(f"{seeds} frozen policies of {len(surplus[0])} paths of 2 years: skill claimed {sum(claims)} times")
    print(f"costs {-year * np.mean(costs):.2%} a year; mean net P&L less minus costs {year * found.value:+.3%}, z = {z:+.2f}")
    return {"claims": sum(claims), "seeds": seeds, "z": z, "cost": -year * float(np.mean(costs))}


def frozen(config: Config, test: Course) -> Player:
    """An agent that never learned, with a louder last layer: it holds, turns and trades, for no reason."""
    agent = make_agent(config, test.env)
    with torch.no_grad():
        for parameter in agent.policy.mean.parameters():  # type: ignore[union-attr]
            parameter.mul_(GAIN)
    return Player(agent, {}, replace(config, input=replace(config.input, normalize_observations=False)))


def verdict_of(test: Course, track: Track, seed: int) -> bool:
    """Whether the verdict claims skill."""
    orders = {baselines.HOLD: baselines.held(test), baselines.CASH: np.zeros(baselines.shape_of(test))}
    return judge([track], baselines.walked(test, orders), [baselines.shuffled(test, track, seed)]).skill


CASES: dict[str, Callable[[int], dict[str, Any]]] = {
    "drift": drift,
    "null": lambda seeds: null(10 * seeds),
    "risk": lambda seeds: frontier(max(1, seeds // 5)),
    "real": walks,
}


def main(arguments: Iterable[str] | None = None) -> int:
    """Run the cases that are asked for, and keep their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", default=list(CASES), help=", ".join(CASES))
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found = {}
    for name in asked.cases:
        print(f"\n## {name}\n", flush=True)
        found[name] = CASES[name](asked.seeds)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
