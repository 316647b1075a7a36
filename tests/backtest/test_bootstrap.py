"""Intervals against arch, resample for resample; then whether they hold what they promise."""

import math

import numpy as np
import pytest
from arch.bootstrap import IIDBootstrap, StationaryBootstrap, optimal_block_length
from scipy import stats

from backtest.returns import SERIES, daily
from quantail.backtest import bootstrap, metrics, significance
from quantail.errors import InputError

EXACT = {"rel": 1e-10, "abs": 1e-12}


def autoregressive(rows, coefficient, seed):
    noise = np.random.default_rng(seed).standard_normal(rows + 100) * 0.01
    x = np.zeros(rows + 100)
    for t in range(1, rows + 100):
        x[t] = coefficient * x[t - 1] + noise[t]
    return x[100:]


# --- arch ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["bca", "percentile"])
@pytest.mark.parametrize(
    ("figure", "name", "block", "seed"),
    [
        (metrics.sharpe, "up", 7.5, 4),
        (metrics.max_drawdown, "up", 3.0, 2),
        (metrics.expected_shortfall, "up", 20.0, 1),
        (metrics.sharpe, "short", 1.0, 0),
    ],
)
def test_intervals_are_those_of_arch(method, figure, name, block, seed):
    """The same generator draws the same blocks in the same order, so every digit has to agree."""
    judge = StationaryBootstrap(block, SERIES[name], seed=np.random.default_rng(seed))
    expected = judge.conf_int(lambda r: np.array([figure(r)]), 200, method=method, size=0.9).ravel()
    found = significance.bootstrap_interval(SERIES[name], figure, 0.9, seed, resamples=200, method=method, block=block)
    assert found == pytest.approx(expected.tolist(), **EXACT)


def test_differences_are_those_of_arch():
    returns, baseline = SERIES["up"], daily(700, 12) + 0.5 * SERIES["up"]
    judge = StationaryBootstrap(9, returns, baseline, seed=np.random.default_rng(1))
    expected = judge.conf_int(lambda r, b: np.array([metrics.sharpe(r) - metrics.sharpe(b)]), 150, method="bca").ravel()
    found = significance.bootstrap_difference(returns, baseline, metrics.sharpe, seed=1, resamples=150, block=9)
    assert found == pytest.approx(expected.tolist(), **EXACT)


@pytest.mark.parametrize(
    "x",
    [
        *SERIES.values(),
        *(np.square(returns) for returns in SERIES.values()),
        *(autoregressive(n, c, seed) for seed, (n, c) in enumerate([(2147, 0.3), (500, 0.9), (300, 0.999), (40, -0.6)])),
        np.cumsum(daily(90, 2)),
    ],
)
def test_block_lengths_are_those_of_arch(x):
    assert bootstrap.politis_white(x) == pytest.approx(optimal_block_length(x)["stationary"].item(), **EXACT)


def test_blocks_are_as_long_as_returns_or_their_size_ask_for():
    for returns in SERIES.values():
        both = [optimal_block_length(x)["stationary"].item() for x in (returns, returns**2)]
        assert significance.block_length(returns) == pytest.approx(max(*both, 1), **EXACT)
    clustered = SERIES["up"]
    assert significance.block_length(clustered) > 2 * bootstrap.politis_white(clustered)
    assert significance.block_length(np.random.default_rng(0).standard_normal(300)) >= 1
    assert significance.block_length(np.full(30, 0.01)) == 1
    assert bootstrap.politis_white(np.full(30, 0.01)) == 0
    assert math.isfinite(significance.block_length([0.0] * 9 + [0.1]))


def test_the_interval_uses_the_length_that_the_data_ask_for():
    returns, baseline = SERIES["up"], daily(700, 30)
    few = {"resamples": 20}
    by_default = significance.bootstrap_interval(returns, metrics.sharpe, **few)
    assert by_default == significance.bootstrap_interval(
        returns, metrics.sharpe, block=significance.block_length(returns), **few
    )
    longer = max(significance.block_length(returns), significance.block_length(baseline))
    for a, b in ((returns, baseline), (baseline, returns)):
        expected = significance.bootstrap_difference(a, b, metrics.sharpe, block=longer, **few)
        assert significance.bootstrap_difference(a, b, metrics.sharpe, **few) == expected


