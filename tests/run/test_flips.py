"""Every setting of `env` and `run` is read: change it, and what a run leaves behind is another."""

import re

import pytest

from quantail import checkpoint
from quantail.checkpoint import rotation
from quantail.config import Config
from quantail.run import run
from run.worlds import rows, small
from test_loop import leaves

SHORT = {"total": 150}
JUDGED = {"run__evaluate_every": 2}
FLIPS = {
    "env.id": ("quantail/MemoryChain", {}),
    "env.num_envs": (4, {}),
    "env.options": ({"velocities": False}, {}),
    "run.save_every": (2, {}),
    "run.keep": (1, {}),
    "run.evaluate_every": (3, JUDGED),
    "run.evaluate_rows": (90, JUDGED),
    "run.evaluate_envs": (5, JUDGED),
    "run.evaluate_seed": (1, JUDGED),
    "run.deterministic": (False, JUDGED),
    "run.judge": ("step", JUDGED),
    "run.patience": (1, {"run__evaluate_every": 1, "total": 400}),
    "run.sinks": (["jsonl", "tensorboard"], {}),
    "run.threads": (2, {"total": 1}),
}
ELSEWHERE = {"env.subprocesses", "env.pnl"}  # tests/test_registry.py


def visible(config, folder):
    """All that a run leaves behind, but for times and the settings themselves."""
    outcome = run(config, folder)
    files = {re.sub(r"tfevents.*", "tfevents", str(path.relative_to(folder))) for path in folder.rglob("*")}
    saved = checkpoint.read(rotation.listed(folder / "checkpoints")[-1])
    return outcome.status, outcome.judged, files, saved.threads, rows(folder)


@pytest.fixture(scope="module")
def bases():
    return {}


@pytest.mark.parametrize("path", FLIPS)
def test_a_changed_setting_changes_what_is_left_behind(path, bases, tmp_path):
    value, base = FLIPS[path]
    key = str(base)
    if key not in bases:
        bases[key] = visible(small(**SHORT | base), tmp_path / "base")
    assert visible(small(**SHORT | base | {path.replace(".", "__"): value}), tmp_path / "flipped") != bases[key]


def test_every_setting_is_flipped():
    known = {leaf for leaf in leaves(Config()) if leaf.startswith(("env.", "run."))}
    assert known == {*FLIPS, *ELSEWHERE}
