"""Outcomes, their sample, the charge and the price: judged by loops over rows, by sorted lists and by identities."""

import math
from collections import deque
from dataclasses import replace

import pytest
import torch

from quantail import checkpoint
from quantail.config import Config, EnvConfig, RiskConfig
from quantail.envs.base import TensorEnv
from quantail.envs.oracles import CVaRPosition, StaticNested
from quantail.envs.running import ObserveGained, widened
from quantail.errors import ConfigError
from quantail.estimate import estimate
from quantail.face.parameters import STATISTICS, statistics_of, with_parameters
from quantail.face.watch import Watched
from quantail.loop import begin, make_agent, rollout_noise, train
from quantail.losses import Part, batch_loss
from quantail.market.env import MarketEnv
from quantail.market.terms import Reward
from quantail.normaliser import adopt, renewed
from quantail.reading import informed
from quantail.registry import gained_is_seen, make
from quantail.risk import KEPT, Running, advance, assessed, charges, figures, minding, start_risk, tail_share, violation
from quantail.rollout import collect
from quantail.streams import Stream, generator
from quantail.types import Box, Discrete, Group
from rivers import Ragged, disturb, settings, turned

CPU = torch.device("cpu")
HORIZONS = [RiskConfig(horizon="step"), RiskConfig(horizon="window", window=3), RiskConfig(horizon="episode")]
KINDS = [pytest.param(False, id="next-step"), pytest.param(True, id="same-step")]


class Broken(Ragged):
    """Some of its rewards are not finite."""

    def step(self, state, action, noise):
        after, step = super().step(state, action, noise)
        return after, step._replace(reward=torch.where(noise[:, 0] > 1.6, torch.nan, step.reward))


def rollouts(env: TensorEnv, config: Config, count: int = 3):
    """So many rollouts of an agent that never learns, and the carry after each."""
    agent = disturb(make_agent(config, env).double(), 0.2)
    carry = begin(config, env, agent).carry
    for i in range(count):
        rollout, carry = collect(env, agent, carry, rollout_noise(config, env, agent, i), config)
        carry = informed(carry, rollout, config, 0.0, i == 0)
        yield agent, rollout, carry


def slow_outcomes(parts, risk: RiskConfig):
    """Outcomes row by row from what the rollouts recorded: one environment after the other, with plain lists."""
    pnl, valid, done, bad = (
        torch.cat([getattr(one, name) for one in parts]) for name in ("pnl", "valid", "terminated", "truncated")
    )
    done = done | bad
    counts = torch.cat([one.value_weight for one in parts]) > 0
    found = torch.full(pnl.shape, math.nan, dtype=torch.float64)
    for b in range(pnl.shape[1]):
        gains = []
        for t in range(len(pnl)):
            if not valid[t, b]:
                continue
            gains.append(float(pnl[t, b]))
            whole = {"step": gains[-1:], "window": gains[-risk.window :], "episode": gains}[risk.horizon]
            complete = {"step": True, "window": len(gains) >= risk.window, "episode": bool(done[t, b])}[risk.horizon]
            if complete and counts[t, b]:
                found[t, b] = math.fsum(whole)
            if done[t, b]:
                gains = []
    return found


@pytest.mark.parametrize("same_step", KINDS)
@pytest.mark.parametrize("risk", HORIZONS, ids=lambda risk: risk.horizon)
@pytest.mark.parametrize("kind", [Ragged, Broken])
def test_outcomes_are_those_of_a_loop_over_rows(kind, risk, same_step):
    config = settings("choice", risk=risk)
    parts = [rollout for _, rollout, _ in rollouts(kind("choice", same_step), config)]
    found = torch.cat([one.outcome for one in parts])
    expected = slow_outcomes(parts, risk)
    assert (kind is Broken) == any(bool(one.not_finite.any()) for one in parts)
    assert int((~expected.isnan()).sum()) > 0
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("memory", [None, 57])
def test_the_sample_is_what_completed_last(memory):
    """Against a deque: all of the last rollout, and older ones as far as those are fewer than asked for."""
    risk = RiskConfig(horizon="step", alpha=0.4, memory=memory)
    state, seen = start_risk(risk, CPU), deque(maxlen=KEPT)
    source = torch.Generator().manual_seed(3)
    for rows in ((7, 3), (2, 5), (31, 4), (1, 2)):
        new = torch.randn(rows, generator=source, dtype=torch.float64)
        new[torch.rand(rows, generator=source) < 0.3] = torch.nan
        state = assessed(state, new, risk)
        fresh = [x for x in new.flatten().tolist() if not math.isnan(x)]
        seen.extend(fresh)
        sample = list(seen)[-max(len(fresh), memory or 50) :]
        assert state.outcomes[state.recent > 0].tolist() == sample
        worst = sorted(sample)
        whole = int(0.4 * len(worst) + 1e-9)
        cvar = (math.fsum(worst[:whole]) + (0.4 * len(worst) - whole) * worst[min(whole, len(worst) - 1)]) / (0.4 * len(worst))
        found = figures(state, risk)
        assert float(found.cvar) == pytest.approx(cvar, rel=1e-12)
        assert float(found.mean) == pytest.approx(math.fsum(sample) / len(sample), rel=1e-12)
        assert float(found.tail_samples) == pytest.approx(0.4 * len(sample))


