"""Do trading environments keep their promises? `python benchmarks/leaks.py [--json FILE]` in a Python that has the peers.

Each question is asked in the same way of every environment that is installed there, ours included, on the same bars:

* future: bars after row 60 are others; are observations and rewards up to row 60 the same, byte for byte?
* fill: from a flat price the market opens twice as high after the decision and stays there. Does the decision earn the gap, as
  if it had been filled at the close it had seen?
* seed: does `reset(seed=1)` give the same first observation three times, with random starts?
* ruin: short, the price trebles. What reward ends the episode?
* interest: short for ten bars at a constant price, with interest on shorts of 1 % a bar where that can be set: what share of it
  is charged?
* end: is the last row of the data `truncated`, as a cut, or `terminated`, as a loss of everything to come?
* sum: do the rewards of an episode add up to what was earned?
* check_env: what Gymnasium's own checker says.

A dash means that the question does not apply (no shorts, no interest).
"""

import argparse
import json
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import market_peers as peers

CUT = 60
ROWS = 120


class Rival:
    """How one environment is made, which action is which, and where its equity stands."""

    name = ""
    start = 0  # the row of the first observation
    long: Any = 2
    flat: Any = 1
    short: Any = 0
    can_short = True
    earns_equity = True  # rewards are ln(E'/E) or E' − E, and equity is known

    def make(self, bars: pd.DataFrame, **options: Any) -> Any:
        raise NotImplementedError

    def random_starts(self, bars: pd.DataFrame) -> Any:
        """With random starts; None if it has none."""
        return None

    def interest(self, bars: pd.DataFrame) -> Any:
        """With 1 % a bar on shorts; None if that cannot be."""
        return None

    def equity(self, env: Any, info: dict[str, Any]) -> float:
        raise NotImplementedError

    def earned(self, rewards: list[float], equity: list[float]) -> tuple[float, float]:
        """What the rewards say, and what was earned."""
        return sum(rewards), math.log(equity[-1] / equity[0])


class Ours(Rival):
    name = "quantail"

    def make(self, bars: pd.DataFrame, **options: Any) -> Any:
        import torch

        from quantail.market.series import Bars, Features
        from quantail.market.single import SingleMarket
        from quantail.market.terms import Episode

        columns = {name: torch.tensor(bars[name].to_numpy()[:, None], dtype=torch.float64) for name in bars}
        time = torch.tensor(bars.index.to_numpy().astype("datetime64[ns]").astype(np.int64))
        valid = torch.ones(len(bars), 1, dtype=torch.bool)
        seen = torch.tensor(np.diff(np.log(bars["close"]), prepend=math.log(100.0)), dtype=torch.float32)[:, None, None]
        market = Bars(time, columns["open"], columns["high"], columns["low"], columns["close"], valid, ("X",), 3600.0)
        features = Features(seen, ("return",), 0)
        return SingleMarket(market, features=features, **({"episode": Episode(length=0), "costs": "free"} | options))

    def random_starts(self, bars: pd.DataFrame) -> Any:
        from quantail.market.terms import Episode

        return self.make(bars, episode=Episode(length=20))

    def interest(self, bars: pd.DataFrame) -> Any:
        from quantail.market.costs import Costs
        from quantail.market.series import YEAR_SECONDS

        return self.make(bars, costs=Costs(0.0, 0.0, borrow_per_year=min(0.01 * YEAR_SECONDS / 3600, 100.0)))

    def equity(self, env: Any, info: dict[str, Any]) -> float:
        return float(info.get("equity", 100_000.0))


class GymTradingEnv(Rival):
    name = "Gym-Trading-Env 0.3.5"

    def make(self, bars: pd.DataFrame, **options: Any) -> Any:
        return peers.gym_trading_env(bars, **({"trading_fees": 0} | options))

    def random_starts(self, bars: pd.DataFrame) -> Any:
        return self.make(bars, max_episode_duration=20)

    def interest(self, bars: pd.DataFrame) -> Any:
        return self.make(bars, borrow_interest_rate=0.01)

    def equity(self, env: Any, info: dict[str, Any]) -> float:
        return float(info["portfolio_valuation"])


class GymAnytrading(Rival):
    name = "gym-anytrading 2.0.0"
    start, long, flat, short, can_short, earns_equity = 10, 1, 0, 0, False, False

    def make(self, bars: pd.DataFrame, **options: Any) -> Any:
        return peers.gym_anytrading(bars, **options)

    def equity(self, env: Any, info: dict[str, Any]) -> float:
        return float(info["total_profit"])

    def earned(self, rewards: list[float], equity: list[float]) -> tuple[float, float]:
        return sum(rewards), equity[-1] - equity[0]


class FinRL(Rival):
    name = "FinRL 0.3.7"
    long, flat, short, can_short = np.array([1.0]), np.array([0.0]), np.array([-1.0]), False

    def make(self, bars: pd.DataFrame, **options: Any) -> Any:
        return peers.finrl(bars, **({"buy_cost_pct": [0.0], "sell_cost_pct": [0.0], "hmax": 1000} | options))

    def equity(self, env: Any, info: dict[str, Any]) -> float:
        return float(env.state[0] + env.state[1] * env.state[2])

    def earned(self, rewards: list[float], equity: list[float]) -> tuple[float, float]:
        return sum(rewards), equity[-1] - equity[0]


# --- the questions ----------------------------------------------------------------------------------------------------


def bars_like(close: Sequence[float], open_: Sequence[float] | None = None) -> pd.DataFrame:
    """Bars from closes; each opens at the close before."""
    bars = peers.frame(len(close))
    bars["close"] = np.asarray(close, dtype=float)
    bars["open"] = np.asarray(open_ if open_ is not None else [close[0], *close[:-1]], dtype=float)
    bars["high"], bars["low"] = bars[["open", "close"]].max(axis=1), bars[["open", "close"]].min(axis=1)
    return bars


