"""Sinks: what is read back by somebody else's reader is what was logged, whatever happened to the process or the disk."""

import errno
import itertools
import json
import math
import os
import resource
import subprocess
import sys
import threading
import types
from pathlib import Path

import pandas as pd
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer.record_writer import RecordWriter

from monitor.reports import report
from quantail.errors import ConfigError, InputError, TrainingError
from quantail.loop import train
from quantail.monitor.sinks import JsonlSink, MlflowSink, TensorBoardSink, WandbSink, read_rows, truncate
from rivers import Ragged, settings

ODD = {"b__x": 0.1 + 0.2, "a__y": math.nan, "a__x": -math.inf, "c": 1e-300, "b__w": 3.0}


def write(path, count, start=0):
    sink = JsonlSink(path)
    for i in range(start, count):
        sink(report(i, train__loss=i / 7, findings=("bad",) if i == 1 else ()))
    sink.close()


# --- JSON lines -------------------------------------------------------------------------------------------------------


def test_a_line_is_there_as_soon_as_it_was_logged_and_says_what_was_logged(tmp_path):
    sink = JsonlSink(tmp_path / "m.jsonl")
    sink(report(0, **ODD, findings=("reward was not finite — π",)))
    line = (tmp_path / "m.jsonl").read_text(encoding="utf-8")  # the sink is still open: nothing waits in a buffer
    expected = {"iteration": 0, "env_steps": 100, "a/x": None, "a/y": None, "b/w": 3.0, "b/x": 0.1 + 0.2, "c": 1e-300}
    assert json.loads(line) == expected | {"findings": ["reward was not finite — π"]}
    assert list(json.loads(line)) == [*expected, "findings"]
    sink.close()
    sink.close()  # twice is once


def test_the_bytes_do_not_depend_on_the_order_of_the_figures(tmp_path):
    for name, figures in (("one", ODD), ("two", dict(reversed(ODD.items())))):
        sink = JsonlSink(tmp_path / name)
        sink(report(0, **figures))
        sink.close()
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_pandas_reads_it(tmp_path):
    write(tmp_path / "m.jsonl", 4)
    table = pd.read_json(tmp_path / "m.jsonl", lines=True, precise_float=True)
    assert table["env_steps"].tolist() == [100, 200, 300, 400]
    assert table["train/loss"].tolist() == [i / 7 for i in range(4)]


def test_rows_come_back_with_nan_for_null(tmp_path):
    sink = JsonlSink(tmp_path / "m.jsonl")
    sink(report(0, **ODD))
    sink.close()
    (row,) = read_rows(tmp_path / "m.jsonl")
    assert math.isnan(row["a/x"])
    assert row["b/x"] == 0.1 + 0.2


@pytest.mark.parametrize(("env_steps", "kept"), [(0, 0), (99, 0), (100, 1), (350, 3), (400, 4), (10**9, 5)])
def test_truncate_leaves_what_was_logged_until_then(env_steps, kept, tmp_path):
    write(tmp_path / "m.jsonl", 5)
    lines = (tmp_path / "m.jsonl").read_bytes().splitlines(keepends=True)
    assert truncate(tmp_path / "m.jsonl", env_steps) == kept
    assert (tmp_path / "m.jsonl").read_bytes() == b"".join(lines[:kept])


def test_truncate_of_nothing():
    assert truncate("no/such/file", 5) == 0


def test_a_line_torn_at_any_byte_is_no_line_and_the_next_starts_afresh(tmp_path):
    path = tmp_path / "m.jsonl"
    write(path, 2)
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for at in range(first, len(whole)):
        path.write_bytes(whole[:at])
        assert [row["iteration"] for row in read_rows(path)] == [0]
        assert truncate(path, 10**9) == 1
        assert path.read_bytes() == whole[:first]
        path.write_bytes(whole[:at])
        write(path, 2, start=1)
        assert path.read_bytes() == whole


@pytest.mark.parametrize("bad", [b"{nonsense\n", b'{"a": 1}\n', b"7\n", b"\x00\x00\n", b"\xff\xfe\n"])
def test_a_broken_line_is_named(bad, tmp_path):
    path = tmp_path / "m.jsonl"
    write(path, 2)
    path.write_bytes(path.read_bytes() + bad)
    assert truncate(path, 200) == 2  # beyond where the run goes on, it does not matter
    path.write_bytes(path.read_bytes() + bad)
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"line 3 of .*m.jsonl is no iteration"):
        truncate(path, 300)
    with pytest.raises(InputError, match=r"line 3 of .*m.jsonl is no iteration"):
        list(read_rows(path))
    assert path.read_bytes() == before


def test_no_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"m.jsonl is not there"):
        list(read_rows(tmp_path / "m.jsonl"))