def test_nu_is_the_average_of_the_samples_quantiles():
    risk = RiskConfig(horizon="step", alpha=0.25, nu_rate=0.3)
    state, expected = start_risk(risk, CPU), math.nan
    source = torch.Generator().manual_seed(4)
    nothing = torch.full((2, 3), torch.nan)
    assert math.isnan(float(assessed(state, nothing, risk).nu))
    for _ in range(4):
        new = torch.randn(40, 5, generator=source, dtype=torch.float64)
        state = assessed(state, new, risk)
        quantile = sorted(new.flatten().tolist())[50 - 1]
        expected = quantile if math.isnan(expected) else 0.7 * expected + 0.3 * quantile
        assert float(state.nu) == pytest.approx(expected, rel=1e-12)
        assert float(assessed(state, nothing, risk).outcomes[-1]) == float(state.outcomes[-1])


def test_the_mean_charge_of_an_episode_is_limit_less_cvar():
    """At ν = VaR, where Rockafellar and Uryasev's maximum lies; and 0 on rows where nothing completes."""
    risk = RiskConfig(alpha=0.1, limit=-1.5, nu_rate=1.0)
    x = torch.randn(70, 10, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    x[3, 4] = torch.nan
    state = assessed(start_risk(risk, CPU), x, risk)
    charge = charges(state, x, risk)
    known = ~x.isnan()
    assert float(charge[3, 4]) == 0
    assert float(charge[known].mean()) == pytest.approx(-1.5 - float(figures(state, risk).cvar), rel=1e-10)
    assert bool((charge < 0).any() and (charge > 0).any())


def test_a_large_rollout_is_thinned_evenly_over_its_rows():
    """Its last rows alone would be those of one phase: here the first half is ten times as wild."""
    risk = RiskConfig(horizon="step", alpha=0.1)
    x = torch.randn(32, 1024, generator=torch.Generator().manual_seed(12), dtype=torch.float64)
    x[:16] *= 10
    x[5, 7] = torch.nan
    state = assessed(start_risk(risk, CPU), x, risk)
    worst = x[~x.isnan()].sort().values[: int(0.1 * (x.numel() - 1))].mean()
    assert int(state.recent.sum()) == KEPT
    assert float(figures(state, risk).cvar) == pytest.approx(float(worst), rel=0.03)
    assert float(charges(state, x, risk).mean().abs()) < 0.02 * float(charges(state, x, risk).std())
    few = torch.full((20, 1024), torch.nan, dtype=torch.float64)
    few[::5, ::100] = torch.arange(44.0, dtype=torch.float64).reshape(4, 11)
    state = assessed(start_risk(risk, CPU), few, risk)
    assert state.outcomes[-44:].tolist() == list(range(44))


def test_windows_weigh_as_their_rows_do():
    """The gradient of a window's mean is that of k rows' means; with α → 1 both parts of the objective ask for the same."""
    risk = RiskConfig(horizon="window", window=3, alpha=0.999999, nu_rate=1.0)
    gains = torch.randn(40, 6, generator=torch.Generator().manual_seed(13), dtype=torch.float64)
    running, outcomes = Running(torch.zeros(6, dtype=torch.float64), torch.zeros(3, 6, dtype=torch.float64)), []
    never, always = torch.zeros(6, dtype=torch.bool), torch.ones(6, dtype=torch.bool)
    for t, gain in enumerate(gains):
        outcome, running = advance(running, gain, torch.full((6,), float(t + 1)), never, always, risk)
        outcomes.append(outcome)
    outcome = torch.stack(outcomes)
    charge = charges(assessed(start_risk(risk, CPU), outcome, risk), outcome, risk)
    inner = 10  # a row in the middle lies in three windows
    more = outcome.clone()
    more[inner : inner + 3] += 1e-6
    state = assessed(start_risk(risk, CPU), outcome, risk)
    assert float((charges(state, more, risk) - charge)[:, 0].sum()) == pytest.approx(-1e-6, rel=1e-3)


@pytest.mark.parametrize("risk", HORIZONS[:2], ids=lambda risk: risk.horizon)
def test_charges_of_rows_have_the_mean_0_so_that_one_more_row_is_no_gain(risk):
    risk = replace(risk, weight=0.7, alpha=0.2)
    x = 3 + torch.randn(70, 10, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    state = assessed(start_risk(risk, CPU), x, risk)
    charge = charges(state, x, risk)
    assert float(charge.mean()) == pytest.approx(0, abs=1e-12)
    short = (state.nu - x).clamp_min(0) / 0.2 / (risk.window if risk.horizon == "window" else 1)
    torch.testing.assert_close(charge - charge.flatten()[0], short - short.flatten()[0], rtol=1e-12, atol=1e-12)


def slow_cost_advantages(rollout, state, config):
    """GAE of the charges, one environment after the other, from the definition."""
    charge = charges(state, rollout.outcome, config.risk)
    v = rollout.costs[0] * state.scale.std + state.scale.mean
    lam, ratio = config.ppo.gae_lambda, config.risk.ratio
    gamma = config.ppo.gamma if ratio else 1.0
    found = torch.zeros_like(charge)
    for b in range(charge.shape[1]):
        after = 0.0
        for t in reversed(range(len(charge))):
            ended, dead = bool(rollout.terminated[t, b] | rollout.truncated[t, b]), bool(rollout.terminated[t, b])
            if not rollout.valid[t, b]:
                after = 0.0
                continue
            reached = v[t + 1, b] if rollout.final_costs is None or not ended else None
            if reached is None:
                reached = rollout.final_costs[0, t, b] * state.scale.std + state.scale.mean
            follows = 0.0 if dead or (ended and not ratio) else gamma * reached
            after = charge[t, b] + follows - v[t, b] + (0.0 if ended else gamma * lam * after)
            found[t, b] = after
    return found


@pytest.mark.parametrize("same_step", KINDS)
@pytest.mark.parametrize("risk", HORIZONS, ids=lambda risk: risk.horizon)
def test_advantages_of_charges_are_those_of_a_loop(risk, same_step):
    config = settings("choice", risk=replace(risk, limit=2.0, weight=0.3, alpha=0.4), ppo={"normalize_advantage": "off"})
    config = replace(config, input=replace(config.input, reward_scale=0.7))
    *_, (agent, rollout, carry) = rollouts(Ragged("choice", same_step), config)
    carry = carry._replace(risk=carry.risk._replace(unit=1.3, multiplier=torch.tensor(0.8, dtype=torch.float64)))
    batch, found = estimate(rollout, agent, carry.scale, generator(0, Stream.TARGETS, 0), config, carry.risk)
    expected = slow_cost_advantages(rollout, carry.risk, config)
    assert float(expected.abs().max()) > 0.1
    torch.testing.assert_close(found.cost_advantages, expected, rtol=1e-10, atol=1e-10)
    blended = 0.7 * found.advantages - 0.3 * 0.7 * 1.3 * expected
    torch.testing.assert_close(batch.advantage, (blended - 0.8 * 0.7 * 1.3 * expected) / 1.8, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(batch.cost_target * carry.risk.scale.std + carry.risk.scale.mean, found.cost_returns)
    plain, _ = estimate(rollout, agent, carry.scale, generator(0, Stream.TARGETS, 0), config)
    torch.testing.assert_close(batch.target, plain.target, rtol=0, atol=0)  # the reward critic never hears of it


def test_the_parts_of_the_objective_are_combined_raw():
    reward, cost = torch.tensor([1.0, -2.0]), torch.tensor([3.0, 5.0])
    state = start_risk(RiskConfig(), CPU)._replace(multiplier=torch.tensor(4.0, dtype=torch.float64))
    torch.testing.assert_close(minding(reward, cost, state, Config(risk=RiskConfig(weight=0.25))), 0.75 * reward - 0.25 * cost)
    torch.testing.assert_close(minding(reward, cost, state, Config(risk=RiskConfig(limit=-1.0))), (reward - 4 * cost) / 5)
    assert minding(reward, cost, state, Config()) is reward


def test_the_price_rises_while_the_limit_is_broken_and_falls_when_it_is_kept():
    risk = RiskConfig(horizon="step", limit=-1.0, alpha=0.2)
    source = torch.Generator().manual_seed(8)
    wild, calm = (scale * torch.randn(30, 10, generator=source, dtype=torch.float64) for scale in (3.0, 0.1))
    state = start_risk(risk, CPU)
    prices = []
    for x in [wild] * 4 + [calm] * 40:
        state = assessed(state, x, risk)
        prices.append(float(state.multiplier))
    assert prices[:4] == sorted(prices[:4])
    assert prices[3] > 0.5
    assert prices[-1] == 0.0
    seen = figures(assessed(start_risk(risk, CPU), wild, risk), risk)
    assert float(violation(seen, -1.0)) == pytest.approx((-1 - float(seen.cvar)) / float(seen.std))


def test_the_price_rests_until_an_outcome_lies_in_the_tail():
    risk = RiskConfig(limit=100.0, alpha=0.05)
    state = assessed(start_risk(risk, CPU), torch.zeros(1, 19, dtype=torch.float64), risk)
    assert float(state.multiplier) == 0
    assert float(state.pid.steps) == 0
    assert float(assessed(state, torch.zeros(1, 1, dtype=torch.float64), risk).multiplier) > 0


def test_equal_outcomes_have_a_tail_too():
    """A game that always ends alike: no unit, no NaN, and the price still answers."""
    risk = RiskConfig(horizon="step", limit=1.0, alpha=0.2)
    state = assessed(start_risk(risk, CPU), torch.full((9, 3), 0.5, dtype=torch.float64), risk)
    assert float(figures(state, risk).cvar) == 0.5
    assert 0 < float(state.multiplier) <= risk.cap
    assert bool(charges(state, torch.full((9, 3), 0.5), risk).isfinite().all())


def test_the_tail_shrinks_to_alpha_over_its_share_of_training():
    risk = RiskConfig(alpha=0.1, alpha_decay=0.5)
    assert [tail_share(done, risk) for done in (0.0, 0.25, 0.5, 1.0)] == pytest.approx([1.0, 0.55, 0.1, 0.1])
    assert tail_share(0.0, RiskConfig(alpha=0.1)) == pytest.approx(0.1)


def test_what_the_cost_critic_says_stays_as_it_was_when_its_scale_moves():
    config = settings("choice", risk=RiskConfig(limit=2.0, alpha=0.4))
    *_, (agent, rollout, carry) = rollouts(Ragged("choice"), config, 2)

    def said(state):
        outputs, _ = agent.unroll(rollout.obs, rollout.memory[0], rollout.start)
        return outputs.costs * state.scale.std + state.scale.mean

    before = said(carry.risk)
    returns = 7 + 30 * torch.randn(rollout.reward.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    later = renewed(carry, rollout, returns[..., None], config, False, returns)
    assert float(later.risk.scale.std / carry.risk.scale.std) > 1.5
    adopt(carry, later, agent)
    torch.testing.assert_close(said(later.risk), before, rtol=1e-9, atol=1e-9)


def test_only_a_run_that_minds_risk_has_a_cost_critic():
    env = Ragged("choice")
    sizes = [
        sum(p.numel() for p in make_agent(settings("choice", risk=risk), env).parameters())
        for risk in (RiskConfig(), RiskConfig(weight=0.1))
    ]
    assert sizes[0] < sizes[1]
    for trunks, owner in (("shared", "shared"), ("actor_critic", "critic"), ("each", "cost")):
        agent = make_agent(settings("choice", risk=RiskConfig(weight=0.1), net={"trunks": trunks}), env)
        assert agent.cost_trunk == owner
        groups = agent.parameter_groups()
        assert "cost/head" in groups
        assert sum(len(members) for members in groups.values()) == len(list(agent.parameters()))


@pytest.mark.parametrize("trunks", ["shared", "actor_critic", "each"])
def test_the_loss_of_charges_reaches_the_cost_critic_and_its_trunk_alone(trunks):
    config = settings("choice", risk=RiskConfig(weight=0.5, alpha=0.4), net={"trunks": trunks})
    *_, (agent, rollout, _) = rollouts(Ragged("choice"), config, 1)
    outputs, _ = agent.unroll(rollout.obs, rollout.memory[0], rollout.start)
    torch.testing.assert_close(outputs.costs, rollout.costs, rtol=1e-12, atol=1e-12)
    outputs.costs.square().sum().backward()
    touched = {
        name.partition("/")[0]
        for name, members in agent.parameter_groups().items()
        if any(p.grad is not None and bool(p.grad.any()) for p in members)
    }
    assert touched == {"cost", agent.cost_trunk}


def test_a_limit_that_cannot_be_kept_is_told_and_breaks_nothing():
    env = CVaRPosition(64, cost=0.02)
    config = replace(
        settings("real", {"kind": "scalar", "twin": False}), total_timesteps=64 * 11 * 12, risk=RiskConfig(limit=1.0, cap=2.0)
    )
    *_, report = train(config, env)
    assert any("out of reach" in one for one in report.findings)
    assert report.metrics["risk/multiplier"] == 2.0
    assert float(report.carry.risk.pid.integral) <= 2.0
    assert all(bool(p.isfinite().all()) for p in report.agent.parameters())
    assert report.metrics["risk/violation"] == pytest.approx(1.0 - report.metrics["risk/cvar"])


def test_few_outcomes_are_told_once_they_should_be_more():
    config = replace(settings("choice", risk=RiskConfig(limit=-1.0, alpha=0.05)), total_timesteps=600)
    said = [
        one for report in train(config, Ragged("choice")) for one in report.findings if "outcomes carry the worst 0.05" in one
    ]
    assert len(said) == 1
    plenty = replace(config, risk=RiskConfig(limit=-1.0, alpha=0.3))
    assert not any("outcomes carry" in one for report in train(plenty, Ragged("choice")) for one in report.findings)


def test_sums_that_the_agent_does_not_see_are_told():
    config = replace(settings("choice", risk=RiskConfig(limit=-1.0)), total_timesteps=40)
    quiet = replace(config, risk=replace(config.risk, observe=False))
    heard = [
        any("does not see what the episode has gained" in one for one in next(iter(train(chosen, env))).findings)
        for chosen, env in (
            (config, Ragged("choice")),
            (config, ObserveGained(Ragged("choice"))),
            (quiet, Ragged("choice")),
            (replace(config, risk=RiskConfig()), Ragged("choice")),
        )
    ]
    assert heard == [True, False, False, False]


def test_risk_state_goes_through_a_checkpoint():
    config, env = settings("choice", risk=RiskConfig(horizon="window", window=3, limit=50.0, alpha=0.4)), Ragged("choice")
    *_, report = train(replace(config, total_timesteps=150), env)
    back = checkpoint.restore(checkpoint.from_bytes(checkpoint.to_bytes(report.progress, config, env)), Ragged("choice"))
    for name in ("outcomes", "recent", "nu", "shortfall", "multiplier"):
        torch.testing.assert_close(
            getattr(back.carry.risk, name), getattr(report.carry.risk, name), rtol=0, atol=0, equal_nan=True
        )
    assert back.carry.risk.alpha == report.carry.risk.alpha
    torch.testing.assert_close(back.carry.running.window, report.carry.running.window, rtol=0, atol=0)
    assert float(report.carry.risk.multiplier) > 0


# --- what has been gained is shown --------------------------------------------------------------------------------------


@pytest.mark.parametrize("same_step", KINDS)
@pytest.mark.parametrize("window", [None, 2])
def test_the_sum_is_shown_in_every_row(window, same_step):
    env = ObserveGained(Ragged("choice", same_step), window)
    source = torch.Generator().manual_seed(11)
    state, obs = env.reset(torch.randn(env.num_envs, 4, generator=source))
    assert obs.shape == (env.num_envs, 5)
    assert not obs[:, -1].any()
    gains = [[] for _ in range(env.num_envs)]
    ended = [False] * env.num_envs
    for _ in range(20):
        state, step = env.step(
            state, torch.ones(env.num_envs, dtype=torch.int64), torch.randn(env.num_envs, 4, generator=source)
        )
        for b, mine in enumerate(gains):
            restart = ended[b] and not same_step
            mine[:] = [] if restart else [*mine, float(step.reward[b])]
            ended[b] = bool(step.terminated[b] | step.truncated[b])
            reached = step.final_obs if same_step and ended[b] else step.obs
            assert float(reached[b, -1]) == pytest.approx(math.fsum(mine[-window:] if window else mine), rel=1e-12, abs=1e-12)
            if same_step and ended[b]:
                assert float(step.obs[b, -1]) == 0
                mine.clear()
    back = env.load_state(env.state_dict(state))
    for mine, its in zip(back[1:], state[1:], strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=0)


def test_everything_else_is_the_environments_own():
    """Every public method of an environment is answered, and a made-up market is made anew through the wrapper too."""
    public = {name for name in vars(TensorEnv) if not name.startswith("_") and callable(getattr(TensorEnv, name))}
    assert public <= set(vars(ObserveGained))
    market, told = MarketEnv(2, reward=Reward(scale=7.0)), []
    market.renew = lambda state, iteration: told.append((state, iteration))
    env = ObserveGained(market)
    state, _ = env.reset(torch.zeros(2, env.noise_dim))
    env.renew(state, 5)
    assert told == [(state.inner, 5)]
    assert env.reward_per_gain == 7.0


def test_nothing_is_charged_before_the_first_outcome():
    config = settings("choice", risk=RiskConfig(weight=0.5), ppo={"normalize_advantage": "off"})
    agent, rollout, carry = next(iter(rollouts(Ragged("choice"), config, 1)))
    blank = carry.risk._replace(nu=torch.full_like(carry.risk.nu, torch.nan))
    _, found = estimate(rollout, agent, carry.scale, generator(0, Stream.TARGETS, 0), config, blank)
    assert not found.cost_advantages.any()
    torch.testing.assert_close(found.cost_returns, (rollout.costs[0, :-1] * blank.scale.std + blank.scale.mean))


def test_choices_and_groups_get_a_part_of_their_own():
    assert widened(Discrete(3)) == Group((("obs", Discrete(3)), ("gained", Box((1,)))))
    group = Group((("left", Box((2,))),))
    assert widened(group) == Group((("left", Box((2,))), ("gained", Box((1,)))))
    assert widened(Box((2,), 0.0, (1.0, 2.0))) == Box((3,), (0.0, 0.0, -math.inf), (1.0, 2.0, math.inf))
    with pytest.raises(ConfigError, match="already has a part named 'gained'"):
        widened(widened(group))
    with pytest.raises(ConfigError, match="window=0"):
        ObserveGained(Ragged("choice"), 0)


def test_a_named_environment_shows_its_sum_where_the_tail_of_a_sum_is_minded():
    named, minded = EnvConfig(id="quantail/HiddenRegime", num_envs=2), RiskConfig(limit=-1.0)
    assert isinstance(make(named, risk=minded), ObserveGained)
    for risk in (None, RiskConfig(), replace(minded, observe=False), replace(minded, horizon="step")):
        assert not isinstance(make(named, risk=risk), ObserveGained)
    windowed = make(named, risk=replace(minded, horizon="window", window=4))
    assert isinstance(windowed, ObserveGained)
    assert windowed.window_rows == 4
    assert gained_is_seen(windowed, replace(minded, horizon="window", window=4))
    assert not gained_is_seen(windowed, replace(minded, horizon="window", window=5))
    blind = StaticNested(2, observe_return=False)
    assert gained_is_seen(StaticNested(2), minded)
    assert not gained_is_seen(blind, minded)


# --- refusals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"horizon": "day"}, "horizon='day'"),
        ({"window": 0}, "window=0"),
        ({"alpha": 1.0}, "alpha=1.0"),
        ({"weight": 1.5}, "weight=1.5"),
        ({"limit": math.nan}, "limit=nan"),
        ({"alpha_decay": -0.1}, "alpha_decay=-0.1"),
        ({"memory": 399}, "use at least 400"),
        ({"nu_rate": 0.0}, "nu_rate=0.0"),
        ({"kp": -1.0}, "kp=-1.0"),
        ({"ki": -1.0}, "ki=-1.0"),
        ({"kd": -1.0}, "kd=-1.0"),
        ({"delay": 0}, "delay=0"),
        ({"smoothing": 1.0}, "smoothing=1.0"),
        ({"cap": 0.0}, "cap=0.0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(values, said):
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        RiskConfig(**values)


def test_an_episode_of_its_own_sum():
    """`advance` alone: the total starts anew after an end, the window does not, for its rows are counted by `length`."""
    running = Running(torch.zeros(1, dtype=torch.float64), torch.zeros(0, 1, dtype=torch.float64))
    risk = RiskConfig()
    yes, no = torch.tensor([True]), torch.tensor([False])
    outcome, running = advance(running, torch.tensor([2.0]), torch.tensor([1.0]), no, yes, risk)
    assert bool(outcome.isnan())
    outcome, running = advance(running, torch.tensor([3.0]), torch.tensor([2.0]), yes, yes, risk)
    assert outcome.tolist() == [5.0]
    outcome, running = advance(running, torch.tensor([4.0]), torch.tensor([1.0]), yes, yes, risk)
    assert outcome.tolist() == [4.0]


def test_the_market_says_whether_it_shows_what_was_gained():
    market = MarketEnv(3)
    assert market.observes_gained
    assert gained_is_seen(market, RiskConfig(limit=-0.1))
    hidden = MarketEnv(3, episode=replace(market.episode, parts=("features", "weights")))
    assert not gained_is_seen(hidden, RiskConfig(limit=-0.1))


# --- what the parts hand on ---------------------------------------------------------------------------------------------


def test_windows_that_overlap_do_not_count_as_many():
    risk = RiskConfig(horizon="window", window=4, alpha=0.5)
    state = assessed(start_risk(risk, CPU), torch.arange(80, dtype=torch.float64).reshape(16, 5), risk)
    assert float(figures(state, risk).tail_samples) == 0.5 * 80 / 4


def test_the_cost_critic_begins_in_the_unit_of_the_first_charges():
    config = settings("choice", risk=RiskConfig(weight=0.5, alpha=0.4))
    (_, rollout, carry), (_, _, later) = rollouts(Ragged("choice"), config, 2)
    silent = rollout._replace(costs=torch.zeros_like(rollout.costs))
    plain = carry.risk._replace(scale=start_risk(config.risk, CPU).scale)
    returns = slow_cost_advantages(silent, plain, config)  # of values 0: the sums of charges themselves
    weight = rollout.value_weight
    mean = (returns * weight).sum() / weight.sum()
    deviation = (((returns - mean).square() * weight).sum() / weight.sum()).sqrt()
    torch.testing.assert_close(carry.risk.scale.mean, mean, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(carry.risk.scale.std, deviation, rtol=1e-10, atol=1e-10)
    assert float(later.risk.scale.std) == float(carry.risk.scale.std)  # only an update moves it from there


def test_the_cost_critic_learns_its_target():
    config = settings("choice", risk=RiskConfig(weight=0.5, alpha=0.4))
    *_, (agent, rollout, carry) = rollouts(Ragged("choice"), config)
    batch, _ = estimate(rollout, agent, carry.scale, generator(0, Stream.TARGETS, 0), config, carry.risk)
    totals = (batch.policy_weight.sum(), batch.value_weight.sum())
    loss, stats = batch_loss(agent, Part(batch, rollout.memory[0], 0, *totals), turned(), config)
    error = (rollout.costs[0, :-1] - batch.cost_target).square()
    expected = (error * batch.value_weight).sum() / batch.value_weight.sum()
    torch.testing.assert_close(stats["cost_loss"], expected, rtol=1e-10, atol=1e-10)
    without, _ = batch_loss(agent, Part(batch._replace(cost_target=None), rollout.memory[0], 0, *totals), turned(), config)
    torch.testing.assert_close(loss - without, config.critic.vf_coef * expected, rtol=1e-9, atol=1e-9)


def test_parameters_carry_the_scale_of_the_charges():
    config, env = settings("choice", risk=RiskConfig(weight=0.5, alpha=0.4)), Ragged("choice")
    *_, report = train(replace(config, total_timesteps=150), env)
    fresh = begin(config, env)
    told = with_parameters(fresh, {STATISTICS: statistics_of(report.progress)}, exact=False)
    assert float(fresh.carry.risk.scale.std) == 1.0
    assert told.carry.risk.scale == report.carry.risk.scale
    assert told.carry.risk.moments == report.carry.risk.moments


def test_an_environment_that_is_watched_says_what_it_said_before():
    market = MarketEnv(2, reward=Reward(scale=7.0))
    watched = Watched(market, lambda action, step: None)
    assert (watched.reward_per_gain, watched.observes_gained) == (7.0, True)
