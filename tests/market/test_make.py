"""Markets from plain options: every option moves something, every nonsense is one sentence, parts are apart."""

import json
import math
from dataclasses import fields, replace

import pandas as pd
import pytest
import torch

from market.scenes import actions_of, noise_of, play
from market.worlds import bars_of
from quantail import checkpoint
from quantail.config import Config, EnvConfig
from quantail.errors import ConfigError, InputError
from quantail.loop import begin
from quantail.market.make import market, on_part
from quantail.market.normalise import Normalisation
from quantail.market.options import NAMES, asked
from quantail.market.splits import split_by_time
from quantail.registry import make
from quantail.run import folder as folders
from quantail.run import resume, run
from run.worlds import small

ROWS = 600


def written(path, rows=ROWS, seed=3, scale=1.0, assets=1):
    """Bars as a file of a vendor's."""
    bars = bars_of(rows, assets, seed=seed)
    frames = [
        pd.DataFrame({
            "time": pd.to_datetime(bars.time.numpy()),
            "symbol": bars.symbols[i],
            **{name: scale * getattr(bars, name)[:, i].numpy() for name in ("open", "high", "low", "close", "volume")},
        })
        for i in range(assets)
    ]  # fmt: skip
    pd.concat(frames).to_csv(path, index=False)
    return str(path)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return written(tmp_path_factory.mktemp("bars") / "s.csv")


def trace(env):
    """All that an agent could notice in a few rows."""
    obs, rows = play(env, actions_of(env, 30), noise_of(env, 31))
    steps = [step for _, step in rows]
    seen = [torch.nan_to_num(x).sum().item() for s in steps for x in (s.obs, s.reward, s.info["equity"], s.terminated)]
    return (str(env.action_space), obs.shape, obs.sum().item(), *seen)


# --- every option moves something -------------------------------------------------------------------------------------

BOX = {"actions": "long_short", "leverage": 2.0}
SYNTHETIC = {
    "part": ({}, "test"),
    "costs": ({}, "crypto_spot"),
    "source": ({}, "gbm"),
    "seed": ({}, 1),
    "paths": ({}, 17),
    "bars": ({}, 100),
    "assets": ({}, 2),
    "overnight": ({}, 0.3),
    "fee_bps": ({}, 7.0),
    "half_spread_bps": ({}, 7.0),
    "slippage_bps": ({}, 7.0),
    "borrow_per_year": ({}, 0.2),
    "debit_per_year": (BOX, 0.2),
    "credit_per_year": ({}, 0.2),
    "funding_bps": ({}, 7.0),
    "randomized_from": ({}, 0.5),
    "randomized_to": ({}, 2.0),
    "fill": ({}, "next_close"),
    "sizing": ({}, "exact"),
    "actions": ({}, "long_only"),
    "levels": ({}, "0.5,0,-1"),
    "leverage": ({}, 2.0),
    "max_weight": ({}, 0.5),
    "max_net": ({"assets": 2}, 0.3),
    "band": (BOX, 0.4),
    "lot_size": ({}, 300.0),
    "min_notional": (BOX, 70_000.0),
    "maintenance": ({"actions": "long_short", "leverage": 20.0}, 0.04),
    "ruin": ({}, 0.99),
    "cooldown": ({}, 2),
    "reward": ({}, "mean_variance"),
    "reward_scale": ({}, 3.0),
    "risk_aversion": ({"reward": "mean_variance"}, 50.0),
    "drawdown_aversion": ({"reward": "drawdown"}, 50.0),
    "reward_rate": ({"reward": "sharpe"}, 0.1),
    "length": ({}, 9),
    "starts": ({}, "fixed"),
    "horizon": ({}, 500),
    "random_position": ({}, True),
    "equity": ({"lot_size": 300.0}, 50_000.0),
    "shown": ({}, "weights,time"),
}
RECORDED = {
    "timezone": "Asia/Tokyo",
    "begin": 0.3,
    "validation": 0.5,
    "purge": 50,
    "normalise": False,
}
ELSEWHERE = {
    "every": "another generation: below",
    **dict.fromkeys(("impact_y", "max_participation"), "needs volumes: below"),
    **dict.fromkeys(("delisted_after", "haircut"), "needs an asset that ends: below"),
    **dict.fromkeys(("data", "adjusted", "repair", "allow", "test", "end", "embargo"), "below"),
}


