"""What a market's environment is to do, as frozen records that refuse nonsense."""

import math
import warnings
from dataclasses import dataclass

from quantail.errors import ConfigError
from quantail.settings import check_choice, check_counts, check_within

FILLS = ("next_open", "next_close", "same_close")
SIZINGS = ("naive", "exact")
ACTIONS = ("grid", "long_only", "long_short", "tanh", "simplex")
REWARDS = ("log_return", "excess", "mean_variance", "drawdown", "sharpe", "downside")
STARTS = ("random", "stratified", "fixed")
PARTS = ("features", "weights", "return", "drawdown", "time")
REWARD_FLOOR = -10.0  # of a log return, at most; of a relative or differential reward in the bar of ruin, at least
EXACT_PASSES = 5  # of x = w·V', V' = V − cost(x): at 10 bp the fifth is exact to machine precision


@dataclass(frozen=True)
class Rules:
    """How decisions become holdings, and what ends a portfolio.

    `fill`: decided after close t, filled at open t+1, at close t+1, or at close t itself, which nobody can do (a warning).
    `sizing`: "naive" sizes from equity before costs, "exact" so that the weights hold after costs.
    `actions`: "grid", an index into `levels`, where the last index holds; "long_only" [0, 1]; "long_short" [-1, 1]; "tanh", any
    number; each scaled down where Σ|w| would exceed `leverage`; "simplex", softmax over the assets and cash.
    """

    fill: str = "next_open"
    sizing: str = "naive"
    actions: str = "grid"
    levels: tuple[float, ...] = (-1.0, 0.0, 1.0)  # weights of the grid
    leverage: float = 1.0  # Σ|w| at most, when trading
    max_weight: float | None = None  # |w| of one asset at most, when trading; None: `leverage` alone limits it
    max_net: float | None = None  # |Σw| at most, when trading
    max_participation: float | None = None  # of a bar's volume that one trade may take; needs volumes
    band: float = 0.0  # no trade where the weight would change by less
    lot_size: float = 0.0  # units of the asset; 0: any amount
    min_notional: float = 0.0  # smaller trades do not happen
    maintenance: float = 0.0  # equity below this share of Σ|position| is liquidated; 0: no margin is asked
    ruin: float = 0.2  # an episode ends where equity falls to this share of the first
    cooldown: int = 0  # bars after a trade in which the asset cannot be traded again
    delisted_after: int = 0  # rows without a bar after which an asset exists no more; 0: it may always come back
    haircut: float = 0.0  # what then is lost of its last price

    def __post_init__(self) -> None:
        check_choice("fill", self.fill, FILLS)
        check_choice("sizing", self.sizing, SIZINGS)
        check_choice("actions", self.actions, ACTIONS)
        check_within("leverage", self.leverage, 0.0, 1000.0, low_open=True)
        for name, high in (("band", 1.0), ("lot_size", math.inf), ("min_notional", math.inf)):
            check_within(name, vars(self)[name], 0.0, high)
        for name in ("maintenance", "ruin"):
            check_within(name, vars(self)[name], 0.0, 1.0, high_open=True)
        if not self.levels or any(not abs(level) <= self.leverage for level in self.levels):
            raise ConfigError(f"levels={self.levels}; needs at least one, each within leverage={self.leverage:g}")
        for name in ("cooldown", "delisted_after"):
            if type(vars(self)[name]) is not int or vars(self)[name] < 0:
                raise ConfigError(f"{name}={vars(self)[name]!r}; needs a whole number of bars, 0 for none")
        for name, high in (("max_weight", self.leverage), ("max_net", self.leverage), ("max_participation", 1.0)):
            if vars(self)[name] is not None:
                check_within(name, vars(self)[name], 0.0, high, low_open=name != "max_net")
        check_within("haircut", self.haircut, 0.0, 1.0)
        if self.haircut and not self.delisted_after:
            raise ConfigError(
                f"haircut={self.haircut:g} is of assets that are delisted; set delisted_after to a number of rows"
            )
        if self.maintenance * self.leverage >= 1.0:
            raise ConfigError(
                f"maintenance={self.maintenance:g} of leverage={self.leverage:g} is liquidated at once; "
                f"needs maintenance below {1 / self.leverage:g}"
            )
        if self.fill == "same_close":
            warnings.warn(same_close_warning(), UserWarning, stacklevel=3)

    def cap(self, alone: bool) -> float | None:
        """What one |w| is at most, where that is less than the leverage; alone: of the only asset."""
        caps = [cap for cap in (self.max_weight, self.max_net if alone else None) if cap is not None]
        return min(caps) if caps else None

    @property
    def warning(self) -> str:
        """What a reader of results has to be told, or nothing."""
        return same_close_warning() if self.fill == "same_close" else ""


