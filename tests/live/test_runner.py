"""A runner on bars one by one is the backtest on all of them: same weights, same equity, whatever rules and costs there are."""

import math
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pandas as pd
import pytest
import torch

import quantail
from live.worlds import backtest, market_on, model_in, replayed, runner_of, some_rows, streamed, weekdays, without
from market.worlds import bars_of
from quantail import DistributionalPPO, InputError, Runner, checkpoint, load_bars
from quantail.checkpoint import store
from quantail.config import Config, EnvConfig, PpoConfig, RiskConfig, RunConfig
from quantail.envs.running import ObserveGained
from quantail.errors import ConfigError
from quantail.live import Candle
from quantail.live.source import checkpoint_in
from quantail.market.costs import Costs, preset
from quantail.market.env import MarketEnv
from quantail.market.features import compute
from quantail.market.make import on_part
from quantail.market.normalise import fit
from quantail.market.series import NANOSECONDS
from quantail.market.terms import Episode, Reward, Rules
from quantail.market.world import Recorded, Synthetic, plain_features

EQUAL = {"rtol": 0.0, "atol": 1e-9}
BEGIN, END = 720, 816  # whole days of hours, so that a day's volume is told alike by the history and by all bars


def compared(
    bars, begin=BEGIN, ends_in=True, features=None, functions=None, settings=None, wrap=lambda env: env, seed=0, **options
):
    """Runner and backtest over the same bars; the runner has the history alone. Weights as decided, for further questions."""
    seen = features or compute(bars)
    units = fit(seen, bars, range(begin))
    trained = market_on(bars.rows(0, begin), None, seen.rows(0, begin), units, Episode(length=252), **options)
    model = model_in(wrap(trained), seed, **(settings or {}))
    judge = wrap(market_on(bars, range(begin, len(bars)), seen, units, **options))
    count = len(bars) - 1 - begin
    weights, equity, _ = backtest(model, judge, count)
    runner = runner_of(model, bars.rows(0, begin), ends_in=count if ends_in else 0, functions=functions)
    found, account = streamed(runner, bars, range(begin, len(bars)))
    np.testing.assert_allclose(np.array(found)[:count], weights, **EQUAL)
    np.testing.assert_allclose(account[1:] / account[0], equity / account[0], **EQUAL)
    assert np.ptp(weights, 0).min() > 0.05  # or nothing was compared
    assert np.ptp(equity) > 0.001 * equity[0]
    return runner, weights


CASES = {
    "one asset": (1, 0.0, {}),
    "three, some missing": (
        3,
        0.1,
        {"rules": Rules(actions="long_short", leverage=2.0, sizing="exact"), "costs": preset("us_stocks")},
    ),
    "grid": (1, 0.05, {"rules": Rules(cooldown=3, band=0.1, fill="next_close"), "reward": Reward("sharpe")}),
    "grid of two": (2, 0.05, {"rules": Rules(levels=(0.0, 0.4), cooldown=2, lot_size=0.7), "reward": Reward("downside")}),
    "impact": (3, 0.05, {"rules": Rules(actions="simplex"), "costs": Costs(impact_y=0.8, slippage_bps=3.0)}),
    "margin": (1, 0.0, {"rules": Rules(actions="tanh", leverage=3.0, maintenance=0.3), "costs": preset("perps")}),
    "excess, participation, delisting": (
        3,
        0.3,
        {
            "rules": Rules(actions="long_short", max_participation=0.01, max_weight=0.7, delisted_after=4, haircut=0.1),
            "reward": Reward("excess"),
            "costs": preset("crypto_spot"),
        },
    ),
    "long only": (
        2,
        0.0,
        {"rules": Rules(actions="long_only", min_notional=2000.0), "reward": Reward("mean_variance"), "seed": 2},
    ),
}


@pytest.mark.parametrize(("assets", "missing", "options"), CASES.values(), ids=CASES)
def test_weights_and_equity_are_those_of_the_backtest(assets, missing, options):
    compared(bars_of(END, assets, seed=7, missing=missing), **options)


def test_over_a_year_of_days_with_weekends_and_rates():
    compared(weekdays(bars_of(520 + 262, 1, seed=4)), 520, costs=preset("us_stocks"))


@pytest.mark.slow
def test_over_a_year_of_bars_of_four_hours():
    compared(bars_of(960 + 2190, 1, seed=5), 960)