def test_no_option_is_forgotten():
    assert set(NAMES) == {*SYNTHETIC, *RECORDED, *ELSEWHERE}


@pytest.mark.parametrize("name", SYNTHETIC)
def test_every_option_of_a_made_up_market_moves_something(name):
    others, value = SYNTHETIC[name]
    base = {"length": 20, "paths": 8, "bars": 120, **others}
    first, second = (trace(market(6, **options)) for options in (base, {**base, name: value}))
    assert first != second


def test_new_paths_come_when_they_are_due():
    born = []
    for every in (2, 3):
        env = market(2, every=every, paths=4, bars=100, length=5)
        idle = env.reset(noise_of(env, 1)[0])[0]._replace(done=torch.ones(2, dtype=torch.bool))
        env.renew(idle, 2)
        born.append(int(env.ground.born.max()))
    assert born == [1, 0]


@pytest.mark.parametrize("name", RECORDED)
def test_every_option_of_recorded_bars_moves_something(file, name):
    base = {"data": file, "length": 20}
    first, second = (trace(market(6, **options)) for options in (base, {**base, name: RECORDED[name]}))
    assert first != second


@pytest.mark.parametrize("more", [{"impact_y": 0.6}, {"max_participation": 1e-3}])
def test_volumes_make_impact_and_limits(file, more):
    assert trace(market(4, data=file, length=20, **more)) != trace(market(4, data=file, length=20))


def test_an_asset_may_end(tmp_path):
    """Held over its last bar: what is lost of it two rows later is the haircut."""
    rows = pd.read_csv(written(tmp_path / "two.csv", assets=2))
    rows.drop(rows.index[(rows.symbol == "S1") & (rows.index >= ROWS + 500)]).to_csv(tmp_path / "ends.csv", index=False)
    options = {"data": str(tmp_path / "ends.csv"), "actions": "long_only", "costs": "free", "test": 490, "validation": 490}
    ends = []
    for more in ({}, {"delisted_after": 2}, {"delisted_after": 2, "haircut": 0.4}):
        env = on_part({**options, **more}, "test")
        _, played = play(env, torch.tensor([[0.0, 1.0]]).expand(20, 1, 2), noise_of(env, 21))
        ends.append(float(played[-1][1].info["equity"]))
    assert ends[0] == pytest.approx(ends[1])
    assert ends[2] / ends[1] == pytest.approx(0.6)


def test_files_are_read_as_the_options_say(tmp_path):
    rows = pd.read_csv(written(tmp_path / "bars.csv"))
    rows.loc[7, "high"] = -1.0
    rows.to_csv(tmp_path / "bad.csv", index=False)
    with pytest.raises(InputError, match="not_positive"):
        market(2, data=str(tmp_path / "bad.csv"))
    assert market(2, data=str(tmp_path / "bad.csv"), repair=True, length=20).assets == 1
    prices = ["open", "high", "low", "close"]
    split = pd.read_csv(tmp_path / "bars.csv")
    split.loc[300:, prices] *= 0.5
    split.to_csv(tmp_path / "split.csv", index=False)
    with pytest.raises(InputError, match="split_like"):
        market(2, data=str(tmp_path / "split.csv"))
    assert market(2, data=str(tmp_path / "split.csv"), allow="split_like", length=20).assets == 1
    split[prices] = pd.read_csv(tmp_path / "bars.csv")[prices]
    split["adj close"] = split["close"] * 0.9
    split.to_csv(tmp_path / "adjusted.csv", index=False)
    raw, scaled = (market(2, data=str(tmp_path / "adjusted.csv"), adjusted=a, lot_size=1.0, length=20) for a in (False, True))
    assert not torch.equal(raw.ground.tape.price, scaled.ground.tape.price)


