"""Every figure against the libraries that are known for it, at 1e-10; what they cannot say, by closed form or slow loop."""

import math

import empyrical
import ffn
import numpy as np
import pandas as pd
import pytest
import quantstats.stats as quantstats
import skfolio.measures
import torch
from scipy import stats

import quantail
from architecture import rules
from backtest.returns import SERIES, daily, dated
from quantail.backtest import metrics
from quantail.errors import InputError

EXACT = {"rel": 1e-10, "abs": 1e-12}


@pytest.fixture(params=SERIES, scope="module")
def returns(request):
    return SERIES[request.param]


# --- judges ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("year", [12, 252, 8766])
@pytest.mark.parametrize("rate", [0.0, 0.031])
def test_ratios_are_those_of_quantstats(returns, year, rate):
    judge = dated(returns)
    assert metrics.sharpe(returns, year, rate) == pytest.approx(quantstats.sharpe(judge, rf=rate, periods=year), **EXACT)
    assert metrics.sortino(returns, year, rate) == pytest.approx(quantstats.sortino(judge, rf=rate, periods=year), **EXACT)
    assert metrics.volatility(returns, year, rate) == pytest.approx(quantstats.volatility(judge, periods=year), **EXACT)
    assert metrics.cagr(returns, year) == pytest.approx(quantstats.cagr(judge, periods=year), **EXACT)
    assert metrics.calmar(returns, year) == pytest.approx(quantstats.calmar(judge, periods=year), **EXACT)


@pytest.mark.parametrize("year", [12, 252])
def test_ratios_are_those_of_empyrical(returns, year):
    """Its risk-free rate is per period, and a mean is compounded nowhere."""
    rate = 0.031
    cash = (1 + rate) ** (1 / year) - 1
    of = {"annualization": year}
    assert metrics.sharpe(returns, year, rate) == pytest.approx(empyrical.sharpe_ratio(returns, cash, **of), **EXACT)
    assert metrics.sortino(returns, year, rate) == pytest.approx(empyrical.sortino_ratio(returns, cash, **of), **EXACT)
    assert metrics.volatility(returns, year) == pytest.approx(empyrical.annual_volatility(returns, **of), **EXACT)
    assert metrics.cagr(returns, year) == pytest.approx(empyrical.annual_return(returns, **of), **EXACT)
    assert metrics.calmar(returns, year) == pytest.approx(empyrical.calmar_ratio(returns, **of), **EXACT)
    assert metrics.total_return(returns) == pytest.approx(empyrical.cum_returns_final(returns), **EXACT)


def test_ratios_are_those_of_ffn(returns):
    judge = dated(returns)
    assert metrics.sharpe(returns) == pytest.approx(judge.calc_sharpe(nperiods=252), **EXACT)
    assert metrics.sortino(returns) == pytest.approx(judge.calc_sortino_ratio(nperiods=252), **EXACT)
    prices = pd.Series(metrics.equity_curve(returns))
    assert metrics.max_drawdown(returns) == pytest.approx(prices.calc_max_drawdown(), **EXACT)


def test_drawdowns_against_three_libraries(returns):
    expected = quantstats.to_drawdown_series(dated(returns)).to_numpy()
    np.testing.assert_allclose(metrics.drawdown_curve(returns), expected, atol=1e-12)
    np.testing.assert_allclose(
        metrics.drawdown_curve(returns), skfolio.measures.get_drawdowns(returns, compounded=True), atol=1e-12
    )
    assert metrics.max_drawdown(returns) == pytest.approx(empyrical.max_drawdown(returns), **EXACT)
    assert metrics.ulcer_index(returns) == pytest.approx(quantstats.ulcer_index(dated(returns)), **EXACT)


