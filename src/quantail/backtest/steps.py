"""Walking a course row by row: an agent that sees and decides, or orders that are told. What a row gave is kept, unread.

A portfolio that is ruined has come to its end: from then on it holds nothing, earns 0 and pays 0, whatever the environment,
which starts another episode, makes of it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from quantail.backtest.course import Told, peeled
from quantail.backtest.series import Floats
from quantail.calibration import LEVELS
from quantail.config import Config
from quantail.envs.base import TensorEnv
from quantail.envs.contract import started, stepped
from quantail.envs.running import Gained
from quantail.errors import InputError
from quantail.estimate import distribution
from quantail.intake import ObservationMoments, standardize_observation
from quantail.market.env import MarketEnv
from quantail.market.portfolio import SEQUENCE, weights
from quantail.monitor.progress import track
from quantail.nets.agent import Agent, Memory
from quantail.streams import Stream, generator, normal, uniform
from quantail.trees import tree_map
from quantail.types import Observation, Scale

FACTORS = SEQUENCE["next_open"]  # 1 where nothing moves
NOTHING = ("fee", "spread", "impact", "slippage", "turnover", "leverage", "weights", "reward")  # 0 where nothing is held


class Player(NamedTuple):
    """An agent, with all that it needs to play: a `Report` has it as agent, carry.obs_moments, config, carry.scale."""

    agent: Agent
    moments: ObservationMoments
    config: Config
    scale: Scale | None = None  # in which its critics speak; without it no prediction is recorded


class Walk(NamedTuple):
    """An agent on its way; the mode of its policy, or draws from it."""

    player: Player
    env: TensorEnv
    deterministic: bool
    seed: int

    @torch.no_grad()
    def rows(self, memory: Memory, count: int, fresh: bool) -> tuple[dict[str, Any], Memory]:
        """So many rows, the memory emptied before the first if it is `fresh`: what they gave [T, B, ...], the memory after."""
        env, market = self.env, peeled(self.env)[0]
        luck, choice = (generator(self.seed, stream, 0, env.device) for stream in (Stream.PLAY, Stream.PLAY_ACT))
        state, obs, mask = started(env, normal((env.num_envs, env.noise_dim), luck))
        start = torch.full((env.num_envs,), fresh, dtype=torch.bool, device=env.device)
        kept = []
        for _ in track(range(count), "bars"):
            action, memory, said = self.decided(obs, memory, start, mask, choice)
            state, step = stepped(env, state, action, normal((env.num_envs, env.noise_dim), luck))
            row = {**step.info, "reward": step.reward.double(), "terminated": step.terminated, **said}
            kept.append(row | {"orders": market.orders(action), "weights": weights_of(market, state)})
            obs, mask, start = step.obs, step.action_mask, torch.zeros_like(start)
        return together(kept, market), memory

    def decided(
        self, obs: Observation, memory: Memory, start: Tensor, mask: Tensor | None, choice: torch.Generator
    ) -> tuple[Tensor, Memory, dict[str, Tensor]]:
        """The action, the memory after it, and what the critics say, if they have a law to tell."""
        agent, moments, config, scale = self.player
        seen = tree_map(lambda x: x[None], standardize_observation(obs, moments, config.input))
        outputs, memory = agent.unroll(seen, memory, start[None], None if mask is None else mask[None])
        params = tree_map(lambda x: x[0], outputs.policy)
        draw = uniform if agent.policy.noise_kind == "uniform" else normal
        noise = None if self.deterministic else draw((len(start), agent.policy.noise_dim), choice)
        raw = agent.policy.mode(params) if noise is None else agent.policy.sample(params, noise)
        said = {}
        if scale is not None and config.critic.kind != "scalar":
            law = distribution(agent, outputs.critics[:, 0], scale, config.critic)
            said["said"] = law.quantile(torch.tensor(LEVELS, dtype=torch.float64, device=start.device))
        return agent.policy.to_env(raw), memory, said


@torch.no_grad()
def told_rows(market: Told, orders: Floats, parts: Sequence[str] | None = None) -> dict[str, Any]:
    """Orders [T, B, A] carried out: what the rows gave, or some parts of it, [T, B, ...] each."""
    luck = generator(0, Stream.PLAY, 0, market.device)
    quiet = torch.zeros(market.num_envs, market.noise_dim, device=market.device)
    told = torch.from_numpy(np.ascontiguousarray(orders)).to(market.device)
    state, _ = market.reset(quiet)
    kept = []
    for row in track(told, "bars"):
        noise = normal(quiet.shape, luck) if market.costs.slippage_bps else quiet
        state, step = market.step(state, row, noise)
        given = {**step.info, "terminated": step.terminated}
        if parts is None:
            given |= {"orders": row, "weights": weights_of(market, state)}
        kept.append({name: given[name] for name in (*parts, "terminated")} if parts else given)
    return together(kept, market)


def weights_of(market: MarketEnv, state: Any) -> Tensor:
    """What each portfolio holds, as shares of its equity: [B, A]."""
    inner = state.inner if isinstance(state, Gained) else state
    return torch.as_tensor(weights(market.desk, inner)).reshape(market.num_envs, market.assets)


def together(kept: list[dict[str, Tensor]], market: MarketEnv) -> dict[str, Any]:
    """Rows over one another [T, B, ...], with the rest of a ruined portfolio's life blank."""
    raw: dict[str, Any] = {name: torch.stack([row[name] for row in kept]).cpu().numpy() for name in kept[0]}
    raw["first_equity"] = np.full(market.num_envs, market.episode.equity)
    ended = np.maximum.accumulate(raw["terminated"], axis=0)
    raw["dead"] = dead = np.concatenate([np.zeros_like(ended[:1]), ended[:-1]])
    if dead.any():
        last = np.where(dead, 0, np.arange(len(dead))[:, None])
        raw["equity"] = np.take_along_axis(raw["equity"], np.maximum.accumulate(last, axis=0), axis=0)
        for names, value in ((FACTORS, 1.0), (NOTHING, 0.0), (("orders",), np.nan)):
            for name in (one for one in names if one in raw):
                raw[name][dead] = value
        raw["terminated"] &= ~dead
    return raw


def check_fits(player: Player, env: TensorEnv) -> None:
    """The agent must know what it will see."""
    moments = player.moments.get("")
    shape = getattr(env.observation_space, "shape", None)
    if moments is not None and shape is not None and tuple(moments.mean.shape) != shape:
        raise InputError(
            f"the agent has learned from observations of {list(moments.mean.shape)} numbers, this market shows {list(shape)}; "
            "judge it in a market with the features, assets and rules of its training"
        )
