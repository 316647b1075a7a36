"""One writer for each folder; a writer that died is no writer."""

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from quantail.errors import RunError
from quantail.run import lock
from quantail.run.lock import Writer, is_written, locked, me

HOLD = """
import sys, time
from pathlib import Path
from quantail.run.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the folder."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def wait_for(process):
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_a_living_writer_is_named(holder, tmp_path):
    assert is_written(tmp_path)
    with pytest.raises(RunError, match=rf"process {holder.pid} on {socket.gethostname()} is writing into .*; wait for it"):
        locked(tmp_path).__enter__()
    assert is_written(tmp_path)  # asking and being refused takes nothing away


def test_a_killed_writer_gives_way_and_is_told_of(holder, tmp_path):
    wait_for(holder)
    assert not is_written(tmp_path)
    with locked(tmp_path) as note:
        assert note.startswith(f"process {holder.pid} on {socket.gethostname()} was writing into {tmp_path} and is gone")
        assert is_written(tmp_path)
        assert Writer(**json.loads((tmp_path / "lock").read_text())) == me()
    assert not is_written(tmp_path)
    with locked(tmp_path) as note:
        assert note == ""


def test_the_same_process_is_a_second_writer_too(tmp_path):
    with locked(tmp_path):
        with pytest.raises(RunError, match=f"process {os.getpid()} on .* is writing"):
            locked(tmp_path).__enter__()
        assert is_written(tmp_path)
    with locked(tmp_path):
        pass


def test_an_error_inside_gives_the_folder_back(tmp_path):
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        _ = 1 / 0
    with locked(tmp_path) as note:
        assert note == ""


def test_a_file_that_is_no_lock_is_in_nobodys_way(tmp_path):
    (tmp_path / "lock").write_text("what is this?")
    with locked(tmp_path) as note:
        assert note == ""


def test_what_a_dead_writers_children_hold_is_not_held_by_it(tmp_path):
    """Environments in processes of their own inherit the open file, and may outlive their parent for a moment."""
    program = HOLD.replace("time.sleep(60)", "import subprocess; child = os.fork()\n    time.sleep(60)").replace(
        "sys, time", "sys, time, os"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "held\n"
            while len(children := children_of(process.pid)) < 1:
                pass
            with pytest.raises(RunError):
                locked(tmp_path).__enter__()
            process.kill()
            process.wait()
            assert os.path.exists(f"/proc/{children[0]}")
            with locked(tmp_path) as note:
                assert "is gone" in note
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(child) for child in file.read().split()]


def nowhere(*args):
    raise OSError("no locks on this file system")


@pytest.mark.parametrize(
    ("writer", "free"),
    [
        (None, True),
        (Writer(os.getpid(), socket.gethostname(), lock.started(os.getpid())), False),
        (Writer(os.getpid(), socket.gethostname(), "another time"), True),  # the number has come back
        (Writer(2**22 + 1, socket.gethostname(), ""), True),
        (Writer(2**22 + 1, "another-machine", ""), False),
    ],
)
def test_without_locks_the_file_is_believed(writer, free, tmp_path, monkeypatch):
    monkeypatch.setattr("fcntl.flock", nowhere)
    (tmp_path / "lock").write_text("" if writer is None else json.dumps(writer._asdict()))
    assert is_written(tmp_path) != free


def test_a_folder_in_which_one_may_not_write_is_named(tmp_path):
    with pytest.raises(RunError, match=r"gone cannot be written \(No such file or directory\)"):
        locked(tmp_path / "gone").__enter__()
