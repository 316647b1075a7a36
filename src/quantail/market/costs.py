"""What trading and holding cost, in the units of their names, with presets of four kinds of market.

1 bp is a ten-thousandth. Trading costs are fractions of the traded notional, in favour of nobody but the other side;
financing is a rate per year on what is owed, by elapsed time, or a funding rate at its time stamps.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from quantail.settings import check_choice, check_within

BP = 1e-4
FUNDING_HOURS = 8.0


@dataclass(frozen=True)
class Costs:
    """What a trade and a position cost. The defaults charge the fee and the half-spread and nothing else.

    A trade of x at mid price P fills at P·(1 ± concession), concession = half-spread + impact + slippage, and the fee is
    charged on what was paid. Impact is the average over the order, ⅔·Y·σ_day·√(|x|/ADV) (the square-root law, walked through
    linearly), with σ_day and ADV, the average daily notional, from the bars before. Slippage is adverse: s·U, U in [0, 1].
    """

    fee_bps: float = 5.0  # of the executed notional
    half_spread_bps: float = 1.0  # of the traded notional
    impact_y: float = 0.0  # Y of the square-root law, 0.5 to 1 in the literature; needs volumes
    slippage_bps: float = 0.0  # the most; what comes is uniform below it, and always adverse
    borrow_per_year: float = 0.0  # on the value of shorts
    debit_per_year: float = 0.0  # on borrowed cash (margin)
    credit_per_year: float = 0.0  # earned on cash, the proceeds of shorts included
    funding_bps: float = 0.0  # paid by longs to shorts at 0, 8 and 16 h UTC; where bars know the true rate, that counts
    randomized_from: float = 1.0  # each episode multiplies its trading costs by a factor from here
    randomized_to: float = 1.0  # ... to here, uniformly

    def __post_init__(self) -> None:
        for one in fields(self):
            low = -1e4 if one.name == "funding_bps" else 0.0
            high = 1e4 if one.name.endswith("_bps") else 100.0
            check_within(one.name, vars(self)[one.name], low, high)
        check_within("randomized_from", self.randomized_from, 0.0, self.randomized_to)
        check_within("fee_bps + half_spread_bps + slippage_bps", self.one_way_bps + self.slippage_bps, 0.0, 1e4, high_open=True)

    @property
    def one_way_bps(self) -> float:
        """Fee and half-spread, what every trade pays for sure."""
        return self.fee_bps + self.half_spread_bps

    @property
    def randomized(self) -> bool:
        """Whether episodes differ in what trading costs."""
        return (self.randomized_from, self.randomized_to) != (1.0, 1.0)


def crypto_spot() -> Costs:
    """A taker on a large exchange: 10 bp, 1 bp of half-spread; nothing can be borrowed for free."""
    return Costs(fee_bps=10.0, half_spread_bps=1.0, borrow_per_year=0.10, debit_per_year=0.10)


def perps() -> Costs:
    """Perpetual futures, taker: 5 bp, 0.5 bp, funding of 1 bp each 8 hours; margin costs nothing besides."""
    return Costs(fee_bps=5.0, half_spread_bps=0.5, funding_bps=1.0)


def us_stocks() -> Costs:
    """Large American companies: 0.5 bp of commission, 2 bp of half-spread, general collateral, benchmark 4 %."""
    return Costs(0.5, 2.0, borrow_per_year=0.005, debit_per_year=0.055, credit_per_year=0.035)


def fx() -> Costs:
    """Major currencies: no commission, 0.5 bp of half-spread."""
    return Costs(fee_bps=0.0, half_spread_bps=0.5, debit_per_year=0.01, borrow_per_year=0.01)


def free() -> Costs:
    """Nothing costs anything: for tests and for the gross line beside the net one."""
    return Costs(fee_bps=0.0, half_spread_bps=0.0)


PRESETS: Mapping[str, Callable[[], Costs]] = {
    "default": Costs,
    "crypto_spot": crypto_spot,
    "perps": perps,
    "us_stocks": us_stocks,
    "fx": fx,
    "free": free,
}


def preset(name: str) -> Costs:
    """Costs by name."""
    check_choice("costs", name, tuple(PRESETS))
    return PRESETS[name]()


def scaled(costs: Costs, factor: float) -> Costs:
    """Trading costs times a factor, for the lines at 0, 1, 2 and 4 times the cost; financing stays."""
    check_within("factor", factor, 0.0)
    trading = ("fee_bps", "half_spread_bps", "impact_y", "slippage_bps")
    return Costs(**{one.name: getattr(costs, one.name) * (factor if one.name in trading else 1.0) for one in fields(costs)})
