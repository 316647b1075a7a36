"""Whose decisions a runner makes, and in which market that agent learned."""

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import torch

from quantail.checkpoint import Checkpoint, read, restore_agent, rotation
from quantail.config import Config
from quantail.envs.base import TensorEnv
from quantail.envs.running import ObserveGained
from quantail.errors import InputError
from quantail.intake import ObservationMoments
from quantail.market.env import MarketEnv
from quantail.nets.agent import Agent
from quantail.registry import make


class Source(NamedTuple):
    """An agent, and the terms on which it trades."""

    agent: Agent
    moments: ObservationMoments
    config: Config
    market: MarketEnv

    @property
    def mark(self) -> str:
        """A hash of the weights and of what standardises observations: another agent has another one."""
        digest = hashlib.sha256()
        parts = {**self.agent.state_dict(), **{f"moments.{name}": torch.stack(one) for name, one in self.moments.items()}}
        for name, value in sorted(parts.items()):
            digest.update(name.encode() + value.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


def source_of(given: Any, market: TensorEnv | None) -> Source:
    """From a model, a checkpoint, the file of one, or the folder of a run; its own market if no other is given."""
    if isinstance(given, str | Path):
        given = read(checkpoint_in(Path(given)))
    if isinstance(given, Checkpoint):
        own = market or make(given.config.env, 1, given.config.risk, fitted=given.fitted)
        return Source(restore_agent(given), given.observation_moments, given.config, market_of(own))
    if not all(hasattr(given, name) for name in ("policy", "progress", "config", "source")):
        raise InputError(f"the agent is a {type(given).__name__}; needs a model, a checkpoint, or the folder of a run")
    moments = given.progress.carry.obs_moments
    return Source(given.policy, moments, given.config, market_of(market or given.source.env))


def market_of(env: TensorEnv) -> MarketEnv:
    """The market, whatever is wrapped around it."""
    inner = env.env if isinstance(env, ObserveGained) else env
    if not isinstance(inner, MarketEnv):
        raise InputError(f"the agent learned in a {type(inner).__name__}; a runner needs a MarketEnv: pass market=")
    return inner


def checkpoint_in(path: Path) -> Path:
    """The file, or the best checkpoint of a run's folder, or its latest."""
    if not path.is_dir():
        return path
    best, kept = path / "checkpoints" / rotation.BEST, rotation.listed(path / "checkpoints")
    if not best.is_file() and not kept:
        raise InputError(f"{path} holds no checkpoint; give the folder that quantail train --run was given")
    return best if best.is_file() else kept[-1]
