"""From a folder to a verdict: the checkpoint that is named, the part that is held out, the looks that are counted."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from market.worlds import bars_of
from quantail import checkpoint as checkpoints
from quantail import cli
from quantail.backtest.course import course
from quantail.backtest.track import play
from quantail.config import Config, EnvConfig, NetConfig, PpoConfig, RiskConfig, RunConfig
from quantail.envs.running import ObserveGained
from quantail.errors import RunError
from quantail.market.make import on_part
from quantail.run import folder as folders
from quantail.run import run
from quantail.run.judging import WARM, judged, player_of, stretch

OPTIONS = {"source": "gbm", "paths": 3, "bars": 180, "length": 40}


def small(**values):
    config = Config(
        total_timesteps=96,
        net=NetConfig(hidden=5, encoder_sizes=(), actor_sizes=(), critic_sizes=()),
        ppo=PpoConfig(n_steps=16, batch_size=48, n_epochs=1),
        env=EnvConfig(id="quantail/Market", num_envs=3, options=OPTIONS),
        run=RunConfig(sinks=("jsonl",)),
    )
    return replace(config, **values)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of one training side by side."""
    root = tmp_path_factory.mktemp("runs")
    for seed in range(2):
        run(small(seed=seed), root / f"seed{seed}")
    return root


def saved_in(folder):
    return checkpoints.read(folders.best_of(folder))


def test_it_is_the_agent_on_the_held_out_paths(runs):
    found = judged(runs / "seed0", part="validation")
    saved = saved_in(runs / "seed0")
    env = on_part(OPTIONS, "validation", saved.fitted)
    by_hand = play(course(env), player_of(saved))
    np.testing.assert_array_equal(found.evidence.tracks[0].net, by_hand.net)
    other = judged(runs / "seed0", part="train")
    assert (other.evidence.tracks[0].net != by_hand.net).any()
    for judgement, part in ((found, "validation"), (other, "train")):
        assert judgement.evidence.verdict.headline == "No skill can be claimed here, and the first sentence says why."
        assert f"bars of the {part} part" in judgement.evidence.verdict.sentences[0]
    assert "return and drawdown since the start" in " ".join(found.about.notes)
    assert found.about.config == saved.config.to_dict()
    assert len(found.about.log) == 2
    assert found.evidence.tracks[0].predicted is not None


def test_looks_at_the_test_are_counted_and_the_same_agent_is_no_new_look(runs):
    threads = torch.get_num_threads()
    first, again = (judged(runs / "seed0").evidence for _ in range(2))
    assert torch.get_num_threads() == threads
    assert (first.verdict.trials, again.verdict.trials) == (1, 1)
    np.testing.assert_array_equal(first.tracks[0].net, again.tracks[0].net)
    assert first.verdict.deflated_sharpe == again.verdict.deflated_sharpe
    other = judged(runs / "seed1").evidence
    assert other.verdict.trials == 2
    assert len(other.asked.trial_sharpes) == 2
    both = judged(runs / "seed0", seeds=[runs / "seed1"]).evidence
    assert (both.verdict.seeds, both.verdict.trials) == (2, 3)
    assert both.verdict.seed_sharpes == pytest.approx((first.verdict.sharpe, other.verdict.sharpe), rel=1e-12)
    (file,) = (runs / "looks").iterdir()
    assert sum("look" in json.loads(line) for line in file.read_text().splitlines()) == 3
    judged(runs / "seed1", part="validation")
    assert len(list((runs / "looks").iterdir())) == 1  # only the test is held out


def test_seeds_must_be_of_one_training(runs, tmp_path):
    run(small(seed=1, ppo=PpoConfig(n_steps=16, batch_size=48, n_epochs=2)), tmp_path / "other")
    with pytest.raises(RunError, match=r"trained otherwise \(ppo\)"):
        judged(runs / "seed0", seeds=[tmp_path / "other"])


def test_only_a_market_has_a_verdict(tmp_path, capsys):
    run(small(env=EnvConfig(id="quantail/CartPole", num_envs=3)), tmp_path / "pole")
    with pytest.raises(RunError, match="only a market has a verdict"):
        judged(tmp_path / "pole")
    assert cli.main(["report", str(tmp_path / "pole")]) == 2
    assert capsys.readouterr().err.startswith("quantail report: the run is of quantail/CartPole")
    assert cli.main(["report", str(tmp_path / "nowhere")]) == 2
    assert "holds no run" in capsys.readouterr().err