def test_an_asset_that_is_rarely_there_and_one_that_comes_late():
    bars = bars_of(1900, 3, seed=8)
    valid = bars.valid.clone()
    valid[:, 1] = torch.arange(1900) % 7 < 2
    valid[:1830, 2] = False
    runner, _ = compared(without(bars, valid), 1800)
    assert runner.rows < len(runner.state.window) < 2000  # kept for the one that is rarely there


def test_features_of_the_users_own_and_none_of_the_defaults():
    def spread(bars):
        return (bars.high / bars.low).log()

    def steady(bars):
        return torch.nn.functional.pad((bars.close[9:] / bars.close[:-9]).log(), (0, 0, 9, 0), value=math.nan)

    own = {"spread": spread, "steady": steady}
    bars = bars_of(END, 1, seed=6)
    compared(bars, features=compute(bars, ["rsi_14", "since_gap"], own), functions=own)
    with pytest.raises(InputError, match=r"shows 'spread', 'steady' and their functions are not known"):
        compared(bars, features=compute(bars, ["rsi_14"], own))


def test_a_feature_that_never_forgets_is_refused():
    def level(bars):
        return (bars.close / bars.close[0]).log()

    bars = bars_of(END, 1)
    with pytest.raises(InputError, match="feature 'level' remembers more than 4096 bars"):
        compared(bars, features=compute(bars, ["return_1"], {"level": level}), functions={"level": level})


def test_in_an_episode_without_an_end_the_time_left_is_that_of_training():
    """The judge's episode ends long after the last bar that is compared: all its time is left until then."""
    same, more = bars_of(END + 252, 1, seed=7), 252
    seen = compute(same)
    units = fit(seen, same, range(BEGIN))
    model = model_in(market_on(same.rows(0, BEGIN), None, seen.rows(0, BEGIN), units, Episode(length=more)))
    weights, _, _ = backtest(model, market_on(same, range(BEGIN, len(same)), seen, units), END - BEGIN)
    found, _ = streamed(runner_of(model, same.rows(0, BEGIN)), same, range(BEGIN, END))
    np.testing.assert_allclose(np.array(found), weights, **EQUAL)


def test_without_a_history_there_are_no_weights_until_features_are_warm():
    bars = bars_of(400, 2, seed=9, missing=0.1)
    seen = compute(bars)
    units = fit(seen, bars, range(400))
    market = market_on(bars, range(seen.warmup, 400), seen, units, Episode(length=0, horizon=400))
    model = model_in(market)
    weights, _, _ = backtest(model, market, 399 - seen.warmup)
    runner = runner_of(model, None, ends_in=399 - seen.warmup)
    found, _ = streamed(runner, bars, range(400))
    assert [one is None for one in found] == [row < seen.warmup for row in range(400)]
    np.testing.assert_allclose(np.array(found[seen.warmup : -1]), weights, **EQUAL)


def test_a_memory_warmed_on_the_last_bars_of_the_history():
    bars, warm = bars_of(END, 1, seed=10), 60
    seen = compute(bars)
    units = fit(seen, bars, range(BEGIN))
    trained = market_on(bars.rows(0, BEGIN), None, seen.rows(0, BEGIN), units, Episode(length=252))
    model = model_in(trained)
    _, _, memory = backtest(model, market_on(bars, range(BEGIN - warm, BEGIN + 1), seen, units), warm)
    judge = market_on(bars, range(BEGIN, END), seen, units)
    weights, _, _ = backtest(model, judge, END - 1 - BEGIN, memory)
    runner = runner_of(model, bars.rows(0, BEGIN), warm=warm, ends_in=END - 1 - BEGIN)
    found, account = streamed(runner, bars, range(BEGIN, END - 1))
    np.testing.assert_allclose(np.array(found), weights, **EQUAL)
    assert account[0] == 100_000.0
    cold, _ = streamed(runner_of(model, bars.rows(0, BEGIN)), bars, [BEGIN])
    assert abs(cold[0] - weights[0]).max() > 1e-4


def test_what_was_gained_is_shown_where_risk_needs_it():
    risk = RiskConfig(weight=0.5, horizon="window", window=5)
    compared(bars_of(END, 1, seed=11), settings={"risk": risk}, wrap=lambda env: ObserveGained(env, 5))


