"""Several processes with a part of the environments each learn what one process learns that has them all."""

import json
import socket
import subprocess
import sys

import pytest
import torch

import sides
from quantail import ranks
from quantail.cli import main
from quantail.config import Config, EnvConfig, OptimConfig, VarianceConfig
from quantail.engine import chosen
from quantail.envs.oracles import LQR
from quantail.errors import ConfigError
from quantail.figures import COUNTS
from quantail.run.together import made
from quantail.update import check_parts


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return sides.side_by_side(2, port, tmp_path_factory.mktemp("sides"))


@pytest.mark.parametrize("name", sides.CASES)
def test_two_processes_learn_what_one_learns(both, name):
    one = sides.trained(sides.CASES[name])
    for two in (found[name] for found in both):
        for key, weight in one["weights"].items():
            torch.testing.assert_close(two["weights"][key], weight, rtol=1e-6, atol=1e-9)
        assert (two["env_steps"], two["updates"]) == (one["env_steps"], one["updates"])
        counted = [key for key in one["metrics"] if key in COUNTS or key.startswith(("train/approx_kl", "optim/", "risk/"))]
        assert len(counted) > 10
        for key in counted:
            assert two["metrics"][key] == pytest.approx(one["metrics"][key], rel=1e-6, abs=1e-9, nan_ok=True), key


@pytest.mark.parametrize("name", sides.CASES)
def test_both_say_and_hold_the_same(both, name):
    first, second = (found[name] for found in both)
    for key, weight in first["weights"].items():
        assert torch.equal(weight, second["weights"][key])
    same = torch.tensor([list(found["metrics"].values()) for found in (first, second)], dtype=torch.float64).nan_to_num(7e7)
    assert torch.equal(same[0], same[1])


def side(monkeypatch, place, count=3):
    monkeypatch.setattr(ranks, "count", lambda: count)
    monkeypatch.setattr(ranks, "place", lambda: place)


def test_the_parts_of_what_is_drawn_are_the_whole(monkeypatch):
    def draw(shape, source):
        return torch.rand(tuple(shape), generator=source)

    whole = draw((4, 6, 2), torch.Generator().manual_seed(1))
    parts = []
    for place in range(3):
        side(monkeypatch, place)
        parts.append(ranks.drawn(draw, (4, 2, 2), torch.Generator().manual_seed(1), 1))
    assert torch.equal(torch.cat(parts, 1), whole)


def test_every_sequence_is_one_processs_own(monkeypatch):
    envs, spans, count = 2, 4, 3
    index = torch.randperm(envs * spans * count)
    owned = []
    for place in range(count):
        side(monkeypatch, place)
        mine, kept = ranks.chosen(index, envs)
        where = index[kept]
        assert torch.equal(where // (envs * count), mine // envs)  # the span
        assert torch.equal(where % (envs * count), mine % envs + place * envs)  # the environment
        owned += where.tolist()
    assert sorted(owned) == list(range(len(index)))


def test_alone_everything_stays_as_it_is():
    x = torch.randn(3, 4)
    assert (ranks.count(), ranks.place()) == (1, 0)
    assert ranks.total(x) is ranks.whole(x, 1) is ranks.own(x, 1) is ranks.joint(("a",), x) is x
    assert ranks.same("finished") == "finished"
    with ranks.joined():
        assert ranks.count() == 1


def test_what_processes_cannot_do_together_is_refused(monkeypatch):
    env = LQR(3)
    case = sides.config(optim=OptimConfig(variance=VarianceConfig("two_batch")), ppo={"micro_batches": 2})
    side(monkeypatch, 0, 2)
    with pytest.raises(ConfigError, match="two_batch compares the parts of a batch, of which 2 processes have some each"):
        check_parts([], case)
    with pytest.raises(ConfigError, match="captures what one process does, and 2 train together"):
        chosen("graph", env)
    assert chosen("auto", env) == "eager"


TRAIN = (
    *("train", "--env", "quantail/HiddenRegime", "--env.options", "horizon", "7", "--env.num-envs", "4", "--ppo.n-steps", "8"),
    *("--ppo.batch-size", "16", "--net.hidden", "4", "--run.sinks", "jsonl"),
)


def torchrun(*words):
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "--"]
    return subprocess.run([*start, "quantail", *words], capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_run_of_two_processes_has_one_folder_and_goes_on(tmp_path):
    folder = tmp_path / "run"
    begun = torchrun(*TRAIN, "--total-timesteps", "100", "--run", str(folder))
    assert begun.returncode == 0, begun.stderr
    assert begun.stdout.count("finished: ") == 1
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["time/iterations"] for row in rows] == list(range(1, len(rows) + 1))
    assert rows[0]["rollout/valid_rows"] == 4 * 8 - 4  # an episode of seven rows, and the one after it
    gone_on = torchrun("resume", str(folder), "--total-timesteps", "200")
    assert gone_on.returncode == 0, gone_on.stderr
    assert main(["resume", str(folder), "--total-timesteps", "250"]) == 0  # alone
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [row["time/total_timesteps"] for row in rows]
    assert steps == sorted(set(steps))
    assert steps[-1] >= 250


def test_environments_that_do_not_split_are_refused(monkeypatch):
    side(monkeypatch, 0)
    with pytest.raises(ConfigError, match=r"env\.num_envs=8 does not split into 3 processes; use a multiple of 3"):
        made(Config(env=EnvConfig("quantail/LQR")))