def test_what_a_tail_limit_made_the_agent_see_is_shown_again(tmp_path):
    limited = RiskConfig(horizon="window", window=7, limit=-0.05)
    run(
        small(risk=limited, env=EnvConfig(id="quantail/Market", num_envs=3, options={**OPTIONS, "shown": "features"})),
        tmp_path / "a",
    )
    saved = saved_in(tmp_path / "a")
    there = stretch(saved, "test")
    assert isinstance(there.env, ObserveGained)
    found = judged(tmp_path / "a")
    assert found.evidence.verdict.tail.limit == -0.05
    assert found.evidence.verdict.tail.outcome == "7 bars"
    assert found.about.notes == ()


def recorded(folder, name, seed=0, first=0, count=900, **options):
    """A file of candles, and a run on it; `first` and `count` say which of the same 900 it holds."""
    bars = bars_of(900, 1, 2)
    file = folder / f"{name}.csv"
    stamps = bars.time.numpy().astype("datetime64[ns]") + np.timedelta64(18_000, "D")
    rows = zip(stamps, *(vars(bars)[name][:, 0].tolist() for name in ("open", "high", "low", "close", "volume")), strict=True)
    lines = [",".join(map(str, row)) for row in rows][first : first + count]
    file.write_text("time,open,high,low,close,volume\n" + "\n".join(lines))
    said = {"data": str(file), "validation": 0.6, "test": 0.8, "length": 40, "actions": "tanh", **options}
    run(small(seed=seed, env=EnvConfig(id="quantail/Market", num_envs=3, options=said)), folder / name)
    return folder / name


def test_recorded_bars_are_judged_on_their_test_with_a_memory_of_the_bars_before(tmp_path):
    saved = saved_in(recorded(tmp_path, name="real"))
    there = stretch(saved, "test")
    assert (there.first, there.periods) == (720, 179)
    ground = there.before.ground
    assert int(ground.stops[0] - ground.starts[0]) == WARM
    found = judged(tmp_path / "real")
    assert found.evidence.null.paths == 16
    assert dict(found.about.card)["source"] == str(tmp_path / "real.csv")
    assert not found.evidence.verdict.skill


def test_a_look_is_no_new_one_because_the_file_or_the_border_is_another(tmp_path):
    """The same bars under another name, a test that begins a little later, a file that is shorter: all of them count."""
    first = judged(recorded(tmp_path, name="first")).evidence
    moved = judged(recorded(tmp_path, name="moved", seed=1, test=0.81)).evidence
    cut = judged(recorded(tmp_path, name="cut", seed=2, first=40, count=850)).evidence
    assert [one.verdict.trials for one in (first, moved, cut)] == [1, 2, 3]
    assert len(cut.asked.trial_sharpes) == 3
    early = recorded(tmp_path, count=700, name="early")  # it ends where the others begin
    assert judged(early).evidence.verdict.trials == 1


def test_one_agent_is_one_seed(runs):
    with pytest.raises(RunError, match="one agent is one seed"):
        judged(runs / "seed0", seeds=[runs / "seed1", runs / "seed0"])


def test_the_commands_print_and_write(runs, tmp_path, capsys):
    assert cli.main(["report", str(runs / "seed0"), "--seeds", str(runs / "seed1"), "--to", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("No skill found")
    assert "report.html" in out
    assert (tmp_path / "report.html").stat().st_size < 1_000_000
    assert json.loads((tmp_path / "report.json").read_text())["verdict"]["seeds"] == 2
    assert cli.main(["evaluate", str(runs / "seed0"), "--verdict", "--part", "validation"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("# seed0")
    assert "| buy & hold |" in out
    assert cli.main(["evaluate", str(runs / "seed0"), "--verdict", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "seed0"
    assert cli.main(["evaluate", str(runs / "seed0"), "--verdict", "--rows", "9"]) == 2
    assert "leave out --rows" in capsys.readouterr().err
