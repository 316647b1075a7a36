"""What a series of returns was worth, and what it cost in nerves. Every definition is in a docstring, none is guessed.

Returns are net simple period returns r [T]; `periods_per_year` A annualises them and comes from the stamps
(`periods_per_year(times)`), not from a habit. `risk_free` is an annual rate, one number or one for each period. Losses are
negative: drawdown, VaR and shortfall come as returns. A ratio whose denominator is 0 has no value and is NaN: a cash
account has no Sharpe ratio.
"""

import math
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike

from quantail.backtest.calendar import Months, monthly_returns, periods_per_year
from quantail.backtest.drawdowns import Drawdown, drawdown_curve, equity_curve, max_drawdown, ulcer_index, worst_drawdowns
from quantail.backtest.positions import cost_drag, exposure, holding_times, time_in_market, turnover
from quantail.backtest.series import Floats, as_growth, as_numbers, as_pair, check_number, check_whole
from quantail.errors import InputError
from quantail.functional.risk import cvar_of_samples

__all__ = [
    "Drawdown",
    "Months",
    "alpha",
    "beta",
    "cagr",
    "calmar",
    "cost_drag",
    "drawdown_curve",
    "equity_curve",
    "excess_kurtosis",
    "expected_shortfall",
    "exposure",
    "hit_rate",
    "holding_times",
    "information_ratio",
    "max_drawdown",
    "monthly_returns",
    "omega",
    "periods_per_year",
    "rolling_sharpe",
    "sharpe",
    "skewness",
    "sortino",
    "time_in_market",
    "total_return",
    "turnover",
    "ulcer_index",
    "value_at_risk",
    "volatility",
    "worst_drawdowns",
]

Rate: TypeAlias = ArrayLike  # an annual rate, one for all periods or one for each

ROUNDING = 64 * np.finfo(np.float64).eps  # a spread below this part of the largest entry is rounding, not risk


# --- growth ----------------------------------------------------------------------------------------------------------


def total_return(returns: ArrayLike) -> float:
    """Growth from first to last: Π(1 + r) − 1. Source: definition.

    returns [T] -> scalar.
    """
    return float(np.prod(1 + as_growth(returns)) - 1)


def cagr(returns: ArrayLike, periods_per_year: float = 252, risk_free: Rate = 0.0) -> float:
    """Growth per year: (Π(1 + r)/Π(1 + f))^{A/T} − 1, f the rate of cash per period. Source: definition.

    returns [T], risk_free scalar or [T] -> scalar. −1 after ruin. Beyond cash it is (1 + CAGR)/(1 + rate) − 1.
    """
    r, f = _with_rate(as_growth(returns), periods_per_year, risk_free, least=1)
    if r.min() == -1:
        return -1.0
    log_growth = (np.log1p(r) - np.log1p(f)).sum()  # products of many thousand factors leave the range of floats
    return float(np.expm1(log_growth * periods_per_year / len(r)))


# --- risk and reward -------------------------------------------------------------------------------------------------


def volatility(returns: ArrayLike, periods_per_year: float = 252, risk_free: Rate = 0.0) -> float:
    """Deviation per year: s·√A, s² = Σ(x − x̄)²/(T − 1), x = r − f. Source: definition.

    returns [T] with T ≥ 2, risk_free scalar or [T] -> scalar. A rate that never changes does not change it.
    """
    r, f = _with_rate(returns, periods_per_year, risk_free, least=2)
    return _deviation(r - f) * math.sqrt(periods_per_year)


def sharpe(returns: ArrayLike, periods_per_year: float = 252, risk_free: Rate = 0.0) -> float:
    """Mean over deviation, per year: x̄/s·√A, x = r − f, s with T − 1   (Sharpe 1994).

    returns [T] with T ≥ 2, risk_free scalar or [T] -> scalar; NaN if x never changes. Arithmetic: means of simple returns.
    """
    r, f = _with_rate(returns, periods_per_year, risk_free, least=2)
    return _over(float((r - f).mean()), _deviation(r - f)) * math.sqrt(periods_per_year)


