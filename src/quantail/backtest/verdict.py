"""The verdict: what a backtest allows to say about an agent, as a record, and in plain words.

"Skill" is claimed only if three things hold at once, each at a chance of 1 % to be luck (less, the more agents were tried on
the same bars): it grows faster than cash after costs; its Sharpe ratio is above that of buying and holding; and above that of
its own weights in another order, which have the same exposure, the same turnover and the same costs. The first alone may be a
rising market, the second alone a smaller position or a falling market, the third alone too little to pay for the trouble.
Everything else is "no skill found", which is not "no skill": it says what the data can carry.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantail.backtest.baselines import CASH, HOLD, Rival
from quantail.backtest.differences import BETTER, Difference, difference, log_returns, own_figures, ratio, timing, values_of
from quantail.backtest.inference import GROUPS, judged, ratio_interval, shortfall_influence, student_quantile
from quantail.backtest.known import FIGURES
from quantail.backtest.known import NAME as KNOWN
from quantail.backtest.seeds import seed_interval
from quantail.backtest.series import Floats
from quantail.backtest.significance import deflated_sharpe
from quantail.backtest.track import Track
from quantail.backtest.words import headline, sentences
from quantail.config import RiskConfig
from quantail.errors import InputError
from quantail.settings import check_counts, check_within

LEVEL = 0.01  # the chance, at most, to claim skill where there is none
KEPT, WITHIN, BROKEN = "kept", "kept within its interval", "broken"


@dataclass(frozen=True)
class Asked:
    """What the verdict has to know beside the returns."""

    trials: int = 1  # agents that were judged on these bars, this one included
    trial_sharpes: tuple[float, ...] = ()  # of those, per period, as far as they are known
    level: float = LEVEL
    risk: RiskConfig | None = None  # what the agent was to mind
    episode: int = 0  # periods of an episode of its training; 0: the whole stretch
    warning: str = ""  # that its reader has to be told, such as a fill that nobody can have

    def __post_init__(self) -> None:
        check_counts(trials=self.trials)
        check_within("level", self.level, 0.0, 0.5, low_open=True)
        if len(self.trial_sharpes) > self.trials:
            raise InputError(
                f"trials={self.trials} but {len(self.trial_sharpes)} trial_sharpes; count every agent that was tried"
            )

    @property
    def each(self) -> float:
        """The chance of luck that a single claim may have, if the best of all trials is to have `level`."""
        return shared(self.level, self.trials)


@dataclass(frozen=True)
class Tail:
    """The mean of the worst α outcomes, and the limit that it was to keep."""

    outcome: str  # what an outcome is
    alpha: float
    cvar: float
    interval: tuple[float, float]
    limit: float
    answer: str


@dataclass(frozen=True)
class Known:
    """Beside the strongest policies that are known on this market, for each figure another: the agent's part of them."""

    name: str  # of that for the Sharpe ratio
    sharpe: float
    growth_name: str
    growth: float
    sharpe_part: float  # 1: as good
    sharpe_interval: tuple[float, float]
    growth_part: float
    growth_interval: tuple[float, float]


@dataclass(frozen=True)
class Verdict:
    """What may be said."""

    skill: bool
    headline: str
    sentences: tuple[str, ...]
    sharpe: float  # per year, after costs
    sharpe_interval: tuple[float, float]
    growth: float  # log growth per year
    growth_interval: tuple[float, float]
    cash: Difference
    hold: Difference
    hold_growth: Difference
    timing: Difference
    deflated_sharpe: float
    trials: int
    level: float
    seeds: int
    seed_sharpes: tuple[float, ...]
    seeds_better: int  # than buying and holding, in Sharpe ratio
    seed_interval: tuple[float, float]  # of their interquartile mean; NaN for one
    years: float  # of each path
    paths: int
    years_needed: float  # of such bars, all paths together, for a lead like this over buy & hold to be sure
    ruined: int
    tail: Tail | None
    known: Known | None

    @property
    def each(self) -> float:
        """The chance of luck that each claim may have: what is said of one comparison knows of all trials, too."""
        return shared(self.level, self.trials)

    def __str__(self) -> str:
        return "\n".join((self.headline, *self.sentences))


def shared(level: float, trials: int) -> float:
    """1 − (1 − level)^{1/N}: what each of N trials may have, if the best of them is to have `level`   (Šidák 1967)."""
    return -math.expm1(math.log1p(-level) / trials)


