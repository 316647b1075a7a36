"""One bar in, weights out: an agent at work on bars that come one by one, as it was in training and in the backtest.

    runner = Runner("runs/mine", history)                  # or of a model, or of a checkpoint
    weights = runner.on_bar(candle)                        # at the end of each bar: what to hold from the next fill on
    runner.save("state.safetensors")                       # Runner.load("state.safetensors", "runs/mine") goes on from there

It decides weights and sends no orders. The account that the agent sees is the one of the backtest: filled at the next open,
after costs. On the same bars it is the backtest (docs/deploy.md says how closely), at the same effort for each bar.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from quantail.checkpoint import atomic, store
from quantail.envs.base import TensorEnv
from quantail.envs.contract import started, stepped
from quantail.envs.running import Gained
from quantail.errors import InputError
from quantail.evaluation import act
from quantail.intake import ObservationMoments
from quantail.live.sight import Sight, remembered, sight_of
from quantail.live.source import Source, source_of
from quantail.live.window import Candle, counted, joined, judged, tail, tensors
from quantail.market.card import Finding
from quantail.market.env import MarketEnv
from quantail.market.features import Function
from quantail.market.portfolio import Portfolio
from quantail.market.rules import moment
from quantail.market.series import Bars
from quantail.market.stream import Line, StreamEnv, blank
from quantail.market.tape import bars_per_day
from quantail.market.world import Recorded, Synthetic
from quantail.nets.agent import Memory
from quantail.registry import observed


class State(NamedTuple):
    """All that outlives a bar."""

    window: Bars | None
    known: Tensor  # [A, F] float64: the last known value of each feature, NaN before there is one
    first: Tensor  # [A] bool: which assets had a bar from the beginning
    env_state: Any  # of `StreamEnv`; None before the first decision
    action: Tensor | None
    memory: Memory
    start: bool  # whether the next decision empties the memory
    weights: Tensor | None  # [A] float64 as decided last
    ruined: bool
    findings: tuple[Finding, ...]


class Made(NamedTuple):
    """What a runner is made of, beside the agent: saved with its state."""

    symbols: tuple[str, ...]
    bar_seconds: float
    volume: bool  # whether bars tell it
    funding: bool
    per_day: float  # bars in a day of trading, as the history has them; 0 where no cost depends on it
    ends_in: int


class Runner:
    """An agent at work.

    agent: a `DistributionalPPO`, a checkpoint or its file, or the folder of a run. history: the bars before the first one that
    will come, so that features are warm; without them there are no weights until they are. `market`: where the agent's own
    cannot be made any more, one like it. `functions`: features of the user's own, by name. `warm`: so many last bars of the
    history run through the memory first. `ends_in`: bars after which the episode is over; by default it never is.
    """

    state: State

    def __init__(
        self,
        agent: Any,
        history: Bars | None = None,
        *,
        market: TensorEnv | None = None,
        functions: Mapping[str, Function] | None = None,
        warm: int = 0,
        ends_in: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        source = source_of(agent, market)
        like = history if history is not None else kind_of(source.market)
        per_day = bars_per_day(like) if source.market.costs.impact_y else 0.0
        told = (like.volume is not None, like.funding is not None)
        self._set_up(source, Made(like.symbols, like.bar_seconds, *told, per_day, ends_in), functions, clock)
        if history is not None:
            before = warmed(self, history, warm, functions) if warm else self.state
            self.state = looked_back(before, history, self)

    def _set_up(self, source: Source, made: Made, functions: Mapping[str, Function] | None, clock: Callable[[], float]) -> None:
        self.source, self.made, self.clock = source, made, clock
        self.sight = sight_of(source.market, functions)
        self.kind = blank(made.symbols, made.bar_seconds, made.volume, made.funding)
        self.live = StreamEnv(source.market, Line(self.kind, self.sight.names, self.sight.units, made.per_day), made.ends_in)
        self.env = observed(self.live, source.config.risk)
        check_shown(source.moments, self.env)
        self.rows = max(remembered(self.sight, len(made.symbols), made.bar_seconds), self.live.rows_needed)
        known = torch.full((len(made.symbols), len(self.sight.names)), torch.nan, dtype=torch.float64)
        never = torch.zeros(len(made.symbols), dtype=torch.bool)
        memory = source.agent.initial_memory(1)
        self.state = State(None, known, never, None, None, memory, True, None, False, ())

    def on_bar(self, bar: Candle | Mapping[str, Any] | Bars) -> NDArray[np.float64] | None:
        """What to hold of each asset from the next fill on, as a share of equity; None while features warm up.

        A bar that came before, comes late or is not over yet changes nothing: the weights are those decided last, and a finding
        says so. Prices that break a rule of `load_bars` count as no bar of their asset.
        """
        state = self.state
        row, found = judged(bar, self.kind, state.window, self.clock())
        if row is not None:
            state = self._decided(seen(state, joined(state.window, row, self.rows), self.sight))
        self.state = state = state._replace(findings=counted(state.findings, found))
        return None if state.weights is None else state.weights.numpy().copy()

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was odd about the bars: each rule with its first case, and how often."""
        return self.state.findings

    @property
    def account(self) -> dict[str, Any]:
        """What the agent believes to have: equity in currency, and the weights it holds."""
        if self.state.env_state is None:
            return {"equity": self.live.episode.equity, "weights": np.zeros(self.live.assets)}
        portfolio = portfolio_of(self.state.env_state)
        return {"equity": float(portfolio.equity), "weights": self.live.held(portfolio)}

    def _decided(self, state: State) -> State:
        """The bar before settled, the next decision made; nothing while an asset of the first bar is not known well."""
        if state.ruined or not bool(state.first.any()) or bool(state.known[state.first].isnan().any()):
            return state
        self.live.show(cast(Bars, state.window), state.known.nan_to_num(0.0).numpy())
        still = torch.zeros(1, self.env.noise_dim)
        if state.env_state is None:
            env_state, obs, mask = started(self.env, still)
        else:
            if bool(portfolio_of(state.env_state).done):
                raise InputError(f"the episode of {self.made.ends_in} bars is over; make a new runner, or one without ends_in")
            env_state, step = stepped(self.env, self._moved_on(state.env_state), cast(Tensor, state.action), still)
            if bool(step.terminated):
                ruin = Finding("ruin", 1, "the account is lost", "nothing is decided any more; make a new runner", True)
                weights = torch.zeros(self.live.assets, dtype=torch.float64)
                found = counted(state.findings, (ruin,))
                return state._replace(env_state=env_state, ruined=True, weights=weights, findings=found)
            obs, mask = step.obs, step.action_mask
        agent, moments, config, _ = self.source
        action, memory = act(agent, obs, state.memory, torch.tensor([state.start]), moments, config, None, mask)
        weights = torch.from_numpy(self.live.asked_for(portfolio_of(env_state), action))
        return state._replace(env_state=env_state, action=action, memory=memory, start=False, weights=weights)

    def _moved_on(self, env_state: Any) -> Any:
        if isinstance(env_state, Gained):
            return env_state._replace(inner=self.live.moved_on(env_state.inner))
        return self.live.moved_on(env_state)

    # --- files --------------------------------------------------------------------------------------------------------

    def save(self, path: Path | str) -> None:
        """The state, whole or not at all: tensors and JSON, nothing that could be executed."""
        state = self.state
        plain = state._asdict() | {
            "window": None if state.window is None else tensors(state.window),
            "env_state": None if state.env_state is None else self.env.state_dict(state.env_state),
            "findings": [vars(one) for one in state.findings],
        }
        tree = {"agent": self.source.mark, "made": self.made._asdict(), "state": plain}
        atomic.replace(Path(path), store.pack({"runner": tree}))

    @classmethod
    def load(
        cls,
        path: Path | str,
        agent: Any,
        *,
        market: TensorEnv | None = None,
        functions: Mapping[str, Function] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Self:
        """A runner that goes on where another was saved, to the last bit; the rest is what that one was made with."""
        tree = store.read(Path(path)).get("runner")
        if tree is None:
            raise InputError(f"{path} is no state of a runner; give a file that Runner.save wrote")
        source = source_of(agent, market)
        if source.mark != tree["agent"]:
            raise InputError(f"{path} is the state of another agent's runner; give the agent it was saved with")
        runner = cls.__new__(cls)
        runner._set_up(source, Made(**tree["made"]), functions, clock)
        saved = tree["state"]
        window, env_state = saved["window"], saved["env_state"]
        runner.state = State(**saved)._replace(
            window=None if window is None else replace(runner.kind, **window),
            env_state=None if env_state is None else runner.env.load_state(env_state),
            findings=tuple(Finding(**one) for one in saved["findings"]),
        )
        return runner


# --- what is known ----------------------------------------------------------------------------------------------------


def seen(state: State, window: Bars, sight: Sight) -> State:
    """The state with a window that has one more bar: what its features say, and where they say nothing, what they said last."""
    values = torch.from_numpy(sight.look(window)[-1])
    if bool(values.isinf().any()):
        name = sight.names[int(values.isinf().any(0).nonzero()[0])]
        raise InputError(f"feature {name!r} is infinite at the bar of {moment(int(window.time[-1]))}; needs a number there")
    first = state.first if bool(state.first.any()) else window.valid[-1]
    return state._replace(window=window, first=first, known=torch.where(values.isnan(), state.known, values))


def looked_back(state: State, history: Bars, runner: Runner) -> State:
    """The state after a history of which nothing was decided."""
    window = replace(tail(history, runner.rows), card=None)
    said = runner.sight.look(window)  # [T, A, F]
    rows = np.arange(len(said))[:, None, None]
    last = np.where(np.isnan(said), -1, rows).max(0)  # [A, F]
    known = np.where(last >= 0, np.take_along_axis(said, np.maximum(last, 0)[None], 0)[0], np.nan)
    first = history.valid[int(history.valid.any(1).int().argmax())]
    return state._replace(window=window, known=torch.from_numpy(known), first=first)


def warmed(runner: Runner, history: Bars, bars: int, functions: Mapping[str, Function] | None) -> State:
    """The state of one whose memory has seen the last bars of the history, with an account that came to its end there."""
    if not 0 < bars < len(history):
        raise InputError(f"warm={bars} of {len(history)} bars of history; needs fewer than there are")
    begin = len(history) - bars
    past = Runner.__new__(Runner)
    past._set_up(runner.source, runner.made._replace(ends_in=bars), functions, runner.clock)
    past.state = looked_back(past.state, history.rows(0, begin), past)
    for row in range(begin, len(history)):
        past.on_bar(history.rows(row, row + 1))
    return runner.state._replace(memory=past.state.memory, start=past.state.start)


def portfolio_of(env_state: Any) -> Portfolio:
    """Of a market, whatever is wrapped around it."""
    return cast(Portfolio, env_state.inner if isinstance(env_state, Gained) else env_state)


def kind_of(market: MarketEnv) -> Bars:
    """Bars like those that an agent learned in."""
    world = market.world
    if isinstance(world, Recorded):
        return world.history
    if not isinstance(world, Synthetic):
        raise InputError(f"the market is a {type(world).__name__}; hand over a history, so that assets and bars are known")
    return replace(world, paths=1, bars=2).drawn(0, torch.device("cpu"))[0]


def check_shown(moments: ObservationMoments, env: TensorEnv) -> None:
    """The agent must know what it will see."""
    known, shown = moments.get(""), getattr(env.observation_space, "shape", None)
    if known is not None and tuple(known.mean.shape) != shown:
        raise InputError(
            f"the agent has learned from {list(known.mean.shape)} numbers a bar and would see {list(shown or ())}; needs a "
            "history with the assets of its training, and a market with its features and rules"
        )
