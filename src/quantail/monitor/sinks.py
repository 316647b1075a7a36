"""Where reports go: JSON lines, TensorBoard, Weights & Biases, MLflow.

A sink is called with every report and closed at the end; `sync` brings what it was given to the disk, so that a checkpoint
is never ahead of the log. The x-axis is environment steps everywhere. A figure that is not finite is null in the JSON
lines and left out elsewhere.
"""

import json
import math
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from quantail.errors import ConfigError, InputError, TrainingError

if TYPE_CHECKING:
    from quantail.loop import Report

METRICS_FILE = "metrics.jsonl"
SYNC_SECONDS = 30.0  # a machine that loses power loses at most so much of the log; `run` calls `sync` before each checkpoint

# What SB3 keeps out of TensorBoard: counters that are the x-axis, or a line.
COUNTERS = ("time/iterations", "time/time_elapsed", "time/total_timesteps", "train/n_updates")


class Sink(Protocol):
    """What `run` calls."""

    def __call__(self, report: "Report") -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...


# --- JSON lines -------------------------------------------------------------------------------------------------------


class JsonlSink:
    """One line for each iteration, added to the end of a file: iteration, env_steps, every figure by name, findings.

    A line is handed to the system at once and whole: a killed process loses none, and a full disk leaves no half of one.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with _disk(self.path):
            self.file = FileIO(self.path, "ab")
            self.end = self.path.read_bytes().rfind(b"\n") + 1  # what follows is a line that was never finished
            self.file.truncate(self.end)
        self.synced = time.monotonic()

    def __call__(self, report: "Report") -> None:
        with _disk(self.path):
            self._append(line_of(report))
        if time.monotonic() - self.synced > SYNC_SECONDS:
            self.sync()

    def sync(self) -> None:
        """What was written is on the disk."""
        with _disk(self.path):
            os.fsync(self.file.fileno())
        self.synced = time.monotonic()

    def close(self) -> None:
        if not self.file.closed:
            try:
                self.sync()
            finally:
                self.file.close()

    def _append(self, line: bytes) -> None:
        try:
            written = 0
            while written < len(line):
                written += self.file.write(line[written:])
        except OSError:
            self.file.truncate(self.end)
            raise
        self.end += written


def line_of(report: "Report") -> bytes:
    """A report as a line of JSON, the same bytes for the same figures: names in their order, shortest exact numbers."""
    figures = {name: value if math.isfinite(value) else None for name, value in sorted(report.metrics.items())}
    row = {"iteration": report.iteration, "env_steps": report.env_steps, **figures, "findings": list(report.findings)}
    return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"


def read_rows(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """The lines of a file as mappings, one after the other, null as NaN; an unfinished last line is none."""
    return (row for _, row in _rows(Path(path)))


def truncate(path: str | os.PathLike[str], env_steps: int) -> int:
    """Drop what was logged after so many environment steps, and an unfinished last line; how many lines are left.

    The file is cut at its end, nothing is rewritten: what stays cannot be lost.
    """
    path = Path(path)
    if not path.exists():
        return 0
    count = end = 0
    for reached, row in _rows(path):
        if row["env_steps"] > env_steps:
            break
        count, end = count + 1, reached
        if row["env_steps"] == env_steps:
            break
    with _disk(path), open(path, "r+b") as file:
        file.truncate(end)
        os.fsync(file.fileno())
    return count


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Where each whole line ends in the file, and what it says."""
    if not path.is_file():
        raise InputError(f"{path} is not there, and a run writes it in its first iteration; give the folder of a run")
    end = 0
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            end += len(line)
            if not line.endswith(b"\n"):
                return
            try:
                row = json.loads(line)
                row["iteration"], row["env_steps"]
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"line {number} of {path} is no iteration of a run ({type(error).__name__}: {error}); "
                    "repair it, or move the file away"
                ) from None
            yield end, {name: math.nan if value is None else value for name, value in row.items()}


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    """What the system refuses, as one sentence."""
    try:
        yield
    except OSError as error:
        raise TrainingError(
            f"{path} cannot be written ({error.strerror}); make room or choose another folder, and resume: "
            "every line that was written before is whole"
        ) from error


# --- TensorBoard ------------------------------------------------------------------------------------------------------


