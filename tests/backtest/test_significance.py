"""Probabilities of Sharpe ratios against quantstats and ffn, and against many simulated worlds."""

import inspect
import itertools
import math

import ffn.core
import numpy as np
import pandas as pd
import pytest
import quantstats.stats as quantstats
from scipy import stats

from backtest.returns import SERIES, daily, dated
from quantail.backtest import metrics, significance
from quantail.errors import InputError

EXACT = {"rel": 1e-10, "abs": 1e-12}


@pytest.fixture(params=SERIES, scope="module")
def returns(request):
    return SERIES[request.param]


def slow_standard_error(returns):
    """From the moments of scipy, which are corrected as pandas' are."""
    ratio = np.mean(returns) / np.std(returns, ddof=1)
    skew, raw = stats.skew(returns, bias=False), stats.kurtosis(returns, bias=False) + 3
    return math.sqrt((1 - skew * ratio + (raw - 1) / 4 * ratio**2) / (len(returns) - 1))


def test_probabilistic_sharpe_is_that_of_quantstats(returns):
    expected = quantstats.probabilistic_sharpe_ratio(dated(returns))
    assert significance.probabilistic_sharpe(returns) == pytest.approx(expected, **EXACT)


@pytest.mark.parametrize("benchmark", [-0.05, 0.0, 0.02])
def test_probabilistic_sharpe_by_scipy(returns, benchmark):
    error = slow_standard_error(returns)
    assert significance.sharpe_standard_error(returns) == pytest.approx(error, **EXACT)
    expected = stats.norm.cdf((metrics.sharpe(returns, 1) - benchmark) / error)
    assert significance.probabilistic_sharpe(returns, benchmark) == pytest.approx(expected, **EXACT)


@pytest.mark.parametrize("trials", [2, 3, 17])
def test_deflated_sharpe_is_that_of_ffn(returns, trials):
    sharpes = 0.03 * np.random.default_rng(trials).standard_normal(trials)
    expected = ffn.core.calc_deflated_sharpe_ratio(dated(returns), sharpes, nperiods=252, annualized_trials=False)
    assert significance.deflated_sharpe(returns, sharpes) == pytest.approx(expected, **EXACT)
    hurdle = ffn.core.calc_expected_max_sharpe(trials, sharpes.std(ddof=1))
    assert significance.expected_maximum_sharpe(sharpes.std(ddof=1), trials) == pytest.approx(hurdle, **EXACT)


def test_more_trials_raise_the_bar(returns):
    sharpes = [0.01, -0.02, 0.03]
    found = [significance.deflated_sharpe(returns, sharpes, trials) for trials in (3, 4, 100, 10**6)]
    assert found == sorted(found, reverse=True)
    assert found[0] == significance.deflated_sharpe(returns, sharpes)
    hurdle = ffn.core.calc_expected_max_sharpe(100, np.std(sharpes, ddof=1))
    assert found[2] == pytest.approx(significance.probabilistic_sharpe(returns, hurdle), **EXACT)
    assert significance.deflated_sharpe(returns, [0.04]) == significance.probabilistic_sharpe(returns)  # nobody chose


@pytest.mark.parametrize("trials", [10, 100])
def test_the_bar_is_about_the_best_of_so_many_worthless_trials(trials):
    best = 0.7 * np.random.default_rng(0).standard_normal((20_000, trials)).max(axis=1).mean()
    assert significance.expected_maximum_sharpe(0.7, trials) == pytest.approx(best, rel=0.03)


def test_the_minimum_track_record_is_where_the_probability_reaches_the_level():
    returns = daily(700, 3, 0.002)
    needed = significance.minimum_track_record(returns, 0.01, 0.97)
    ratio = metrics.sharpe(returns, 1)
    error_then = slow_standard_error(returns) * math.sqrt(699 / (needed - 1))
    assert stats.norm.cdf((ratio - 0.01) / error_then) == pytest.approx(0.97, **EXACT)
    assert significance.minimum_track_record(returns, ratio) == math.inf
    assert significance.minimum_track_record(-returns) == math.inf