def test_a_synthetic_market_s_agent_on_recorded_bars():
    bars = bars_of(400, 1, seed=12)
    trained = MarketEnv(1, Synthetic(bars_of(300, 1), paths=4, bars=200), rules=Rules(actions="tanh"), episode=Episode(50))
    model = model_in(trained)
    episode = Episode(length=0, starts="fixed", horizon=50)
    judge = MarketEnv(1, Recorded(bars, plain_features(bars)), rules=Rules(actions="tanh"), episode=episode)
    weights, _, _ = backtest(model, judge, 339)
    found, _ = streamed(runner_of(model, None, ends_in=339), replace(bars, symbols=("path0",), funding=None), range(400))
    np.testing.assert_allclose(np.array(found[60:399]), weights, **EQUAL)


# --- bars that are odd ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world():
    """Bars, and a model that learned in the first of them."""
    bars = bars_of(700, 1, seed=13)
    seen = compute(bars)
    units = fit(seen, bars, range(600))
    return bars, model_in(market_on(bars.rows(0, 600), None, seen.rows(0, 600), units, Episode(length=100)))


def candle(bars, row, **changes):
    """A row as a feed would tell it."""
    told = {name: float(getattr(bars, name)[row, 0]) for name in ("open", "high", "low", "close", "volume")}
    return Candle(int(bars.time[row]), **told)._replace(**changes)


def rules_of(runner):
    """Which rules were broken, how often."""
    return {one.rule: one.count for one in runner.findings}


def test_late_and_repeated_bars_change_nothing_and_are_told(world):
    bars, model = world
    plain, odd = runner_of(model, bars.rows(0, 600)), runner_of(model, bars.rows(0, 600))
    for row in range(600, 620):
        wanted = plain.on_bar(candle(bars, row))
        assert (odd.on_bar(candle(bars, row)) == wanted).all()
        assert (odd.on_bar(candle(bars, row)) == wanted).all()
        assert (odd.on_bar(candle(bars, row, close=bars.low[row].item())) == wanted).all()
        assert (odd.on_bar(candle(bars, row - 5)) == wanted).all()
        assert (odd.on_bar(candle(bars, row, time=int(bars.time[row]) - 1000)) == wanted).all()
        assert (odd.on_bar(candle(bars, row, time=int(bars.time[row]) + 1800 * NANOSECONDS)) == wanted).all()
    assert rules_of(plain) == {}
    assert rules_of(odd) == {"repeated": 40, "conflict": 20, "late": 20, "uneven": 20}
    assert "the bar of 1970-01-26T00:00:00Z" in odd.findings[0].first
    assert odd.account == plain.account


def test_missing_bars_are_told_and_what_follows_is_the_backtest_without_them(world):
    bars, model = world
    kept = [row for row in range(700) if row not in (605, 606, 650)]
    short = some_rows(bars, kept)
    judge = market_on(short, range(600, len(short)), None, model.source.env.world.units, Episode(0, horizon=100))
    weights, _, _ = backtest(model, judge, len(short) - 601)
    runner = runner_of(model, bars.rows(0, 600), ends_in=len(short) - 601)
    found, _ = streamed(runner, bars, [row for row in kept if row >= 600])
    np.testing.assert_allclose(np.array(found[:-1]), weights, **EQUAL)
    assert rules_of(runner) == {"gap": 2}
    assert "after 1970-01-26T04:00:00Z" in runner.findings[0].first


def test_bars_that_break_a_rule_are_no_bars_as_when_a_file_is_repaired(world):
    bars, model = world
    broken = {610: {"high": 1.0}, 620: {"close": math.nan}, 630: {"low": -2.0}, 640: {"volume": -1.0}}
    valid = bars.valid.clone()
    valid[list(broken)] = False
    masked = without(bars, valid)
    judge = market_on(masked, range(600, 700), None, model.source.env.world.units, Episode(0, horizon=100))
    weights, equity, _ = backtest(model, judge, 99)
    runner = runner_of(model, bars.rows(0, 600), ends_in=99)
    found = [runner.on_bar(candle(bars, row, **broken.get(row, {}))) for row in range(600, 700)]
    np.testing.assert_allclose(np.array(found[:-1]), weights, **EQUAL)
    assert runner.account["equity"] == pytest.approx(equity[-1], rel=1e-12)
    assert rules_of(runner) == {"high_below_low": 1, "not_a_number": 1, "not_positive": 1, "bad_volume": 1}


