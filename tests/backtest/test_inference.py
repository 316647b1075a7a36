"""The test behind every claim: against scipy, against brute force, and on data where nothing is to be found."""

import math

import numpy as np
import pytest
from scipy import stats

from backtest.returns import SERIES, daily
from quantail.backtest import metrics
from quantail.backtest.inference import (
    group_means,
    judged,
    ratio_interval,
    sharpe_influence,
    shortfall_influence,
    student_cdf,
    student_quantile,
)
from quantail.backtest.significance import probabilistic_sharpe, sharpe_standard_error
from quantail.errors import InputError


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 15, 16, 511, 2000])
def test_students_law_is_scipys(freedom):
    for t in (-7.5, -2.6, -0.3, 0.0, 1e-3, 1.7, 5.1):
        assert student_cdf(t, freedom) == pytest.approx(stats.t.cdf(t, freedom), abs=1e-13)
    for p in (1e-4, 0.01, 0.4, 0.5, 0.99, 0.9995):
        assert student_quantile(p, freedom) == pytest.approx(stats.t.ppf(p, freedom), rel=1e-10, abs=1e-14)


@pytest.mark.parametrize(("shape", "groups"), [((163, 1), 16), ((50, 3), 18), ((40, 23), 23), ((21, 2), 10), ((9, 1), 2)])
def test_the_t_test_is_scipys_on_the_means_of_paths_or_stretches(shape, groups):
    x = 0.4 + np.random.default_rng(1).standard_normal(shape)
    means = group_means(x)
    assert len(means) == groups
    slow = [
        part.mean() for part in (x.T if shape[1] >= 16 else [p for c in x.T for p in np.array_split(c, groups // shape[1])])
    ]
    assert sorted(means) == pytest.approx(sorted(slow), rel=1e-12)
    found, judge = judged(x), stats.t.sf(x.mean() / stats.sem(slow), groups - 1)
    assert found.value == pytest.approx(x.mean(), rel=1e-12)
    skewed = 1 - probabilistic_sharpe(x.ravel())
    assert found.p_above == pytest.approx(max(judge, skewed), rel=1e-9)
    assert found.error == pytest.approx(stats.sem(slow), rel=1e-12)
    low, high = found.interval(0.9)
    expected = stats.t.interval(0.9, groups - 1, loc=x.mean(), scale=stats.sem(slow))
    assert (low, high) == pytest.approx(expected, rel=1e-9)


def test_both_sides_are_the_same_test_seen_from_the_other():
    x = daily(300, 7)[:, None]
    up, down = judged(x), judged(-x)
    assert (up.p_above, up.p_below) == pytest.approx((down.p_below, down.p_above), rel=1e-9)
    assert up.p_above + up.p_below >= 1


def test_no_difference_is_no_evidence():
    same = judged(np.zeros((40, 2)))
    assert (same.value, same.p_above, same.p_below) == (0.0, 0.5, 0.5)
    always = judged(np.full((40, 2), 0.1))  # a sure gain, without any risk
    assert (always.p_above, always.p_below) == (0.0, 1.0)


def noises(rows, count, noise):
    """Returns of mean 0 in which a careless test finds something."""
    yield "fat tails", noise.standard_t(3, (rows, count))
    yield "many small gains", -(np.exp(noise.standard_normal((rows, count))) - math.exp(0.5))
    shock = noise.standard_normal((rows + 1, count))
    yield "neighbours alike", shock[1:] + 0.5 * shock[:-1]
    size = np.exp(0.02 * noise.standard_normal((rows, count)).cumsum(axis=0))
    yield "wild and calm times", size * noise.standard_normal((rows, count))


def test_where_nothing_is_to_be_found_one_in_a_hundred_is_claimed():
    """Of 1000 series each; a sound test at 1 % claims more than 20 of 1000 in one of 1500 tries."""
    claims, naive = {}, {}
    for name, x in noises(250, 1000, np.random.default_rng(5)):
        claims[name] = sum(judged(x[:, [i]]).p_above <= 0.01 for i in range(x.shape[1]))
        naive[name] = int((stats.ttest_1samp(x, 0.0, alternative="greater").pvalue <= 0.01).sum())
    assert all(1 <= found <= 20 for found in claims.values()), claims
    assert naive["neighbours alike"] > 28  # the test that trusts every bar does claim
    assert naive["many small gains"] > 22


@pytest.mark.parametrize("name", SERIES)
def test_influence_values_have_the_ratio_as_their_mean_and_its_error_as_theirs(name):
    r = SERIES[name]
    values = sharpe_influence(r[:, None])
    assert values.mean() == pytest.approx(metrics.sharpe(r, 1), rel=1e-12)
    error = values.std() / math.sqrt(len(r) - 1)
    assert error == pytest.approx(sharpe_standard_error(r), rel=0.03)
    assert np.isnan(sharpe_influence(np.full((9, 2), 0.01))).all()


def test_leaving_one_out_says_the_same():
    """Influence is what a jackknife measures by brute force."""
    r = 0.1 + np.random.default_rng(2).standard_normal(900)
    whole, left = metrics.sharpe(r, 1), [metrics.sharpe(np.delete(r, i), 1) for i in range(len(r))]
    pseudo = whole + (len(r) - 1) * (whole - np.array(left))
    np.testing.assert_allclose(pseudo, sharpe_influence(r[:, None])[:, 0], atol=0.02)


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.37])
def test_influence_values_of_a_shortfall_have_it_as_their_mean(alpha):
    r = daily(431, 6)
    values = shortfall_influence(r.reshape(-1, 1), alpha)
    assert values.mean() == pytest.approx(metrics.expected_shortfall(r, alpha), rel=1e-12)


def test_a_ratio_of_means_lies_between_the_values_that_a_test_accepts():
    noise = np.random.default_rng(3)
    b = 0.3 + noise.standard_normal((60, 20))
    a = 0.8 * b + 0.2 * noise.standard_normal((60, 20)) + 0.05
    low, high = ratio_interval(a, b, 0.95)
    for rho, p in ((low, 0.05), (high, 0.05), (0.5 * (low + high), None)):
        found = stats.ttest_1samp((a - rho * b).mean(axis=0), 0.0).pvalue
        assert found == pytest.approx(p, rel=1e-9) if p else found > 0.05
    assert np.isnan(ratio_interval(a, b - b.mean())).all()  # nothing to be a part of


def test_too_little_is_refused():
    with pytest.raises(InputError, match="no two groups"):
        judged(np.ones((7, 1)))
    with pytest.raises(InputError, match="at least 1 degree"):
        student_cdf(0.0, 0)
    with pytest.raises(InputError, match="between 0 and 1"):
        student_quantile(1.0, 4)
