"""Games of mean against tail: published figures, every policy enumerated by hand, and simulated returns."""

import itertools
import math

import numpy as np
import pytest
import torch

from envs.play import ODDS, check_mean, first_returns
from quantail.envs.oracles import Corridor, CVaRBandit, StaticNested
from quantail.errors import InputError

LEVELS = (0.05, 0.1, 0.25, 0.5, 0.62, 0.8, 1.0)
BANDIT = {"safe": -0.5, "high": 1.5, "low": -7.0, "p_low": 0.15}
NESTED = {"stake": 2.5, "gain": 1.0, "p_gain": 0.7, "loss": 1.75}
CORRIDOR = {"short": 3, "long": 7, "hazard": 0.12, "goal": 6.0, "penalty": 4.0}


def tail_mean(law, alpha):
    """max over ν of ν − E(ν − X)⁺/α: at the maximum ν is one of the values (Rockafellar & Uryasev 2000)."""
    return max(nu - sum(p * max(nu - x, 0.0) for x, p in law) / alpha for nu, _ in law)


# --- the bandit -------------------------------------------------------------------------------------------------------


def test_published_bandit():
    env = CVaRBandit(1)
    assert env.cvar("risky", 1.0) == pytest.approx(1.4, abs=1e-12)
    tail = [env.cvar("risky", alpha) for alpha in (0.05, 0.1, 0.25, 0.5, 0.8)]
    assert tail == pytest.approx([-10, -4, -0.4, 0.8, 1.25], abs=1e-12)
    assert [env.best_policy(alpha) for alpha in (0.05, 0.59, 0.61, 1.0)] == ["safe", "safe", "risky", "risky"]
    from quantail.envs.oracles.tail import cvar_of

    for share in (0.01, 0.05):
        assert cvar_of(env.mixture(share), 0.1) == pytest.approx(1 - 5.5 * share, abs=1e-12)
    assert env.baselines() == pytest.approx({"safe": 1.0, "risky": 1.4})


@pytest.mark.parametrize("alpha", LEVELS)
def test_bandit_by_its_two_laws_and_no_mixture_beats_them(alpha):
    env = CVaRBandit(1, **BANDIT)
    laws = {"safe": [(-0.5, 1.0)], "risky": [(-7.0, 0.15), (1.5, 0.85)]}
    for name, law in laws.items():
        assert env.cvar(name, alpha) == pytest.approx(tail_mean(law, alpha), abs=1e-12)
    best = max(tail_mean(law, alpha) for law in laws.values())
    assert env.optimum(alpha) == pytest.approx(best, abs=1e-12)
    for share in np.linspace(0, 1, 21):
        mixed = [(-7.0, 0.15 * share), (-0.5, 1 - share), (1.5, 0.85 * share)]
        assert tail_mean(mixed, alpha) <= best + 1e-12
    assert env.best_action(torch.zeros(4, 1), alpha).tolist() == [int(env.best_policy(alpha) == "risky")] * 4


@pytest.mark.parametrize("arm", [0, 1])
def test_simulated_arms(arm):
    env = CVaRBandit(40_000, **BANDIT, dtype=torch.float64)
    returns = first_returns(env, lambda obs: torch.full((env.num_envs,), arm), 1)
    check_mean(returns, env.baseline(("safe", "risky")[arm]))
    assert sorted(returns.unique().tolist()) == [[-0.5], [-7.0, 1.5]][arm]
    state, obs = env.reset(torch.zeros(env.num_envs, 1))
    assert obs.unique().tolist() == [0.0]
    assert env.step(state, torch.full((env.num_envs,), arm), torch.zeros(env.num_envs, 1))[1].terminated.all()


# --- static against nested --------------------------------------------------------------------------------------------


