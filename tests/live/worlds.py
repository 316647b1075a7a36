"""Agents that have learned nothing but answer decidedly, markets of recorded bars, and the backtest that judges a runner."""

from dataclasses import replace

import numpy as np
import torch

from market.worlds import marked
from quantail import DistributionalPPO
from quantail.config import Config, InputConfig, NetConfig
from quantail.envs.running import ObserveGained
from quantail.evaluation import act
from quantail.live import Runner
from quantail.market.env import MarketEnv
from quantail.market.features import compute
from quantail.market.series import NANOSECONDS
from quantail.market.terms import Episode, Rules
from quantail.market.world import Recorded

NOW = 4e9  # seconds since 1970: long after all of these bars


PRICES = ("open", "high", "low", "close")


def without(bars, valid):
    """The bars with those masked that are not valid, as a repair masks them."""
    hidden = {name: getattr(bars, name).masked_fill(~valid, torch.nan) for name in ("open", "high", "low", "volume")}
    return replace(bars, **hidden, close=marked(bars.close, valid), valid=valid)


def some_rows(bars, rows):
    """The bars of these rows, as if there were no others."""
    names = ("time", *PRICES, "valid", "volume", "funding")
    return replace(bars, **{name: getattr(bars, name)[rows] for name in names})


def weekdays(bars):
    """The same bars as days from Monday to Friday."""
    day = 86400 * NANOSECONDS
    rows = torch.arange(len(bars))
    return replace(bars, time=4 * day + (rows // 5 * 7 + rows % 5) * day, bar_seconds=86400.0)


def market_on(bars, within=None, features=None, units=None, episode=None, rules=None, **options):
    """Recorded bars in units of a training window."""
    seen = features or compute(bars)
    world = Recorded(bars, seen, within=within, units=units)
    rules = rules or Rules(actions="long_short")
    return MarketEnv(1, world, rules=rules, episode=episode or Episode(length=0, starts="fixed", horizon=252), **options)


def model_in(env, seed=0, **settings):
    """A model whose weights are far from where they began, and who has seen other observations than those to come."""
    torch.manual_seed(seed)
    net = NetConfig(hidden=6, encoder_sizes=(9,), actor_sizes=(7,), critic_sizes=(5,))
    config = replace(Config(net=net, input=InputConfig(clip_observations=4.0)), **settings)
    model = DistributionalPPO("MlpLstmPolicy", env, config=config, seed=0)
    with torch.no_grad():
        for parameter in model.policy.parameters():
            parameter += 0.4 * torch.randn_like(parameter)
    carry = model.progress.carry
    seen = carry.obs_moments[""]
    moments = seen._replace(mean=0.3 * torch.randn_like(seen.mean), variance=seen.variance * 0 + 0.8)
    model.progress = model.progress._replace(carry=carry._replace(obs_moments={"": moments}))
    return model


def backtest(model, env, steps, memory=None):
    """The batch path, row by row: weights as decided [T, A], equity after each bar [T]; and the memory after them."""
    return played(env, model.policy, model.progress.carry.obs_moments, model.config, steps, memory)


def replayed(env, agent, moments, config, steps):
    """Weights alone, of an agent out of any file."""
    return played(env, agent, moments, config, steps, None)[0]


def played(env, agent, moments, config, steps, memory):
    """Row by row."""
    market = env.env if isinstance(env, ObserveGained) else env
    still = torch.zeros(1, env.noise_dim)
    state, obs = env.reset(still)
    mask, start = env.first_mask(state), torch.tensor([memory is None])
    memory = agent.initial_memory(1) if memory is None else memory
    weights, equity = [], []
    for _ in range(steps):
        action, memory = act(agent, obs, memory, start, moments, config, None, mask)
        inner = state.inner if isinstance(env, ObserveGained) else state
        held = np.asarray(inner.holdings / inner.equity)
        weights.append(decided(market, action, held.reshape(-1)))
        state, step = env.step(state, action, still)
        obs, mask, start = step.obs, step.action_mask, torch.tensor([False])
        equity.append(float((state.inner if isinstance(env, ObserveGained) else state).equity))
    return np.array(weights), np.array(equity), memory


def decided(market, action, held):
    """What an action asks for, [A], by the table of `market.actions`; what it leaves alone stays as it is held."""
    rules, flat = market.rules, action[0].double().numpy().reshape(-1)
    if rules.actions == "grid":
        wanted = np.array([*rules.levels, np.nan])[flat.astype(int)]
        return np.where(np.isnan(wanted), held, wanted)
    if rules.actions == "simplex":
        odds = np.exp(flat - flat.max())
        return rules.leverage * (odds / odds.sum())[:-1]
    wanted = rules.leverage * (np.tanh(flat) if rules.actions == "tanh" else flat.clip(-1, 1))
    most = rules.leverage if rules.max_weight is None else rules.max_weight
    wanted = wanted.clip(-most, most)
    return wanted / max(1.0, np.abs(wanted).sum() / rules.leverage)


def streamed(runner, bars, rows):
    """What a runner decides at each of these rows, and its equity before that: [T, A], [T]."""
    weights, equity = [], []
    for row in rows:
        weights.append(runner.on_bar(bars.rows(row, row + 1)))
        equity.append(runner.account["equity"])
    return weights, np.array(equity)


def runner_of(model, history, **options):
    """One that lives long after all bars."""
    return Runner(model, history, clock=lambda: NOW, **options)
