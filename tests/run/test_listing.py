"""Runs side by side: how each ended, how long it took, and in what they differ."""

import csv
import io
import json

import pytest

from quantail import cli
from quantail.errors import QuantailError
from quantail.run import resume, run
from quantail.run.listing import last_row, summary
from run.worlds import At, Spoiled, Stop, cut, small


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Four runs, each of which ended in its own way."""
    place = tmp_path_factory.mktemp("runs")
    run(small(300, run__evaluate_every=2), place / "a")
    run(small(300, run__evaluate_every=1, run__patience=1, optim__learning_rate=1e-12, seed=2), place / "b")
    with pytest.raises(Stop):
        run(small(300, net__hidden=7), place / "sub" / "c", sinks=[At(2, cut)])
    with pytest.raises(QuantailError):
        run(small(4000), place / "d", Spoiled("reward", forever=True))
    return place


def table(root, capsys):
    assert cli.main(["runs", str(root)]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    return head, lines


def test_how_each_run_ended(root, capsys):
    head, lines = table(root, capsys)
    assert head.split()[:5] == ["folder", "environment", "status", "steps", "of"]
    stati = [line.split("quantail/CartPole")[1].split("  ")[1].strip() for line in lines]
    assert stati == ["finished", "stopped early", "failed", "broken off"]


def test_the_settings_in_which_they_differ_and_no_others(root, capsys):
    _, lines = table(root, capsys)
    assert "optim.learning_rate=1e-12" in lines[1]
    assert "seed=2" in lines[1]
    assert "net.hidden=7" in lines[3]
    names = [word.split("=")[0] for word in lines[0].split() if "=" in word]
    assert sorted(names) == ["net.hidden", "optim.learning_rate", "run.evaluate_every", "run.patience", "seed"]


def test_as_json_and_as_csv_the_same_is_said(root, capsys):
    assert cli.main(["runs", str(root), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert cli.main(["runs", str(root), "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["folder"] for row in rows] == [one["folder"] for one in found]
    for row, one in zip(rows, found, strict=True):
        told = {**one, **one.pop("settings")}
        told.pop("settings")
        assert row == {name: "" if value is None else str(value) for name, value in told.items()}
    assert found[0]["best"] == last_row(root / "a" / "metrics.jsonl")["eval/best"]
    assert found[0]["env_steps"] >= found[0]["total_timesteps"] == 300


def test_the_time_of_all_processes_is_one_time(tmp_path):
    run(small(150), tmp_path / "run")
    first = last_row(tmp_path / "run" / "metrics.jsonl")["time/time_elapsed"]
    resume(tmp_path / "run", total_timesteps=300)
    second = last_row(tmp_path / "run" / "metrics.jsonl")["time/time_elapsed"]
    found = summary(tmp_path / "run")
    assert found.seconds == pytest.approx(first + second, rel=1e-6)
    assert found.status == "finished"


def test_a_run_that_is_gone_on_with_forgets_how_it_had_ended(root, tmp_path):
    with pytest.raises(Stop):
        run(small(300), tmp_path / "run", sinks=[At(3, cut)])
    assert summary(tmp_path / "run").status == "broken off"
    resume(tmp_path / "run")
    assert summary(tmp_path / "run").status == "finished"


def test_one_run_alone_differs_in_nothing_and_no_run_is_no_table(root, tmp_path, capsys):
    head, lines = table(root / "a", capsys)
    assert "differs" not in head
    assert len(lines) == 1
    assert cli.main(["runs", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"no runs below {tmp_path}\n"
    assert cli.main(["runs", str(tmp_path), "--csv"]) == 0
    assert cli.main(["runs", str(tmp_path / "nothing")]) == 2
