"""A run and its folder: what lies there, that it can be gone on with from every moment, and that nothing good is lost."""

import dataclasses
import errno
import itertools
import json
import logging
import os
import signal

import pytest
import torch
import yaml

import quantail
from quantail import checkpoint, cli
from quantail.checkpoint import rotation, store
from quantail.config import Config
from quantail.envs.oracles import CartPole
from quantail.errors import CheckpointError, ConfigError, QuantailError, RunError, TrainingError
from quantail.loop import train
from quantail.run import resume, run
from quantail.run.folder import sessions
from quantail.run.validation import Judged
from rivers import Ragged, configured
from run.worlds import At, Spoiled, Stop, cut, end_of, rows, small


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    outcome = run(small(run__evaluate_every=2), folder)
    return folder, outcome


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def steps_of(folder):
    return [int(path.stem.removeprefix("step_")) for path in rotation.listed(folder / "checkpoints")]


# --- what lies there --------------------------------------------------------------------------------------------------


def test_what_a_run_leaves_in_its_folder(whole):
    folder, outcome = whole
    files = names(folder)
    saved = [name for name in files if name.startswith("checkpoints/step_")]
    assert len(saved) == 3
    assert set(files) - set(saved) == {
        "checkpoints/best.safetensors",
        "config.yaml",
        "environment.json",
        "lock",
        "metrics.jsonl",
    }
    assert (folder / "lock").read_bytes() == b""
    assert Config.from_dict(yaml.safe_load((folder / "config.yaml").read_text())) == small(run__evaluate_every=2)
    assert (outcome.status, outcome.folder) == ("finished", folder)
    assert outcome.env_steps == steps_of(folder)[-1] == rows(folder)[-1]["env_steps"] >= 300
    assert outcome.iteration == len(rows(folder)) == rows(folder)[-1]["iteration"] + 1


def test_the_environment_is_told(whole):
    (session,) = json.loads((whole[0] / "environment.json").read_text())["sessions"]
    assert session["quantail"] == quantail.__version__
    assert session["packages"]["torch"] == torch.__version__
    assert (session["threads"], session["env_steps"]) == (1, 0)
    assert session["command"]


def test_the_last_checkpoint_is_the_agent_that_comes_back(whole):
    folder, outcome = whole
    saved = checkpoint.read(rotation.listed(folder / "checkpoints")[-1])
    agent = checkpoint.restore_agent(saved)
    assert all(torch.equal(a, b) for a, b in zip(agent.parameters(), outcome.agent.parameters(), strict=True))
    assert (saved.iteration, saved.threads) == (outcome.iteration, 1)


def test_a_run_is_the_loop_and_nothing_else(whole):
    """Logs, evaluation and checkpoints move no weight and no figure."""
    folder, _ = whole
    config = small()
    reports = list(train(config, CartPole(3)))
    assert len(reports) == len(rows(folder))
    for report, row in zip(reports, rows(folder), strict=True):
        figures = {name: value for name, value in row.items() if not name.startswith("eval/")}
        ours = {name: value if value == value else None for name, value in report.metrics.items() if "time/" not in name}
        assert {name: figures[name] for name in ours} == ours


def test_the_public_names_are_a_module_that_answers_and_its_functions():
    assert quantail.run is quantail.run
    assert callable(quantail.run)
    assert quantail.resume is resume
    assert quantail.run.run is run


# --- going on ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 3, 6])
def test_a_run_that_was_cut_off_goes_on_as_if_it_never_had_been(at, whole, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Stop):
        run(small(run__evaluate_every=2), folder, sinks=[At(at, cut)])
    assert len(rows(folder)) == at + 1  # the log is ahead of the checkpoint
    outcome = resume(folder)
    assert end_of(folder) == end_of(whole[0])
    assert (folder / "checkpoints/best.safetensors").read_bytes() == (whole[0] / "checkpoints/best.safetensors").read_bytes()
    assert outcome.judged == whole[1].judged
    sessions = json.loads((folder / "environment.json").read_text())["sessions"]
    assert [one["env_steps"] for one in sessions] == [0, sorted({0, *steps_at(whole[0], at)})[-1]]


