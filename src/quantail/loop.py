"""The loop: collect -> estimate -> update -> report, again and again; one generator, one screen."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from quantail.config import Config, OptimConfig
from quantail.control import Control, Schedules, epochs, knobs, start_control, steer, tally, tally_metrics
from quantail.engine import engine_for
from quantail.envs.base import TensorEnv
from quantail.errors import TrainingError
from quantail.functional.checks import check_finite
from quantail.losses import LossTerm
from quantail.nets.agent import Agent
from quantail.normaliser import adopt
from quantail.optim.joint import make as make_optim
from quantail.ranks import drawn
from quantail.registry import gained_is_seen, make
from quantail.risk import risk_findings
from quantail.rollout import Carry, Noise, Rollout, start_carry
from quantail.statistics import crossed, explained_void, findings
from quantail.streams import Stream, generator, normal, uniform
from quantail.types import Space
from quantail.update import Learned, update

BLIND = 0.1  # of the steps of a rollout: where broken numbers leave no more than that, nothing is learned from it


class Progress(NamedTuple):
    """Everything that outlives an iteration; what a run needs to go on as if it had never stopped."""

    agent: Agent
    optimizer: torch.optim.Optimizer
    carry: Carry
    control: Control
    env_steps: int  # valid rows so far


class Spaces(NamedTuple):
    """What an agent has to know of an environment."""

    observation_space: Space
    action_space: Space
    device: torch.device


class Hooks(NamedTuple):
    """What a caller takes part with: functions that are asked, or told, at their moments."""

    schedules: Schedules = Schedules()
    collected: Callable[[Rollout, Carry], None] = lambda rollout, carry: None  # told before anything is learned from it


NO_HOOKS = Hooks()


class Report(NamedTuple):
    """What an iteration did; the caller logs, saves, evaluates, stops."""

    iteration: int
    env_steps: int  # valid rows so far
    metrics: dict[str, float]
    agent: Agent
    carry: Carry
    control: Control
    optimizer: torch.optim.Optimizer
    findings: tuple[str, ...] = ()  # what is wrong, in words

    @property
    def progress(self) -> Progress:
        """Where this iteration ended: hand it to `train` to go on from here."""
        return Progress(self.agent, self.optimizer, self.carry, self.control, self.env_steps)


def train(
    config: Config,
    env: TensorEnv | None = None,
    agent: Agent | None = None,
    loss_terms: Sequence[LossTerm] = (),
    progress: Progress | None = None,
    hooks: Hooks = NO_HOOKS,
) -> Iterator[Report]:
    """Train until `total_timesteps` valid rows are seen; one report per iteration. From the start, or on from `progress`."""
    env = env or make(config.env, risk=config.risk)
    agent, optimizer, carry, control, env_steps = progress or begin(config, env, agent)
    engine = engine_for(config, env, agent, optimizer, loss_terms)
    watch = Stopwatch(env_steps)
    while env_steps < config.total_timesteps:
        i = carry.iteration
        turned = knobs(control, i, env_steps, config, env.device, hooks.schedules)
        noise = rollout_noise(config, env, agent, i)
        env.renew(carry.env_state, i)
        watch.lap("other")
        rollout, carry = engine.collect(carry, noise)
        hooks.collected(rollout, carry)
        watch.lap("collect")
        levels, order = (generator(config.seed, stream, i, env.device) for stream in (Stream.TARGETS, Stream.ORDER))
        reading = engine.read(rollout, carry, levels, noise.dropout, env_steps / config.total_timesteps, i == 0)
        watch.lap("estimate")
        learned = update(
            engine.step, reading.groups, order, turned, epochs=epochs(control, config), void_steps=control.void_steps
        )
        watch.lap("update")
        figures = engine.figures(rollout, reading, learned.rows, turned, control.lost)
        metrics, ended = crossed(figures.names, figures.values), figures.episodes.tolist()
        learned = explained_void(learned, reading.batch)
        env_steps += int(metrics["rollout/valid_rows"])
        blind = 0 if metrics["rollout/learned_rows"] > BLIND * metrics["rollout/valid_rows"] else control.blind + 1
        stop_if_stuck(learned, blind, config.optim.patience)
        carry, control = adopt(reading.carry, figures.later, agent), tally(control, ended, learned.epochs)
        control = steer(control._replace(void_steps=learned.void_steps, blind=blind), i, metrics, bool(learned.stopped), config)
        metrics |= tally_metrics(control) | watch.metrics(i, env_steps)
        said = (*findings(metrics, rollout, learned), *risk_findings(metrics, config.risk, i, gained_is_seen(env, config.risk)))
        yield Report(i, env_steps, metrics, agent, carry, control, optimizer, said)


def stop_if_stuck(learned: Learned, blind: int, patience: int) -> None:
    """Raise after too many void optimizer steps, or rollouts with hardly a row to learn from: more would only burn time."""
    if blind >= patience:
        raise TrainingError(
            f"{blind} rollouts in a row held hardly a row to learn from, for rewards, pnl or observations were not finite in "
            "nearly all; the weights are those of the last good step: look at the environment"
        )
    if learned.void_steps >= patience:
        raise TrainingError(
            f"{learned.void_steps} optimizer steps in a row changed nothing, first because of {learned.culprit}; "
            "the weights are those of the last good step: look there, or lower the learning rate"
        )


class Stopwatch:
    """The time since training began, or went on, as SB3 reports it; and the host's seconds in each phase of an iteration.

    No device is waited for: of a phase that only queues work, the phase that reads its result pays. "other" is what lies
    between an update and the next rollout: statistics, and all that the caller does with a report.
    """

    def __init__(self, env_steps: int) -> None:
        self.begun = self.now = time.perf_counter()
        self.before = env_steps  # of an earlier run
        self.seconds: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        """The phase that ends here."""
        now = time.perf_counter()
        self.seconds[f"time/{phase}_seconds"] = now - self.now
        self.now = now

    def metrics(self, iteration: int, env_steps: int) -> dict[str, float]:
        """All of `time/`."""
        elapsed = max(time.perf_counter() - self.begun, 1e-9)
        steps = {"time/iterations": iteration + 1.0, "time/total_timesteps": float(env_steps)}
        return steps | self.seconds | {"time/time_elapsed": elapsed, "time/fps": (env_steps - self.before) / elapsed}


def begin(config: Config, env: TensorEnv, agent: Agent | None = None, iteration: int = 0) -> Progress:
    """Everything that outlives an iteration, before the first; what environments start from depends on the iteration."""
    agent = agent or make_agent(config, env)
    check_finite(**dict(agent.named_parameters()))
    source = generator(config.seed, Stream.RESET, iteration, env.device)
    carry = start_carry(env, agent, drawn(normal, (env.num_envs, env.noise_dim), source, 0), config)
    return Progress(agent, make_optimizer(agent, config.optim, config.seed), carry, start_control(config), 0)


def make_agent(config: Config, env: Spaces | TensorEnv) -> Agent:
    """An agent for the environment's spaces; its weights depend on the seed alone, and no global stream moves."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(config.seed, Stream.INIT, 0).initial_seed())
        return Agent(env.observation_space, env.action_space, config.net, config.critic, cost=config.risk.used).to(env.device)