@pytest.mark.parametrize(("year", "years"), [(252, 2.73), (52, 2.83), (12, 3.24)])
def test_the_published_track_records(year, years):
    """Bailey & López de Prado (2012): a Gaussian with an annual ratio of 2 against 1, seen each day, week or month."""
    quantiles = stats.norm.ppf((np.arange(100_000) + 0.5) / 100_000)
    returns = 0.01 * (quantiles / quantiles.std(ddof=1) + 2 / math.sqrt(year))
    assert significance.minimum_track_record(returns, 1 / math.sqrt(year)) / year == pytest.approx(years, abs=0.005)


def test_the_published_bar():
    """Bailey & López de Prado (2014): 100 trials whose annual ratios have variance 1/2, 250 days a year."""
    assert significance.expected_maximum_sharpe(math.sqrt(0.5 / 250), 100) == pytest.approx(0.1132, abs=5e-5)


# --- the probability of overfitting ----------------------------------------------------------------------------------


def trials(rows, count, seed, skill=0.0):
    noise = np.random.default_rng(seed).standard_normal((rows, count)) * 0.01
    return noise + skill * 0.01 * np.arange(count) / count


@pytest.mark.parametrize(
    ("rows", "count", "blocks", "skill"), [(203, 6, 4, 0.0), (160, 9, 6, 0.15), (131, 2, 8, 0.0), (90, 17, 6, 0.4)]
)
def test_overfitting_is_that_of_ffn(rows, count, blocks, skill):
    returns = trials(rows, count, rows, skill)
    expected = ffn.core.calc_prob_backtest_overfitting(pd.DataFrame(returns), blocks)
    assert significance.probability_of_overfitting(returns, blocks) == expected


def test_ties_count_by_their_average_rank():
    returns = trials(120, 5, 1)[:, [0, 1, 2, 2, 2, 3, 3, 4]]
    expected = ffn.core.calc_prob_backtest_overfitting(pd.DataFrame(returns), 6)
    assert 0 < expected < 1
    assert significance.probability_of_overfitting(returns, 6) == expected


@pytest.mark.slow
def test_overfitting_over_all_12870_halves_is_that_of_ffn():
    returns = trials(333, 7, 2, 0.1)
    expected = ffn.core.calc_prob_backtest_overfitting(pd.DataFrame(returns))
    assert significance.probability_of_overfitting(returns) == expected


def test_noise_is_overfitted_and_skill_is_not():
    noise = [significance.probability_of_overfitting(trials(400, 20, seed), 8) for seed in range(12)]
    assert 0.35 < np.mean(noise) < 0.75
    assert significance.probability_of_overfitting(trials(800, 20, 0, skill=1.0), 8) < 0.02


def test_halves_are_all_there():
    seen = np.concatenate(list(significance._halves(12)))
    assert {tuple(np.flatnonzero(row)) for row in seen} == set(itertools.combinations(range(12), 6))
    assert len(seen) == math.comb(12, 6)


def test_a_trial_that_never_moves_has_no_rank():
    returns = trials(100, 4, 3)
    returns[:, 2] = 0.001
    assert math.isnan(significance.probability_of_overfitting(returns, 4))
    returns[0, 2] = 0.002
    assert math.isnan(significance.probability_of_overfitting(returns, 4))  # it still rests in the other half


# --- documented values and refusals ----------------------------------------------------------------------------------


def test_what_never_changes_is_neither_likely_nor_unlikely():
    constant = [0.01] * 30
    for found in (
        significance.sharpe_standard_error(constant),
        significance.probabilistic_sharpe(constant),
        significance.deflated_sharpe(constant, [0.1, 0.2]),
        significance.minimum_track_record(constant),
    ):
        assert math.isnan(found)


