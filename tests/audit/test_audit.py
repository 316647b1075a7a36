"""Each question answers yes to an honest market and no to one with the fault it looks for."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from market.worlds import bars_of
from quantail.audit import QUESTIONS, accounts, audit, contract, leaks, learning
from quantail.audit.subject import Subject, alone
from quantail.audit.tossed import tossed
from quantail.errors import InputError
from quantail.market.costs import Costs, perps
from quantail.market.env import MarketEnv
from quantail.market.features import functions_of
from quantail.market.terms import Reward, Rules

BARS = bars_of(900, 2, seed=4, missing=0.02)
FEW = functions_of(["return_1", "return_5", "rsi_14", "since_valid"])
HONEST = Subject(BARS, FEW)
LIMITS = {"max_weight": 0.5, "max_net": 0.3, "max_participation": 0.5, "lot_size": 0.1, "min_notional": 50.0, "cooldown": 1}
STRICT = Rules("next_close", "exact", "long_short", leverage=1.5, maintenance=0.1, delisted_after=9, haircut=0.5, **LIMITS)


def next_move(bars):
    """The return of the bar that comes next."""
    close = bars.close.nan_to_num(nan=1.0)
    return torch.cat([close[1:] / close[:-1] - 1, torch.zeros(1, close.shape[1])])


LEAKING = Subject(BARS, {**FEW, "next": next_move})


@pytest.mark.parametrize(
    "subject",
    [
        HONEST,
        Subject(bars_of(900, 1, seed=5), FEW, perps(), Rules(actions="long_short", leverage=2.0), Reward("sharpe")),
        Subject(bars_of(900, 3, seed=6), FEW, Costs(slippage_bps=2.0, randomized_to=2.0), Rules(actions="simplex", band=0.05)),
        Subject(bars_of(900, 3, seed=7, missing=0.2), FEW, Costs(impact_y=0.6, borrow_per_year=0.1), STRICT, Reward("excess")),
    ],
)
@pytest.mark.parametrize("name", [name for name, _ in QUESTIONS if name != "oracle feature"])
def test_an_honest_market_has_the_right_answers(name, subject):
    check = dict(QUESTIONS)[name](subject)
    assert check.name == name
    assert check.ok, check
    assert check.seen


def test_a_feature_that_looks_ahead_fails_three_questions():
    first, second, third = leaks.prefix(LEAKING), leaks.scramble(LEAKING), leaks.lag(LEAKING)
    assert (first.ok, second.ok, third.ok) == (False, False, False)
    assert "feature 'next' looks ahead" in first.seen
    assert "the observation at bar" in second.seen
    assert "one bar late" in third.seen


def test_the_scrambled_bar_is_the_one_that_was_seen_too_early():
    said = leaks.scramble(LEAKING).seen
    changed, cut = (int(word) for word in said.replace(" changes", "").split() if word.isdigit())
    assert changed == cut  # the last row that is played is the first that can know a bar after it


def test_an_environment_that_pays_tomorrows_return_is_seen(monkeypatch):
    honest = MarketEnv.step

    def early(self, state, action, noise):
        after, step = honest(self, state, action, noise)
        tape = self.ground.tape
        row = (state.row + 1).clamp(max=len(tape.gap) - 1)
        later = tape.gap[row].reshape(self.num_envs, -1).mean(-1)
        return after, step._replace(reward=step.reward + later.to(step.reward.dtype))

    monkeypatch.setattr(MarketEnv, "step", early)
    check = leaks.scramble(HONEST)
    assert not check.ok
    assert "the reward at bar" in check.seen


def test_a_market_that_pays_for_nothing_is_seen(monkeypatch):
    honest = MarketEnv.step

    def generous(self, state, action, noise):
        after, step = honest(self, state, action, noise)
        return after, step._replace(info={**step.info, "intrabar": step.info["intrabar"] + 2e-4})

    monkeypatch.setattr(MarketEnv, "step", generous)
    assert not accounts.null_market(HONEST).ok


@pytest.mark.parametrize("fault", ["standing still", "currency", "buy and hold", "other side"])
def test_money_that_does_not_add_up_is_seen(monkeypatch, fault):
    bars, names = alone(BARS, 0, 300), ("standing_still", "currency", "buy_and_hold", "other_side")
    calls = {
        "standing still": lambda: accounts.standing_still(HONEST, bars),
        "currency": lambda: accounts.currency(HONEST, bars),
        "buy and hold": lambda: accounts.buy_and_hold(HONEST),
        "other side": lambda: accounts.other_side(HONEST, bars),
    }
    assert len(names) == len(calls)
    assert calls[fault]() <= accounts.EXACT
    honest = MarketEnv.step

    def wrong(self, state, action, noise):
        after, step = honest(self, state, action, noise)
        dear = 1 + 1e-6 * (state.equity > 1e6)  # what costs more in cents than in dollars
        equity = after.equity * (dear if fault == "currency" else 1 + 1e-7)
        pnl = (equity / state.equity).log() if fault == "currency" else step.pnl
        return after._replace(equity=equity), step._replace(info={**step.info, "equity": equity}, pnl=pnl)

    lived = accounts.live

    def richer(*args):
        one = lived(*args)
        return one._replace(after=one.after._replace(equity=one.after.equity * (1 + 1e-7)))

    monkeypatch.setattr(MarketEnv, "step", wrong)
    monkeypatch.setattr(accounts, "live", richer)
    assert calls[fault]() > accounts.EXACT


def test_costs_are_asked_as_they_are_configured(monkeypatch):
    """Impact that nobody pays, or only when several assets are bought at once: seen in their market, of three assets."""
    from quantail.market import account

    subject = Subject(bars_of(900, 3, seed=8), FEW, Costs(impact_y=0.6))
    assert accounts.buy_and_hold(subject) <= accounts.EXACT
    honest = account.charges
    monkeypatch.setattr(account, "charges", lambda *args: {**honest(*args), "impact": 0.0 * args[1].sum(-1)})
    assert accounts.buy_and_hold(subject) > accounts.EXACT


def test_copies_go_nowhere_and_move_as_the_bars_do():
    """Each relative is 1 ± the bar's own, by the same coin for all assets; half of the coins say each; bars stay possible."""
    bars = bars_of(40, 3, seed=9, missing=0.2)
    copies = tossed(bars, 200, seed=1)  # `Bars` itself refuses a low above an open
    assert copies.valid.reshape(40, 200, 3).eq(bars.valid[:, None]).all()
    move = (copies.close / copies.open - 1).reshape(40, 200, 3) / (bars.close / bars.open - 1)[:, None]
    before = bars.close[:-1]
    gap = (copies.open[1:] / copies.close[:-1] - 1).reshape(39, 200, 3) / (bars.open[1:] / before - 1)[:, None]
    for ratio in (move, gap):
        assert ratio[~ratio.isnan()].abs().sub(1).abs().max() < 1e-6
        signs = ratio.sign().nan_to_num()
        assert ((signs.max(-1).values - signs.min(-1).values) < 2).all()
        assert abs(float(ratio.nanmean())) < 0.05
    assert float((move[1:] * gap).nanmean()) < 0.1  # coins of their own
    high, low = (((x / copies.open).reshape(40, 200, 3) - 1).abs().nan_to_num() for x in (copies.high, copies.low))
    up, down = ((x / bars.open - 1).abs().nan_to_num()[:, None] for x in (bars.high, bars.low))
    turned = move < 0
    assert torch.where(turned, high - down, high - up).abs().max() < 1e-9
    assert torch.where(turned, low - up, low - down).abs().max() < 1e-9


