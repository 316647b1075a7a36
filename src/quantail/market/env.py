"""Thousands of portfolios in one market, or each in a market of its own: `MarketEnv`.

Decide after close t, fill at open t+1, live until close t+1 (`account.py`). State is a value, noise comes in, nothing is read
on the host, shapes are fixed: a step can be captured as a graph. Money is float64 whatever the observations are.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from quantail.envs.base import TensorEnv, checked_action, uniform
from quantail.functional.checks import check_count, check_shape
from quantail.market import rewards
from quantail.market.actions import Wanted, action_space, from_box, from_grid, grid_mask, grid_masks, sides
from quantail.market.costs import Costs, preset
from quantail.market.desk import Bar, Desk, Order
from quantail.market.normalise import Normalisation
from quantail.market.numbers import MANY_ASSETS, ONE_ASSET
from quantail.market.portfolio import Portfolio, Terms, live, own_columns, own_view, told
from quantail.market.series import Bars, Features
from quantail.market.tape import Needs
from quantail.market.terms import Episode, Reward, Rules, check_seen
from quantail.market.world import World, world_of
from quantail.types import Box, Step


class MarketEnv(TensorEnv):
    """B portfolios; see docs/market.md for every rule and figure.

    source: `Bars` (with `features`, the default set if none), the name of a synthetic market ("hidden_drift", "gbm", ...) or a
    `World`. `Step.pnl` is the raw log return of net equity, `Step.info` holds every factor of it.
    """

    def __init__(
        self,
        num_envs: int,
        source: Bars | str | World = "hidden_drift",
        features: Features | None = None,
        costs: Costs | str = "default",
        rules: Rules | None = None,
        reward: Reward | None = None,
        episode: Episode | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        check_count("num_envs", num_envs)
        self.num_envs, self.dtype, self.device = num_envs, dtype, torch.device(device)
        self.costs = preset(costs) if isinstance(costs, str) else costs
        self.rules, self.reward, self.episode = rules or Rules(), reward or Reward(), episode or Episode()
        check_seen(self.reward, self.episode)
        self.world = world_of(source, features)
        self.assets = self.world.assets
        self.desk = Desk(ONE_ASSET if self.assets == 1 else MANY_ASSETS, self.rules, self.costs, self.assets)
        self.ground = self.world.lay(self._needs(), self.episode, dtype, self.device)
        self.terms = self._terms()
        self.action_space = action_space(self.rules, self.assets)
        self.observation_space = Box((self.ground.tape.seen.shape[1],))
        self.noise_dim = self._noise_columns()
        self.fitted = {} if self.world.units is None else {"normalisation": self.world.units.to_dict()}
        self.observes_gained = "return" in self.episode.parts  # type: ignore[misc]
        self.reward_per_gain = self.reward.scale  # type: ignore[misc]
        self.levels = torch.tensor((*self.rules.levels, 0.0), dtype=torch.float64, device=self.device)
        self.masks = grid_masks(self.rules, self.device)
        self.places = torch.arange(num_envs, device=self.device)

    def _needs(self) -> Needs:
        room = own_columns(self.desk, Terms(self.reward, self.episode, 1, False))
        positions, relative = self.episode.random_position, self.reward.kind == "excess"
        return Needs(self.rules, self.costs, room, self.reward.remembers, positions, relative)

    def _terms(self) -> Terms:
        tape = self.ground.tape
        financed = tape.years is not None or tape.funding is not None
        waited = tape.idle_years is not None or tape.idle_funding is not None
        return Terms(self.reward, self.episode, self.episode.horizon or self.ground.longest, financed, waited)

    @property
    def normalisation(self) -> Normalisation | None:
        """The units of its features, fitted on a training window; None where they come as they are."""
        return self.world.units

    # --- the two functions ------------------------------------------------------------------------------------------------

    def reset(self, noise: Tensor) -> tuple[Portfolio, Tensor]:
        """Every portfolio at the first row of an episode."""
        luck = self._uniforms(noise)
        many = self.num_envs, *(() if self.assets == 1 else (self.assets,))
        zero = torch.zeros(self.num_envs, dtype=torch.float64, device=luck.device)
        count = torch.zeros(self.num_envs, dtype=torch.int64, device=luck.device)
        blank = Portfolio(
            count, count, count == 0, zero, zero.new_zeros(many), zero, count.new_zeros(many), count - 1, zero + 1, zero, zero
        )
        state = self._placed(self._opened(blank, luck), luck, blank.done)._replace(done=count != 0)
        return state, self._observed(state)

    def step(self, state: Portfolio, action: Tensor, noise: Tensor) -> tuple[Portfolio, Step]:
        """One bar where an episode runs; where it ended one row before, the start of the next in the same data."""
        luck = self._uniforms(noise)
        wanted = self._wanted(checked_action(self.action_space, self.num_envs, action))
        row = state.row.masked_fill(state.done, 0)  # where nothing moves and nothing trades
        begun = self._opened(state, luck)._replace(row=row)
        order = Order(wanted.weights, wanted.stay, self._slips(luck), begun.cost_factor if self.costs.randomized else None)
        lived = live(self.desk, self.terms, begun, self.bar_at(row), order)
        after = self._placed(lived.after, luck, state.done)._replace(done=lived.terminated | lived.truncated)
        step = Step(
            obs=self._observed(after),
            reward=(lived.reward.masked_fill(state.done, 0.0) if self.reward.remembers else lived.reward).to(self.dtype),
            terminated=lived.terminated,
            truncated=lived.truncated,
            pnl=lived.growth.to(self.dtype),
            policy_weight=self.desk.n.some(lived.open).to(self.dtype),
            action_mask=self.first_mask(after),
            info=told(self.desk, self.terms, begun, lived),
        )
        return after, step

    def first_mask(self, state: Portfolio) -> Tensor | None:
        """Which choices the row allows: of what cannot be traded, as far as that is known before, only "hold"; [B, ΣK]."""
        if self.rules.actions != "grid" or (self.ground.tape.known is None and not self.rules.cooldown):
            return None
        known = self.ground.tape.known
        open_ = state.wait <= 0 if known is None else known.index_select(0, state.row)
        if known is not None and self.rules.cooldown:
            open_ = open_ & (state.wait <= 0)
        return grid_mask(self.masks, open_)

    # --- the start of an episode ------------------------------------------------------------------------------------------

    def _opened(self, state: Portfolio, luck: Tensor) -> Portfolio:
        """What a new episode begins with, where the one before is done; rows are found by `_placed`."""
        done, first = state.done, self.episode.equity
        holdings = state.holdings.masked_fill(done if self.assets == 1 else done[:, None], 0.0)
        if self.episode.random_position:
            width = self.rules.leverage / self.assets * first
            low, high = (width * side for side in sides(self.rules))
            drawn = low + (high - low) * luck[:, 1 : 1 + self.assets].double()
            drawn, where = (drawn[:, 0], done) if self.assets == 1 else (drawn, done[:, None])
            holdings = torch.where(where, drawn, holdings)
        state = state._replace(
            equity=state.equity.masked_fill(done, first), holdings=holdings, peak=state.peak.masked_fill(done, first)
        )
        if self.rules.cooldown:
            state = state._replace(wait=state.wait.masked_fill(done if self.assets == 1 else done[:, None], 0))
        if self.costs.randomized:
            low, high = self.costs.randomized_from, self.costs.randomized_to
            drawn = low + (high - low) * luck[:, self._cost_column()].double()
            state = state._replace(cost_factor=torch.where(done, drawn, state.cost_factor))
        return state

    def _placed(self, state: Portfolio, luck: Tensor, done: Tensor) -> Portfolio:
        """The row where an episode starts, where the one before is done."""
        starts, stops = self.ground.starts, self.ground.stops
        count, episodes = len(starts), state.episodes
        if self.episode.starts == "random":
            chosen = (luck[:, 0].double() * count).long()
        else:
            episodes = torch.where(done, episodes + 1, episodes)
            part = self.places.double()
            if self.episode.starts == "stratified":
                part = (self.places + episodes) % self.num_envs + luck[:, 0].double()
            chosen = (part * (count / self.num_envs)).long()
        chosen = chosen.clamp(0, count - 1)
        state = state._replace(
            row=torch.where(done, starts.index_select(0, chosen), state.row),
            stop=torch.where(done, stops.index_select(0, chosen), state.stop),
            episodes=episodes,
        )
        if self.ground.tape.valid is not None:  # what has no bar at the start cannot have been bought
            void = ~self.ground.tape.valid.index_select(0, state.row) & (done if self.assets == 1 else done[:, None])
            state = state._replace(holdings=state.holdings.masked_fill(void, 0.0))
        if not self.reward.remembers:
            return state
        assert self.ground.tape.variance is not None
        first = rewards.first_memory(self.reward, self.ground.tape.variance.index_select(0, state.row))
        return state._replace(
            mean=torch.where(done, first.mean, state.mean), square=torch.where(done, first.square, state.square)
        )

    # --- one bar ----------------------------------------------------------------------------------------------------------

    def bar_at(self, row: Tensor) -> Bar:
        """What the tape holds at these rows."""
        tape = self.ground.tape
        columns = {name: getattr(tape, name) for name in Bar._fields}
        return Bar(**{name: None if column is None else column.index_select(0, row) for name, column in columns.items()})

    def _wanted(self, action: Tensor) -> Wanted:
        """An action in weights."""
        if self.rules.actions == "grid":
            return from_grid(self.desk.n, self.rules, self.levels, action)
        flat = action[:, 0] if self.assets == 1 and self.rules.actions != "simplex" else action
        return from_box(self.desk.n, self.rules, flat.double())

    def orders(self, action: Tensor) -> Tensor:
        """What an action asks for, as weights of equity [B, A]; NaN where nothing is to be traded."""
        wanted = self._wanted(checked_action(self.action_space, self.num_envs, action))
        weights = wanted.weights if wanted.stay is None else wanted.weights.masked_fill(wanted.stay, torch.nan)
        asked: Tensor = weights.reshape(self.num_envs, self.assets).double()
        return asked

    def _uniforms(self, noise: Tensor) -> Tensor:
        check_shape("noise", noise, (self.num_envs, self.noise_dim), "environments, noise_dim")
        return uniform(noise)

    def _slips(self, luck: Tensor) -> Tensor | None:
        """Luck of the slippage, where there is any."""
        if not self.costs.slippage_bps:
            return None
        return luck[:, 0] if self.assets == 1 else luck[:, : self.assets]

    def _cost_column(self) -> int:
        return 1 + self.assets * self.episode.random_position

    def _noise_columns(self) -> int:
        slips = self.assets if self.costs.slippage_bps else 0
        return max(self._cost_column() + self.costs.randomized, slips)

    def _observed(self, state: Portfolio) -> Tensor:
        """Features of the row, then the portfolio's own view."""
        obs = self.ground.tape.seen.index_select(0, state.row)
        columns = own_view(self.desk, self.terms, state)
        first = obs.shape[1] - len(columns)
        for i, column in enumerate(columns):
            obs[:, first + i] = column
        return obs

    # --- fresh markets ----------------------------------------------------------------------------------------------------

    def renew(self, state: Portfolio, iteration: int) -> None:
        """Before an iteration: a synthetic market makes new paths, in place, wherever no episode is running."""
        self.world.renew(self.ground, ~state.done, state.row, iteration)

    def state_dict(self, state: Portfolio) -> dict[str, Tensor]:
        """The portfolios, and of which generation each path is."""
        return super().state_dict(state) | {f"world.{name}": value for name, value in self.ground.saved().items()}

    def load_state(self, saved: Mapping[str, Tensor]) -> Portfolio:
        """The portfolios, in the paths in which they were."""
        mine = {name.removeprefix("world."): value for name, value in saved.items() if name.startswith("world.")}
        self.world.restore(self.ground, mine)
        state: Portfolio = super().load_state({name: value for name, value in saved.items() if not name.startswith("world.")})
        return state
