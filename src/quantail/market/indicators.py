"""The usual indicators of one series, vectorised over time: value t uses bars ≤ t alone, NaN until there are enough of them.

All are free of scale: prices in cents or in dollars give the same numbers.
"""

import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Series = NDArray[np.float64]  # [n]

CHUNK = 1 << 16  # windows reduced at once: a hundred thousand windows fit into a cache, ten million do not fit into memory
BLOCK = 256


def returns(close: Series, bars: int) -> Series:
    """Log return over some bars: ln C_t − ln C_{t−k}   (Source: definition): close [n] -> [n]."""
    found = np.full(len(close), np.nan)
    logs = np.log(close)
    found[bars:] = logs[bars:] - logs[:-bars]
    return found


def realised_volatility(close: Series, bars: int) -> Series:
    """Root of the mean squared log return: σ = √(1/k Σ r²)   (Andersen & Bollerslev 1998): close [n] -> [n] per bar."""
    return np.sqrt(rolling_mean(returns(close, 1) ** 2, bars))


def parkinson(high: Series, low: Series, bars: int) -> Series:
    """Volatility from ranges: σ = √(1/(4 k ln 2) Σ ln(H/L)²)   (Parkinson 1980): high, low [n] -> [n] per bar."""
    found: Series = np.sqrt(rolling_mean(np.log(high / low) ** 2, bars) / (4 * np.log(2)))
    return found


def yang_zhang(open_: Series, high: Series, low: Series, close: Series, bars: int) -> Series:
    """Volatility with jumps at the open: σ² = σ_o² + w σ_c² + (1 − w) σ_rs²   (Yang & Zhang 2000).

    w = 0.34/(1.34 + (k+1)/(k−1)); σ_o, σ_c: deviations of ln(O/C₋₁) and ln(C/O), divided by k − 1; σ_rs²: the mean of
    ln(H/C) ln(H/O) + ln(L/C) ln(L/O) (Rogers & Satchell 1991). open, high, low, close [n] -> [n] per bar.
    """
    gap = np.full(len(close), np.nan)
    gap[1:] = np.log(open_[1:] / close[:-1])
    inner = np.log(close / open_)
    satchell = np.log(high / close) * np.log(high / open_) + np.log(low / close) * np.log(low / open_)
    weight = 0.34 / (1.34 + (bars + 1) / (bars - 1))
    of_sample = bars / (bars - 1)
    gaps, inners = (rolling_std(part, bars) ** 2 * of_sample for part in (gap, inner))
    return np.sqrt(gaps + weight * inners + (1 - weight) * rolling_mean(satchell, bars))


def relative_strength(close: Series, bars: int) -> Series:
    """RSI on −1 to 1: (U − D)/(U + D), U and D Wilder's averages of gains and losses   (Wilder 1978): close [n] -> [n]."""
    moves = np.diff(close, prepend=close[:1])
    up, down = (average(np.maximum(part, 0.0)[1:], 1 / bars) for part in (moves, -moves))
    found = np.full(len(close), np.nan)
    found[1:] = divided(up - down, up + down)
    found[:bars] = np.nan
    return found


def macd(close: Series, fast: int, slow: int, signal: int) -> tuple[Series, Series]:
    """EMA_fast − EMA_slow as a part of the close, and that minus its own EMA   (Appel 1979): close [n] -> two of [n]."""
    line = average(close, 2 / (fast + 1)) - average(close, 2 / (slow + 1))
    line[: slow - 1] = np.nan
    late = np.full(len(close), np.nan)
    late[slow - 1 :] = average(line[slow - 1 :], 2 / (signal + 1))
    late[: slow + signal - 2] = np.nan
    return line / close, (line - late) / close


def bollinger(close: Series, bars: int) -> Series:
    """Where the close stands between the bands: (C − mean)/(2 deviations)   (Bollinger 1992): close [n] -> [n]."""
    return divided(close - rolling_mean(close, bars), 2 * rolling_std(close, bars))