def test_the_worst_drawdowns_are_those_that_ffn_lists(returns):
    """It names the first day below the peak, and the day of recovery, or the last."""
    curve = np.concatenate([[0.0], metrics.drawdown_curve(returns)])
    days = pd.date_range("2015-01-01", periods=len(curve))
    listed = ffn.core.drawdown_details(pd.Series(curve, index=days)).sort_values("drawdown")
    equity = metrics.equity_curve(returns)
    found = metrics.worst_drawdowns(returns, 4)
    assert len(found) == min(4, len(listed))
    for fall, row in zip(found, listed.itertuples(), strict=False):
        assert fall.depth == pytest.approx(row.drawdown, **EXACT)
        assert fall.depth == pytest.approx(equity[fall.trough] / equity[fall.peak] - 1, **EXACT)
        assert days[fall.peak + 1] == row.Start
        assert days[len(returns) if fall.recovery is None else fall.recovery] == row.End
        assert (fall.recovery is None) == (equity[fall.peak + 1 :].max() < equity[fall.peak])


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1, 0.37])
def test_tails_against_empyrical_and_skfolio(returns, alpha):
    assert metrics.value_at_risk(returns, alpha) == pytest.approx(empyrical.value_at_risk(returns, alpha), **EXACT)
    assert metrics.expected_shortfall(returns, alpha) == pytest.approx(-skfolio.measures.cvar(returns, 1 - alpha), **EXACT)


def test_shortfall_is_the_plain_tail_mean_where_the_tail_is_whole():
    """Where α·T is a whole number, empyrical's mean of ⌊α(T − 1)⌋ + 1 returns is the same; elsewhere it is not."""
    returns = daily(300, 2)
    expected = np.sort(returns)[:15].mean()
    assert metrics.expected_shortfall(returns, 0.05) == pytest.approx(expected, **EXACT)
    assert empyrical.conditional_value_at_risk(returns, 0.05) == pytest.approx(expected, **EXACT)
    assert metrics.expected_shortfall(returns, 0.051) < empyrical.conditional_value_at_risk(returns, 0.051) - 1e-6


def test_shape_against_quantstats_and_scipy(returns):
    assert metrics.skewness(returns) == pytest.approx(quantstats.skew(dated(returns)), **EXACT)
    assert metrics.skewness(returns) == pytest.approx(stats.skew(returns, bias=False), **EXACT)
    assert metrics.excess_kurtosis(returns) == pytest.approx(quantstats.kurtosis(dated(returns)), **EXACT)
    assert metrics.excess_kurtosis(returns) == pytest.approx(stats.kurtosis(returns, bias=False), **EXACT)


def test_gains_and_losses_against_quantstats(returns):
    returns = np.where(np.arange(len(returns)) % 7 == 3, 0, returns)
    assert metrics.hit_rate(returns) == pytest.approx(quantstats.win_rate(dated(returns)), **EXACT)
    assert metrics.omega(returns) == pytest.approx(quantstats.profit_factor(dated(returns)), **EXACT)
    assert metrics.omega(returns, 1e-3) == pytest.approx(empyrical.omega_ratio(returns, 0.0, 1e-3, 1), **EXACT)


def test_benchmark_figures_against_quantstats_and_empyrical(returns):
    benchmark = daily(len(returns), 21)
    returns = returns + 0.4 * benchmark
    ours, theirs = dated(returns), dated(benchmark)
    greeks = quantstats.greeks(ours, theirs, periods=252)
    assert metrics.beta(returns, benchmark) == pytest.approx(greeks["beta"], **EXACT)
    assert metrics.beta(returns, benchmark) == pytest.approx(empyrical.beta(returns, benchmark), **EXACT)
    assert metrics.alpha(returns, benchmark) == pytest.approx(greeks["alpha"], **EXACT)
    ratio = quantstats.information_ratio(ours, theirs)
    assert metrics.information_ratio(returns, benchmark, 1) == pytest.approx(ratio, **EXACT)
    assert metrics.information_ratio(returns, benchmark, 9) == pytest.approx(3 * ratio, **EXACT)


@pytest.mark.parametrize("window", [2, 30, 57])
def test_rolling_sharpe_is_the_sharpe_of_each_window(returns, window):
    found = metrics.rolling_sharpe(returns, window, 252)
    assert len(found) == len(returns)
    assert np.isnan(found[: window - 1]).all()
    for t in (window - 1, len(returns) // 2 + window // 2, len(returns) - 1):
        assert found[t] == pytest.approx(metrics.sharpe(returns[t - window + 1 : t + 1]), **EXACT)
    judge = quantstats.rolling_sharpe(dated(returns), rolling_period=window, periods_per_year=252).to_numpy()
    np.testing.assert_allclose(found, judge, rtol=1e-7)  # pandas adds up as it goes


def test_rolling_sharpe_where_there_is_none():
    assert np.isnan(metrics.rolling_sharpe([0.1, 0.2], 3)).all()
    assert np.isnan(metrics.rolling_sharpe([0.1, 0.1, 0.1, 0.2], 3)).tolist() == [True, True, True, False]


# --- the clock -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("freq", "rows", "per_year", "within"),
    [
        ("D", 800, 365.25, 1e-9),
        ("h", 9000, 8766, 1e-9),
        ("15min", 500, 4 * 8766, 1e-9),
        ("B", 2609, 260.9, 0.1),
        ("ME", 121, 12, 0.01),
    ],
)
def test_periods_per_year_come_from_the_stamps(freq, rows, per_year, within):
    times = pd.date_range("2016-01-01", periods=rows, freq=freq)
    assert metrics.periods_per_year(times) == pytest.approx(per_year, abs=within)
    assert metrics.periods_per_year(times.as_unit("ns").asi8) == metrics.periods_per_year(times)
    assert metrics.periods_per_year(times.tz_localize("UTC")) == metrics.periods_per_year(times)
    assert metrics.periods_per_year(times.as_unit("s").to_numpy()) == metrics.periods_per_year(times)