def steps_at(folder, at):
    """The steps of the checkpoint from which a run cut off in this iteration goes on."""
    return [row["env_steps"] for row in rows(folder) if (row["iteration"] + 1) % 3 == 0 and row["iteration"] < at]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_says_how_to_go_on(number, whole, tmp_path, caplog, capfd):
    folder = tmp_path / "run"
    before = signal.getsignal(number)
    outcome = run(small(run__evaluate_every=2), folder, sinks=[At(4, lambda: os.kill(os.getpid(), number))])
    assert signal.getsignal(number) is before
    assert (outcome.status, outcome.iteration) == ("interrupted", 5)
    assert steps_of(folder)[-1] == outcome.env_steps == rows(folder)[-1]["env_steps"]
    (record,) = caplog.records
    assert record.message.startswith(
        f"{signal.Signals(number).name}: saved at {outcome.env_steps} steps; go on with: quantail resume "
    )
    heard = f"\n{signal.Signals(number).name}: this iteration is finished and saved; once more stops at once\n"
    assert capfd.readouterr().err == heard
    assert resume(folder).status == "finished"
    assert end_of(folder) == end_of(whole[0])


def test_a_second_ctrl_c_stops_at_once_and_the_run_can_still_go_on(whole, tmp_path):
    def twice():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(small(run__evaluate_every=2), folder, sinks=[At(4, twice)])
    resume(folder)
    assert end_of(folder) == end_of(whole[0])


def test_a_finished_run_has_nothing_left_to_do_and_can_be_made_longer(whole, tmp_path):
    folder = tmp_path / "run"
    run(small(total=150, run__evaluate_every=2), folder)
    before = end_of(folder)
    assert resume(folder).status == "finished"
    assert end_of(folder) == before
    resume(folder, total_timesteps=300)
    assert end_of(folder) == end_of(whole[0])
    assert yaml.safe_load((folder / "config.yaml").read_text())["total_timesteps"] == 300


def test_a_damaged_checkpoint_is_passed_over_and_named(whole, tmp_path, caplog):
    folder = tmp_path / "run"
    run(small(total=200, run__evaluate_every=2), folder)
    newest = rotation.listed(folder / "checkpoints")[-1]
    newest.write_bytes(newest.read_bytes()[:-3])
    resume(folder, total_timesteps=300)
    assert any(f"{newest} does not match its checksum" in record.message for record in caplog.records)
    assert end_of(folder) == end_of(whole[0])