# --- what is asked is what is made ------------------------------------------------------------------------------------


def test_a_command_line_says_yes_or_no():
    for word, meant in (("yes", True), ("true", True), ("no", False), ("False", False), (True, True)):
        assert asked({"random_position": word}).episode.random_position is meant
        assert asked({"data": "x.csv", "repair": word}).source.repair is meant
    with pytest.raises(ConfigError, match="random_position='maybe' is str; needs bool"):
        asked({"random_position": "maybe"})
    with pytest.raises(ConfigError, match="costs='yes'; needs one of"):
        asked({"costs": "yes"})


def test_options_become_the_fields_of_their_names():
    """The figures one by one, through the registry: what stands in a config is what the environment has."""
    options = {"source": "bull_bear", "costs": "perps", "fee_bps": 2, "levels": "1, -2", "leverage": 2, "reward": "sharpe"}
    options |= {"reward_rate": 0.1, "shown": "weights", "seed": 5, "paths": 7, "part": "validation"}
    env = make(EnvConfig(id="quantail/Market", num_envs=3, options=options))
    assert (env.costs.fee_bps, env.costs.funding_bps, env.costs.half_spread_bps) == (2.0, 1.0, 0.5)
    assert (env.rules.levels, env.rules.leverage) == ((1.0, -2.0), 2.0)
    assert (env.reward.kind, env.reward.rate, env.reward.scale) == ("sharpe", 0.1, 100.0)
    assert env.episode.parts == ("weights",)
    assert (env.world.seed, env.world.paths, env.world.part) == (5, 7, "validation")
    assert type(env.world.model).__name__ == "BullBear"
    assert make(EnvConfig(id="quantail/Market", options={"leverage": 3.0})).rules.levels == (-3.0, 0.0, 3.0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fee": 1.0}, "env.options.fee is no option of quantail/Market; did you mean fee_bps?"),
        ({"zzz": 1.0}, "it takes part, costs, source"),
        ({"part": "tests"}, "env.options.part='tests'; needs one of train, validation, test, all"),
        ({"part": "all"}, "is of recorded bars"),
        ({"source": "gmb"}, "did you mean gbm?"),
        ({"costs": "cheap"}, "costs='cheap'; needs one of default"),
        ({"levels": "1,many"}, "env.options.levels='1,many'; needs numbers with commas"),
        ({"levels": 2.0}, "levels=(2.0,); needs at least one, each within leverage=1"),
        ({"fee_bps": "five"}, "env.options.fee_bps='five' is str; needs float"),
        ({"reward": "profit"}, "the reward of env.options: kind='profit'; needs one of log_return"),
        ({"shown": "everything"}, "the episode of env.options: parts='everything'"),
        ({"purge": 5}, "env.options.purge is about recorded bars and none are named; set env.options.data too"),
        ({"data": "x.csv", "seed": 1}, "env.options.seed is about synthetic markets"),
        ({"horizon": -1}, "horizon=-1; needs a whole number"),
    ],
)
def test_nonsense_is_one_sentence(options, says):
    with pytest.raises(ConfigError) as error:
        asked(options)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_and_parts_that_are_empty_are_told(file):
    with pytest.raises(InputError, match=r"nowhere\.csv"):
        market(2, data="nowhere.csv")
    with pytest.raises(InputError, match="the part 'validation' has 0 bars"):
        on_part({"data": file, "validation": 400, "test": 400}, "validation")
    with pytest.raises(InputError, match="validation has no bar"):
        market(2, data=file, embargo=95)


# --- parts ------------------------------------------------------------------------------------------------------------


