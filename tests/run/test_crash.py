"""Killed, or with a full disk, at any moment: what `benchmarks/crash.py` shows in full (`make soak`), a few of each."""

import os
import sys

import pytest

if not hasattr(os, "fork"):
    pytest.skip("processes are forked", allow_module_level=True)

import crash

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded"),  # threads that pytest's plugins and torch idle in
]


@pytest.mark.parametrize("name", sorted(set(crash.CASES) - {"feed-forward", "continuous"}))  # which `make soak` kills
def test_a_killed_run_ends_as_one_that_nobody_touched(name, tmp_path):
    results = list(crash.kills(name, 2, seed=sys.hexversion, place=tmp_path))
    assert [one.equal for one in results] == [True, True], crash.table(results)


def test_a_save_that_breaks_anywhere_leaves_a_checkpoint_that_loads(tmp_path):
    results = list(crash.faults("lstm", tmp_path, every=3))
    assert {one.when for one in results} == {"full disk", "kill"}
    assert all(one.equal and one.loadable.startswith("step ") for one in results), crash.table(results)