def test_what_a_later_version_saved_is_not_passed_over(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    run(small(total=100), folder)
    newest = rotation.listed(folder / "checkpoints")[-1]
    tree = store.read(newest)
    with monkeypatch.context() as later:
        later.setattr(store, "FORMAT", 2)
        newest.write_bytes(store.pack(tree))
    before = names(folder), (folder / "metrics.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match=r"has format 2, written by .*; this is .*, which reads format 1: install"):
        resume(folder, total_timesteps=200)
    assert (names(folder), (folder / "metrics.jsonl").read_bytes()) == before


def test_where_every_checkpoint_is_damaged_nothing_is_thrown_away(tmp_path):
    folder = tmp_path / "run"
    run(small(total=100), folder)
    log = (folder / "metrics.jsonl").read_bytes()
    for path in rotation.listed(folder / "checkpoints"):
        path.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be read: .*step_.* is cut off"):
        resume(folder)
    assert (folder / "metrics.jsonl").read_bytes() == log


def test_threads_are_those_it_began_with(tmp_path):
    folder = tmp_path / "run"
    seen = []
    look = At(0, lambda: seen.append(torch.get_num_threads()))
    run(small(total=30, run__threads=2), folder, sinks=[look])
    settings = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(settings.replace("threads: 2", "threads: 1"))
    look.iteration = 1
    resume(folder, total_timesteps=60, sinks=[look])
    assert seen == [2, 2]
    assert torch.get_num_threads() == 1


def test_an_environment_handed_over_is_handed_over_again(tmp_path):
    config = dataclasses.replace(configured("real", {"run.sinks": ["jsonl"], "run.save_every": 2}), total_timesteps=300)
    run(config, tmp_path / "whole", Ragged("real"))
    with pytest.raises(Stop):
        run(config, tmp_path / "cut", Ragged("real"), sinks=[At(4, cut)])
    with pytest.raises(ConfigError, match=r"no environment is named; set env\.id"):
        resume(tmp_path / "cut")
    resume(tmp_path / "cut", Ragged("real"))
    assert end_of(tmp_path / "cut") == end_of(tmp_path / "whole")


# --- evaluation -------------------------------------------------------------------------------------------------------


def test_the_best_checkpoint_is_the_best_of_the_evaluations(whole):
    folder, outcome = whole
    scores = {row["env_steps"]: row["eval/mean_reward"] for row in rows(folder) if "eval/mean_reward" in row}
    assert len(scores) == len(rows(folder)) // 2
    best = max(scores, key=scores.get)
    assert outcome.judged.best == scores[best]
    assert outcome.judged.best_env_steps == best == checkpoint.read(folder / "checkpoints/best.safetensors").env_steps
    running = list(itertools.accumulate(scores.values(), max))
    assert [row["eval/best"] for row in rows(folder) if "eval/best" in row] == running


def test_a_run_that_gets_no_better_stops_early_and_stays_stopped(tmp_path):
    stuck = {"optim__learning_rate": 1e-12, "optim__name": "sgd", "input__normalize_observations": False}
    still = small(total=10**6, run__evaluate_every=1, run__patience=3, **stuck)
    outcome = run(still, tmp_path / "run")
    assert (outcome.status, outcome.iteration) == ("stopped early", 4)
    assert outcome.judged == Judged(outcome.judged.best, rows(tmp_path / "run")[0]["env_steps"], 3)
    assert resume(tmp_path / "run").iteration == 4


def test_an_environment_handed_over_needs_another_to_be_evaluated_in(tmp_path):
    config = small(run__evaluate_every=1)
    with pytest.raises(ConfigError, match="hand over evaluation_env too"):
        run(config, tmp_path / "one", CartPole(3))
    outcome = run(dataclasses.replace(config, total_timesteps=30), tmp_path / "two", CartPole(3), evaluation_env=CartPole(4))
    assert outcome.judged.best is not None


def test_evaluations_in_which_no_episode_ends_judge_nothing_and_say_so(tmp_path, capsys):
    """The run goes on and nothing counts as worse; the rewards of steps are known all the same."""
    config = small(run__evaluate_every=1, run__evaluate_rows=3, run__patience=2)
    outcome = run(config, tmp_path / "run")
    assert (outcome.status, outcome.judged) == ("finished", Judged())
    told = [row["findings"] for row in rows(tmp_path / "run")]
    assert told == [["no episode ended in 3 rows of evaluation, so nothing was judged"]] * len(told)
    assert all(row["eval/reward_per_step"] == 1 and "eval/best" not in row for row in rows(tmp_path / "run"))
    assert cli.main(["doctor", str(tmp_path / "run")]) == 0
    assert "raise run.evaluate_rows, or set run.judge to step" in " ".join(capsys.readouterr().out.split())


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_a_run_never_writes_over_another(whole):
    before = names(whole[0]), end_of(whole[0])
    with pytest.raises(RunError, match=r"already holds a run; go on with it \(quantail resume "):
        run(small(), whole[0])
    assert (names(whole[0]), end_of(whole[0])) == before


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(RunError, match=r"holds no run: there is no config\.yaml"):
        resume(tmp_path / "gone")
    assert not (tmp_path / "gone").exists()


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"file/run cannot be made \(Not a directory\)"):
        run(small(), tmp_path / "file" / "run")


def test_a_failure_before_the_beginning_leaves_the_folder_free(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(ConfigError, match="did you mean quantail/CartPole"):
        run(small(env__id="quantail/CartPol"), folder)
    assert not folder.exists()
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="did you mean quantail/CartPole"):
        run(small(env__id="quantail/CartPol"), folder)
    assert (folder / "notes.txt").read_text() == "mine"
    with pytest.raises(QuantailError):
        run(small(net__gsde=True, net__state_dependent_std=True), folder, Ragged("real"))
    assert run(small(total=30), folder).status == "finished"


def test_another_environment_than_the_saved_one_is_refused_and_nothing_is_lost(tmp_path):
    folder = tmp_path / "run"
    run(small(total=100), folder)
    before = end_of(folder)
    settings = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(settings.replace("options: {}", "options: {velocities: false}"))
    with pytest.raises(
        CheckpointError, match=r"has the observation space Box\[4\].*CartPole has Box\[2\].*; use the environment"
    ):
        resume(folder, total_timesteps=200)
    assert end_of(folder) == before


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_full_disk_stops_the_run_and_keeps_the_last_good_checkpoint(call, whole, tmp_path, monkeypatch):
    folder, armed, real = tmp_path / "run", [], getattr(os, call)

    def full(*args, **kwargs):
        if armed:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args, **kwargs)

    monkeypatch.setattr(os, call, full)
    with pytest.raises(
        QuantailError, match=r"No space left on device.*; the last good checkpoint is .*step_\d+.* resume "
    ) as caught:
        run(small(run__evaluate_every=2), folder, sinks=[At(4, lambda: armed.append(True))])
    kept = rotation.listed(folder / "checkpoints")[-1]
    assert str(kept) in str(caught.value)
    assert checkpoint.read(kept).iteration == 3
    monkeypatch.undo()
    resume(folder)
    assert end_of(folder) == end_of(whole[0])


