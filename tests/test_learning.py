"""It learns: cases of `benchmarks/learning.py` against the known optimum, by the benchmark's own targets.

Two seeds of the cheap cases, one of those that take a minute each: seven minutes of one core in all. The maze is left to the
benchmark: the chain asks for the same. The odds of a false alarm are the share of the benchmark's runs (docs/benchmarks.md: the
same configurations, eight seeds each) that miss their target. The seeds are not those of the benchmark.
"""

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

import learning

SEEDS = {
    "cartpole": (11,),
    "cartpole-positions": (12,),
    "memory-chain": (11, 12),
    "hidden-regime": (12,),
    "garleanu-pedersen": (11, 12),
    "lqr": (11, 12),
    "ou-costs": (11, 12),
}


@pytest.fixture(scope="module")
def runs():
    """Every run, side by side on all cores; one process each, started afresh."""
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        yield {name: [pool.submit(learning.run, name, learning.OURS, seed) for seed in seeds] for name, seeds in SEEDS.items()}


@pytest.mark.slow
@pytest.mark.parametrize("name", SEEDS)
def test_reaches_its_target(name, runs):
    scores = [run.result().score for run in runs[name]]
    assert sum(scores) / len(scores) >= learning.CASES[name].target, scores