class TensorBoardSink:
    """Event files for TensorBoard, under SB3's tags and ours; one event for each iteration.

    `resume_at`: the environment steps at which a run goes on. What an earlier process logged beyond is not shown.
    """

    def __init__(self, folder: str | os.PathLike[str], resume_at: int | None = None) -> None:
        events = import_module("tensorboard.compat.proto.event_pb2")
        summaries = import_module("tensorboard.compat.proto.summary_pb2")
        writers = import_module("tensorboard.summary.writer.event_file_writer")
        self.event, self.summary, self.folder = events.Event, summaries.Summary, Path(folder)
        with _disk(self.folder):
            self.writer = writers.EventFileWriter(str(folder), flush_secs=10)
        if resume_at is not None:
            log = events.SessionLog(status=events.SessionLog.START)
            self.writer.add_event(self.event(wall_time=time.time(), step=resume_at + 1, session_log=log))

    def __call__(self, report: "Report") -> None:
        values = [self.summary.Value(tag=name, simple_value=value) for name, value in finite(report) if name not in COUNTERS]
        event = self.event(wall_time=time.time(), step=report.env_steps, summary=self.summary(value=values))
        with _disk(self.folder):  # what its thread met while it wrote an earlier one
            self.writer.add_event(event)

    def sync(self) -> None:
        with _disk(self.folder):
            self.writer.flush()

    def close(self) -> None:
        with _disk(self.folder):
            self.writer.close()


# --- trackers ---------------------------------------------------------------------------------------------------------


class WandbSink:
    """A run of Weights & Biases; one that is resumed goes on under the same id, which lies in the run's folder."""

    def __init__(self, folder: str | os.PathLike[str], config: Mapping[str, Any] | None = None, project: str = "quantail"):
        folder = Path(folder)
        with _extra("wandb"):
            wandb = import_module("wandb")
        self.run = wandb.init(
            project=project,
            name=folder.resolve().name,
            dir=str(folder),
            id=identity(folder / "wandb.json", lambda: uuid.uuid4().hex[:12]),
            resume="allow",
            config=dict(config or {}),
        )

    def __call__(self, report: "Report") -> None:
        self.run.log(dict(finite(report)), step=report.env_steps)

    def sync(self) -> None:
        """It writes on its own."""

    def close(self) -> None:
        self.run.finish()


class MlflowSink:
    """A run of MLflow, on the server that MLFLOW_TRACKING_URI names, else in the run's own folder."""

    def __init__(self, folder: str | os.PathLike[str], config: Mapping[str, Any] | None = None, experiment: str = "quantail"):
        folder = Path(folder).resolve()
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            uri = (folder / "mlruns").as_uri()
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 asks for this before it writes to a folder
        with _extra("mlflow"):
            self.metric = import_module("mlflow.entities").Metric
            self.client = import_module("mlflow.tracking").MlflowClient(tracking_uri=uri)

        def create() -> str:
            known = self.client.get_experiment_by_name(experiment)
            place = known.experiment_id if known else self.client.create_experiment(experiment)
            run: str = self.client.create_run(place, run_name=folder.name).info.run_id
            for name, value in flat(config or {}):
                self.client.log_param(run, name, value)
            return run

        self.run_id = identity(folder / "mlflow.json", create)

    def __call__(self, report: "Report") -> None:
        now = int(1000 * time.time())
        figures = [self.metric(name, value, now, report.env_steps) for name, value in finite(report)]
        for start in range(0, len(figures), 1000):  # MLflow takes no more at once
            self.client.log_batch(self.run_id, metrics=figures[start : start + 1000])

    def sync(self) -> None:
        """It has written everything already."""

    def close(self) -> None:
        self.client.set_terminated(self.run_id)


def finite(report: "Report") -> list[tuple[str, float]]:
    """The figures that can be drawn."""
    return [(name, value) for name, value in sorted(report.metrics.items()) if math.isfinite(value)]


def flat(config: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Nested settings as `ppo.n_steps`, value."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{name}.")
        else:
            yield before + name, value


def identity(path: Path, create: Callable[[], str]) -> str:
    """The id under which a tracker knows this run: the one that lies in the file, or a new one, which is put there."""
    if path.exists():
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    new = create()
    path.write_text(json.dumps({"id": new}) + "\n", encoding="utf-8")
    return new


@contextmanager
def _extra(name: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{name} is to track the run, but {error.name} is not installed; type: pip install 'quantail[track]'"
        ) from error
