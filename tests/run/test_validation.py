"""Evaluation: figures against a slow count over the same rows; the best is the best."""

import math

import pytest

from quantail.envs.oracles import CartPole
from quantail.evaluation import play
from quantail.loop import make_agent
from quantail.run.validation import Judged, evaluate, judge, score_of
from run.worlds import small


def played_by_hand(config, env, agent):
    """Returns and lengths of episodes that ended, environment after environment, and the mean reward of all valid rows."""
    played = play(env, agent, {}, config, config.run.evaluate_rows, seed=config.run.evaluate_seed, deterministic=True)
    returns, lengths, rewards = [], [], []
    for b in range(env.num_envs):
        total, count = 0.0, 0
        for t in range(len(played.reward)):
            if not played.valid[t, b]:
                continue
            rewards.append(float(played.reward[t, b]))
            total, count = total + rewards[-1], count + 1
            if played.terminated[t, b] or played.truncated[t, b]:
                returns.append(total)
                lengths.append(count)
                total, count = 0.0, 0
    return returns, lengths, sum(rewards) / len(rewards)


def test_figures_are_those_of_the_rows():
    config, env = small(run__evaluate_rows=150, input__normalize_observations=False), CartPole(5)
    agent = make_agent(config, env)
    returns, lengths, per_step = played_by_hand(config, env, agent)
    found = evaluate(env, agent, {}, config)
    mean = sum(returns) / len(returns)
    assert len(set(returns)) > 2
    assert found["eval/episodes"] == len(returns)
    assert found["eval/mean_reward"] == pytest.approx(mean, rel=1e-6)
    assert found["eval/std_reward"] == pytest.approx(math.sqrt(sum((x - mean) ** 2 for x in returns) / len(returns)), rel=1e-6)
    assert found["eval/mean_ep_length"] == pytest.approx(sum(lengths) / len(lengths), rel=1e-6)
    assert found["eval/reward_per_step"] == pytest.approx(per_step, rel=1e-6)
    assert evaluate(env, agent, {}, config) == found
    assert score_of(found, config.run) == found["eval/mean_reward"]
    assert score_of(found, small(run__judge="step").run) == found["eval/reward_per_step"]


def test_the_best_is_the_first_of_the_highest():
    judged = Judged()
    seen = []
    for step, score in enumerate([math.nan, 1.0, 0.5, 1.0, 2.0, math.nan, -math.inf]):
        judged = judge(judged, score, step)
        seen.append((judged.best, judged.best_env_steps, judged.stale))
    assert seen == [(None, 0, 1), (1.0, 1, 0), (1.0, 1, 1), (1.0, 1, 2), (2.0, 4, 0), (2.0, 4, 1), (2.0, 4, 2)]
