"""What a run is handed beside its settings."""

from collections.abc import Sequence
from typing import NamedTuple

from quantail.envs.base import TensorEnv
from quantail.loop import NO_HOOKS, Hooks
from quantail.losses import LossTerm
from quantail.monitor.sinks import Sink
from quantail.nets.agent import Agent


class Given(NamedTuple):
    """The environment may be this process's part of them."""

    env: TensorEnv | None = None
    evaluation_env: TensorEnv | None = None
    agent: Agent | None = None
    loss_terms: Sequence[LossTerm] = ()
    hooks: Hooks = NO_HOOKS
    sinks: Sequence[Sink] = ()