def test_months_against_quantstats():
    returns = daily(800, 8)
    judge = dated(returns, "2015-03-20")
    table = quantstats.monthly_returns(judge, eoy=True)
    found = metrics.monthly_returns(judge.index, returns)
    assert found.years == (2015, 2016, 2017, 2018)
    seen = ~np.isnan(found.returns)
    np.testing.assert_allclose(np.where(seen, found.returns, 0), table.iloc[:, :12].to_numpy(), atol=1e-12)
    np.testing.assert_allclose(found.totals, table["EOY"].to_numpy(), atol=1e-12)
    assert seen[0].tolist() == [False] * 2 + [True] * 10
    assert not seen[3, 4:].any()


def test_a_year_that_was_not_traded_has_no_return():
    found = metrics.monthly_returns(np.array(["2019-12-31T23:00", "2021-01-01T00:00"], dtype="datetime64[m]"), [0.1, -0.2])
    assert found.years == (2019, 2020, 2021)
    assert found.totals[[0, 2]] == pytest.approx([0.1, -0.2])
    assert math.isnan(found.totals[1])
    assert found.returns[0, 11] == pytest.approx(0.1)
    assert found.returns[2, 0] == pytest.approx(-0.2)
    assert np.isfinite(found.returns).sum() == 2


# --- weights and costs -----------------------------------------------------------------------------------------------


def test_figures_of_weights_by_a_slow_loop():
    noise = np.random.default_rng(0)
    weights = np.round(noise.uniform(-1, 1, (41, 3)), 1) * (noise.random((41, 3)) < 0.6)
    traded, held, before = 0.0, 0.0, [0.0] * 3
    busy = 0
    for row in weights.tolist():
        traded += sum(abs(a - b) for a, b in zip(row, before, strict=True)) / 2
        held += sum(map(abs, row))
        busy += any(row)
        before = row
    assert metrics.turnover(weights, 12) == pytest.approx(12 * traded / 41, **EXACT)
    assert metrics.exposure(weights) == pytest.approx(held / 41, **EXACT)
    assert metrics.time_in_market(weights) == busy / 41
    assert 0 < busy < 41


def test_known_weights():
    assert metrics.turnover([1, 1, 1, 1], 252) == 0.5 * 252 / 4  # bought once
    assert metrics.turnover([1, -1, 1, -1], 1) == (0.5 + 1 + 1 + 1) / 4
    assert metrics.turnover([[1, 0], [0, 1]], 1) == (0.5 + 1) / 2  # a swap counts once
    assert metrics.holding_times([0, 1, 0.5, 0, -1, 1, 1, 1]).tolist() == [2, 1, 3]
    assert metrics.holding_times([[1, 0], [1, -1], [-2, -1]]).tolist() == [2, 1, 2]
    assert metrics.holding_times([0, 0]).tolist() == []
    assert metrics.cost_drag([1e-4, 0, 2e-4], 252) == pytest.approx(252e-4, **EXACT)


# --- closed forms and documented values ------------------------------------------------------------------------------


def test_known_series():
    returns = [0.5, -0.5, 0.2]
    assert metrics.total_return(returns) == pytest.approx(-0.1, **EXACT)
    assert metrics.cagr(returns, 6) == pytest.approx(0.9**2 - 1, **EXACT)
    assert metrics.equity_curve(returns) == pytest.approx([1, 1.5, 0.75, 0.9])
    assert metrics.worst_drawdowns(returns) == ((-0.5, 1, 2, None),)
    assert metrics.max_drawdown([-0.3, 0.1]) == pytest.approx(-0.3, **EXACT)  # the start is a peak
    assert metrics.calmar(returns, 6) == pytest.approx((0.9**2 - 1) / 0.5, **EXACT)
    assert metrics.worst_drawdowns([-0.5, 1.0, -0.5, 0.5, 1.0], 1) == ((-0.5, 0, 1, 2),)


