"""Synthetic markets by name: those with known answers, and those fitted to real series.

The fits (daily or hourly closes, by maximum likelihood; ranges of years in the names of docs/market.md): GARCH(1, 1) with
Student-t shocks, a chain of two regimes, diffusion with jumps. Where α + β of a fit reaches 1, the long-run volatility is that
of the series.
"""

from collections.abc import Callable, Mapping

from quantail.market.synthetic import GBM, Anchored, BullBear, Garch, Heston, HiddenDrift, Jumps, Model, Signal

HOURS_FX, HOURS_CRYPTO, DAYS_CRYPTO = 6240.0, 8760.0, 365.0


def _regimes(stay: tuple[float, float], mean_pct: tuple[float, float], variance_pct: tuple[float, float]) -> BullBear:
    """Two regimes from a daily fit: probabilities to stay, mean log returns in %, variances in %²."""
    vol = tuple((v * 252) ** 0.5 / 100 for v in variance_pct)
    drift = tuple(2.52 * m + 0.5 * v * v for m, v in zip(mean_pct, vol, strict=True))
    days = tuple(1 / (1 - p) for p in stay)
    return BullBear(drift=(drift[0], drift[1]), vol=(vol[0], vol[1]), mean_days=(days[0], days[1]))


MARKETS: Mapping[str, Callable[[], Model]] = {
    "hidden_drift": HiddenDrift,  # the default demo: memory is needed, holding earns nothing
    "bull_bear": BullBear,  # the risk demo
    "signal": Signal,  # the demo of costs: when not to trade
    "anchored": Anchored,
    "gbm": lambda: GBM(drift=0.0),  # the null market: nobody beats −costs
    "stocks": lambda: GBM(drift=0.08),  # the control: holding is best
    "sp500": lambda: Garch(drift=0.036, vol=0.191, alpha=0.0995, beta=0.9002, nu=6.5),
    "nasdaq": lambda: Garch(drift=0.055, vol=0.253, alpha=0.0845, beta=0.9141, nu=8.4),
    "goog": lambda: Garch(drift=0.245, vol=0.342, alpha=0.0345, beta=0.9608, nu=3.9),
    "eurusd_hourly": lambda: Garch(bars_per_year=HOURS_FX, vol=0.072, alpha=0.332, beta=0.459, nu=3.3),
    "btc_hourly": lambda: Garch(bars_per_year=HOURS_CRYPTO, drift=0.51, vol=0.91, alpha=0.058, beta=0.9415, nu=3.1),
    "btc_daily": lambda: Garch(bars_per_year=DAYS_CRYPTO, drift=0.64, vol=0.86, alpha=0.169, beta=0.8305, nu=3.1),
    "sp500_regimes": lambda: _regimes((0.9877, 0.9778), (0.069, -0.088), (0.468, 3.256)),
    "nasdaq_regimes": lambda: _regimes((0.9944, 0.9901), (0.086, -0.097), (0.812, 5.71)),
    "goog_regimes": lambda: _regimes((0.9717, 0.9035), (0.147, -0.074), (1.87, 14.1)),
    "sp500_jumps": lambda: Jumps(0.036, 0.083, 158.0, -0.0013, 0.0131),
    "nasdaq_jumps": lambda: Jumps(0.055, 0.097, 194.0, -0.0019, 0.0163),
    "goog_jumps": lambda: Jumps(0.245, 0.20, 68.0, -0.0008, 0.033),
    "sp500_heston": Heston,
}
