"""`presets.daily` and `presets.hourly` walk forward over recorded bars: trained on the past, judged on what follows.

`python benchmarks/market_learning.py real` runs it on the daily S&P 500 of the package `arch` and on the hourly Bitcoin bars in
the folder QUANTAIL_DATA, where these are. Each stretch has an agent of its own, trained on all bars before it; the last of
these choose among its iterations. All stretches together are judged once.
"""

import copy
import os
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from quantail import presets
from quantail.backtest import walk
from quantail.backtest.evidence import Evidence
from quantail.backtest.report import About, plain
from quantail.backtest.splits import walk_forward
from quantail.backtest.track import Player
from quantail.config import Config
from quantail.envs.base import TensorEnv
from quantail.loop import train
from quantail.market.env import MarketEnv
from quantail.registry import make
from quantail.run.validation import Judged, evaluate, judge, score_of

BITCOIN = Path(os.environ.get("QUANTAIL_DATA", Path(__file__).parents[2] / "shared" / "data")) / "BTCUSDT_1h.parquet"
CHOOSING = 0.15  # the last of the bars to learn from, which choose


def walks(seeds: int) -> dict[str, Any]:
    """Both markets, as far as their bars are here; one agent for each stretch, whatever the number of seeds."""
    found = {}
    with tempfile.TemporaryDirectory() as place:
        for name, config, data, sizes in (
            ("S&P 500, daily, 1999 to 2018", presets.daily(), stocks(Path(place)), (2016, 504)),
            ("Bitcoin, hourly, 2021", presets.hourly(), BITCOIN, (4380, 1095)),
        ):
            if data is None or not data.is_file():
                print(f"{name}: no bars here, left out")
                continue
            begun = time.perf_counter()
            evidence = walked(config, data, *sizes)
            print(f"\n{len(evidence.borders) + 1} stretches, {time.perf_counter() - begun:.0f} s")
            print(plain.as_markdown(evidence, About(title=name)), flush=True)
            found[name] = asdict(evidence.verdict)
    return found


def walked(config: Config, data: Path, first: int, test: int) -> Evidence:
    """Learn from the first bars and all that follow them, stretch after stretch."""
    env = make(replace(config.env, options={**config.env.options, "data": str(data)}))
    assert isinstance(env, MarketEnv)
    purge = int(config.env.options["purge"])
    plan = walk_forward(len(env.world.history), first, test, purge)
    return walk.forward(env, lambda market, number: learned(replace(config, seed=number), market), plan)


def learned(config: Config, market: TensorEnv) -> Player:
    """The agent of the iteration that was best on the last of the bars, which it has not learned from."""
    assert isinstance(market, MarketEnv)
    rows = market.world.within
    border = rows.stop - round(CHOOSING * len(rows))
    inner = walk.learning(market, np.arange(rows.start, border - int(config.env.options["purge"])))
    last = replace(market.world, within=range(border, rows.stop), units=inner.world.units)
    chooser = walk.like(market, last, config.run.evaluate_envs)
    judged, best = Judged(), None
    for report in train(config, inner):
        if best is None or report.iteration % config.run.evaluate_every == 0:
            score = score_of(evaluate(chooser, report.agent, report.carry.obs_moments, config), config.run)
            judged = judge(judged, score, report.env_steps)
            if judged.stale == 0:
                agent = copy.deepcopy(report.agent)
                best = Player(agent, report.carry.obs_moments, config, report.carry.scale)
    return best


def stocks(folder: Path) -> Path | None:
    """The S&P 500 from 1999 to 2018, as a file; none where the package that brings it is not installed."""
    try:
        from arch.data import sp500
    except ImportError:
        return None
    path = folder / "sp500.csv"
    sp500.load().drop(columns="Adj Close").to_csv(path)
    return path
