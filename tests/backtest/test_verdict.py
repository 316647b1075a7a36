"""What a verdict claims, and above all what it does not."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from backtest.stages import course, synthetic
from quantail.backtest import baselines, known, metrics
from quantail.backtest.baselines import CASH, HOLD
from quantail.backtest.inference import judged
from quantail.backtest.significance import probabilistic_sharpe
from quantail.backtest.track import as_orders, told
from quantail.backtest.verdict import BROKEN, KEPT, WITHIN, Asked, judge, outcomes
from quantail.backtest.words import chance
from quantail.config import RiskConfig
from quantail.errors import ConfigError, InputError
from quantail.market import policies

FALLING = 13  # a seed whose path falls


class Scene:
    """A course, the two baselines that a verdict needs, and verdicts on policies over it."""

    def __init__(self, market, paths=1, bars=1321, seed=0, extra=(), **rules):
        self.course = course(synthetic(market, paths=paths, bars=bars, seed=seed, **rules))
        orders = {HOLD: baselines.held(self.course), CASH: np.zeros(baselines.shape_of(self.course))}
        if "known" in extra:
            orders |= {best.name: as_orders(self.course, best.weights) for best in known.strongest(self.course)}
        self.rivals = baselines.walked(self.course, orders)

    @property
    def close(self):
        return torch.from_numpy(self.course.closes[..., 0])

    def track(self, weights):
        return told(self.course, as_orders(self.course, weights), "policy")

    def on(self, *tracks, **asked):
        return judge(tracks, self.rivals, [baselines.shuffled(self.course, one) for one in tracks], Asked(**asked))


@pytest.fixture(scope="module")
def drift():
    """The market in which memory earns money, 24 paths of three years."""
    return Scene("hidden_drift", paths=24, bars=816, extra=("known",))


@pytest.fixture(scope="module")
def filtered(drift):
    """The policy that is known for its Sharpe ratio there, as an agent."""
    return drift.track(known.strongest(drift.course)[0].weights)


def test_real_skill_is_found_and_is_all_of_what_can_be_had(drift, filtered):
    found = drift.on(filtered)
    assert found.skill
    assert found.headline.startswith("Skill found")
    assert max(found.cash.p_better, found.hold.p_better, found.timing.p_better) < 1e-4
    assert found.known.sharpe_part == pytest.approx(1.0, abs=1e-12)
    assert found.known.sharpe_interval == pytest.approx((1.0, 1.0), abs=1e-6)
    assert 0.85 < found.known.growth_part < 1.0
    assert "Yes, for the risk it takes" in str(found)
    assert "100 % [100 %, 100 %] in Sharpe ratio" in str(found).replace("\N{NO-BREAK SPACE}", " ")
    assert len(str(found).splitlines()) == 7


def test_the_figures_are_those_of_the_metrics(drift, filtered):
    found = drift.on(filtered)
    year = filtered.periods_per_year
    every = filtered.net.T.ravel()
    assert year == pytest.approx(252, rel=1e-9)
    assert found.sharpe == pytest.approx(metrics.sharpe(every, year), rel=1e-12)
    assert found.growth == pytest.approx(math.log1p(metrics.cagr(every, year)), rel=1e-12)
    hold = drift.rivals[HOLD].net.T.ravel()
    assert found.hold.value == pytest.approx(metrics.sharpe(every, year) - metrics.sharpe(hold, year), rel=1e-12)
    assert found.hold.ours - found.hold.theirs == pytest.approx(found.hold.value, rel=1e-12)
    assert found.hold_growth.value == pytest.approx((np.log1p(every) - np.log1p(hold)).mean() * year, rel=1e-9)
    assert found.cash.value == pytest.approx(np.log1p(every).mean() * year, rel=1e-12)
    assert found.deflated_sharpe == pytest.approx(probabilistic_sharpe(every), rel=1e-12)
    assert found.years == pytest.approx(755 / 252, rel=1e-9)


def test_timing_is_what_is_lost_when_the_weights_come_in_another_order(drift, filtered):
    found = drift.on(filtered)
    nets = baselines.shuffled(drift.course, filtered)
    mean = np.mean([metrics.sharpe(nets[..., i].ravel(), 252) for i in range(nets.shape[2])])
    assert found.timing.theirs == pytest.approx(mean, rel=1e-6)
    assert abs(found.timing.theirs) < 0.25 < found.timing.ours


@pytest.mark.parametrize("exposure", [1.0, 0.4])
def test_a_rising_market_is_no_skill(exposure):
    """Nothing is known there: who is always long earns a lot, for sure, and has shown nothing."""
    scene = Scene("stocks", paths=40, bars=1321)
    found = scene.on(scene.track(torch.full_like(scene.close, exposure)))
    assert found.cash.p_better < 1e-3
    assert not found.skill
    assert found.timing.p_better > 0.01
    assert abs(found.hold.value) < 0.01  # less of the same is no better for its risk


def test_leverage_is_no_skill():
    """More of the same earns more in money and nothing for its risk."""
    scene = Scene("stocks", paths=40, bars=1321, leverage=2.0, actions="long_short")
    found = scene.on(scene.track(torch.full_like(scene.close, 2.0)))
    assert found.hold_growth.p_better < 0.01
    assert not found.skill
    assert found.hold.p_better > 0.01


def test_who_timed_well_and_lost_his_money_has_no_skill(drift, filtered):
    """Thirty times the position: about the same Sharpe ratio, a mean return far above 0, and nothing left of the money."""
    assert drift.on(filtered).skill
    net = np.maximum(30 * filtered.net, -0.99)
    assert judged(net).p_above < 1e-4
    greedy = replace(filtered, net=net)
    found = judge([greedy], drift.rivals, [np.maximum(30 * baselines.shuffled(drift.course, filtered), -0.99)])
    assert max(found.hold.p_better, found.timing.p_better) < 0.01
    assert found.growth < -1
    assert not found.skill
    assert found.headline == "No skill found: it loses money after costs."
    assert "it earns less than cash" in str(found)


def test_staying_out_of_a_falling_market_is_no_skill():
    """Beating buy & hold with a third of the position in a market that falls: the same weights in any order do."""
    scene = Scene("hidden_drift", paths=1, bars=400, seed=FALLING)
    noise = torch.rand(scene.close.shape, generator=torch.Generator().manual_seed(1))
    found = scene.on(scene.track((noise * 0.1).double()))
    assert found.hold_growth.ours > found.hold_growth.theirs + 0.05
    assert not found.skill
    assert found.timing.p_better > 0.01


def test_who_holds_nothing_has_nothing_to_be_judged(drift):
    found = drift.on(drift.track(torch.zeros_like(drift.close)))
    assert not found.skill
    assert math.isnan(found.sharpe)
    assert found.headline == "No skill found: it never held anything that moved."
    assert "no Sharpe ratio to compare" in str(found)
    assert "There is no timing to judge" in str(found)
    assert "–" not in str(found)  # a sentence has numbers, or does without


def test_a_chance_is_read_as_a_person_writes_it():
    said = {1e-9: "below 0.01 %", 0.00123: "0.12 %", 0.0977: "9.8 %", 0.5: "50 %", 0.9961: "100 %", 1.0: "100 %"}
    assert {p: chance(p).replace("\N{NO-BREAK SPACE}", " ") for p in said} == said


def test_who_pays_too_much_loses_money(drift):
    luck = torch.rand(drift.close.shape, generator=torch.Generator().manual_seed(3))
    found = drift.on(drift.track(policies.random_positions(luck)))
    assert found.headline == "No skill found: it loses money after costs."
    assert found.cash.p_worse < 0.01
    assert found.timing.p_better > 0.01  # its costs are those of any order


def test_the_more_agents_are_tried_the_more_it_takes(drift):
    """One of 2000 agents at a chance of 1 in 10,000 is no news."""
    weak = drift.track(policies.momentum(drift.close, 120).clamp(min=0.0) * 0.5)
    alone = drift.on(weak)
    level = max(alone.cash.p_better, alone.hold.p_better, alone.timing.p_better)
    assert 1e-6 < level < 0.3
    for level_asked in (level * 1.01, level * 0.99):
        found = drift.on(weak, level=level_asked)
        assert found.skill == (level_asked > level)
    assert Asked(level=0.01).each == pytest.approx(0.01, rel=1e-12)
    assert 1 - (1 - Asked(trials=37).each) ** 37 == pytest.approx(0.01, rel=1e-9)
    spread = tuple(np.linspace(-0.3, 0.3, 9))
    found = drift.on(weak, trials=900, trial_sharpes=spread, level=level * 1.01)
    assert not found.skill
    assert found.deflated_sharpe < 0.5 < alone.deflated_sharpe
    assert "900 agents have been judged" in str(found).replace("900 Agents", "900 agents")


def test_no_sentence_says_yes_where_the_trials_take_it_back(drift):
    """What is sure of one agent is not sure of the best of many, in the sentences no more than in the headline."""
    weak = drift.track(policies.momentum(drift.close, 120).clamp(min=0.0) * 0.5)
    alone = drift.on(weak)
    level = 1.01 * max(alone.hold.p_better, alone.timing.p_better)
    surely, tried = drift.on(weak, level=level), drift.on(weak, level=level, trials=500)
    yes = ("Yes, for the risk it takes", "Its timing earns money")
    assert all(word in str(surely) for word in yes)
    assert not any(word in str(tried) for word in yes)
    assert tried.each == pytest.approx(Asked(level=level, trials=500).each, rel=1e-12)
    assert "each chance of luck has to be below" in tried.sentences[-1]


def test_the_best_of_trials_that_differ_widely_is_not_believed(drift, filtered):
    """Each comparison by itself is beyond doubt; but the best of three worthless agents that differ so much is as good."""
    found = drift.on(filtered, trials=3, trial_sharpes=(-0.5, 0.0, 0.5))
    assert max(found.cash.p_better, found.hold.p_better, found.timing.p_better) < Asked(trials=3).each
    assert found.deflated_sharpe < 0.99
    assert not found.skill
    assert drift.on(filtered, trials=3, trial_sharpes=(0.0, 0.001, 0.002)).skill


def test_seeds_are_averaged_and_none_is_picked(drift, filtered):
    luck = torch.rand(drift.close.shape, generator=torch.Generator().manual_seed(3))
    poor = drift.track(policies.random_positions(luck))
    found, one, two = drift.on(filtered, poor), drift.on(filtered), drift.on(poor)
    assert (found.seeds, found.seeds_better) == (2, 1)
    assert found.sharpe == pytest.approx((one.sharpe + two.sharpe) / 2, rel=1e-12)
    assert found.hold.value == pytest.approx((one.hold.value + two.hold.value) / 2, rel=1e-12)
    assert found.seed_sharpes == pytest.approx((one.sharpe, two.sharpe), rel=1e-12)
    assert not found.skill
    assert "1 of 2 seeds beat buy & hold" in str(found)


@pytest.mark.parametrize(("horizon", "count"), [("step", 755), ("window", 755 - 9), ("episode", 755 // 151)])
def test_the_tail_is_that_of_the_outcomes_that_were_limited(drift, filtered, horizon, count):
    risk = RiskConfig(horizon=horizon, window=10, alpha=0.1, limit=-0.5)
    logs = np.log1p(filtered.net)
    length = {"step": 1, "window": 10, "episode": 151}[horizon]
    slow = [logs[t : t + length].sum(axis=0) for t in range(0, 755 - length + 1, length if horizon == "episode" else 1)]
    np.testing.assert_allclose(outcomes(logs, risk, 151), slow, atol=1e-12)
    assert len(slow) == count
    found = drift.on(filtered, risk=risk, episode=151).tail
    assert found.cvar == pytest.approx(metrics.expected_shortfall(np.ravel(slow), 0.1), rel=1e-9)
    assert found.answer == KEPT
    low, high = found.interval
    for limit, answer in ((low - 1e-6, KEPT), (low + 1e-6, WITHIN), (high - 1e-6, WITHIN), (high + 1e-6, BROKEN)):
        assert drift.on(filtered, risk=replace(risk, limit=limit), episode=151).tail.answer == answer


def test_the_tail_limit_is_told_in_words(drift, filtered):
    risk = RiskConfig(horizon="window", window=10, limit=-0.5)
    cvar = drift.on(filtered, risk=risk).tail.cvar
    said = {limit: str(drift.on(filtered, risk=replace(risk, limit=limit))) for limit in (-0.5, cvar - 1e-4, cvar + 1e-4, 0.0)}
    words = ("is kept:", "is kept as far as can be told", "is missed, by less than the data can tell", "is broken")
    assert all(word in text for word, text in zip(words, said.values(), strict=True))
    assert drift.on(filtered, risk=RiskConfig()).tail is None


def test_a_fill_that_nobody_can_have_claims_nothing(drift, filtered):
    found = drift.on(filtered, warning="fill='same_close' cannot be done")
    assert not found.skill
    assert found.sentences[0] == "fill='same_close' cannot be done"
    assert found.headline.startswith("No skill can be claimed here")


def test_how_long_it_would_take_to_be_sure():
    scene = Scene("hidden_drift", bars=1321, seed=2)
    found = scene.on(scene.track(policies.momentum(scene.close, 20)))
    assert found.hold.value > 0
    assert found.hold.p_better > 0.01
    t = found.hold.value / (found.hold.interval[1] - found.hold.value)
    assert found.years_needed == pytest.approx(
        found.years * (2.602480 / 2.131450 / t) ** 2, rel=1e-5
    )  # t of 15 at 99 %, 97.5 %
    assert f"a lead like this over buy & hold would need about {found.years_needed:.1f} years to be sure" in str(found)


def test_what_does_not_belong_together_is_refused(drift, filtered):
    nets = baselines.shuffled(drift.course, filtered)
    with pytest.raises(InputError, match="1 tracks and 0 shuffles"):
        judge([filtered], drift.rivals, [])
    with pytest.raises(InputError, match="no cash"):
        judge([filtered], {HOLD: drift.rivals[HOLD]}, [nets])
    with pytest.raises(InputError, match="of one course"):
        judge([filtered], drift.rivals, [nets[1:]])
    with pytest.raises(InputError, match="count every agent"):
        Asked(trials=1, trial_sharpes=(0.1, 0.2))
    with pytest.raises(ConfigError):
        Asked(trials=0)
    with pytest.raises(InputError, match="needs a longer stretch"):
        outcomes(np.zeros((9, 1)), RiskConfig(horizon="window", window=10), 0)


# --- where nothing is to be found -------------------------------------------------------------------------------------


HABITS = (
    lambda close: policies.momentum(close, 20),
    lambda close: policies.momentum(close, 60).clamp(min=0.0),
    lambda close: -policies.momentum(close, 3),
)


def nulls(paths, habit):
    """Verdicts on each of so many Brownian paths of five years by itself, and what was earned there before costs."""
    scene = Scene("gbm", paths=paths, seed=77)
    track = scene.track(habit(scene.close))
    nets, found = baselines.shuffled(scene.course, track), []
    for i in range(paths):
        alone = replace(track, net=track.net[:, [i]], ruined=track.ruined[[i]])
        rivals = {name: replace(rival, net=rival.net[:, [i]]) for name, rival in scene.rivals.items()}
        found.append(judge([alone], rivals, [nets[:, [i]]]))
    return found, track.gross.sum(axis=0)


def check_nothing_found(paths, habit):
    """No more than 3 of 100 may be claimed: by luck one claim comes once in a hundred."""
    found, gross = nulls(paths, habit)
    assert sum(one.skill for one in found) <= 3 * paths / 100
    ps = np.array([(one.cash.p_better, one.hold.p_better, one.timing.p_better) for one in found])
    assert ((ps <= 0.01).mean(axis=0) <= 0.05).all()  # 6 or more of 100 happen by luck once in 1900 tries
    assert (ps <= 0.5).mean() > 0.1  # the test does move
    assert abs(gross.mean() / (gross.std(ddof=1) / math.sqrt(paths))) <= 3  # without its costs it has earned nothing


def test_null_markets_have_no_skill():
    check_nothing_found(33, HABITS[0])


@pytest.mark.slow
@pytest.mark.parametrize("habit", HABITS)
def test_a_hundred_null_markets_have_no_skill(habit):
    check_nothing_found(100, habit)


def test_the_claim_needs_all_three_at_once(drift, filtered):
    """Each of the three by itself may be had for nothing."""
    nets = [filtered.net]
    assert judged(nets[0]).p_above < 0.01
    rich = {**drift.rivals, HOLD: replace(drift.rivals[HOLD], net=filtered.net + 1e-4)}
    shuffles = [baselines.shuffled(drift.course, filtered)]
    assert not judge([filtered], rich, shuffles).skill
    same = [np.repeat(filtered.net[..., None], 4, axis=2) + 1e-4 * np.random.default_rng(0).standard_normal((755, 24, 4))]
    assert not judge([filtered], drift.rivals, same).skill
    poor = replace(filtered, net=filtered.net - filtered.net.mean())
    assert not judge([poor], drift.rivals, shuffles).skill
    assert judge([filtered], drift.rivals, shuffles).skill