def sortino(returns: ArrayLike, periods_per_year: float = 252, risk_free: Rate = 0.0) -> float:
    """Mean over downside deviation, per year: x̄/√(Σ min(x, 0)²/T)·√A, x = r − f   (Sortino & Price 1994).

    returns [T], risk_free scalar or [T] -> scalar; NaN if x is never negative. All T periods count in the denominator.
    """
    r, f = _with_rate(returns, periods_per_year, risk_free, least=1)
    downside = math.sqrt(float(np.square(np.minimum(r - f, 0)).mean()))
    return _over(float((r - f).mean()), downside) * math.sqrt(periods_per_year)


def calmar(returns: ArrayLike, periods_per_year: float = 252, risk_free: Rate = 0.0) -> float:
    """Growth per year over the worst drawdown: C = CAGR/|MDD|   (Young 1991, over all periods rather than three years).

    returns [T], risk_free scalar or [T] (of the growth; the drawdown is that of the equity) -> scalar; NaN if nothing fell.
    """
    return _over(cagr(returns, periods_per_year, risk_free), -max_drawdown(returns))


def omega(returns: ArrayLike, threshold: float = 0.0) -> float:
    """What lies above a threshold per period over what lies below: Σ(r − h)⁺/Σ(h − r)⁺   (Keating & Shadwick 2002).

    returns [T] -> scalar; NaN if nothing lies below. At 0 it is the profit factor of periods.
    """
    r = as_numbers("returns", returns) - threshold
    return _over(float(np.maximum(r, 0).sum()), float(np.maximum(-r, 0).sum()))


def rolling_sharpe(returns: ArrayLike, window: int, periods_per_year: float = 252) -> Floats:
    """`sharpe` of the last `window` periods, at each: x̄/s·√A over r_{t−w+1} … r_t   (Sharpe 1994).

    returns [T] -> [T], NaN before the first whole window and where the returns in it never change.
    """
    check_whole("window", window, 2)
    check_number("periods_per_year", periods_per_year, 0, math.inf, "a number above 0")
    r = as_numbers("returns", returns)
    answer = np.full(len(r), np.nan)
    if window <= len(r):
        rows = np.lib.stride_tricks.sliding_window_view(r, window)
        still = np.ptp(rows, axis=1) <= ROUNDING * np.abs(rows).max(axis=1)
        deviation = np.where(still, np.nan, rows.std(axis=1, ddof=1))
        answer[window - 1 :] = rows.mean(axis=1) / deviation * math.sqrt(periods_per_year)
    return answer


# --- tail and shape --------------------------------------------------------------------------------------------------


def value_at_risk(returns: ArrayLike, alpha: float = 0.05) -> float:
    """The α-quantile of what was seen: VaR_α = r_(h), h = α(T − 1) + 1, linear between ranks   (Hyndman & Fan 1996, type 7).

    returns [T] -> scalar, a return: negative is a loss.
    """
    check_number("alpha", alpha, 0, 1, "a share between 0 and 1, e.g. 0.05")
    return float(np.quantile(as_numbers("returns", returns), alpha))


def expected_shortfall(returns: ArrayLike, alpha: float = 0.05) -> float:
    """Mean of the worst α: [Σ_{i≤k} r_(i) + (αT − k)·r_(k+1)]/(αT), k = ⌊αT⌋   (Rockafellar & Uryasev 2000).

    returns [T] -> scalar, a return: negative is a loss. The same figure that the critics predict (`functional.risk`).
    """
    check_number("alpha", alpha, 0, 1, "a share between 0 and 1, e.g. 0.05")
    return float(cvar_of_samples(torch.from_numpy(as_numbers("returns", returns)), alpha))


def skewness(returns: ArrayLike) -> float:
    """Third moment, corrected for bias: G₁ = m₃/m₂^{3/2}·√(T(T − 1))/(T − 2)   (Joanes & Gill 1998).

    returns [T] with T ≥ 3 -> scalar; NaN if the returns never change.
    """
    r = as_numbers("returns", returns, least=3)
    n, z = len(r), _standard(r)
    return float((z**3).mean() * math.sqrt(n * (n - 1)) / (n - 2))