def test_a_full_disk_leaves_whole_lines(tmp_path):
    """The system's own limit on the size of a file: it writes a part of the line, then refuses."""
    path = tmp_path / "m.jsonl"
    write(path, 3)
    whole = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    sink = JsonlSink(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 20, hard))
    try:
        with pytest.raises(TrainingError, match=r"m.jsonl cannot be written .*make room"):
            sink(report(3, train__loss=0.5))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == whole
    sink(report(3, train__loss=0.5))  # there is room again
    sink.close()
    assert [row["iteration"] for row in read_rows(path)] == [0, 1, 2, 3]


def test_a_folder_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(TrainingError, match="cannot be written"):
        JsonlSink(tmp_path / "no" / "m.jsonl")


def test_a_resumed_run_writes_the_lines_of_an_uninterrupted_one(tmp_path):
    config = settings("real")

    def log(name, count, progress=None):
        sink, last = JsonlSink(tmp_path / name), None
        for last in itertools.islice(train(config, Ragged("real"), progress=progress), count):
            sink(last)
        sink.close()
        return last

    log("whole", 5)
    log("parts", 3)  # killed an iteration after the checkpoint
    saved = log("other", 2)
    assert truncate(tmp_path / "parts", saved.env_steps) == 2
    log("parts", 3, saved.progress)
    without_clock = [
        [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")} for line in text.splitlines()]
        for text in ((tmp_path / name).read_text() for name in ("whole", "parts"))
    ]
    assert without_clock[0] == without_clock[1]
    assert len(without_clock[0]) == 5


# --- TensorBoard ------------------------------------------------------------------------------------------------------


def events(folder):
    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {tag: [(one.step, one.value) for one in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def test_tensorboard_reads_every_figure_over_environment_steps(tmp_path):
    sink = TensorBoardSink(tmp_path)
    for i in range(3):
        sink(report(i, train__loss=i / 4, train__n_updates=9.0, time__fps=5.0, risk__cvar=math.nan if i else 0.5))
    sink.sync()
    expected = {"train/loss": [(100, 0.0), (200, 0.25), (300, 0.5)], "time/fps": [(i, 5.0) for i in (100, 200, 300)]}
    assert events(tmp_path) == expected | {"risk/cvar": [(100, 0.5)]}
    sink.close()


def test_tensorboard_keeps_out_what_sb3_keeps_out(tmp_path):
    sink, last = TensorBoardSink(tmp_path), None
    for last in itertools.islice(train(settings("real"), Ragged("real")), 2):
        sink(last)
    sink.close()
    hidden = {"time/iterations", "time/time_elapsed", "time/total_timesteps", "train/n_updates"}
    finite = {name for name, value in last.metrics.items() if math.isfinite(value)}
    assert finite - hidden <= set(events(tmp_path))
    assert not hidden & set(events(tmp_path))


def test_a_resumed_run_replaces_what_the_killed_one_logged_beyond(tmp_path):
    first = TensorBoardSink(tmp_path)
    for i in range(4):
        first(report(i, train__loss=float(i)))
    first.close()
    second = TensorBoardSink(tmp_path, resume_at=200)
    for i in range(2, 5):
        second(report(i, train__loss=10.0 * i))
    second.close()
    assert events(tmp_path)["train/loss"] == [(100, 0.0), (200, 1.0), (300, 20.0), (400, 30.0), (500, 40.0)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # its thread's own words on it
def test_a_disk_too_full_for_events_is_one_sentence(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    others = set(threading.enumerate())
    sink = TensorBoardSink(tmp_path)
    monkeypatch.setattr(RecordWriter, "write", full)
    sink(report(0, train__loss=0.5))
    with pytest.raises(TrainingError, match=r"cannot be written \(No space left on device\); make room"):
        sink.sync()
    for thread in set(threading.enumerate()) - others:
        thread.join()  # its last words belong to this test, not to whichever runs when it dies


# --- trackers, played by stand-ins -----------------------------------------------------------------------------------


@pytest.fixture
def wandb(monkeypatch):
    """What of wandb is called, and what it was told."""
    told = types.SimpleNamespace(inits=[], rows=[], finished=0)

    class Run:
        def log(self, row, step):
            told.rows.append((step, row))

        def finish(self):
            told.finished += 1

    def init(**settings):
        told.inits.append(settings)
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init))
    return told


def test_wandb_is_told_everything_and_finds_its_run_again(wandb, tmp_path):
    for i in range(2):
        sink = WandbSink(tmp_path, {"seed": 3})
        sink(report(i, train__loss=0.5, policy__kl=math.inf))
        sink.sync()
        sink.close()
    assert wandb.rows == [(100, {"train/loss": 0.5}), (200, {"train/loss": 0.5})]
    assert wandb.finished == 2
    first, second = wandb.inits
    assert first == second
    assert len(first["id"]) == 12
    assert (first["config"], first["resume"], first["dir"], first["name"]) == (
        {"seed": 3},
        "allow",
        str(tmp_path),
        tmp_path.name,
    )


@pytest.fixture
def mlflow(monkeypatch):
    told = types.SimpleNamespace(uris=[], params={}, metrics=[], ended=[], runs=0)

    class Client:
        def __init__(self, tracking_uri):
            told.uris.append(tracking_uri)

        def get_experiment_by_name(self, name):
            return types.SimpleNamespace(experiment_id="7") if told.runs else None

        def create_experiment(self, name):
            return name

        def create_run(self, experiment, run_name):
            told.runs += 1
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id=f"{experiment}-{run_name}"))

        def log_param(self, run, name, value):
            told.params[name] = value

        def log_batch(self, run, metrics):
            assert 0 < len(metrics) <= 1000
            told.metrics += [(run, *metric) for metric in metrics]

        def set_terminated(self, run):
            told.ended.append(run)

    def metric(name, value, timestamp, step):
        return name, value, step

    monkeypatch.setitem(sys.modules, "mlflow", types.ModuleType("mlflow"))
    monkeypatch.setitem(sys.modules, "mlflow.entities", types.SimpleNamespace(Metric=metric))
    monkeypatch.setitem(sys.modules, "mlflow.tracking", types.SimpleNamespace(MlflowClient=Client))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "as before")
    return told