def true_range(high: Series, low: Series, close: Series, bars: int) -> Series:
    """ATR as a part of the close: Wilder's average of max(H, C₋₁) − min(L, C₋₁), over C   (Wilder 1978): [n] each -> [n]."""
    ranges = np.maximum(high[1:], close[:-1]) - np.minimum(low[1:], close[:-1])
    found = np.full(len(close), np.nan)
    found[1:] = average(ranges, 1 / bars)
    found[:bars] = np.nan
    return found / close


def score(x: Series, bars: int) -> Series:
    """How far from usual: (x − mean)/deviation over some bars, 0 if nothing varies   (Source: definition): x [n] -> [n]."""
    return divided(x - rolling_mean(x, bars), rolling_std(x, bars))


# --- building blocks --------------------------------------------------------------------------------------------------


def average(x: Series, share: float) -> Series:
    """Exponential average whose weights sum to 1 from the first bar on: Σ (1−a)ⁱ x_{t−i} / Σ (1−a)ⁱ   (Source: definition).

    x [n] -> [n]; the seed of the usual recursion is forgotten anyway, so both agree once (1−a)ᵗ is small.
    """
    keep = 1 - share
    total = (1 - keep ** np.arange(1, len(x) + 1)) / share
    found: Series = decayed(x, keep) / total
    return found


def decayed(x: Series, keep: float) -> Series:
    """y_t = x_t + keep·y_{t−1} in blocks, each a product with a triangular matrix   (Blelloch 1990): x [n] -> [n]."""
    rows = -(-len(x) // BLOCK)
    if rows <= 1:
        only: Series = triangle(x[None], keep)[0]
        return only
    padded = np.zeros(rows * BLOCK)
    padded[: len(x)] = x
    inside = triangle(padded.reshape(rows, BLOCK), keep)
    carried = decayed(inside[:, -1], keep**BLOCK)  # what each block leaves behind
    inside[1:] += carried[:-1, None] * keep ** np.arange(1, BLOCK + 1)
    return inside.reshape(-1)[: len(x)]


def triangle(x: Series, keep: float) -> Series:
    """The recursion inside each row: x [m, k] -> [m, k], y_t = Σ_{s≤t} keep^{t−s} x_s."""
    found: Series = x @ powers(keep, x.shape[1])
    return found


@functools.lru_cache(maxsize=32)
def powers(keep: float, steps: int) -> Series:
    """keep^{t−s} where s ≤ t, else 0: [steps, steps]; a bar at a time, making it would take longer than using it."""
    ages = np.arange(steps)[None, :] - np.arange(steps)[:, None]
    found: Series = np.where(ages >= 0, keep ** np.maximum(ages, 0.0), 0.0)
    found.flags.writeable = False
    return found


def rolling_mean(x: Series, bars: int) -> Series:
    """Mean of the last bars: [n] -> [n]."""
    return rolled(x, bars, lambda windows: windows.mean(-1))


def rolling_std(x: Series, bars: int) -> Series:
    """Deviation of the last bars, divided by their number; exactly 0 where nothing varies: [n] -> [n]."""

    def deviation(windows: Series) -> Series:
        found: Series = np.where(windows.max(-1) > windows.min(-1), windows.std(-1), 0.0)
        found[np.isnan(windows).any(-1)] = np.nan
        return found

    return rolled(x, bars, deviation)


def rolled(x: Series, bars: int, reduce: Callable[[Series], Series]) -> Series:
    """A function of every window of so many bars, a chunk of windows at a time: [n] -> [n], NaN before the first window."""
    found = np.full(len(x), np.nan)
    if len(x) < bars:
        return found
    windows = np.lib.stride_tricks.sliding_window_view(x, bars)
    for start in range(0, len(windows), CHUNK):
        chunk = windows[start : start + CHUNK]
        found[bars - 1 + start : bars - 1 + start + len(chunk)] = reduce(chunk)
    return found


def divided(x: Series, y: Series) -> Series:
    """x/y, 0 where y is 0: [n] -> [n]."""
    found: Series = np.divide(x, y, out=np.where(np.isnan(x + y), np.nan, 0.0), where=y != 0)
    return found
