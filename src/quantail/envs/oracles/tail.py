"""Small games in which the best mean and the best tail part ways. Optima are the CVaR of an episode's return."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import NamedTuple, Unpack

import torch
from torch import Tensor

from quantail.envs.base import Move, uniform
from quantail.envs.oracles.oracle import Nothing, Oracle, Where
from quantail.functional.checks import check_choice, check_count, check_number
from quantail.functional.risk import cvar_from_categorical
from quantail.types import Box, Discrete

Outcomes = Mapping[float, float]  # value -> probability


def cvar_of(outcomes: Outcomes, alpha: float) -> float:
    """CVaR_α of a law on a few values."""
    values, chances = (torch.tensor(list(side), dtype=torch.float64) for side in (outcomes.keys(), outcomes.values()))
    return float(cvar_from_categorical(chances, values, alpha))


class TailGame(Oracle):
    """A game with few pure policies. CVaR is convex in the law of the return, so no mixture beats the best pure policy."""

    unit = "episode"
    observes_gained = True  # or there is only one thing that it can have gained

    @abstractmethod
    def policies(self) -> Mapping[str, Outcomes]:
        """The law of the return under each pure policy, by name."""

    def cvar(self, policy: str, alpha: float) -> float:
        """CVaR_α of the return under a pure policy; α = 1 is the mean."""
        known = self.policies()
        check_choice("policy", policy, tuple(known))
        return cvar_of(known[policy], alpha)

    def best_policy(self, alpha: float = 1.0) -> str:
        """The pure policy with the highest CVaR_α."""
        return max(self.policies(), key=lambda name: self.cvar(name, alpha))

    def optimum(self, alpha: float = 1.0) -> float:
        """Per episode: the highest CVaR_α of the return; the highest mean for α = 1."""
        return self.cvar(self.best_policy(alpha), alpha)

    def baselines(self) -> Mapping[str, float]:
        """The mean return of each pure policy."""
        return {name: self.cvar(name, 1.0) for name in self.policies()}


class CVaRBandit(TailGame):
    """One choice: 0 gives `safe` for sure, 1 gives `low` with probability p_low, else `high`. Sees a 0 [1]."""

    def __init__(
        self,
        num_envs: int,
        safe: float = 1.0,
        high: float = 2.0,
        low: float = -10.0,
        p_low: float = 0.05,
        **where: Unpack[Where],
    ) -> None:
        check_number("safe", safe)
        check_number("high", high)
        check_number("low", low, high=high, high_open=True)
        check_number("p_low", p_low, 0.0, 1.0)
        super().__init__(num_envs, (Box((1,), 0.0, 1.0), Discrete(2)), 1, None, **where)
        self.safe, self.high, self.low, self.p_low = safe, high, low, p_low

    def start(self, noise: Tensor) -> Nothing:
        return Nothing()

    def observe(self, core: Nothing, time: Tensor) -> Tensor:
        return torch.zeros_like(time, dtype=self.dtype)[:, None]

    def move(self, core: Nothing, time: Tensor, action: Tensor, noise: Tensor) -> Move:
        risky = torch.where(uniform(noise[:, 0]) < self.p_low, self.low, self.high)
        reward = torch.where(action == 1, risky, self.safe).to(self.dtype)
        return Move(core, reward, torch.ones_like(time, dtype=torch.bool))

    def policies(self) -> Mapping[str, Outcomes]:
        return {"safe": self.mixture(0.0), "risky": self.mixture(1.0)}

    def mixture(self, risky: float) -> Outcomes:
        """Law of the return if the risky arm is drawn with this probability."""
        check_number("risky", risky, 0.0, 1.0)
        law = {self.low: risky * self.p_low, self.high: risky * (1 - self.p_low)}
        law[self.safe] = law.get(self.safe, 0.0) + 1 - risky
        return law

    def best_action(self, obs: Tensor, alpha: float = 1.0) -> Tensor:
        """The better arm for CVaR_α: obs [..., 1] -> [...]."""
        return torch.full(obs.shape[:-1], int(self.best_policy(alpha) == "risky"), dtype=torch.int64, device=obs.device)


class Stake(NamedTuple):
    """The state of the nested game."""

    earned: Tensor  # [B] return so far


class StaticNested(TailGame):
    """A coin gives ±stake; then 1 gambles (+gain with probability p_gain, else −loss) and 0 passes.

    The best policy for the CVaR of the whole return depends on what the coin gave; the one that asks in each state for the
    best CVaR of what is still to come does not. Sees (coin thrown, return so far) [2]; without `observe_return` the second is
    0, and only policies that do the same after both throws can be played. Policies are named `loss:pass win:gamble` …
    """

    def __init__(
        self,
        num_envs: int,
        stake: float = 4.0,
        gain: float = 3.0,
        p_gain: float = 0.8,
        loss: float = 6.0,
        observe_return: bool = True,
        **where: Unpack[Where],
    ) -> None:
        check_number("stake", stake, 0.0, low_open=True)
        check_number("gain", gain, 0.0, low_open=True)
        check_number("p_gain", p_gain, 0.0, 1.0)
        check_number("loss", loss, 0.0, low_open=True)
        lowest, highest = (-stake - loss, stake + gain) if observe_return else (0.0, 1.0)
        super().__init__(num_envs, (Box((2,), (0.0, lowest), (1.0, highest)), Discrete(2)), 1, None, **where)
        self.stake, self.gain, self.p_gain, self.loss = stake, gain, p_gain, loss
        self.observe_return = self.observes_gained = observe_return  # type: ignore[misc]

    def start(self, noise: Tensor) -> Stake:
        return Stake(torch.zeros_like(noise[:, 0]))

    def observe(self, core: Stake, time: Tensor) -> Tensor:
        earned = core.earned if self.observe_return else torch.zeros_like(core.earned)
        thrown = (time > 0).to(self.dtype)
        return torch.stack([thrown, earned * thrown], -1)

    def move(self, core: Stake, time: Tensor, action: Tensor, noise: Tensor) -> Move:
        coin = torch.where(noise[:, 0] > 0, self.stake, -self.stake)
        gamble = torch.where(uniform(noise[:, 0]) < self.p_gain, self.gain, -self.loss)
        reward = torch.where(time == 0, coin, torch.where(action == 1, gamble, 0.0)).to(self.dtype)
        return Move(Stake(core.earned + reward), reward, time >= 1)

    def policies(self) -> Mapping[str, Outcomes]:
        return {
            f"loss:{('pass', 'gamble')[a]} win:{('pass', 'gamble')[b]}": self._law(a, b)
            for a in (0, 1)
            for b in (0, 1)
            if self.observe_return or a == b
        }

    def nested_policy(self, alpha: float) -> str:
        """What a player plays who in each state wants the best CVaR_α of what is still to come."""
        choice = "gamble" if cvar_of({self.gain: self.p_gain, -self.loss: 1 - self.p_gain}, alpha) > 0 else "pass"
        return f"loss:{choice} win:{choice}"

    def best_action(self, obs: Tensor, alpha: float = 1.0) -> Tensor:
        """What the best policy for CVaR_α does: obs [..., 2] -> [...]."""
        after_loss, after_win = (int(part.endswith("gamble")) for part in self.best_policy(alpha).split())
        return torch.where(obs[..., 1] < 0, after_loss, after_win)

    def _law(self, after_loss: int, after_win: int) -> Outcomes:
        law: dict[float, float] = {}
        for coin, gambles in ((-self.stake, after_loss), (self.stake, after_win)):
            further = {self.gain: self.p_gain, -self.loss: 1 - self.p_gain} if gambles else {0.0: 1.0}
            for value, chance in further.items():
                law[coin + value] = law.get(coin + value, 0.0) + chance / 2
        return law


class Way(NamedTuple):
    """The state of the corridor."""

    long: Tensor  # [B] bool: the way chosen at the start


class Corridor(TailGame):
    """Two ways to a `goal`: 0 the short one, with a `hazard` in every step of losing `penalty` and ending; 1 the long one.

    Each step costs 1. Only the choice in the first row counts. Sees (short −1, long 1, at the start 0; steps taken over the
    length of the long way) [2].
    """

    def __init__(
        self,
        num_envs: int,
        short: int = 4,
        long: int = 12,
        hazard: float = 0.02,
        goal: float = 10.0,
        penalty: float = 10.0,
        **where: Unpack[Where],
    ) -> None:
        check_count("short", short)
        check_count("long", long, short)
        check_number("hazard", hazard, 0.0, 1.0)
        check_number("goal", goal)
        check_number("penalty", penalty)
        super().__init__(num_envs, (Box((2,), (-1.0, 0.0), (1.0, 1.0)), Discrete(2)), 1, None, **where)
        self.short, self.long, self.hazard, self.goal, self.penalty = short, long, hazard, goal, penalty

    def start(self, noise: Tensor) -> Way:
        return Way(torch.zeros_like(noise[:, 0], dtype=torch.bool))

    def observe(self, core: Way, time: Tensor) -> Tensor:
        way = torch.where(time == 0, 0.0, torch.where(core.long, 1.0, -1.0)).to(self.dtype)
        return torch.stack([way, time.to(self.dtype) / self.long], -1)

    def move(self, core: Way, time: Tensor, action: Tensor, noise: Tensor) -> Move:
        long = torch.where(time == 0, action == 1, core.long)
        hit = (uniform(noise[:, 0]) < self.hazard) & ~long
        arrived = (time + 1 >= torch.where(long, self.long, self.short)) & ~hit
        reward = torch.where(hit, -self.penalty, torch.where(arrived, self.goal, 0.0)).to(self.dtype) - 1
        return Move(Way(long), reward, hit | arrived)

    def policies(self) -> Mapping[str, Outcomes]:
        short: dict[float, float] = {}
        alive = 1.0
        for step in range(1, self.short + 1):
            short[-step - self.penalty] = short.get(-step - self.penalty, 0.0) + alive * self.hazard
            alive *= 1 - self.hazard
        short[self.goal - self.short] = short.get(self.goal - self.short, 0.0) + alive
        return {"short": short, "long": {self.goal - self.long: 1.0}}

    def best_action(self, obs: Tensor, alpha: float = 1.0) -> Tensor:
        """The better way for CVaR_α: obs [..., 2] -> [...]."""
        return torch.full(obs.shape[:-1], int(self.best_policy(alpha) == "long"), dtype=torch.int64, device=obs.device)