def test_a_part_is_one_episode_over_its_rows_and_nothing_else(file):
    """Every bar of the test once: the equity of one who holds is the ratio of its last close to its second open."""
    options = {"data": file, "purge": 10, "embargo": 4, "length": 30, "costs": "free", "actions": "long_only", "ruin": 0.0}
    bars = bars_of(ROWS, 1, seed=3)
    parts = split_by_time(bars, 0.7, 0.85, purge=10, embargo=4)
    for part, rows in {**parts._asdict(), "all": range(parts.test.stop)}.items():
        env = on_part(options, part)
        state, _ = env.reset(noise_of(env, 1)[0])
        first = int(state.row) - 1
        assert first == max(rows.start, env.world.features.warmup)
        steps = 0
        while not bool(state.done):
            _, step = None, None
            state, step = env.step(state, torch.ones(1, 1), noise_of(env, 1)[0])
            steps += 1
        assert bool(step.truncated)
        assert steps == rows.stop - 1 - first
        held = float(bars.close[rows.stop - 1, 0] / bars.open[first + 1, 0])
        assert float(step.info["equity"]) / 1e5 == pytest.approx(held, rel=1e-7)
        assert len(env.ground.tape.move) == 1 + rows.stop  # what comes later is not even there


def test_training_sees_the_training_window_alone(file, tmp_path):
    """All bars after it another: the same episodes, to the byte; and the units are those of that window."""
    rows = pd.read_csv(file)
    cut = round(0.7 * ROWS) - 10
    rows.loc[cut:, ["open", "high", "low", "close"]] *= 1.7
    rows.to_csv(tmp_path / "later.csv", index=False)
    one, two = (market(6, data=str(path), purge=10, length=20, allow="split_like") for path in (file, tmp_path / "later.csv"))
    assert trace(one) == trace(two)
    assert one.normalisation == two.normalisation
    starts, stops = one.ground.starts - 1, one.ground.stops - 1
    assert int(starts.min()) == one.world.features.warmup
    assert int(stops.max()) == cut - 1
    raw = one.world.features.values[one.world.features.warmup : cut, 0].double()
    assert one.normalisation.mean == pytest.approx(raw.mean(0).tolist(), rel=1e-9, abs=1e-12)
    flat = torch.tensor(one.normalisation.scale) == 1.0
    assert torch.where(flat, 1.0, raw.std(0, correction=0)).tolist() == pytest.approx(one.normalisation.scale, rel=1e-6)


def test_other_parts_are_measured_in_the_units_of_training(file):
    env = market(2, data=file, length=20)
    for part in ("validation", "test"):
        for judged in (on_part({"data": file, "length": 20}, part, env.fitted), market(2, data=file, part=part, length=20)):
            assert judged.normalisation == env.normalisation
            row = int(judged.ground.starts[0])
            features = judged.world.features.values[row - 1, 0].double()
            expected = (features - torch.tensor(env.normalisation.mean)) / torch.tensor(env.normalisation.scale)
            seen = judged.ground.tape.seen[row, : len(expected)]
            assert seen.tolist() == pytest.approx(expected.clamp(-10, 10).tolist(), rel=1e-5, abs=1e-6)
    assert market(2, data=file, normalise=False, length=20).normalisation is None
    other = on_part({"data": file, "length": 20}, "test", {"normalisation": replace(env.normalisation, clip=0.5).to_dict()})
    assert float(other.ground.tape.seen[:, :19].abs().max()) == 0.5  # what was handed over counts, not a new fit


def test_time_left_on_a_long_span_is_as_it_was_in_training(file):
    env = on_part({"data": file, "length": 20, "shown": "time"}, "test")
    obs, rows = play(env, torch.ones(89, 1, dtype=torch.int64), noise_of(env, 90))
    left = [float(obs[0, -1]), *(float(step.obs[0, -1]) for _, step in rows)]
    assert left == pytest.approx([min(1.0, (89 - t) / 20) for t in range(90)])


def test_nothing_is_random_in_judgement_and_costs_scale(file):
    options = {"data": file, "random_position": True, "randomized_to": 3.0, "borrow_per_year": 0.2, "impact_y": 0.5}
    env, double = (on_part(options, "test", cost_factor=factor) for factor in (1.0, 2.0))
    first, second = (play(env, actions_of(env, 20), noise_of(env, 21, seed=s)) for s in (1, 2))
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(a.info["equity"], b.info["equity"]) for (_, a), (_, b) in zip(first[1], second[1], strict=True))
    assert float(first[1][0][0].holdings.abs().max()) == 0
    named = ("fee_bps", "half_spread_bps", "impact_y", "borrow_per_year")
    assert [getattr(double.costs, n) / getattr(env.costs, n) for n in named] == [2, 2, 2, 1]


