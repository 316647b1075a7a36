"""A run from its first iteration to its last, over any number of processes."""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

from quantail import checkpoint as checkpoints
from quantail import ranks
from quantail.checkpoint import Checkpoint, atomic, rotation
from quantail.config import Config
from quantail.envs.base import TensorEnv
from quantail.errors import ConfigError, QuantailError
from quantail.loop import NO_HOOKS, Hooks, Progress, Report, begin, train
from quantail.losses import LossTerm
from quantail.monitor import sinks as logs
from quantail.monitor.console import ConsoleSink
from quantail.monitor.health import replay
from quantail.monitor.sinks import Sink
from quantail.nets.agent import Agent
from quantail.registry import make
from quantail.run import folder as folders
from quantail.run import threads
from quantail.run.given import Given
from quantail.run.interrupt import Interrupt
from quantail.run.lock import locked
from quantail.run.together import FINISHED, INTERRUPTED, RUNNING, STOPPED_EARLY, Outcome, follow, made
from quantail.run.validation import Judged, evaluate, judge, score_of, unjudged

Open = TypeVar("Open", TensorEnv, Sink)
LOG = logging.getLogger("quantail.run")


class Stage(NamedTuple):
    """Where a run takes place."""

    config: Config
    folder: Path
    env: TensorEnv
    evaluation_env: TensorEnv | None
    sinks: tuple[Sink, ...]
    given: Given


def run(
    config: Config,
    folder: Path | str,
    env: TensorEnv | None = None,
    *,
    evaluation_env: TensorEnv | None = None,
    agent: Agent | None = None,
    loss_terms: Sequence[LossTerm] = (),
    hooks: Hooks = NO_HOOKS,
    sinks: Sequence[Sink] = (),
) -> Outcome:
    """Train by a config into a folder of its own; all that `resume` needs to go on lies there at any moment.

    The environments are made from `config.env` unless they are handed over; `sinks` come beside those of `config.run.sinks`.
    Of several processes that `torchrun` started each has its part of the environments, and the first one the folder.
    """
    folder, given = Path(folder), Given(env, evaluation_env, agent, loss_terms, hooks, sinks)
    with ranks.joined("cpu" if env is None else env.device):
        if ranks.place():
            return follow(None, config, folder, given)
        folders.create(folder)
        with _at_work(folder) as interrupt:
            folders.refuse_used(folder)
            try:
                return _from(None, config, folder, given, interrupt)
            except BaseException:
                folders.forget_unused(folder)  # while it is ours
                raise


def resume(
    folder: Path | str,
    env: TensorEnv | None = None,
    *,
    total_timesteps: int | None = None,
    evaluation_env: TensorEnv | None = None,
    agent: Agent | None = None,
    loss_terms: Sequence[LossTerm] = (),
    hooks: Hooks = NO_HOOKS,
    sinks: Sequence[Sink] = (),
) -> Outcome:
    """Go on from the newest checkpoint that is whole, as if the run had never stopped.

    The settings are those of config.yaml; `total_timesteps` makes the run longer. What `run` was handed over beside them has
    to be handed over anew.
    """
    folder, given = Path(folder), Given(env, evaluation_env, agent, loss_terms, hooks, sinks)
    folders.refuse_empty(folder)
    with ranks.joined("cpu" if env is None else env.device), ExitStack() as stack:
        interrupt = None if ranks.place() else stack.enter_context(_at_work(folder))
        config = folders.read_config(folder)
        if total_timesteps is not None:
            config = replace(config, total_timesteps=total_timesteps)
        saved, notes = rotation.newest(folder / folders.CHECKPOINTS)
        for note in notes:
            LOG.warning("%s", note)
        return follow(saved, config, folder, given) if interrupt is None else _from(saved, config, folder, given, interrupt)


# --- the stage --------------------------------------------------------------------------------------------------------


@contextmanager
def _at_work(folder: Path) -> Iterator[Interrupt]:
    """The folder is ours, and signals are heard; what a killed process left half written goes."""
    before = torch.get_num_threads()
    with locked(folder) as note, Interrupt() as interrupt:
        if note:
            LOG.warning("%s", note)
        for place in (folder, folder / folders.CHECKPOINTS):
            atomic.sweep(place)
        try:
            yield interrupt
        finally:
            torch.set_num_threads(before)


@contextmanager
def _stage(config: Config, folder: Path, given: Given, saved: Checkpoint | None) -> Iterator[Stage]:
    """Environments and logs, closed at the end; what is not given is made."""
    if given.env is not None and config.run.evaluate_every and given.evaluation_env is None:
        raise ConfigError("run.evaluate_every needs an environment of its own; hand over evaluation_env too")
    with ExitStack() as stack:
        env, judged_in = given.env, given.evaluation_env
        if env is None:
            env = stack.enter_context(_closing(made(config, saved)))
        if config.run.evaluate_every and judged_in is None:
            count = config.run.evaluate_envs
            judged_in = stack.enter_context(_closing(make(config.env, count, config.risk, "validation", env.fitted)))
        if saved is not None:
            checkpoints.check_environment(saved, env)
        logs.truncate(folder / logs.METRICS_FILE, saved.env_steps if saved else 0)
        own = [stack.enter_context(_closing(_sink(name, config, folder, saved))) for name in config.run.sinks]
        yield Stage(config, folder, env, judged_in, (*own, *given.sinks), given)


