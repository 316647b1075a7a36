"""A file is the old one or the new one, whatever fails while it is written."""

import errno
import os

import pytest

from quantail.checkpoint import atomic
from quantail.errors import CheckpointError

CALLS = ("open", "write", "fsync", "close", "replace")


class Fault:
    """Lets so many calls pass and fails at the next one; a write may have written a part."""

    def __init__(self, monkeypatch, at):
        self.left, self.seen = at, []
        for name in CALLS:
            monkeypatch.setattr(os, name, self.wrapped(name, getattr(os, name)))

    def wrapped(self, name, real):
        def call(*args, **kwargs):
            self.seen.append(name)
            self.left -= 1
            if self.left == -1:
                if name == "write":
                    real(args[0], args[1][: len(args[1]) // 2])
                if name == "close":
                    real(*args)
                raise OSError(errno.ENOSPC, "No space left on device")
            return real(*args, **kwargs)

        return call


def calls(monkeypatch, path):
    with monkeypatch.context() as patch:
        fault = Fault(patch, 10**9)
        atomic.replace(path, b"old")
    return fault.seen


def test_old_or_new_at_every_fault(monkeypatch, tmp_path):
    path = tmp_path / "file"
    seen = calls(monkeypatch, path)
    assert seen == ["open", "write", "fsync", "close", "replace", "open", "fsync", "close"]
    for at, name in enumerate(seen):
        with monkeypatch.context() as patch:
            Fault(patch, at)
            with pytest.raises(CheckpointError, match=r"file could not be written \(No space left on device\); what was there"):
                atomic.replace(path, b"new")
        renamed = at > seen.index("replace")
        assert path.read_bytes() == (b"new" if renamed else b"old"), name
        assert os.listdir(tmp_path) == ["file"], name
        atomic.replace(path, b"old")


def test_a_write_that_takes_only_a_part_is_continued(monkeypatch, tmp_path):
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:3]))
    atomic.replace(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"


def test_a_system_that_cannot_sync_folders_is_no_fault(monkeypatch, tmp_path):
    real, synced = os.fsync, []

    def fsync(file):
        synced.append(file)
        if len(synced) == 2:
            raise OSError(errno.EINVAL, "Invalid argument")
        real(file)

    monkeypatch.setattr(os, "fsync", fsync)
    atomic.replace(tmp_path / "file", b"new")
    assert len(synced) == 2
    assert (tmp_path / "file").read_bytes() == b"new"


def test_an_interruption_leaves_nothing_behind(monkeypatch, tmp_path):
    def stop(file):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        atomic.replace(tmp_path / "file", b"new")
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"gone/file could not be written \(No such file or directory\)"):
        atomic.replace(tmp_path / "gone" / "file", b"new")


def test_what_a_killed_process_left_is_swept(tmp_path):
    (tmp_path / ".file.123.tmp").write_bytes(b"half")
    (tmp_path / "file").write_bytes(b"whole")
    atomic.sweep(tmp_path)
    assert os.listdir(tmp_path) == ["file"]
