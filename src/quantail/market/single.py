"""One portfolio through Gymnasium, in plain numbers: `gymnasium.make("quantail/Market-v0", source="hidden_drift")`; see `ids`.

The same accounting as `MarketEnv`, on Python floats (one asset) or NumPy arrays (several): a step of tensors with one element
would take ten times as long. `gymnasium.make_vec(..., vectorization_mode="vector_entry_point")` gives the tensors.
"""

import math
import operator
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from quantail.envs.crossing import noise_from
from quantail.envs.gymnasium import ToVectorEnv, gymnasium_space
from quantail.errors import InputError
from quantail.market.actions import Wanted, from_box, grid_mask, limited
from quantail.market.costs import Costs
from quantail.market.desk import Bar, Order
from quantail.market.env import MarketEnv
from quantail.market.numbers import ARRAYS, FLOATS, Numbers
from quantail.market.portfolio import Lived, Portfolio, live, own_view, told
from quantail.market.world import Grown

ID = "quantail/Market-v0"


class SingleMarket(gymnasium.Env[Any, Any]):
    """A `MarketEnv` of one portfolio; takes what that takes. Synthetic markets make new paths when all were likely seen."""

    def __init__(self, source: Any = "hidden_drift", **options: Any) -> None:
        self.env = MarketEnv(1, source, **options)
        self.numbers: Numbers = FLOATS if self.env.assets == 1 else ARRAYS
        self.desk = self.env.desk._replace(n=self.numbers)
        self.observation_space = gymnasium_space(self.env.observation_space, self.env.dtype)
        self.action_space = gymnasium_space(self.env.action_space, self.env.dtype)
        tape = self.env.ground.tape
        self.columns = {name: getattr(tape, name).numpy() for name in Bar._fields if getattr(tape, name) is not None}
        self.seen = tape.seen.numpy()
        self.levels = np.array((*self.env.rules.levels, 0.0))
        self.state: Portfolio | None = None  # None before a reset and after an end
        self.begun = 0  # episodes since the last seed
        self.generation = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; a seed starts everything random again."""
        super().reset(seed=seed)
        self.begun = 0 if seed is not None else self.begun + 1
        self._fresh()
        state, _ = self.env.reset(noise_from(self.env, self.np_random))
        state = state._replace(episodes=state.episodes + self.begun)
        self.state = Portfolio(*(self._plain(value) for value in state))
        mask = self.env.first_mask(state)
        return self._observed(self.state), {} if mask is None else {"action_mask": mask[0].numpy()}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One bar; after an end, `reset` must come first."""
        state = self.state
        if state is None:
            raise InputError("the episode has not begun or is over; call reset first")
        wanted = self._wanted(action)
        factor = state.cost_factor if self.env.costs.randomized else None
        order = Order(wanted.weights, wanted.stay, self._slips(self.env.costs), factor)
        lived = live(self.desk, self.env.terms, state, self._bar(state.row), order)
        terminated, truncated = bool(lived.terminated), bool(lived.truncated)
        self.state = None if terminated or truncated else lived.after
        return self._observed(lived.after), float(lived.reward), terminated, truncated, self._infos(state, lived)

    # --- rows -------------------------------------------------------------------------------------------------------------

    def _plain(self, value: torch.Tensor) -> Any:
        """The row of the one portfolio: a Python number, or an array of its assets."""
        return value[0].numpy() if value.ndim == 2 else value.item()

    def _bar(self, row: int) -> Bar:
        if self.env.assets == 1:
            return Bar(**{name: column.item(row) for name, column in self.columns.items()})
        return Bar(**{name: column[row] for name, column in self.columns.items()})

    def _wanted(self, action: Any) -> Wanted:
        """The action in weights; what is no action of this space is refused."""
        rules, one = self.env.rules, self.env.assets == 1
        if isinstance(self.action_space, spaces.Box):
            try:
                numbers = np.asarray(action, dtype=np.float64)
            except (TypeError, ValueError):
                numbers = np.empty(0)
            if numbers.shape != self.action_space.shape or not np.isfinite(numbers).all():
                raise InputError(f"action is {action!r}; needs finite numbers of shape {self.action_space.shape}")
            return from_box(self.numbers, rules, numbers.item(0) if one and rules.actions != "simplex" else numbers)
        choices = len(rules.levels) + 1
        if one:
            try:
                index = operator.index(action)
            except TypeError:
                index = -1
            if not 0 <= index < choices:
                raise InputError(f"action is {action!r}; needs an index from 0 to {choices - 1}")
            return Wanted(self.levels.item(index), index == choices - 1)
        indices = np.asarray(action)
        if (
            indices.shape != (self.env.assets,)
            or indices.dtype.kind not in "iu"
            or indices.min() < 0
            or indices.max() >= choices
        ):
            raise InputError(f"action is {action!r}; needs {self.env.assets} indices from 0 to {choices - 1}")
        return Wanted(limited(self.numbers, rules, self.levels[indices]), indices == choices - 1)

    def _slips(self, costs: Costs) -> Any:
        """Luck of the slippage, where there is any."""
        if not costs.slippage_bps:
            return None
        return self.np_random.random() if self.env.assets == 1 else self.np_random.random(self.env.assets)

    def _observed(self, state: Portfolio) -> Any:
        obs = self.seen[state.row].copy()
        columns = own_view(self.desk, self.env.terms, state)
        if columns:
            obs[-len(columns) :] = columns
        return obs

    def _infos(self, begun: Portfolio, lived: Lived) -> dict[str, Any]:
        infos: dict[str, Any] = {name: float(value) for name, value in told(self.desk, self.env.terms, begun, lived).items()}
        infos["pnl"], infos["policy_weight"] = float(lived.growth), float(self.numbers.some(lived.open))
        known = self.env.ground.tape.known
        if self.env.rules.actions == "grid" and (known is not None or self.env.rules.cooldown):
            may = np.atleast_1d(np.asarray(lived.after.wait) <= 0)
            if known is not None:
                may = may & np.atleast_1d(known[lived.after.row].numpy())
            infos["action_mask"] = grid_mask(self.env.masks, torch.from_numpy(may)[None])[0].numpy()
        return {name: value for name, value in infos.items() if not isinstance(value, float) or math.isfinite(value)}

    def _fresh(self) -> None:
        """The generation of paths that belongs to this episode."""
        ground = self.env.ground
        if isinstance(ground, Grown):
            paths = len(ground.starts) // max(1, ground.span - ground.longest)
            generation = self.begun // max(1, paths)
            if generation != self.generation:
                assert ground.born is not None
                ground.lay_over(generation, torch.ones_like(ground.born, dtype=torch.bool))
                self.generation = generation


def vector(num_envs: int = 1, source: Any = "hidden_drift", **options: Any) -> ToVectorEnv:
    """Portfolios in step, as a Gymnasium VectorEnv."""
    return ToVectorEnv(MarketEnv(num_envs, source, **options))