# --- by hand ---------------------------------------------------------------------------------------------------------


def test_rows_of_a_resample_by_a_slow_loop():
    noise = np.random.default_rng(3)
    for n, block in ((1, 1.0), (11, 3.0), (200, 17.5)):
        starts, coins = noise.integers(n, size=n), noise.random(n)
        expected = [int(starts[0])]
        for start, coin in zip(starts[1:].tolist(), coins[1:].tolist(), strict=True):
            expected.append(start if coin < 1 / block else (expected[-1] + 1) % n)
        assert bootstrap.stationary_rows(starts, coins, block).tolist() == expected


def test_many_returns_are_left_out_in_groups():
    """The jackknife by runs of neighbours has the acceleration of the full one, up to the noise of the third moment."""
    rows = np.random.default_rng(5).exponential(size=6000)
    levels, drawn = np.array([0.025, 0.975]), np.linspace(-1, 1, 401)
    single = np.array([np.delete(rows, i).mean() for i in range(6000)])
    grouped = np.array([np.delete(rows, part).mean() for part in np.array_split(np.arange(6000), 1000)])
    full, short = (bootstrap.bca_levels(levels, drawn, 0.0, left) for left in (single, grouped))
    assert full[0] > 0.0253  # the mean of a skewed law is skewed
    np.testing.assert_allclose(short, full, rtol=0.02)
    calls = []
    significance.bootstrap_interval(rows, lambda r: calls.append(len(r)) or r.mean(), resamples=2)
    assert len(calls) == 2 + 1 + 1000
    assert set(calls[3:]) == {5994}


def test_a_figure_that_lies_beyond_all_its_resamples_has_an_interval():
    """arch gives up here; with half a resample on either side the end is the outermost resample."""
    assert bootstrap.bca_levels(np.array([0.025, 0.975]), np.arange(10.0), 99.0, np.arange(5.0))[1] > 0.99
    low, high = significance.bootstrap_interval(daily(60, 2), np.max, resamples=50)
    assert low <= high <= daily(60, 2).max()
    assert bootstrap.bca_levels(np.array([0.1]), np.ones(9), 1.0, np.ones(4)) == pytest.approx([0.1], **EXACT)  # ties: no bias


def test_the_seed_decides_and_more_confidence_is_wider():
    returns = SERIES["short"]

    def interval(level=0.95, seed=0):
        return significance.bootstrap_interval(returns, metrics.sharpe, level, seed, resamples=300)

    assert interval() == interval()
    assert interval(seed=1) != interval()
    assert interval(0.99)[0] < interval()[0] < interval(0.5)[0] < metrics.sharpe(returns) < interval(0.5)[1] < interval(0.99)[1]


def test_what_both_went_through_cancels():
    """Paired: the difference to oneself plus a little is nearly certain, whatever the market did."""
    market = SERIES["wild"]
    better = market + 1e-4
    low, high = significance.bootstrap_difference(better, market, np.mean, resamples=200)
    assert low == pytest.approx(1e-4, abs=1e-9)
    assert high == pytest.approx(1e-4, abs=1e-9)
    alone = significance.bootstrap_interval(better, np.mean, resamples=200)
    assert alone[1] - alone[0] > 1e-3


def test_a_figure_without_a_value_has_no_interval():
    cash = np.zeros(40)
    assert all(map(math.isnan, significance.bootstrap_interval(cash, metrics.sharpe, resamples=5)))
    once = np.eye(1, 40, 7)[0] / 100  # some resamples hold nothing but zeros
    assert math.isfinite(metrics.sharpe(once))
    assert all(map(math.isnan, significance.bootstrap_interval(once, metrics.sharpe, resamples=50)))
    assert all(map(math.isnan, significance.bootstrap_difference(SERIES["short"], np.zeros(57), metrics.sharpe, resamples=5)))