def excess_kurtosis(returns: ArrayLike) -> float:
    """Fourth moment beyond the Gaussian's, corrected: G₂ = (T − 1)/((T − 2)(T − 3))·((T + 1)g₂ + 6)   (Joanes & Gill 1998).

    returns [T] with T ≥ 4 -> scalar, g₂ = m₄/m₂² − 3; NaN if the returns never change.
    """
    r = as_numbers("returns", returns, least=4)
    n, z = len(r), _standard(r)
    return float((n - 1) / ((n - 2) * (n - 3)) * ((n + 1) * ((z**4).mean() - 3) + 6))


def hit_rate(returns: ArrayLike) -> float:
    """Share of gains among the periods that moved: h = #{r > 0}/#{r ≠ 0}. Source: definition.

    returns [T] -> scalar; NaN if nothing moved.
    """
    r = as_numbers("returns", returns)
    return _over(float((r > 0).sum()), float((r != 0).sum()))


# --- against a benchmark ---------------------------------------------------------------------------------------------


def information_ratio(returns: ArrayLike, benchmark: ArrayLike, periods_per_year: float = 252) -> float:
    """Mean of the difference over its deviation, per year: d̄/s_d·√A, d = r − b   (Goodwin 1998).

    returns, benchmark [T] with T ≥ 2 -> scalar; NaN if the difference never changes.
    """
    check_number("periods_per_year", periods_per_year, 0, math.inf, "a number above 0")
    r, b = as_pair(returns, benchmark, "benchmark", least=2)
    return _over(float((r - b).mean()), _deviation(r - b)) * math.sqrt(periods_per_year)


def beta(returns: ArrayLike, benchmark: ArrayLike) -> float:
    """Slope of the line through the periods: β = Cov(r, b)/Var(b)   (Jensen 1968).

    returns, benchmark [T] with T ≥ 2 -> scalar; NaN if the benchmark never changes.
    """
    r, b = as_pair(returns, benchmark, "benchmark", least=2)
    spread = _deviation(b)
    return _over(float(np.cov(r, b)[0, 1]), spread * spread)


def alpha(returns: ArrayLike, benchmark: ArrayLike, periods_per_year: float = 252) -> float:
    """What that line gives where the benchmark stands still, per year: α = A·(r̄ − β·b̄)   (Jensen 1968).

    returns, benchmark [T] with T ≥ 2 -> scalar, an arithmetic annual return.
    """
    check_number("periods_per_year", periods_per_year, 0, math.inf, "a number above 0")
    r, b = as_pair(returns, benchmark, "benchmark", least=2)
    return periods_per_year * float(r.mean() - beta(r, b) * b.mean())


# --- parts -----------------------------------------------------------------------------------------------------------


def _with_rate(returns: ArrayLike, periods_per_year: float, risk_free: Rate, least: int) -> tuple[Floats, Floats]:
    """Returns, and what cash earned in each period: f = (1 + rate)^{1/A} − 1."""
    check_number("periods_per_year", periods_per_year, 0, math.inf, "a number above 0")
    r = as_numbers("returns", returns, least=least)
    rate = as_numbers("risk_free", np.atleast_1d(np.asarray(risk_free)))
    if len(rate) not in (1, len(r)) or rate.min() <= -1:
        raise InputError(
            f"risk_free has {len(rate)} entries from {rate.min():g}; needs one annual rate above -1, or {len(r)}, one for each "
            "return"
        )
    per_period: Floats = np.expm1(np.log1p(rate) / periods_per_year)
    return r, np.broadcast_to(per_period, r.shape)


def _deviation(x: Floats) -> float:
    """Standard deviation with T − 1, and exactly 0 where all that is left is rounding."""
    still = np.ptp(x) <= ROUNDING * np.abs(x).max()
    return 0.0 if still else float(x.std(ddof=1))


def _standard(x: Floats) -> Floats:
    """(x − x̄)/√m₂; NaN where x never changes."""
    answer: Floats = (x - x.mean()) / (math.nan if _deviation(x) == 0 else x.std())
    return answer


def _over(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else math.nan