def same_close_warning() -> str:
    """Why a fill at the close that was seen is no result."""
    return (
        "fill='same_close' trades at the very close that the decision is based on, which cannot be done; "
        "use next_open for results that count"
    )


@dataclass(frozen=True)
class Reward:
    """What is learned from; every kind comes from the same net equity, and costs are never subtracted twice.

    R = E'/E − 1, r = ln(E'/E). "log_return" r; "excess" R − the mean return of the assets; "mean_variance" r − ½λr²;
    "drawdown" r − η·(what the drawdown grew by)²; "sharpe" and "downside" are differential ratios (`rewards.py`) with a memory
    of `rate`, which is always observed. Ruin costs at least `REWARD_FLOOR` in the kinds whose figure may be good in that bar.
    """

    kind: str = "log_return"
    scale: float = 1.0  # of what is learned from, never of pnl; 1/σ of a bar makes it about 1
    risk_aversion: float = 1.0  # λ of mean_variance
    drawdown_aversion: float = 0.5  # η of drawdown
    rate: float = 1 / 252  # of the running moments of sharpe and downside

    def __post_init__(self) -> None:
        check_choice("kind", self.kind, REWARDS)
        check_within("scale", self.scale, 0.0, low_open=True)
        check_within("risk_aversion", self.risk_aversion, 0.0)
        check_within("drawdown_aversion", self.drawdown_aversion, 0.0)
        check_within("rate", self.rate, 0.0, 1.0, low_open=True)

    @property
    def remembers(self) -> bool:
        """Whether it needs a memory, which then has to be observed."""
        return self.kind in ("sharpe", "downside")


@dataclass(frozen=True)
class Episode:
    """Where episodes start, how long they last, and with what.

    `starts`: "random" anywhere; "stratified", each environment in its own part of the rows, moving on with each episode;
    "fixed", environment b always at the b-th of equally spaced starts. A `length` of 0 means all that there is. `horizon`:
    where one who learned in episodes of so many bars is judged on a longer span, time left is shown as a share of that, at
    most 1, as it was in training.
    """

    length: int = 252  # bars; then the episode is cut off (truncated)
    starts: str = "random"
    horizon: int = 0  # bars of which the time left is a share; those of the episode if 0
    random_position: bool = False  # begin with random weights, as if bought before
    equity: float = 100_000.0  # at the start, in the currency of the prices
    parts: tuple[str, ...] = PARTS  # of the observation; their order is always this one

    def __post_init__(self) -> None:
        check_choice("starts", self.starts, STARTS)
        check_within("equity", self.equity, 0.0, low_open=True)
        for name in ("length", "horizon"):
            if vars(self)[name]:
                check_counts(**{name: vars(self)[name]})
        for part in self.parts:
            check_choice("parts", part, PARTS)
        if len(set(self.parts)) < len(self.parts) or not self.parts:
            raise ConfigError(f"parts={self.parts}; needs at least one, each once")


def check_seen(reward: Reward, episode: Episode) -> None:
    """What a reward depends on has to be observed, or one observation has several values."""
    if reward.kind == "drawdown" and "drawdown" not in episode.parts:
        raise ConfigError(f"reward 'drawdown' depends on the drawdown so far; parts={episode.parts} needs 'drawdown' too")