def test_cash_is_the_zero_of_growth_beyond_cash():
    """(1 + CAGR)/(1 + rate) − 1, whatever the rates of the periods were."""
    returns, year = daily(90, 4), 252
    growth = metrics.cagr(returns, year)
    assert metrics.cagr(returns, year, 0.04) == pytest.approx((1 + growth) / 1.04 - 1, **EXACT)
    rates = np.linspace(0.01, 0.05, 90)
    per_period = (1 + rates) ** (1 / year) - 1
    assert metrics.cagr(per_period, year, rates) == pytest.approx(0, abs=1e-12)
    assert metrics.sharpe(returns, year, rates) == pytest.approx(metrics.sharpe(returns - per_period, year), **EXACT)
    assert metrics.volatility(returns, year, rates) == pytest.approx((returns - per_period).std(ddof=1) * year**0.5, **EXACT)
    assert metrics.calmar(returns, year, 0.04) == pytest.approx(
        metrics.cagr(returns, year, 0.04) / -metrics.max_drawdown(returns), **EXACT
    )
    assert metrics.sharpe(returns, year, np.full(90, 0.03)) == pytest.approx(metrics.sharpe(returns, year, 0.03), **EXACT)


@pytest.mark.parametrize("constant", [0.0, 0.01, -0.003, 1e-9])
def test_what_never_changes_has_no_ratio(constant):
    returns = [constant] * 33
    assert metrics.volatility(returns) == 0
    assert math.isnan(metrics.sharpe(returns))
    assert math.isnan(metrics.skewness(returns))
    assert math.isnan(metrics.excess_kurtosis(returns))
    assert math.isnan(metrics.information_ratio(returns, [0.01] * 33))
    assert math.isnan(metrics.beta(daily(33), returns))
    assert math.isnan(metrics.sortino(returns)) == (constant >= 0)
    assert math.isnan(metrics.calmar(returns)) == (constant >= 0)
    assert math.isnan(metrics.omega(returns)) == (constant >= 0)
    assert math.isnan(metrics.hit_rate(returns)) == (constant == 0)
    assert metrics.cagr(returns, 33) == pytest.approx((1 + constant) ** 33 - 1, **EXACT)
    assert metrics.expected_shortfall(returns) == pytest.approx(constant, **EXACT)


def test_ruin_is_the_end():
    returns = [0.1, -1.0, 0.5, 0.2]
    assert metrics.equity_curve(returns).tolist() == pytest.approx([1, 1.1, 0, 0, 0])
    assert metrics.cagr(returns) == metrics.total_return(returns) == metrics.max_drawdown(returns) == -1
    assert metrics.calmar(returns) == -1
    assert metrics.worst_drawdowns(returns) == ((-1.0, 1, 2, None),)
    assert math.isfinite(metrics.sharpe(returns))


def test_a_small_loss_each_minute_is_no_ruin():
    """A product of so many factors leaves the range of floats; what is left is still not −1 in so many years."""
    assert metrics.cagr(np.full(600_000, -0.01), 1000) == pytest.approx(0.99**1000 - 1, **EXACT)


@pytest.mark.parametrize("name", ["sharpe", "volatility", "ulcer_index"])
def test_a_single_return_says_nothing_about_spread(name):
    with pytest.raises(InputError, match="returns has 1 rows; needs at least 2"):
        getattr(metrics, name)([0.01])
    assert metrics.cagr([0.01], 1) == pytest.approx(0.01)


def test_anything_that_is_an_array_will_do():
    returns = SERIES["short"]
    expected = metrics.sharpe(returns)
    for same in (returns.tolist(), dated(returns), torch.from_numpy(returns), tuple(returns)):
        assert metrics.sharpe(same) == expected
    assert quantail.backtest.metrics.sharpe is metrics.sharpe
    assert all(callable(getattr(metrics, name)) for name in metrics.__all__)


