"""Risk reaches the policy: cases of `benchmarks/risk.py` against known answers, on seeds of their own.

The benchmark keeps every promise on five seeds (docs/benchmarks.md); games end at chances beyond 0.99, far from the 0.9 that is
asked for. Of 15 positions under a limit the worst was 4 % off, and the mean of two is off by 5 % once in a thousand times.
"""

import statistics
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

import risk

SEEDS = (21, 22)
GAMES = ("bandit, CVaR 5 %", "bandit, mean", "corridor, CVaR 10 %", "nested, CVaR 50 %", "nested, mean")
PRICES = ("price 0", "price 0.1", "price 0.4")


@pytest.fixture(scope="module")
def runs():
    """Every run, two at a time; one process each, started afresh."""
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        yield {name: [pool.submit(risk.run, name, seed) for seed in SEEDS] for name in ("limit", *GAMES, *PRICES)}


@pytest.mark.slow
def test_a_limit_is_kept_by_the_position_that_keeps_it_best(runs):
    judged = [run.result().judged for run in runs["limit"]]
    for name in ("position / best", "CVaR / limit"):
        assert statistics.fmean(one[name] for one in judged) == pytest.approx(1, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", GAMES)
def test_the_best_for_the_tail_is_played_and_the_best_for_the_mean(name, runs):
    assert risk.kept(risk.CASES[name], [run.result() for run in runs[name]])


@pytest.mark.slow
def test_a_higher_price_of_risk_makes_the_risky_choice_rarer(runs):
    chances = [statistics.fmean(run.result().judged["chance"] for run in runs[name]) for name in PRICES]
    assert chances[0] > chances[1] + 0.05
    assert chances[1] > chances[2] + 0.05
