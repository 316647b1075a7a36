"""How long the costly figures of a backtest take, beside the libraries that judge them; the same answers, asserted.

    python benchmarks/evaluation.py

Times of one process, ratios measured in one run. Packages of the dev extra.
"""

import time
from collections.abc import Callable

import numpy as np
import pandas as pd
from arch.bootstrap import StationaryBootstrap
from ffn.core import calc_prob_backtest_overfitting

from quantail.backtest import metrics, significance


def timed(work: Callable[[], object]) -> tuple[object, float]:
    """What it gives, and how long it took."""
    began = time.perf_counter()
    answer = work()
    return answer, time.perf_counter() - began


def interval(rows: int, block: float = 8.0) -> tuple[float, float]:
    """A BCa interval of the Sharpe ratio by 2000 resamples: ours, arch."""
    returns = 5e-4 + 0.01 * np.random.default_rng(0).standard_normal(rows)
    ours, seconds = timed(lambda: significance.bootstrap_interval(returns, metrics.sharpe, block=block))
    judge = StationaryBootstrap(block, returns, seed=np.random.default_rng(0))
    theirs, longer = timed(lambda: judge.conf_int(lambda r: np.array([metrics.sharpe(r)]), 2000, method="bca").ravel())
    if rows <= 1000:  # beyond that the jackknife goes by runs of neighbours
        np.testing.assert_allclose(ours, theirs, rtol=1e-10)
    return seconds, longer


def overfitting(rows: int, trials: int) -> tuple[float, float]:
    """The probability of overfitting over all 12,870 halves: ours, ffn."""
    returns = 0.01 * np.random.default_rng(1).standard_normal((rows, trials))
    ours, seconds = timed(lambda: significance.probability_of_overfitting(returns))
    theirs, longer = timed(lambda: calc_prob_backtest_overfitting(pd.DataFrame(returns)))
    assert ours == theirs
    return seconds, longer


def main() -> None:
    """Print one line for each."""
    rows = {
        "Sharpe interval, 1000 returns": interval(1000),
        "Sharpe interval, 8760 returns": interval(8760),
        "overfitting, 1000 × 20": overfitting(1000, 20),
    }
    for name, (ours, theirs) in rows.items():
        print(f"{name:<31} {ours:7.2f} s   judge {theirs:7.2f} s   ratio {theirs / ours:6.1f}")


if __name__ == "__main__":
    main()