@pytest.mark.parametrize(
    "name", ["bootstrap", "calendar", "drawdowns", "metrics", "positions", "seeds", "significance", "splits"]
)
def test_every_figure_says_its_formula_its_source_and_its_shapes(name):
    source = rules.modules("quantail.backtest")[f"quantail.backtest.{name}"]
    assert len(rules.public_functions(source)) > 1
    assert rules.undocumented(source) == []


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: metrics.sharpe([0.1, math.nan, math.inf]),
            r"returns has 2 entries that are not finite, the first is nan at \[1\]",
        ),
        (lambda: metrics.cagr([0.1, -1.2]), r"returns falls to -1.2 at \[1\]; simple returns end at -1"),
        (lambda: metrics.max_drawdown([-5.0]), r"returns falls to -5 at \[0\]; simple returns end at -1"),
        (lambda: metrics.total_return([-5.0]), r"returns falls to -5 at \[0\]; simple returns end at -1"),
        (lambda: metrics.cagr([]), "returns has 0 rows; needs at least 1"),
        (lambda: metrics.cagr(["a"]), "returns holds <U1; needs numbers"),
        (lambda: metrics.cagr([[0.1], [0.1, 0.2]]), "returns is no array: .*; needs numbers"),
        (
            lambda: metrics.cagr(torch.zeros(3, requires_grad=True)),
            r"returns is no array: .*; needs .* returns.detach\(\).cpu\(\)",
        ),
        (lambda: metrics.cagr([[0.1, 0.2]]), r"returns has shape \[1, 2\]; needs \[T\]"),
        (lambda: metrics.cagr([0.1], 0), "periods_per_year=0; needs a number above 0"),
        (lambda: metrics.turnover([0.1], math.nan), "periods_per_year=nan; needs a number above 0"),
        (lambda: metrics.information_ratio([0.1, 0.2], [0.1, 0.2], -1), "periods_per_year=-1"),
        (lambda: metrics.alpha([0.1, 0.2], [0.1, 0.2], 0), "periods_per_year=0"),
        (lambda: metrics.cost_drag([0.1, 0.2], 0), "periods_per_year=0"),
        (lambda: metrics.rolling_sharpe([0.1, 0.2], 2, 0), "periods_per_year=0"),
        (lambda: metrics.sharpe([0.1, 0.2], 252, [0.1, 0.2, 0.3]), "risk_free has 3 entries from 0.1; needs one annual rate"),
        (lambda: metrics.sharpe([0.1, 0.2], 252, -1.0), "risk_free has 1 entries from -1; needs one annual rate above -1"),
        (lambda: metrics.value_at_risk([0.1], 0.0), "alpha=0.0; needs a share between 0 and 1"),
        (lambda: metrics.expected_shortfall([0.1], 5), "alpha=5; needs a share between 0 and 1"),
        (lambda: metrics.beta([0.1, 0.2], [0.1]), "benchmark has 1 rows; needs at least 2"),
        (lambda: metrics.alpha([0.1, 0.2, 0.3], [0.1, 0.2]), "returns has 3 periods and benchmark 2; needs the same periods"),
        (lambda: metrics.skewness([0.1, 0.2]), "returns has 2 rows; needs at least 3"),
        (lambda: metrics.excess_kurtosis([0.1] * 3), "returns has 3 rows; needs at least 4"),
        (lambda: metrics.rolling_sharpe([0.1], 1), "window=1; needs a whole number of at least 2"),
        (lambda: metrics.worst_drawdowns([0.1], True), "count=True; needs a whole number"),
        (lambda: metrics.worst_drawdowns([0.1], 0), "count=0; needs a whole number of at least 1"),
        (lambda: metrics.exposure(np.zeros((2, 3, 4))), r"weights has shape \[2, 3, 4\]; needs \[T, A\]"),
        (lambda: metrics.exposure(np.zeros((2, 0))), r"weights has shape \[2, 0\]; needs \[T, A\]"),
        (lambda: metrics.periods_per_year([1.5, 2.5]), r"times is float64 of shape \[2\]; needs \[T\] datetime64"),
        (lambda: metrics.periods_per_year([5]), "times has 1 rows; needs at least 2"),
        (lambda: metrics.periods_per_year([5, 7, 7]), "times does not move on after row 1"),
        (lambda: metrics.monthly_returns([5, 7], [0.1]), "times has 2 rows; needs 1, one for each return"),
    ],
)
def test_refusals_say_what_was_seen_and_what_is_needed(call, says):
    with pytest.raises(InputError, match=says):
        call()
