"""The indicators against TA-Lib, pandas and loops; and that a scale of prices changes none of them."""

import math

import numpy as np
import pandas as pd
import pytest
import talib

from market.worlds import bars_of
from quantail.market import indicators as ind

BARS = bars_of(1500, 1, seed=3)
OPEN, HIGH, LOW, CLOSE, VOLUME = (getattr(BARS, name)[:, 0].numpy() for name in ("open", "high", "low", "close", "volume"))
SETTLED = 900  # by then the seeds of exponential averages differ by less than 1e-13


def same(ours, theirs, since=0, tolerance=1e-10):
    """Equal to a tolerance, and not known at the same rows."""
    assert np.isnan(ours).sum() <= since or (np.isnan(ours) == np.isnan(theirs)).all()
    known = slice(since, None)
    np.testing.assert_allclose(ours[known], theirs[known], rtol=tolerance, atol=tolerance)
    assert np.isfinite(ours[-1])


def test_returns():
    for bars in (1, 7):
        same(ind.returns(CLOSE, bars), np.log1p(talib.ROCP(CLOSE, bars)))


def test_rsi():
    same(ind.relative_strength(CLOSE, 14), talib.RSI(CLOSE, 14) / 50 - 1, SETTLED)
    assert (np.isnan(ind.relative_strength(CLOSE, 14)) == np.isnan(talib.RSI(CLOSE, 14))).all()
    flat, rising = np.full(40, 7.0), np.arange(1.0, 41.0)
    assert ind.relative_strength(flat, 14)[-1] == 0
    assert ind.relative_strength(rising, 14)[-1] == 1
    assert ind.relative_strength(rising[::-1], 14)[-1] == -1


def test_macd():
    line, _, histogram = talib.MACD(CLOSE, 12, 26, 9)
    ours, ours_histogram = ind.macd(CLOSE, 12, 26, 9)
    same(ours, line / CLOSE, SETTLED)
    same(ours_histogram, histogram / CLOSE, SETTLED)
    assert (np.isnan(ours_histogram) == np.isnan(histogram)).all()


def test_bollinger():
    upper, middle, _ = talib.BBANDS(CLOSE, 20, 2, 2)
    same(ind.bollinger(CLOSE, 20), (CLOSE - middle) / (upper - middle), tolerance=1e-8)
    assert ind.bollinger(np.full(30, 5.0), 20)[-1] == 0


def test_true_range():
    same(ind.true_range(HIGH, LOW, CLOSE, 14), talib.ATR(HIGH, LOW, CLOSE, 14) / CLOSE, SETTLED)
    assert (np.isnan(ind.true_range(HIGH, LOW, CLOSE, 14)) == np.isnan(talib.ATR(HIGH, LOW, CLOSE, 14))).all()


def test_rolling_moments():
    same(ind.rolling_mean(CLOSE, 20), talib.SMA(CLOSE, 20), tolerance=1e-10)
    series = pd.Series(CLOSE)
    same(ind.rolling_std(CLOSE, 20), series.rolling(20).std(ddof=0).to_numpy(), tolerance=1e-8)
    same(
        ind.score(VOLUME, 60),
        ((pd.Series(VOLUME) - pd.Series(VOLUME).rolling(60).mean()) / pd.Series(VOLUME).rolling(60).std(ddof=0)).to_numpy(),
        0,
        1e-8,
    )
    assert ind.score(np.full(70, 0.1), 60)[-1] == 0


@pytest.mark.parametrize("share", [2 / 13, 1 / 14, 0.002, 1.0])
@pytest.mark.parametrize("rows", [1, 255, 256, 257, 1500])
def test_exponential_average(share, rows):
    same(
        ind.average(CLOSE[:rows], share),
        pd.Series(CLOSE[:rows]).ewm(alpha=share, adjust=True).mean().to_numpy(),
        tolerance=1e-12,
    )


def test_the_blocks_of_a_recursion_are_a_recursion():
    x = np.random.default_rng(1).normal(size=ind.BLOCK * ind.BLOCK + 5)  # blocks of blocks
    total, expected = 0.0, []
    for value in x:
        total = 0.9999 * total + value
        expected.append(total)
    np.testing.assert_allclose(ind.decayed(x, 0.9999), expected, rtol=1e-10, atol=1e-10)


