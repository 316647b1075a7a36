"""A run of several processes (`torchrun`): the first does what a run does, the others learn with it and write nothing."""

from pathlib import Path
from typing import NamedTuple

from quantail import checkpoint as checkpoints
from quantail import ranks
from quantail.checkpoint import Checkpoint
from quantail.config import Config
from quantail.envs.base import TensorEnv
from quantail.errors import ConfigError
from quantail.loop import begin, train
from quantail.nets.agent import Agent
from quantail.registry import make
from quantail.run import threads
from quantail.run.given import Given
from quantail.run.interrupt import Interrupt
from quantail.run.validation import Judged

RUNNING, FINISHED, STOPPED_EARLY, INTERRUPTED = "running", "finished", "stopped early", "interrupted"


class Outcome(NamedTuple):
    """How a run, or this process's part of it, ended."""

    status: str  # finished | stopped early | interrupted
    folder: Path
    iteration: int  # iterations done
    env_steps: int
    judged: Judged
    agent: Agent


def made(config: Config, saved: Checkpoint | None = None) -> TensorEnv:
    """This process's part of the environments that the config names, in the units of a checkpoint."""
    count = ranks.count()
    if config.env.num_envs % count:
        raise ConfigError(
            f"env.num_envs={config.env.num_envs} does not split into {count} processes; use a multiple of {count}"
        )
    return make(config.env, config.env.num_envs // count, config.risk, fitted=saved.fitted if saved else None)


def follow(saved: Checkpoint | None, config: Config, folder: Path, given: Given) -> Outcome:
    """Learn with the first process until it says that the run is over."""
    threads.start(config, saved)
    env = made(config, saved) if given.env is None else given.env
    with Interrupt():  # a signal reaches all; the first answers it
        progress = begin(config, env, given.agent) if saved is None else checkpoints.restore(saved, env, config, given.agent)
        reports = train(config, env, None, given.loss_terms, progress, given.hooks)
        while (status := ranks.same("")) == RUNNING:
            progress = next(reports).progress
    if given.env is None:
        env.close()
    return Outcome(status, folder, progress.carry.iteration, progress.env_steps, Judged(), progress.agent)