def make_optimizer(agent: Agent, config: OptimConfig, seed: int = 0) -> torch.optim.Optimizer:
    """The optimizer by name; its learning rate is set anew in every iteration, the seed is of its noise."""
    owners = agent.parameter_groups().items()
    critic = [p for name, members in owners if name.startswith(("critic", "cost")) for p in members]
    return make_optim(list(agent.parameters()), critic, config, seed)


def rollout_noise(config: Config, env: TensorEnv, agent: Agent, iteration: int) -> Noise:
    """All that the rollout of an iteration draws, in the environments of this process."""
    rows = (config.ppo.n_steps, env.num_envs)
    act, environment, dropout, explore = (
        generator(config.seed, stream, iteration, env.device)
        for stream in (Stream.ACT, Stream.ENVIRONMENT, Stream.DROPOUT, Stream.EXPLORE)
    )
    draw = uniform if agent.policy.noise_kind == "uniform" else normal
    dropped, explored = agent.dropout_shape(env.num_envs), agent.explore_shape(env.num_envs)
    return Noise(
        act=drawn(draw, (*rows, agent.policy.noise_dim), act, 1),
        environment=drawn(normal, (*rows, env.noise_dim), environment, 1),
        dropout=None if dropped is None else agent.dropout_mask(drawn(uniform, dropped, dropout, 1)),
        explore=None if explored is None else drawn(normal, explored, explore, 0),
    )
