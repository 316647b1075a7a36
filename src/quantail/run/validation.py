"""Playing beside the training: what the agent gets where it does not learn, and which checkpoint is the best."""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from quantail.config import Config, RunConfig
from quantail.envs.base import TensorEnv
from quantail.evaluation import play
from quantail.intake import ObservationMoments
from quantail.nets.agent import Agent

SCORES = {"episode": "eval/mean_reward", "step": "eval/reward_per_step"}


class Judged(NamedTuple):
    """What the evaluations of a run have said so far."""

    best: float | None = None
    best_env_steps: int = 0
    stale: int = 0  # evaluations since the best


def evaluate(
    env: TensorEnv,
    agent: Agent,
    moments: ObservationMoments,
    config: Config,
    watch: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> dict[str, float]:
    """One evaluation by the run's settings, under SB3's names; the same agent gets the same numbers."""
    asked = config.run
    played = play(
        env,
        agent,
        moments,
        config,
        asked.evaluate_rows,
        seed=asked.evaluate_seed,
        deterministic=asked.deterministic,
        watch=watch,
    )
    returns = played.episode_returns()
    lengths = played._replace(reward=played.valid.to(played.reward.dtype)).episode_returns()
    found = {"eval/episodes": float(len(returns)), "eval/reward_per_step": played.per_step()}
    if len(returns):
        found |= {
            "eval/mean_reward": float(returns.mean()),
            "eval/std_reward": float(returns.std(correction=0)),
            "eval/mean_ep_length": float(lengths.mean()),
        }
    return found


def score_of(found: dict[str, float], config: RunConfig) -> float | None:
    """The number by which checkpoints are compared; None where no episode ended."""
    return found.get(SCORES[config.judge])


def unjudged(config: RunConfig) -> str:
    """The finding where there is no such number. The run goes on: an agent may live long just because it is good."""
    return f"no episode ended in {config.evaluate_rows} rows of evaluation, so nothing was judged"


def judge(judged: Judged, score: float, env_steps: int) -> Judged:
    """After one more evaluation; a score that is no number is never the best."""
    if not math.isnan(score) and (judged.best is None or score > judged.best):
        return Judged(score, env_steps, 0)
    return judged._replace(stale=judged.stale + 1)