@contextmanager
def _closing(opened: Open) -> Iterator[Open]:
    """Close it at the end; what goes wrong then must not hide what went wrong before."""
    try:
        yield opened
    except BaseException:
        with suppress(Exception):
            opened.close()
        raise
    opened.close()


def _sink(name: str, config: Config, folder: Path, saved: Checkpoint | None) -> Sink:
    """A log by its name, which goes on where the run does."""
    log = folder / logs.METRICS_FILE
    match name:
        case "console":
            rows = list(logs.read_rows(log)) if log.is_file() else []
            returns = [row.get("rollout/ep_rew_mean", math.nan) for row in rows]
            return ConsoleSink(config.total_timesteps, f"{folder.name}  {config.env.id}", replay(rows), returns)
        case "jsonl":
            return logs.JsonlSink(log)
        case "tensorboard":
            return logs.TensorBoardSink(folder, saved.env_steps if saved else None)
        case "wandb":
            return logs.WandbSink(folder, config.to_dict())
        case "mlflow":
            return logs.MlflowSink(folder, config.to_dict())
    raise ConfigError(f"{name!r} is no sink")


def _from(saved: Checkpoint | None, config: Config, folder: Path, given: Given, interrupt: Interrupt) -> Outcome:
    """From a checkpoint, or from the beginning."""
    trial = threads.start(config, saved)
    with _stage(config, folder, given, saved) as stage:
        if saved is None:
            progress, judged = begin(config, stage.env, given.agent), Judged()
        else:
            progress = checkpoints.restore(saved, stage.env, config, given.agent)
            judged = Judged(**saved.extra.get("judged", {}))
        folders.write_config(folder, config)
        folders.write_fitted(folder, stage.env.fitted)
        folders.note_environment(folder, progress.env_steps)
        return _train(stage, progress, judged, interrupt, trial)


# --- the run ----------------------------------------------------------------------------------------------------------


def _train(stage: Stage, progress: Progress, judged: Judged, interrupt: Interrupt, trial: threads.Trial) -> Outcome:
    """Iterations until the last; after each come evaluation, logs and checkpoint, in this order."""
    config, given = stage.config, stage.given
    save(stage, progress, judged)  # what cannot be saved is told before anything is learnt
    status = ranks.same(_status(config, progress, judged, interrupt))
    reports = train(config, stage.env, None, given.loss_terms, progress, given.hooks)
    try:
        while status == RUNNING:
            report = next(reports)
            trial, chosen = threads.after(trial, report.metrics)
            report = report._replace(findings=(*report.findings, chosen)) if chosen else report
            report, judged, better = _evaluated(stage, report, judged)
            for sink in stage.sinks:
                sink(report)
            progress = report.progress
            status = ranks.same(_status(config, progress, judged, interrupt))
            if better:
                save(stage, progress, judged, best=True)
            if status != RUNNING or progress.carry.iteration % config.run.save_every == 0:
                save(stage, progress, judged)
    except QuantailError as error:
        folders.note_stop(stage.folder, str(error))
        kept = rotation.listed(stage.folder / folders.CHECKPOINTS)[-1]
        raise type(error)(
            f"{error}; the last good checkpoint is {kept}, go on from it: quantail resume {stage.folder}"
        ) from error
    folders.note_end(stage.folder, status)
    if status == INTERRUPTED:
        LOG.warning("%s: saved at %s steps; go on with: quantail resume %s", interrupt.name, progress.env_steps, stage.folder)
    return Outcome(status, stage.folder, progress.carry.iteration, progress.env_steps, judged, progress.agent)


def save(stage: Stage, progress: Progress, judged: Judged, best: bool = False) -> None:
    """The logs on the disk, then the checkpoint, then older ones away: no checkpoint is ever ahead of its logs."""
    for sink in stage.sinks:
        sink.sync()
    place = stage.folder / folders.CHECKPOINTS
    path = place / rotation.BEST if best else rotation.path_of(place, progress.env_steps)
    checkpoints.save(path, progress, stage.config, stage.env, {"judged": judged._asdict()})
    rotation.prune(place, stage.config.run.keep)


def _evaluated(stage: Stage, report: Report, judged: Judged) -> tuple[Report, Judged, bool]:
    """The report with what an evaluation says, where one is due; whether it is the best so far."""
    asked = stage.config.run
    if stage.evaluation_env is None or not asked.evaluate_every or (report.iteration + 1) % asked.evaluate_every:
        return report, judged, False
    found = evaluate(stage.evaluation_env, report.agent, report.carry.obs_moments, stage.config)
    report, score = report._replace(metrics=report.metrics | found), score_of(found, asked)
    if score is None:
        return report._replace(findings=(*report.findings, unjudged(asked))), judged, False
    after = judge(judged, score, report.env_steps)
    if after.best is not None:
        report.metrics["eval/best"] = after.best
    return report, after, after.stale == 0 and after != judged


def _status(config: Config, progress: Progress, judged: Judged, interrupt: Interrupt) -> str:
    """Whether the run goes on, and if not, why."""
    if progress.env_steps >= config.total_timesteps:
        return FINISHED
    if config.run.patience and judged.stale >= config.run.patience:
        return STOPPED_EARLY
    return INTERRUPTED if interrupt.name else RUNNING