def test_a_bar_that_is_not_over_is_not_used(world):
    bars, model = world
    end = (int(bars.time[600]) // NANOSECONDS) + 3600
    clock = iter([end - 1, end])
    runner = Runner(model, bars.rows(0, 600), clock=lambda: next(clock))
    assert runner.on_bar(candle(bars, 600)) is None
    assert rules_of(runner) == {"future": 1}
    assert runner.on_bar(candle(bars, 600)) is not None


def test_a_bar_may_come_in_many_forms(world):
    bars, model = world
    stamp = datetime.fromtimestamp(int(bars.time[600]) // NANOSECONDS, UTC)
    values = candle(bars, 600)._asdict()
    forms = [
        bars.rows(600, 601),
        candle(bars, 600),
        {**values, "open": [values["open"]], "unused": 1},
        {**values, "time": stamp},
        {**values, "time": stamp.replace(tzinfo=None)},
        {**values, "time": stamp.isoformat()},
        {**values, "time": pd.Timestamp(int(bars.time[600]), tz="Europe/Berlin")},
    ]
    found = [runner_of(model, bars.rows(0, 600)).on_bar(form) for form in forms]
    assert all((one == found[0]).all() for one in found)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"close": [1.0, 2.0]}, "close of the bar has 2 numbers; needs one for each of S0"),
        ({"high": "high"}, "high of the bar is 'high'"),
        ({"time": "noon"}, "time of the bar is 'noon'"),
        ({"time": None}, "time of the bar is None"),
    ],
)
def test_what_is_no_bar_is_refused(world, changes, sentence):
    bars, model = world
    runner = runner_of(model, bars.rows(0, 600))
    with pytest.raises(InputError, match=sentence):
        runner.on_bar(candle(bars, 600, **changes))


def test_other_symbols_and_columns_are_refused(world):
    bars, model = world
    runner = runner_of(model, bars.rows(0, 600))
    with pytest.raises(InputError, match=r"needs one bar of \('S0',\)"):
        runner.on_bar(replace(bars.rows(600, 601), symbols=("other",)))
    with pytest.raises(InputError, match="no low"):
        runner.on_bar({"time": 1, "open": 1.0, "high": 2.0, "close": 1.0})
    with pytest.raises(InputError, match=r"would see \[43\]"):
        runner_of(model, bars_of(600, 2))


# --- the end, the state -----------------------------------------------------------------------------------------------


def test_a_ruin_ends_it(world):
    bars, model = world
    market = market_on(bars, None, None, model.source.env.world.units, Episode(100), Rules(actions="long_short", ruin=0.99))
    runner = runner_of(model, bars.rows(0, 600), market=market)
    found, account = streamed(runner, bars, range(600, 700))
    row = int(np.argmax(account <= 0.99 * 100_000))
    assert 0 < row < 99
    assert all(np.all(one == 0.0) for one in found[row:])
    assert any(np.any(one != 0.0) for one in found[:row])
    assert rules_of(runner) == {"ruin": 1}


def test_after_the_end_of_an_episode_nothing_is_decided(world):
    bars, model = world
    runner = runner_of(model, bars.rows(0, 600), ends_in=3)
    streamed(runner, bars, range(600, 604))
    with pytest.raises(InputError, match="the episode of 3 bars is over"):
        runner.on_bar(bars.rows(604, 605))


@pytest.mark.parametrize("stops", [(0, 1, 2), (75, 130, 131)])
def test_a_restored_runner_is_the_one_that_never_stopped(tmp_path, stops):
    bars = bars_of(160, 2, seed=14, missing=0.1)
    seen = compute(bars)
    model = model_in(market_on(bars, None, seen, fit(seen, bars, range(160)), Episode(length=60), reward=Reward("sharpe")))
    whole, cut = runner_of(model, None), runner_of(model, None)
    for row in range(160):
        if row in stops:
            cut.save(tmp_path / "state.safetensors")
            first = (tmp_path / "state.safetensors").read_bytes()
            cut = Runner.load(tmp_path / "state.safetensors", model, clock=cut.clock)
            cut.save(tmp_path / "again.safetensors")
            assert (tmp_path / "again.safetensors").read_bytes() == first
        bar = bars.rows(row, row + 1)
        one, other = whole.on_bar(bar), cut.on_bar(bar)
        assert (one is None) == (other is None)
        assert one is None or one.tobytes() == other.tobytes()
    whole.save(tmp_path / "whole.safetensors")
    cut.save(tmp_path / "cut.safetensors")
    assert (tmp_path / "whole.safetensors").read_bytes() == (tmp_path / "cut.safetensors").read_bytes()
    assert whole.account["equity"] != 100_000.0


