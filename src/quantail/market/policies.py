"""Policies whose strength is known, as functions of prices: what an agent has to match or beat on synthetic markets.

Everything is causal: row t of the weights [T, P] uses closes up to t and earns from close t to close t+1. The filters know the
true parameters of the market and see only prices: on those markets they are the best that can be reached, up to the form of
the noise (they take it for Gaussian) and the price of trading.
"""

import math

import torch
from torch import Tensor

from quantail.functional.checks import check_number
from quantail.market.synthetic import BullBear, HiddenDrift

VOL_BARS = 20
VOL_TARGET = 0.15


def buy_and_hold(close: Tensor) -> Tensor:
    """Everything, always: [T, P] -> [T, P]."""
    return torch.ones_like(close)


def random_positions(luck: Tensor) -> Tensor:
    """−1, 0 or 1 anew in each bar, from uniforms [T, P] in [0, 1)."""
    return (luck * 3).floor().clamp(max=2.0) - 1


def momentum(close: Tensor, bars: int) -> Tensor:
    """Sign of the return over the last `bars`; flat before there are so many."""
    log_price, weights = close.log(), torch.zeros_like(close)
    weights[bars:] = (log_price[bars:] - log_price[:-bars]).sign()
    return weights


def reversal(close: Tensor, bars: int = 5) -> Tensor:
    """Against the return over the last `bars`."""
    return -momentum(close, bars)


def vol_target(
    close: Tensor, bars_per_year: float, target: float = VOL_TARGET, bars: int = VOL_BARS, leverage: float = 1.0
) -> Tensor:
    """Long, w = min(target/σ̂, leverage), σ̂ per year from the last `bars` log returns; flat before."""
    returns = close.log().diff(dim=0)
    weights = torch.zeros_like(close)
    if len(returns) >= bars:
        sigma = returns.unfold(0, bars, 1).std(-1) * math.sqrt(bars_per_year)
        weights[bars:] = (target / sigma.clamp(min=1e-8)).clamp(max=leverage)
    return weights


# --- filters ----------------------------------------------------------------------------------------------------------


def hidden_drift_odds(model: HiddenDrift, close: Tensor) -> Tensor:
    """Log-odds after each close that the drift of the bar to come is up: [T, P] -> [T, P]   (Shiryaev 1963).

    ℓ ← 2·artanh((1 − 2p)·tanh(½(ℓ + 2m·x/σ²))), x the log return + ½σ², m = drift·dt, σ² = vol²·dt, p = 1/mean_days.
    """
    m, variance, keep = model.drift * model.dt, model.vol**2 * model.dt, 1 - 2 / model.mean_days
    evidence = (close.log().diff(dim=0) + 0.5 * variance) * (2 * m / variance)
    odds = torch.zeros_like(close)
    for t in range(1, len(close)):
        odds[t] = 2 * torch.atanh(keep * torch.tanh(0.5 * (odds[t - 1] + evidence[t - 1])))
    return odds


def bull_bear_odds(model: BullBear, close: Tensor) -> Tensor:
    """Log-odds after each close that the bar to come is a bull's: [T, P] -> [T, P]   (Hamilton 1989)."""
    leave_bull, leave_bear = (1 / days for days in model.mean_days)
    returns = close.log().diff(dim=0)
    likelihoods = []
    for drift, vol in zip(model.drift, model.vol, strict=True):
        variance = vol * vol * model.dt
        likelihoods.append(
            -0.5 * (returns - (drift - 0.5 * vol * vol) * model.dt).square() / variance - 0.5 * math.log(variance)
        )
    evidence = likelihoods[0] - likelihoods[1]
    odds = torch.full_like(close, math.log((1 - model.bear_share) / model.bear_share))
    for t in range(1, len(close)):
        bull = torch.sigmoid(odds[t - 1] + evidence[t - 1])
        bull = bull * (1 - leave_bull) + (1 - bull) * leave_bear
        odds[t] = torch.logit(bull)
    return odds


def expected_drift(model: HiddenDrift | BullBear, odds: Tensor) -> Tensor:
    """E[drift per year | prices], any shape."""
    up, down = (model.drift, -model.drift) if isinstance(model, HiddenDrift) else model.drift
    bull = torch.sigmoid(odds)
    return up * bull + down * (1 - bull)


def sign_with_band(view: Tensor, band: float | Tensor = 0.0) -> Tensor:
    """±1 by the sign of a view [T, P], changed only where |view| > band, a number or [P]; flat until it first is."""
    weights = torch.where(view.abs() > band, view.sign(), torch.nan)
    for t in range(len(view)):
        before = weights[t - 1] if t else torch.zeros_like(view[0])
        torch.where(weights[t].isnan(), before, weights[t], out=weights[t])
    return weights


def scaled_with_band(view: Tensor, scale: float, band: float = 0.0, leverage: float = 1.0) -> Tensor:
    """w* = clip(scale·view, ±leverage), and only moves of at least `band` are made: [T, P] -> [T, P]."""
    check_number("band", band, 0.0)
    weights = (view * scale).clamp(-leverage, leverage)
    for t in range(1, len(view)):
        torch.where((weights[t] - weights[t - 1]).abs() < band, weights[t - 1], weights[t], out=weights[t])
    return weights


def partial_adjustment(aim: Tensor, rate: float) -> Tensor:
    """w' = w + rate·(aim − w), from flat: [T, P] -> [T, P]   (Gârleanu & Pedersen 2013: trade partially towards the aim)."""
    weights = aim * rate
    for t in range(1, len(aim)):
        weights[t] += (1 - rate) * weights[t - 1]
    return weights


# --- what they earn ---------------------------------------------------------------------------------------------------


def net_returns(weights: Tensor, close: Tensor, one_way_bps: float) -> Tensor:
    """w_t·R_{t+1} − c·|w_t − w_{t−1}|, from flat: [T, P] -> [T−1, P]. The simplest book, in which holding w does not drift."""
    simple = close[1:] / close[:-1] - 1
    turnover = torch.cat([weights[:1], weights[1:-1] - weights[:-2]]).abs()
    return weights[:-1] * simple - one_way_bps * 1e-4 * turnover


def sharpe(returns: Tensor, bars_per_year: float) -> Tensor:
    """Mean over standard deviation per year of each path: [T, P] -> [P]."""
    return returns.mean(0) / returns.std(0) * math.sqrt(bars_per_year)
