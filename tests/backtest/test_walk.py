"""Learning and being judged in turn: who learned from what, who is judged on what, and that nothing came too early."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from backtest.stages import course, player, recorded, synthetic
from quantail.backtest import splits
from quantail.backtest.track import play
from quantail.backtest.walk import Pieces, folds, forward, histories, trained
from quantail.config import Config, EnvConfig, NetConfig, PpoConfig
from quantail.envs.running import ObserveGained
from quantail.errors import InputError
from quantail.loop import train
from quantail.market.env import MarketEnv
from quantail.market.normalise import fit
from quantail.market.world import Recorded


class Learner:
    """Remembers the markets it was given, visits them, and gives another agent each time."""

    def __init__(self):
        self.visited, self.units = [], []

    def __call__(self, env, number):
        market = env.env if isinstance(env, ObserveGained) else env
        source = torch.Generator().manual_seed(number)
        state, _ = market.reset(torch.randn(market.num_envs, market.noise_dim, generator=source))
        rows = {*state.row.tolist()}
        for _ in range(150):
            noise = torch.randn(market.num_envs, market.noise_dim, generator=source)
            state, _ = market.step(state, torch.zeros(market.num_envs, market.assets), noise)
            rows |= {*state.row.tolist()}
        self.visited.append(sorted(row - 1 for row in rows))  # row 0 of the tape is no time
        self.units.append(market.world.units)
        return player(env, seed=number, scale=False)


def normalised(rows=200, **values):
    """A market whose features are measured in units of all rows: what a walk must not do."""
    env = recorded(rows=rows, assets=1, **values)
    world = replace(env.world, units=fit(env.world.features, env.world.history, range(rows)))
    return MarketEnv(5, world, **terms(env))


def terms(env):
    return {"costs": env.costs, "rules": env.rules, "reward": env.reward, "episode": env.episode}


def test_each_stretch_is_judged_by_who_has_learned_from_the_bars_before_it():
    env, learn = normalised(), Learner()
    plan = splits.walk_forward(rows=200, train=80, test=35, purge=9)
    found = forward(env, learn, plan, memory=12)
    world = env.world
    by_hand = []
    for i, split in enumerate(plan):
        begin, end = int(split.train[0]), int(split.train[-1])
        visited = learn.visited[i]
        assert begin <= max(visited[0], 6) == visited[0]
        assert visited[-1] <= end  # a step from the last but one row lives through the last
        assert len(visited) > 0.9 * (end - 6)
        units = fit(world.features, world.history, range(begin, end + 1))
        assert learn.units[i] == units
        judge_in = MarketEnv(
            1, replace(world, units=units), costs=env.costs, rules=env.rules, reward=env.reward, episode=env.episode
        )
        there = course(judge_in, range(int(split.test[0]), int(split.test[-1]) + 1), memory=12)
        by_hand.append(play(there, player(env, seed=i, scale=False)))
    np.testing.assert_array_equal(found.tracks[0].net, np.concatenate([one.net for one in by_hand]))
    assert len(found.tracks[0].times) == sum(len(split.test) for split in plan) == 200 - 89
    assert found.tracks[0].times.tolist() == world.history.end[89:].tolist()
    assert len(found.borders) == len(plan) - 1


def test_sliding_windows_forget_the_beginning():
    learn = Learner()
    plan = splits.walk_forward(rows=200, train=60, test=50, purge=5, window="sliding")
    forward(normalised(), learn, plan)
    assert [visited[0] >= int(split.train[0]) for visited, split in zip(learn.visited, plan, strict=True)] == [True] * 3
    assert learn.visited[2][0] >= 100


def test_a_frozen_agent_walks_on_with_what_it_holds():
    env = recorded(rows=200, assets=1, parts=("features",))
    plan = splits.walk_forward(rows=200, train=80, test=35)
    who = player(env, scale=False)
    found = forward(env, who, plan, memory=30)
    alone = play(course(env, range(80, 200), memory=30), who)
    np.testing.assert_array_equal(found.tracks[0].net, alone.net)
    assert found.borders.tolist() == env.world.history.end[[115, 150, 185]].tolist()
    anew = forward(env, lambda market, number: who, plan, memory=30)
    assert (anew.tracks[0].net[:35] == alone.net[:35]).all()
    assert (anew.tracks[0].net[35] != alone.net[35]).all()  # it has to buy again


def test_folds_are_judged_by_who_never_saw_them():
    env, learn = normalised(), Learner()
    plan = splits.purged_kfold(200, folds=4, purge=5, embargo=3)
    found = folds(env, learn, plan)
    assert len(learn.visited) == 4
    for visited, split in zip(learn.visited, plan, strict=True):
        assert set(visited) <= set(split.train.tolist())
        assert len(set(visited)) > 0.7 * len(split.train)
    assert len(found.net) == 200 - 7  # the first fold begins when features are warm
    assert (np.diff(found.times) > 0).all()


def test_no_episode_leaves_its_run_of_rows():
    base = recorded(rows=120, assets=1)
    runs = (range(30), range(50, 58), range(70, 120))
    world = Pieces(base.world.history, base.world.features, runs=runs)
    env = MarketEnv(64, world, rules=base.rules, episode=base.episode)  # of 20 bars
    seen = {tuple(range(int(a) - 1, int(b))) for a, b in zip(env.ground.starts, env.ground.stops, strict=True)}
    expected = {tuple(range(a, a + 21)) for run in runs for a in range(max(run.start, 6), run.stop - 20)}
    assert seen == expected
    long = MarketEnv(3, world, rules=base.rules, episode=replace(base.episode, length=400))
    assert long.ground.longest == 49
    with pytest.raises(InputError, match="lie in the warm-up"):
        MarketEnv(3, replace(world, runs=(range(7),)), rules=base.rules, episode=base.episode)


def test_histories_have_every_fold_judged_by_each_who_did_not_learn_from_it():
    env, learn = normalised(), Learner()
    plan = splits.combinatorial(200, folds=4, tests=2, purge=2)
    found = histories(env, learn, plan)
    assert len(learn.visited) == 6
    assert len(found) == 3
    assert len({one.net.tobytes() for one in found}) == 3
    assert all(len(one.net) == 193 for one in found)
    for visited, train_rows in zip(learn.visited, plan.trains, strict=True):
        assert set(visited) <= set(train_rows.tolist())
    fold = slice(150 - 7, 200 - 7)  # the last one, as the judge of the second history has it
    judge_of = int(plan.paths[1, 3])
    market = replace(env.world, units=learn.units[judge_of])
    judge_in = MarketEnv(1, market, **terms(env))
    alone = play(course(judge_in, range(150, 200)), player(env, seed=judge_of, scale=False))
    np.testing.assert_array_equal(found[1].net[fold], alone.net)


def test_learning_by_settings_is_a_run_without_a_folder():
    config = Config(
        total_timesteps=100,
        net=NetConfig(hidden=4, encoder_sizes=(), actor_sizes=(), critic_sizes=()),
        ppo=PpoConfig(n_steps=10, batch_size=50, n_epochs=1),
        env=EnvConfig(id="quantail/Market", num_envs=5),
    )
    env = recorded(rows=150, assets=1)
    plan = splits.walk_forward(rows=150, train=90, test=60)
    first, again = (forward(env, trained(config), plan).tracks[0] for _ in range(2))
    np.testing.assert_array_equal(first.net, again.net)
    world = Recorded(env.world.history, env.world.features, None, range(90))
    inside = MarketEnv(5, world, **terms(env))
    *_, report = train(config, inside)
    who = player(env)._replace(agent=report.agent, moments=report.carry.obs_moments, config=config, scale=report.carry.scale)
    np.testing.assert_array_equal(first.net, play(course(env, range(90, 150), memory=256), who).net)


def test_what_an_agent_has_to_see_it_sees_on_every_stretch():
    env = ObserveGained(recorded(rows=120, assets=1), 6)
    learn = Learner()
    found = forward(env, learn, splits.walk_forward(rows=120, train=60, test=30))
    assert len(found.tracks[0].net) == 60


def test_plans_that_look_ahead_are_refused():
    env = normalised()
    with pytest.raises(InputError, match="needs tests behind"):
        forward(env, Learner(), splits.purged_kfold(200, folds=4))
    with pytest.raises(InputError, match="no split"):
        forward(env, Learner(), ())
    with pytest.raises(InputError, match="needs recorded bars"):
        forward(synthetic(), Learner(), splits.walk_forward(rows=200, train=80, test=60))