def test_findings_and_the_length_of_an_episode_are_restored(tmp_path, world):
    bars, model = world
    runner = runner_of(model, bars.rows(0, 600), ends_in=2)
    for row in (600, 600, 601):
        runner.on_bar(bars.rows(row, row + 1))
    runner.save(tmp_path / "state.safetensors")
    again = Runner.load(tmp_path / "state.safetensors", model, clock=runner.clock)
    assert again.findings == runner.findings
    again.on_bar(bars.rows(602, 603))
    with pytest.raises(InputError, match="over"):
        again.on_bar(bars.rows(603, 604))


def test_the_state_of_another_agent_and_other_files_are_refused(tmp_path, world):
    bars, model = world
    runner = runner_of(model, bars.rows(0, 600))
    runner.save(tmp_path / "state.safetensors")
    other = model_in(model.source.env, seed=1)
    with pytest.raises(InputError, match="another agent"):
        Runner.load(tmp_path / "state.safetensors", other)
    (tmp_path / "other.safetensors").write_bytes(store.pack({"state": {}}))
    with pytest.raises(InputError, match="no state of a runner"):
        Runner.load(tmp_path / "other.safetensors", model)


def test_from_the_folder_of_a_run_and_all_that_can_stand_for_it(tmp_path):
    bars = bars_of(300, 1, seed=15)
    table = {name: getattr(bars, name)[:, 0].numpy() for name in ("open", "high", "low", "close", "volume")}
    pd.DataFrame({"time": pd.to_datetime(bars.time.numpy(), utc=True), **table}).to_csv(tmp_path / "bars.csv", index=False)
    options = {"data": str(tmp_path / "bars.csv"), "length": 20, "actions": "long_short", "validation": 0.7, "test": 0.8}
    env = EnvConfig("quantail/Market", 4, options)
    config = replace(Config(env=env, run=RunConfig(sinks=()), ppo=PpoConfig(n_steps=8, batch_size=16)), total_timesteps=60)
    outcome = quantail.run(config, tmp_path / "run")
    saved = checkpoint.read(checkpoint_in(tmp_path / "run"))
    judge = on_part(options, "test", saved.fitted)
    agent = (outcome.agent, saved.observation_moments)
    wanted = replayed(judge, *agent, config, 59)
    history = replace(load_bars(tmp_path / "bars.csv", echo=lambda line: None), card=None)
    for given in (tmp_path / "run", saved.name, saved, DistributionalPPO.load(saved.name)):
        market = {} if not isinstance(given, DistributionalPPO) else {"market": judge}
        runner = runner_of(given, history.rows(0, 240), ends_in=59, **market)
        found, _ = streamed(runner, history, range(240, 299))
        np.testing.assert_allclose(np.array(found), wanted, **EQUAL)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no checkpoint"):
        Runner(tmp_path / "empty")


def test_what_cannot_run_is_refused(world):
    bars, model = world
    with pytest.raises(InputError, match="the agent is a int"):
        Runner(3)
    calendar = MarketEnv(
        1, Recorded(bars, compute(bars), torch.ones(700, 1, dtype=torch.bool)), rules=Rules(actions="long_short")
    )
    with pytest.raises(ConfigError, match="calendar"):
        runner_of(model, bars.rows(0, 600), market=calendar)
    with pytest.raises(InputError, match="warm=600 of 600 bars"):
        runner_of(model, bars.rows(0, 600), warm=600)


def test_a_bar_costs_the_same_after_many(world):
    bars, model = world
    runner = runner_of(model, bars.rows(0, 600))
    assert len(runner.state.window) == runner.rows == 512
    streamed(runner, bars, range(600, 700))
    assert len(runner.state.window) == 512