def judge(
    tracks: Sequence[Track], rivals: Mapping[str, Rival], shuffles: Sequence[Floats], asked: Asked | None = None
) -> Verdict:
    """The verdict on one agent, or on all seeds of one training together: seeds are averaged, so none is picked.

    tracks on the same course; rivals with buy & hold, cash and perhaps a Bayes filter; shuffles [T, P, S] of each track.
    """
    asked = asked or Asked()
    check_same(tracks, rivals, shuffles)
    year = tracks[0].periods_per_year
    years = len(tracks[0].net) / year
    nets = [track.net for track in tracks]
    hold, cash = rivals[HOLD].net, rivals[CASH].net
    found = {
        "cash": difference("cash", "growth", nets, [cash] * len(nets), year),
        "hold": difference(HOLD, "Sharpe ratio", nets, [hold] * len(nets), year),
        "hold_growth": difference(HOLD, "growth", nets, [hold] * len(nets), year),
        "timing": timing(nets, shuffles, year),
    }
    seeds = tuple(ratio(net, year) for net in nets)
    deflated = float(np.mean([deflate(net, asked) for net in nets]))
    claims = [found[name].answer(asked.each) == BETTER for name in ("cash", "hold", "timing")]
    skill = all(claims) and not deflated < 1 - asked.level and not asked.warning
    parts: dict[str, Any] = {
        **found,
        **own_figures(nets, year),
        "skill": skill,
        "deflated_sharpe": deflated,
        "trials": asked.trials,
        "level": asked.level,
        "seeds": len(seeds),
        "seed_sharpes": seeds,
        "seeds_better": sum(one > ratio(hold, year) for one in seeds),
        "seed_interval": seed_interval(seeds) if len(seeds) > 1 and np.isfinite(seeds).all() else (math.nan, math.nan),
        "years": years,
        "paths": tracks[0].paths,
        "years_needed": years_needed(found["hold"], years * tracks[0].paths, asked.each),
        "ruined": int(sum(track.ruined.sum() for track in tracks)),
        "tail": tail(nets, asked),
        "known": beside_known(nets, rivals, year),
    }
    plain = Verdict(headline="", sentences=(), **parts)
    return Verdict(headline=headline(plain, asked), sentences=sentences(plain, asked), **parts)


def years_needed(what: Difference, years: float, level: float) -> float:
    """Years of such bars in which a difference like this would be sure; infinite where it is none."""
    low, high = what.interval
    if not what.value > 0 or not high > low:
        return math.inf
    reach = student_quantile(1 - level, GROUPS - 1) / student_quantile(0.975, GROUPS - 1)
    return years * (0.5 * (high - low) / what.value * reach) ** 2


# --- parts ------------------------------------------------------------------------------------------------------------


def deflate(net: Floats, asked: Asked) -> float:
    """The deflated Sharpe ratio of all periods together; with one trial the probabilistic one."""
    if not np.ptp(net):
        return math.nan
    sharpes = asked.trial_sharpes or (0.0,)
    if len(sharpes) == 1:
        return deflated_sharpe(net.ravel(), sharpes, 1)
    return deflated_sharpe(net.ravel(), sharpes, asked.trials)


def tail(nets: Sequence[Floats], asked: Asked) -> Tail | None:
    """Whether the limit was kept, on the outcomes that it is about; nothing where there is no limit."""
    risk = asked.risk
    if risk is None or risk.limit is None:
        return None
    each = [outcomes(log_returns(net), risk, asked.episode) for net in nets]
    values = np.mean([shortfall_influence(one, risk.alpha) for one in each], axis=0)
    found = judged(values)
    low, high = found.interval()
    answer = KEPT if low >= risk.limit else BROKEN if high < risk.limit else WITHIN
    what = {"step": "a bar", "window": f"{risk.window} bars", "episode": f"{asked.episode or len(nets[0])} bars, an episode"}
    return Tail(what[risk.horizon], risk.alpha, found.value, (low, high), risk.limit, answer)


def outcomes(log_returns: Floats, risk: RiskConfig, episode: int) -> Floats:
    """X of the horizon, [n, P]: of each bar, of each window of bars, or of each whole episode."""
    length = {"step": 1, "window": risk.window, "episode": episode or len(log_returns)}[risk.horizon]
    if length > len(log_returns):
        raise InputError(f"an outcome is the sum of {length} bars and {len(log_returns)} are judged; needs a longer stretch")
    total = np.concatenate([np.zeros_like(log_returns[:1]), log_returns.cumsum(axis=0)])
    sums: Floats = total[length:] - total[:-length]
    return sums[::length] if risk.horizon == "episode" else sums


def beside_known(nets: Sequence[Floats], rivals: Mapping[str, Rival], year: float) -> Known | None:
    """The agent's part of the strongest known policy, where one is known; of each figure that which is strongest in it."""
    best = [next((name for name in rivals if name.startswith(f"{KNOWN}{figure}")), None) for figure in FIGURES]
    if best[0] is None or best[1] is None:
        return None
    found: list[Any] = []
    for what, name in zip(FIGURES, best, strict=True):
        assert name is not None
        a, b = np.mean([values_of(what, net) for net in nets], axis=0), values_of(what, rivals[name].net)
        known = np.isfinite(a).all() and np.isfinite(b).all() and b.mean() > 0
        found += [float(a.mean() / b.mean()), ratio_interval(a, b)] if known else [math.nan, (math.nan, math.nan)]
    growth = float(values_of("growth", rivals[best[1]].net).mean()) * year
    return Known(best[0], ratio(rivals[best[0]].net, year), best[1], growth, *found)


def check_same(tracks: Sequence[Track], rivals: Mapping[str, Rival], shuffles: Sequence[Floats]) -> None:
    """All must have walked the same course."""
    if not tracks or len(shuffles) != len(tracks):
        raise InputError(f"{len(tracks)} tracks and {len(shuffles)} shuffles; needs at least one track, and shuffles of each")
    shape = tracks[0].net.shape
    others = (
        {one.net.shape for one in tracks} | {one.net.shape for one in rivals.values()} | {one.shape[:2] for one in shuffles}
    )
    if missing := [name for name in (HOLD, CASH) if name not in rivals]:
        raise InputError(f"rivals has no {missing[0]}; needs the baselines of the same course")
    if others != {shape}:
        raise InputError(f"tracks, rivals and shuffles are {sorted(others)}; needs those of one course")