def test_volatilities_by_a_slow_loop():
    k = 20
    realised, ranges, yang = (
        ind.realised_volatility(CLOSE, k),
        ind.parkinson(HIGH, LOW, k),
        ind.yang_zhang(OPEN, HIGH, LOW, CLOSE, k),
    )
    assert (np.isnan(realised).sum(), np.isnan(ranges).sum(), np.isnan(yang).sum()) == (k, k - 1, k)
    for t in (k, 333, 1499):
        window = range(t - k + 1, t + 1)
        squares = [math.log(CLOSE[i] / CLOSE[i - 1]) ** 2 for i in window]
        assert realised[t] == pytest.approx(math.sqrt(sum(squares) / k), rel=1e-12)
        wide = [math.log(HIGH[i] / LOW[i]) ** 2 for i in window]
        assert ranges[t] == pytest.approx(math.sqrt(sum(wide) / (4 * k * math.log(2))), rel=1e-12)
        gaps = [math.log(OPEN[i] / CLOSE[i - 1]) for i in window]
        inner = [math.log(CLOSE[i] / OPEN[i]) for i in window]
        satchell = [
            math.log(HIGH[i] / CLOSE[i]) * math.log(HIGH[i] / OPEN[i])
            + math.log(LOW[i] / CLOSE[i]) * math.log(LOW[i] / OPEN[i])
            for i in window
        ]
        weight = 0.34 / (1.34 + (k + 1) / (k - 1))
        variance = np.var(gaps, ddof=1) + weight * np.var(inner, ddof=1) + (1 - weight) * sum(satchell) / k
        assert yang[t] == pytest.approx(math.sqrt(variance), rel=1e-10)


def test_every_volatility_finds_the_one_of_a_random_walk():
    """Many small steps inside each bar: highs and lows are those of the path, so all estimators agree with the truth."""
    steps = np.random.default_rng(2).normal(0, 0.01 / math.sqrt(400), (3000, 400))
    path = np.exp(np.cumsum(steps.reshape(-1)).reshape(3000, 400))
    opened = np.concatenate([[1.0], path[:-1, -1]])
    high, low, close = np.maximum(path.max(1), opened), np.minimum(path.min(1), opened), path[:, -1]
    for found in (ind.realised_volatility(close, 2500), ind.yang_zhang(opened, high, low, close, 2500)):
        assert found[-1] == pytest.approx(0.01, rel=0.05)
    assert ind.parkinson(high, low, 2500)[-1] == pytest.approx(0.01, rel=0.08)  # 400 steps see a little less than the range


def test_no_indicator_knows_the_currency():
    def all_of(scale):
        o, h, low, c = (x * scale for x in (OPEN, HIGH, LOW, CLOSE))
        return [
            *(ind.returns(c, 3), ind.realised_volatility(c, 20), ind.parkinson(h, low, 20), ind.yang_zhang(o, h, low, c, 20)),
            *(ind.relative_strength(c, 14), *ind.macd(c, 12, 26, 9), ind.bollinger(c, 20), ind.true_range(h, low, c, 14)),
            ind.score(VOLUME * scale, 60),
        ]

    for one, other in zip(all_of(1.0), all_of(1234.5), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("rows", [1, 2, 13, 14, 15])
def test_too_few_bars_are_not_known_and_no_error(rows):
    o, h, low, c, v = (x[:rows] for x in (OPEN, HIGH, LOW, CLOSE, VOLUME))
    found = [
        *(ind.returns(c, 20), ind.realised_volatility(c, 20), ind.parkinson(h, low, 20), ind.yang_zhang(o, h, low, c, 20)),
        *(*ind.macd(c, 12, 26, 9), ind.bollinger(c, 20), ind.score(v, 60)),
    ]
    assert all(np.isnan(one).all() and len(one) == rows for one in found)
    assert np.isfinite(ind.relative_strength(c, 14)).sum() == max(0, rows - 14)
    assert np.isfinite(ind.true_range(h, low, c, 14)).sum() == max(0, rows - 14)