def test_held_out_paths_are_those_of_no_training():
    """Of whatever seed; and each portfolio has a path of its own, from its first warm row to its end."""
    options = {"paths": 6, "bars": 90, "length": 10}
    trained = [market(2, seed=seed, **options).ground.tape.move for seed in range(6)]
    held_out = [on_part(options, part) for part in ("validation", "test")]
    moves = [env.ground.tape.move for env in held_out]
    assert len({tuple(x.tolist()) for x in (*trained, *moves)}) == 8
    assert torch.equal(market(2, part="test", **options).ground.tape.move, moves[1])
    for env in held_out:
        state, _ = env.reset(noise_of(env, 1)[0])
        assert env.num_envs == 6
        assert (state.row - 1).tolist() == [90 * path + 60 for path in range(6)]
        assert (state.stop - state.row).tolist() == [29] * 6


def test_several_assets_come_from_one_file(tmp_path):
    env = market(3, data=written(tmp_path / "two.csv", assets=2), length=20)
    assert env.assets == 2
    assert env.world.history.symbols == ("S0", "S1")


# --- units belong to the run ------------------------------------------------------------------------------------------


def test_a_checkpoint_holds_the_units(file):
    config = Config(env=EnvConfig("quantail/Market", 4, {"data": file, "length": 20}))
    env = make(config.env)
    saved = checkpoint.from_bytes(checkpoint.to_bytes(begin(config, env), config, env))
    assert Normalisation.from_dict(saved.fitted["normalisation"]) == env.normalisation
    assert checkpoint.from_bytes(checkpoint.to_bytes(begin(config, make(EnvConfig("quantail/Market"))), config, make(
        EnvConfig("quantail/Market")
    ))).fitted == {}  # fmt: skip


def test_a_run_keeps_its_units_and_a_resume_takes_them(tmp_path):
    """In the folder and in the checkpoint; a resume on changed bars takes the old ones, other windows are refused."""
    data = written(tmp_path / "bars.csv")
    options = {"data": data, "length": 20, "validation": 400, "test": 500}
    config = small(300, env__id="quantail/Market", env__options=options, run__evaluate_every=3, run__evaluate_rows=60)
    outcome = run(config, tmp_path / "run")
    kept = json.loads((tmp_path / "run" / folders.NORMALISATION).read_text())
    env = make(config.env)
    assert Normalisation.from_dict(kept) == env.normalisation
    assert outcome.judged.best is not None
    written(data, rows=700)  # it has grown: borders are rows, so the training window is the same
    rows = pd.read_csv(data)
    rows.loc[100, "volume"] *= 50
    rows.to_csv(data, index=False)
    assert make(config.env).normalisation != env.normalisation
    resume(tmp_path / "run", total_timesteps=400)
    assert json.loads((tmp_path / "run" / folders.NORMALISATION).read_text()) == kept
    folders.write_config(tmp_path / "run", replace(config, env=replace(config.env, options=options | {"validation": 410})))
    with pytest.raises(InputError, match="the training window of"):
        resume(tmp_path / "run", total_timesteps=500)


def test_a_test_that_begins_in_what_was_trained_on_is_refused(file):
    env = market(2, data=file, validation=500, test=550, length=20)
    with pytest.raises(InputError, match="the agent was trained on bars up to"):
        on_part({"data": file, "validation": 300, "test": 450, "length": 20}, "test", env.fitted)
    assert on_part({"data": file, "validation": 300, "test": 500, "length": 20}, "test", env.fitted).assets == 1


def test_every_field_of_the_records_can_be_said():
    from quantail.market import options

    for record in (options.Costs, options.Rules, options.Reward, options.Episode):
        for one in fields(record):
            assert (record, one.name) in options.PLACES.values()
    assert math.isfinite(asked({}).reward.scale)