# --- what intervals promise ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_intervals_hold_the_truth_as_often_as_they_say_and_single_rows_do_not():
    """90 % intervals of the mean of 400 autoregressive returns, ρ = 0.5; for single rows 0.58 of them would be expected."""
    hits = {None: 0, 1.0: 0}
    for i in range(300):
        returns = autoregressive(400, 0.5, 1000 + i)
        for block in hits:
            low, high = significance.bootstrap_interval(
                returns, np.mean, 0.9, seed=i, resamples=300, method="percentile", block=block
            )
            hits[block] += low <= 0 <= high
    assert 0.83 < hits[None] / 300 < 0.95
    assert hits[1.0] / 300 < 0.75


# --- seeds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(10,), (3,), (1,), (7, 5), (2, 9)])
def test_interquartile_means_are_trimmed_means(shape):
    scores = np.random.default_rng(2).standard_normal(shape)
    assert significance.interquartile_mean(scores) == pytest.approx(stats.trim_mean(scores, 0.25, axis=None), **EXACT)


def test_seed_intervals_of_one_market_are_those_of_arch():
    scores = np.random.default_rng(6).standard_normal(12) + 1
    judge = IIDBootstrap(scores, seed=np.random.default_rng(3))
    expected = judge.conf_int(lambda x: np.array([stats.trim_mean(x, 0.25)]), 500, method="percentile", size=0.9).ravel()
    assert significance.seed_interval(scores, 0.9, 3, 500) == pytest.approx(expected.tolist(), **EXACT)


def test_markets_are_strata():
    """Drawn from each market by itself: markets that differ a thousandfold in level add no uncertainty of their own."""
    scores = np.arange(5) * 1000.0 + np.random.default_rng(1).standard_normal((8, 5))
    low, high = significance.seed_interval(scores, resamples=300)
    assert low < significance.interquartile_mean(scores) < high
    assert high - low < 2
    shifted = np.array([np.roll(column, k) for k, column in enumerate(scores.T)]).T  # which seed is which does not matter
    assert significance.interquartile_mean(shifted) == significance.interquartile_mean(scores)


def test_seeds_that_agree_leave_no_doubt():
    assert significance.seed_interval([2.0, 2.0, 2.0]) == (2.0, 2.0)
    assert significance.seed_interval([1.0, 2.0, 4.0], seed=1) == significance.seed_interval([[1.0], [2.0], [4.0]], seed=1)
    assert significance.seed_interval([1.0, 2.0, 4.0], 0.5) != significance.seed_interval([1.0, 2.0, 4.0], 0.9)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda r: significance.bootstrap_interval(r[:9], np.mean), "returns has 9 rows; needs at least 10"),
        (lambda r: significance.bootstrap_interval(r, np.mean, 1.0), "level=1.0; needs a probability between 0 and 1"),
        (lambda r: significance.bootstrap_interval(r, np.mean, resamples=1), "resamples=1; needs a whole number of at least 2"),
        (lambda r: significance.bootstrap_interval(r, np.mean, method="basic"), "method='basic'; needs 'bca' or 'percentile'"),
        (
            lambda r: significance.bootstrap_interval(r, np.mean, block=0.5),
            "block=0.5; needs a mean length between 1 and the 57",
        ),
        (lambda r: significance.bootstrap_interval(r, np.mean, block=58), "block=58; needs a mean length between 1 and the 57"),
        (lambda r: significance.bootstrap_difference(r, r[1:], np.mean), "returns has 57 periods and baseline 56"),
        (lambda r: significance.block_length(r[:9]), "returns has 9 rows; needs at least 10"),
        (lambda r: significance.politis_white(r[:9]), "x has 9 rows; needs at least 10"),
        (lambda r: significance.seed_interval([1.0]), "scores has 1 rows; needs at least 2"),
        (lambda r: significance.seed_interval(r, 0), "level=0; needs a probability"),
        (lambda r: significance.seed_interval(r, resamples=0), "resamples=0; needs a whole number"),
        (lambda r: significance.interquartile_mean([math.nan, 1]), r"scores has 1 entries that are not finite"),
    ],
)
def test_refusals_say_what_was_seen_and_what_is_needed(call, says):
    with pytest.raises(InputError, match=says):
        call(SERIES["short"])