def test_published_nested_game():
    env = StaticNested(1)
    names = {(a, b): f"loss:{('pass', 'gamble')[a]} win:{('pass', 'gamble')[b]}" for a in (0, 1) for b in (0, 1)}
    expected = {(1, 0): -2.8, (1, 1): -3.0, (0, 0): -4.0, (0, 1): -4.0}
    assert {key: env.cvar(names[key], 0.5) for key in names} == pytest.approx(expected, abs=1e-12)
    assert (env.best_policy(0.5), env.optimum(0.5)) == (names[1, 0], pytest.approx(-2.8, abs=1e-12))
    assert (env.best_policy(1.0), env.optimum()) == (names[1, 1], pytest.approx(1.2, abs=1e-12))
    assert env.nested_policy(0.5) == names[0, 0]
    assert env.optimum(0.25) == pytest.approx(-4.0, abs=1e-12)
    worse = [env.cvar(names[1, b], 0.25) for b in (0, 1)]
    assert sorted(worse) == pytest.approx([-5.0, -4.6], abs=1e-12)
    blind = StaticNested(1, observe_return=False)
    assert set(blind.policies()) == {names[0, 0], names[1, 1]}
    assert blind.optimum(0.5) == pytest.approx(-3.0, abs=1e-12)


def played_out(env, after_loss, after_win):
    """The law of the return by walking the tree of the game."""
    law = {}
    for coin, gambles in ((-env.stake, after_loss), (env.stake, after_win)):
        for more, chance in ((env.gain, env.p_gain), (-env.loss, 1 - env.p_gain)) if gambles else ((0.0, 1.0),):
            law[coin + more] = law.get(coin + more, 0.0) + chance / 2
    return sorted(law.items())


@pytest.mark.parametrize("alpha", LEVELS)
def test_nested_game_by_walking_its_tree(alpha):
    env = StaticNested(1, **NESTED)
    values = {choice: tail_mean(played_out(env, *choice), alpha) for choice in itertools.product((0, 1), repeat=2)}
    assert env.optimum(alpha) == pytest.approx(max(values.values()), abs=1e-12)
    best = tuple(int(env.best_action(torch.tensor([1.0, earned]), alpha)) for earned in (-2.5, 2.5))
    assert values[best] == pytest.approx(max(values.values()), abs=1e-12)
    gamble = tail_mean([(-1.75, 1 - 0.7), (1.0, 0.7)], alpha)
    assert env.nested_policy(alpha) == ("loss:gamble win:gamble" if gamble > 0 else "loss:pass win:pass")


@pytest.mark.parametrize("choice", list(itertools.product((0, 1), repeat=2)))
def test_simulated_nested_game(choice):
    env = StaticNested(40_000, **NESTED, dtype=torch.float64)
    returns = first_returns(env, lambda obs: torch.where(obs[:, 1] < 0, *choice), 2)
    law = played_out(env, *choice)
    check_mean(returns, sum(x * p for x, p in law))
    assert env.policies()[f"loss:{('pass', 'gamble')[choice[0]]} win:{('pass', 'gamble')[choice[1]]}"] == pytest.approx(
        dict(law)
    )
    for value, chance in law:
        share = float((returns == value).double().mean())
        assert abs(share - chance) <= ODDS * math.sqrt(chance * (1 - chance) / len(returns))


def test_what_is_seen_of_the_nested_game():
    for observe, earned in ((True, [[1.0, -2.5], [1.0, 2.5]]), (False, [[1.0, 0.0], [1.0, 0.0]])):
        env = StaticNested(2, **NESTED, observe_return=observe)
        state, obs = env.reset(torch.zeros(2, 1))
        assert obs.tolist() == [[0.0, 0.0]] * 2
        state, step = env.step(state, torch.tensor([1, 1]), torch.tensor([[-1.0], [1.0]]))
        assert step.obs.tolist() == earned
        assert step.reward.tolist() == [-2.5, 2.5]
        assert not step.terminated.any()
        _, step = env.step(state, torch.tensor([0, 1]), torch.tensor([[0.0], [3.0]]))  # Φ(3) is above 0.7: lost
        assert step.reward.tolist() == [0.0, -1.75]
        assert step.terminated.all()


# --- the corridor -----------------------------------------------------------------------------------------------------


def test_published_corridor():
    env = Corridor(1)
    figures = [env.cvar("short", alpha) for alpha in (1.0, 0.05, 0.1, 0.25)]
    assert figures == pytest.approx([4.5658, -13.137, -8.342, 0.263], abs=5e-4)
    assert env.cvar("long", 0.05) == env.baseline("long") == -2.0
    assert [env.best_policy(alpha) for alpha in (1.0, 0.25, 0.1, 0.05)] == ["short", "short", "long", "long"]


