"""The number of threads is measured: the fewest that are nearly as fast as any, kept from then on."""

import pytest
import torch

from quantail import checkpoint, ranks
from quantail.checkpoint import rotation
from quantail.run import resume, run, threads
from run.worlds import At, rows, small


@pytest.fixture(autouse=True)
def one_thread():
    yield
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("cores", "numbers"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (4, [1, 2, 4]), (6, [1, 2, 4, 6]), (16, [1, 2, 4, 8, 16])]
)
def test_powers_of_two_and_all_cores_are_tried(cores, numbers):
    left = threads.planned(cores).left
    assert left[0] == 1
    assert list(left[1:]) == [number for number in numbers for _ in range(threads.LOOKS)]


@pytest.mark.parametrize(
    ("seconds", "best"),
    [
        ({1: [1.0, 9.0], 2: [0.7, 0.6], 4: [0.5, 0.9]}, 4),
        ({1: [1.0, 9.0], 2: [0.7, 0.51], 4: [0.5, 0.9]}, 2),  # 2 % are no reason
        ({1: [0.4, 9.0], 2: [0.7, 0.5], 4: [0.5, 0.9]}, 1),
        ({1: [1.0], 2: [1.2], 4: [0.9]}, 4),
    ],
)
def test_the_fewest_that_nobody_beats(seconds, best):
    seen = tuple((number, time) for number, times in seconds.items() for time in times)
    assert threads.best_of(seen) == best


def test_a_run_tries_chooses_says_so_and_keeps_it(tmp_path, monkeypatch):
    monkeypatch.setattr(threads, "planned", lambda cores: threads.Trial((1, 1, 2)))
    monkeypatch.setattr(threads, "PARTS", ("rollout/valid_rows",))
    found = []
    counts = [At(i, lambda: found.append(torch.get_num_threads())) for i in range(5)]
    monkeypatch.setattr(threads, "fastest", lambda seen: {1: 9.0, 2: 1.0})
    config = small(total=110, run__threads="auto")
    run(config, tmp_path, sinks=counts)
    assert found == [1, 2, 2, 2]  # a sink is told when the next number is already set
    saved = checkpoint.read(rotation.listed(tmp_path / "checkpoints")[-1])
    assert saved.threads == 2
    at = At(saved.iteration, lambda: found.append(torch.get_num_threads()))
    resume(tmp_path, total_timesteps=140, sinks=[at])
    assert found[-1] == 2
    assert len(rows(tmp_path)) > saved.iteration


def test_nothing_is_measured_where_a_number_is_asked_for_or_several_processes_share(monkeypatch):
    assert threads.start(small(run__threads=2), None) == threads.Trial()
    assert torch.get_num_threads() == 2
    monkeypatch.setattr(ranks, "count", lambda: 2)
    assert threads.start(small(run__threads="auto"), None) == threads.Trial()
    assert torch.get_num_threads() == 1
    assert threads.after(threads.Trial(), {}) == (threads.Trial(), "")