def test_a_few_returns_whose_corrected_moments_contradict_each_other_give_no_probability():
    """Kurtosis − 1 < skewness² is possible of no law, but of the corrected moments of five returns it is."""
    few = [0.01, 0.01, 0.01, 0.02, 0.02]
    assert stats.kurtosis(few, bias=False) + 2 < stats.skew(few, bias=False) ** 2
    assert math.isnan(significance.probabilistic_sharpe(few))
    assert math.isnan(significance.minimum_track_record(few))
    assert math.isnan(ffn.core.calc_deflated_sharpe_ratio(dated(few), [0.1, 0.2], nperiods=252, annualized_trials=False))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda r: significance.probabilistic_sharpe(r[:3]), "returns has 3 rows; needs at least 4"),
        (lambda r: significance.probabilistic_sharpe(r, math.nan), "benchmark=nan; needs a Sharpe ratio per period"),
        (lambda r: significance.deflated_sharpe(r, []), "trial_sharpes has 0 rows; needs at least 1"),
        (lambda r: significance.deflated_sharpe(r, [0.1, 0.2], 1), "trials=1; needs a whole number of at least 2"),
        (lambda r: significance.deflated_sharpe(r, [0.1], 7), "trial_sharpes has 1 entry of 7 trials; needs at least 2"),
        (lambda r: significance.expected_maximum_sharpe(0.1, 0), "trials=0; needs a whole number"),
        (lambda r: significance.minimum_track_record(r, level=0.3), "level=0.3; needs a probability between 0.5 and 1"),
        (lambda r: significance.probability_of_overfitting(r), r"returns_TN has shape \[57\]; needs \[T, N\]"),
        (
            lambda r: significance.probability_of_overfitting(r[:, None]),
            r"returns_TN is \[57, 1\] with blocks=16; needs at least 2 trials",
        ),
        (
            lambda r: significance.probability_of_overfitting(trials(50, 3, 0), 5),
            "blocks=5; needs at least 2 trials, an even number",
        ),
        (
            lambda r: significance.probability_of_overfitting(trials(3, 3, 0), 4),
            r"\[3, 3\] with blocks=4; needs .* 2 rows in each half",
        ),
        (
            lambda r: significance.probability_of_overfitting(np.full((30, 3), np.inf)),
            r"returns_TN has 90 entries that are not finite",
        ),
    ],
)
def test_refusals_say_what_was_seen_and_what_is_needed(call, says):
    with pytest.raises(InputError, match=says):
        call(SERIES["short"])


def test_names_and_defaults_are_those_that_others_rely_on():
    def asked(function):
        parameters = inspect.signature(function).parameters.values()
        return [(p.name, p.default) for p in parameters if p.kind is not p.KEYWORD_ONLY]

    none = inspect.Parameter.empty
    ratios = (metrics.cagr, metrics.volatility, metrics.sharpe, metrics.sortino, metrics.calmar)
    assert all(asked(ratio) == [("returns", none), ("periods_per_year", 252), ("risk_free", 0.0)] for ratio in ratios)
    assert asked(metrics.max_drawdown) == [("returns", none)]
    tails = (metrics.value_at_risk, metrics.expected_shortfall)
    assert all(asked(tail) == [("returns", none), ("alpha", 0.05)] for tail in tails)
    assert asked(significance.probabilistic_sharpe) == [("returns", none), ("benchmark", 0.0)]
    assert asked(significance.deflated_sharpe)[:2] == [("returns", none), ("trial_sharpes", none)]
    assert asked(significance.probability_of_overfitting) == [("returns_TN", none), ("blocks", 16)]
    interval = [("returns", none), ("statistic", none), ("level", 0.95), ("seed", 0)]
    assert asked(significance.bootstrap_interval) == interval
    assert asked(significance.bootstrap_difference) == [interval[0], ("baseline", none), *interval[1:]]