# --- broken numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["reward", "obs"])
def test_one_broken_number_is_named_and_the_run_goes_on(what, tmp_path):
    config = configured("real", {"run.sinks": ["jsonl"], "total_timesteps": 400})
    outcome = run(config, tmp_path / "run", Spoiled(what))
    assert outcome.status == "finished"
    named = [row["findings"] for row in rows(tmp_path / "run") if row["findings"]]
    assert named == [[f"{what} was not finite in environments [3]: zeroed, and they weigh nothing until their next start"]]
    assert all(weight.isfinite().all() for weight in outcome.agent.parameters())


@pytest.mark.parametrize("what", ["reward", "obs"])
def test_broken_numbers_without_end_stop_the_run_with_its_last_good_checkpoint(what, tmp_path):
    config = configured("real", {"run.sinks": ["jsonl"], "total_timesteps": 10**6, "optim.patience": 4, "run.save_every": 2})
    with pytest.raises(
        TrainingError, match=r"4 rollouts in a row held hardly a row to learn from.*the last good checkpoint is "
    ) as caught:
        run(config, tmp_path / "run", Spoiled(what, forever=True))
    kept = rotation.listed(tmp_path / "run" / "checkpoints")[-1]
    assert str(kept) in str(caught.value)
    assert all(weight.isfinite().all() for weight in checkpoint.restore_agent(checkpoint.read(kept)).parameters())
    assert resume(tmp_path / "run", Ragged("real"), total_timesteps=checkpoint.read(kept).env_steps + 50).status == "finished"


def test_a_loss_that_is_not_finite_stops_it_and_the_doctor_says_so(tmp_path, capsys):
    config = configured("real", {"run.sinks": ["jsonl"], "run.save_every": 1})
    calls = itertools.count()

    def breaks(agent, batch, knobs):
        return torch.tensor(float("nan") if next(calls) >= 12 else 0.0)

    with pytest.raises(TrainingError, match=r"changed nothing, first because of loss term 0.*the last good checkpoint is "):
        run(config, tmp_path / "run", Ragged("real"), loss_terms=[breaks])
    (session,) = sessions(tmp_path / "run")
    assert session["stopped"].startswith("10 optimizer steps in a row changed nothing, first because of loss term 0")
    assert cli.main(["doctor", str(tmp_path / "run")]) == 1
    assert "broken: stopped: 10 optimizer steps in a row changed nothing" in capsys.readouterr().out
    resume(tmp_path / "run", Ragged("real"), total_timesteps=800)  # what was wrong is over
    assert "stopped" not in sessions(tmp_path / "run")[-1]
    assert cli.main(["doctor", str(tmp_path / "run")]) == 0
    assert logging.getLogger("quantail.run").level == logging.NOTSET