def test_gymnasiums_complaints_are_heard(monkeypatch):
    from quantail.market.single import SingleMarket

    honest = SingleMarket.reset
    monkeypatch.setattr(
        SingleMarket, "reset", lambda self, *, seed=None, options=None: honest(self, seed=None, options=options)
    )
    check = contract.gymnasium_contract(HONEST)
    assert not check.ok
    assert check.seen


@pytest.mark.slow
def test_an_agent_that_is_told_gets_rich_and_one_that_is_told_nothing_does_not(monkeypatch):
    subject = Subject(bars_of(900, 1, seed=5), FEW)
    check = learning.oracle(subject)
    assert check.ok, check
    honest = learning.small
    monkeypatch.setattr(
        learning, "small", lambda seed: replace(honest(seed), optim=replace(honest(seed).optim, learning_rate=1e-9))
    )
    assert not learning.oracle(subject).ok


def test_all_seven_are_asked_whatever_one_of_them_says(monkeypatch):
    asked = []
    monkeypatch.setattr(learning, "STEPS", 100)
    subject = Subject(BARS, {**FEW, "broken": lambda bars: bars.nothing})
    checks = audit(subject, asked.append)
    assert [one.name for one in checks] == [name for name, _ in QUESTIONS]
    assert asked == checks
    answers = {one.name: one.ok for one in checks}
    assert not answers["prefix invariance"]
    assert answers["null market"]
    assert answers["invariances"]


def test_too_little_history_is_refused():
    with pytest.raises(InputError, match="150 bars are too few to audit"):
        Subject(bars_of(150, 1), FEW)
    valid = torch.zeros(300, 1, dtype=torch.bool)
    valid[:10] = True
    with pytest.raises(InputError, match="10 valid bars"):
        alone(replace(bars_of(300, 1), valid=valid), 0)


def test_an_asset_alone_is_its_valid_bars():
    one = alone(BARS, 1, 500)
    valid = BARS.valid[:, 1].numpy()
    np.testing.assert_array_equal(one.close[:, 0].numpy(), BARS.close[:, 1].numpy()[valid][-500:])
    assert one.valid.all()
    assert one.symbols == ("S1",)