def walked(env):
    """The law of the short way, over every pattern of hits and misses."""
    law = {}
    for pattern in itertools.product((False, True), repeat=env.short):
        chance = math.prod(env.hazard if hit else 1 - env.hazard for hit in pattern)
        steps = pattern.index(True) + 1 if True in pattern else env.short
        value = -steps + (-env.penalty if True in pattern else env.goal)
        law[value] = law.get(value, 0.0) + chance
    return sorted(law.items())


@pytest.mark.parametrize("symbols", [CORRIDOR, {}, {**CORRIDOR, "short": 1, "long": 1}])
@pytest.mark.parametrize("alpha", LEVELS)
def test_corridor_over_every_pattern_of_hits(alpha, symbols):
    env = Corridor(1, **symbols)
    short, long = tail_mean(walked(env), alpha), env.goal - env.long
    assert env.cvar("short", alpha) == pytest.approx(short, abs=1e-12)
    assert env.optimum(alpha) == pytest.approx(max(short, long), abs=1e-12)
    assert env.best_action(torch.zeros(2, 2), alpha).tolist() == [int(long > short)] * 2


@pytest.mark.parametrize("way", [0, 1])
def test_simulated_ways(way):
    env = Corridor(40_000, **CORRIDOR, dtype=torch.float64)
    first = iter([way, *[1 - way] * 20])  # only the first choice counts
    returns = first_returns(env, lambda obs: torch.full((env.num_envs,), next(first)), 8)
    check_mean(returns, env.baseline(("short", "long")[way]))
    for value, chance in walked(env) if way == 0 else [(-1.0, 1.0)]:
        share = float((returns == value).double().mean())
        assert abs(share - chance) <= ODDS * math.sqrt(chance * (1 - chance) / len(returns))


def test_what_is_seen_of_the_corridor():
    env = Corridor(2, **CORRIDOR)
    state, obs = env.reset(torch.zeros(2, 1))
    assert obs.tolist() == [[0.0, 0.0]] * 2
    for row in range(1, 8):
        state, step = env.step(state, torch.tensor([0, 1]), torch.full((2, 1), 2.0))  # Φ(2) is above the hazard
        ended = [row >= 3, row == 7]
        if row <= 3:
            assert step.obs.tolist() == [[-1.0, pytest.approx(row / 7)], [1.0, pytest.approx(row / 7)]]
            assert step.reward.tolist() == [5.0 if row == 3 else -1.0, -1.0]
            assert step.terminated.tolist() == ended
    assert step.reward[1] == 5.0
    assert step.terminated[1]
    state, _ = env.reset(torch.zeros(2, 1))
    _, step = env.step(state, torch.tensor([0, 1]), torch.full((2, 1), -3.0))
    assert step.reward.tolist() == [-5.0, -1.0]
    assert step.terminated.tolist() == [True, False]


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "symbol", "bad"),
    [
        (CVaRBandit, "safe", math.nan),
        (CVaRBandit, "high", math.inf),
        (CVaRBandit, "low", 2.0),
        (CVaRBandit, "p_low", 1.5),
        (StaticNested, "stake", 0.0),
        (StaticNested, "gain", -1.0),
        (StaticNested, "p_gain", -0.1),
        (StaticNested, "loss", 0.0),
        (Corridor, "short", 0),
        (Corridor, "long", 3),
        (Corridor, "hazard", 1.1),
        (Corridor, "goal", math.nan),
        (Corridor, "penalty", math.inf),
    ],
)
def test_nonsense_is_refused_by_name(kind, symbol, bad):
    with pytest.raises(InputError, match=rf"\b{symbol}\b"):
        kind(1, **{symbol: bad})


def test_unknown_policies_and_levels_are_refused():
    with pytest.raises(InputError, match="policy"):
        Corridor(1).cvar("middle", 0.1)
    with pytest.raises(InputError, match="alpha"):
        Corridor(1).cvar("short", 0.0)
    with pytest.raises(InputError, match="risky"):
        CVaRBandit(1).mixture(1.1)