def play(rival: Rival, env: Any, actions: Sequence[Any]) -> tuple[list[Any], list[float], list[float], tuple[bool, bool]]:
    """Observations, rewards, equity, and how it ended."""
    obs, info = env.reset(seed=0)
    seen, rewards, equity, ended = [np.array(obs, copy=True)], [], [rival.equity(env, info)], (False, False)
    for action in actions:
        obs, reward, terminated, truncated, info = env.step(action)
        seen.append(np.array(obs, copy=True))
        rewards.append(float(reward))
        equity.append(rival.equity(env, info))
        ended = bool(terminated), bool(truncated)
        if any(ended):
            break
    return seen, rewards, equity, ended


def future(rival: Rival) -> str:
    """Whether what was seen and earned up to the cut is the same."""
    first, other = peers.frame(ROWS), peers.frame(ROWS)
    other.iloc[CUT:] *= np.linspace(1.5, 3.0, ROWS - CUT)[:, None]
    rng = np.random.default_rng(0)
    actions = [(rival.short, rival.flat, rival.long)[i] for i in rng.integers(0, 3, CUT + 10)]
    a, b = (play(rival, rival.make(bars), actions) for bars in (first, other))
    upto = CUT - rival.start
    for row in range(upto):
        if not np.array_equal(a[0][row], b[0][row], equal_nan=True):
            return f"observation {row + rival.start} differs"
        if row and a[1][row - 1] != b[1][row - 1]:
            return f"reward {row + rival.start} differs"
    return "same"


def fill(rival: Rival) -> str:
    """The share of an overnight doubling that a decision after the close before earns."""
    jump = rival.start + 5
    close = [100.0] * jump + [200.0] * 10
    bars = bars_like(close, [100.0] * jump + [200.0] * 10)
    actions = [rival.flat] * (jump - 1 - rival.start) + [rival.long] * 4
    _, _, equity, _ = play(rival, rival.make(bars), actions)
    gain = equity[jump - rival.start + 2] / equity[0] - 1
    return "at the close it saw" if gain > 0.5 else "later"


def seeds(rival: Rival) -> str:
    """Whether a seed brings the same start."""
    env = rival.random_starts(peers.frame(ROWS))
    if env is None:
        return "–"
    first = [np.array(env.reset(seed=1)[0], copy=True) for _ in range(3)]
    return "same" if all(np.array_equal(first[0], obs) for obs in first) else "ignored"


def ruin(rival: Rival) -> str:
    """The reward at ruin."""
    if not rival.can_short:
        return "–"
    close = [100.0] * 5 + [100.0, 100.0, 310.0] + [310.0] * 5
    _, rewards, _, ended = play(rival, rival.make(bars_like(close)), [rival.short] * 9)
    how = "terminated" if ended[0] else "truncated" if ended[1] else "goes on"
    return f"{how}, reward {rewards[-1]:.2f}"


def interest(rival: Rival) -> str:
    """The share of the interest that is charged."""
    env = rival.interest(bars_like([100.0] * 20))
    if env is None:
        return "–"
    _, _, equity, _ = play(rival, env, [rival.short] * 10)
    return f"{100 * math.log(equity[-1] / equity[0]) / (10 * math.log(0.99)):.0f} %"


def end(rival: Rival) -> str:
    """How the data ends."""
    *_, ended = play(rival, rival.make(bars_like([100.0] * 30)), [rival.flat] * 40)
    return "terminated" if ended[0] else "truncated" if ended[1] else "goes on"


def total(rival: Rival) -> str:
    """Rewards against what was earned by buying and holding a market that grows by 1 % a bar."""
    bars = bars_like(100 * 1.01 ** np.arange(30))
    _, rewards, equity, _ = play(rival, rival.make(bars), [rival.long] * 40)
    says, earned = rival.earned(rewards, equity)
    return "equal" if math.isclose(says, earned, rel_tol=1e-3) else f"{says:.4g} of {earned:.4g}"


def checker(rival: Rival) -> str:
    """Gymnasium's checker."""
    from gymnasium.utils.env_checker import check_env

    try:
        check_env(rival.make(peers.frame(ROWS)), skip_render_check=True)
    except Exception as error:
        return f"fails: {str(error).splitlines()[0][:90]}"
    return "passes"


QUESTIONS: dict[str, Callable[[Rival], str]] = {
    "future": future,
    "fill": fill,
    "seed": seeds,
    "ruin": ruin,
    "interest": interest,
    "end": end,
    "sum": total,
    "check_env": checker,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; fail where our own row is not clean."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args(arguments)
    found: dict[str, dict[str, str]] = {}
    print(f"| | {' | '.join(QUESTIONS)} |\n|{' --- |' * (len(QUESTIONS) + 1)}")
    for rival in (Ours(), GymTradingEnv(), GymAnytrading(), FinRL()):
        answers = {}
        for name, question in QUESTIONS.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    answers[name] = question(rival)
                except Exception as error:
                    answers[name] = f"{type(error).__name__}: {error}"[:90]
        found[rival.name] = answers
        print(f"| {rival.name} | {' | '.join(answers.values())} |", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=2) + "\n")
    ours = found[Ours.name]
    clean = {"future": "same", "fill": "later", "seed": "same", "end": "truncated", "sum": "equal", "check_env": "passes"}
    return int(any(ours[name] != answer for name, answer in clean.items()))


if __name__ == "__main__":
    sys.exit(main())