def test_mlflow_is_told_everything_and_finds_its_run_again(mlflow, tmp_path):
    for i in range(2):
        sink = MlflowSink(tmp_path, {"seed": 3, "ppo": {"n_steps": 8}})
        sink(report(i, train__loss=0.5, policy__kl=math.nan))
        sink.sync()
        sink.close()
    run = f"quantail-{tmp_path.name}"
    assert mlflow.metrics == [(run, "train/loss", 0.5, 100), (run, "train/loss", 0.5, 200)]
    assert mlflow.params == {"seed": 3, "ppo.n_steps": 8}
    assert (mlflow.runs, mlflow.ended) == (1, [run, run])
    assert mlflow.uris == [(tmp_path / "mlruns").as_uri()] * 2


def test_mlflow_takes_a_thousand_figures_at_once(mlflow, tmp_path):
    MlflowSink(tmp_path)(report(0, **{f"a__{i}": float(i) for i in range(2500)}))
    assert len(mlflow.metrics) == 2500


def test_mlflow_goes_to_the_server_that_is_named(mlflow, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker:5000")
    MlflowSink(tmp_path)
    assert mlflow.uris == ["http://tracker:5000"]


@pytest.mark.parametrize(("sink", "package"), [(WandbSink, "wandb"), (MlflowSink, "mlflow")])
def test_a_tracker_that_is_not_installed_names_its_extra(sink, package, tmp_path, monkeypatch):
    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == package:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent(), *sys.meta_path])
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "as before")
    with pytest.raises(ConfigError, match=rf"{package} is to track the run.*pip install 'quantail\[track\]'"):
        sink(tmp_path)
    assert list(tmp_path.iterdir()) == []


# --- the trackers themselves ------------------------------------------------------------------------------------------

REAL = """
import sys
import threading
from monitor.reports import report
from quantail.monitor import sinks
for i in range(2):
    sink = getattr(sinks, sys.argv[1])(sys.argv[2], {"ppo": {"n_steps": 8}})
    sink(report(i, train__loss=i / 4))
    sink.close()
"""


def track(kind, folder):
    """In a process of its own, without any server: these packages start threads and processes."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "MLFLOW"))}
    own = {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parents[1])]),
    }
    answer = subprocess.run(
        [sys.executable, "-c", REAL, kind, str(folder)], env=known | own, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stderr


@pytest.mark.slow
def test_wandb_itself_keeps_two_parts_of_one_run(tmp_path):
    pytest.importorskip("wandb", exc_type=ImportError)
    track("WandbSink", tmp_path)
    name = json.loads((tmp_path / "wandb.json").read_text())["id"]
    parts = sorted((tmp_path / "wandb").glob(f"offline-run-*/run-{name}.wandb"))
    assert len(parts) in (1, 2)  # two within one second share a folder
    assert all(b"train/loss" in part.read_bytes() for part in parts)


@pytest.mark.slow
def test_mlflow_itself_reads_the_figures(tmp_path):
    pytest.importorskip("mlflow", exc_type=ImportError)
    track("MlflowSink", tmp_path)
    run = json.loads((tmp_path / "mlflow.json").read_text())["id"]
    (place,) = (tmp_path / "mlruns").glob(f"*/{run}")
    rows = [line.split() for line in (place / "metrics/train/loss").read_text().splitlines()]
    assert [(float(value), int(step)) for _, value, step in rows] == [(0.0, 100), (0.25, 200)]
    assert (place / "params/ppo.n_steps").read_text() == "8"
