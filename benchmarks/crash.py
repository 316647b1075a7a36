"""Nothing good is lost: `python benchmarks/crash.py [kills|faults ...] [--cases NAME ...] [--kills 20]`.

kills: every case trains once without interruption by `quantail train`. Then, so many times, in a process of its own that gets
SIGKILL at a moment drawn at random: of the clock, or, every other time, at a system call of a checkpoint's save (a write is
half done then). `quantail resume` goes on; one in three of those is killed in turn. What is left behind must equal the run that
nobody touched: SHA-256 of all weights, the last and the best checkpoint byte by byte, the log but for `time/`.

faults: at every system call of a save, once the disk is full (ENOSPC), once the process is killed. Afterwards there must be a
checkpoint that loads, and resuming must end where the untouched run did.

Processes are forked from this one, so that no moment falls into the start of Python. POSIX only. CRASH_DEBUG=1 shows errors.
"""

import argparse
import errno
import hashlib
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import tensorboard.summary.writer.event_file_writer  # noqa: F401 # so that no moment falls into an import
import tyro  # noqa: F401

from quantail import checkpoint, cli, presets
from quantail.checkpoint import rotation
from quantail.config import (
    Config,
    CriticConfig,
    EnvConfig,
    InputConfig,
    KlConfig,
    NetConfig,
    OptimConfig,
    PpoConfig,
    RiskConfig,
    RunConfig,
)
from quantail.config.optim import KlRateConfig, UpgdConfig, VarianceConfig
from quantail.monitor.sinks import METRICS_FILE, read_rows
from quantail.run import configfile, session

CALLS = ("open", "write", "fsync", "close", "replace", "unlink")
NOISY = OptimConfig(  # what has a state of its own: noise, utilities, the gradient's variance, a rate that answers the KL
    name="adaptive_upgd",
    learning_rate=1e-3,
    kl_rate=KlRateConfig(factor=1.5),
    upgd=UpgdConfig(sigma=0.01),
    variance=VarianceConfig(estimator="elementwise", warmup=5),
)
PRICED = RiskConfig(alpha=0.3, limit=-2.0, weight=0.1)  # outcomes, ν, the price and its controller, the charges' scale
RAW = {"input": InputConfig(normalize_observations=False), "critic": CriticConfig(normalize_returns=False)}


def case(start: Config, steps: int, **parts: Any) -> Config:
    """A preset made short, with small nets; it saves and evaluates often, and logs to every file."""
    often = RunConfig(
        save_every=2, keep=2, evaluate_every=3, evaluate_rows=120, evaluate_envs=4, sinks=("jsonl", "tensorboard")
    )
    net = replace(start.net, encoder_sizes=(16,), hidden=16, actor_sizes=(16,), critic_sizes=(16,))
    ppo = PpoConfig(n_steps=32, batch_size=128, n_epochs=2)
    return replace(start, total_timesteps=steps, run=often, ppo=ppo, net=net, **parts)


CASES: dict[str, Callable[[], Config]] = {
    "feed-forward": lambda: case(presets.cartpole(), 6_000, **RAW),
    "lstm": lambda: case(presets.cartpole_positions(), 4_000, **RAW),
    "normalised": lambda: case(presets.cartpole_positions(), 4_000),  # observations and returns
    "continuous": lambda: case(replace(presets.garleanu_pedersen(), net=NetConfig(memory="gru")), 16_000),
    "upgd": lambda: case(presets.cartpole(), 4_000, optim=NOISY, kl=KlConfig(target=0.01)),
    "risk": lambda: case(Config(env=EnvConfig("quantail/StaticNested", 16)), 8_000, risk=PRICED),
    "market": lambda: case(Config(env=EnvConfig("quantail/Market", 16, {"length": 40})), 8_000),  # paths made anew
}


class Result(NamedTuple):
    """One run that was broken off and gone on with."""

    what: str
    when: str
    loadable: str  # what could be loaded right after
    equal: bool  # whether it ended as the untouched run did


# --- processes --------------------------------------------------------------------------------------------------------


def forked(work: Callable[[], Any]) -> int:
    """Do it in a process of its own; its id. Its output goes nowhere, its exit code is 0, or what it returns."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        if not os.environ.get("CRASH_DEBUG"):
            os.dup2(null, 2)
        code = int(work() or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(pid: int) -> int:
    """Wait for it; its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def train(settings: Path, folder: Path) -> Callable[[], int]:
    """`quantail train` in a folder."""
    return lambda: cli.main(["train", "--config", str(settings), "--run", str(folder)])


def resume(folder: Path) -> Callable[[], int]:
    """`quantail resume` of what was broken off; a run that has not begun yet is begun by the same command again."""
    return lambda: cli.main(["resume", str(folder)])


def gone_on(settings: Path, folder: Path) -> Callable[[], int]:
    """Whatever goes on: `resume`, or `train` where nothing was there to resume."""
    return resume(folder) if (folder / "config.yaml").is_file() else train(settings, folder)


class Breaker:
    """Breaks the system call of this number among those made while a checkpoint is saved; a write is half done."""

    def __init__(self, at: int, how: str, only_save: int | None = None) -> None:
        self.left, self.how, self.only_save = at, how, only_save
        self.saves, self.inside = 0, False
        self.seen: list[str] = []
        for name in CALLS:
            setattr(os, name, self.around(name, getattr(os, name)))
        self.save, session.save = session.save, self.saving

    def saving(self, *args: Any, **kwargs: Any) -> None:
        """`session.save`, counted."""
        self.inside = self.only_save in (None, self.saves)
        self.saves += 1
        try:
            self.save(*args, **kwargs)
        finally:
            self.inside = False

    def around(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        """The call, or what breaks it."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if not self.inside:
                return real(*args, **kwargs)
            self.seen.append(name)
            self.left -= 1
            if self.left != -1:
                return real(*args, **kwargs)
            if name == "write":
                real(args[0], args[1][: len(args[1]) // 2])
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if name == "close":
                real(*args)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        return call


def calls_of(work: Callable[[], Any], only_save: int | None = None) -> list[str]:
    """The system calls that its saves make, all or those of one save."""
    reader, writer = os.pipe()

    def counted() -> int:
        breaker = Breaker(-1, "", only_save)
        code = int(work())
        os.write(writer, json.dumps(breaker.seen).encode())
        return code

    pid = forked(counted)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        seen: list[str] = json.loads(pipe.read() or "[]")
    assert ended(pid) == 0, "the run that nobody touches failed; set CRASH_DEBUG=1 to see why"
    return seen


# --- what is left behind ----------------------------------------------------------------------------------------------


def left_behind(folder: Path) -> dict[str, Any]:
    """What must be equal: all weights, the checkpoints' bytes, the log without the clock."""
    last = rotation.listed(folder / "checkpoints")[-1]
    weights = hashlib.sha256()
    for name, weight in sorted(checkpoint.restore_agent(checkpoint.read(last)).state_dict().items()):
        weights.update(name.encode() + weight.numpy().tobytes())
    rows = [
        {name: None if value != value else value for name, value in row.items() if not name.startswith("time/")}
        for row in read_rows(folder / METRICS_FILE)
    ]
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (folder / "checkpoints").iterdir()}
    return {"weights": weights.hexdigest(), "files": files, "log": rows}


def loadable(folder: Path) -> str:
    """The newest checkpoint that can be loaded now."""
    found = rotation.newest(folder / "checkpoints").checkpoint
    return "none yet" if found is None else f"step {found.env_steps}"


# --- kills ------------------------------------------------------------------------------------------------------------


def kills(name: str, count: int, seed: int, place: Path) -> Iterator[Result]:
    """So many runs of a case, each killed at a random moment and gone on with."""
    settings, whole = place / f"{name}.yaml", place / f"{name}-whole"
    settings.write_text(configfile.to_yaml(CASES[name]()), encoding="utf-8")
    calls, began = len(calls_of(train(settings, whole))), time.perf_counter()
    assert ended(forked(train(settings, place / f"{name}-timed"))) == 0
    lasts, expected = time.perf_counter() - began, left_behind(whole)
    draw = random.Random(f"{name} {seed}")
    for i in range(count):
        folder = place / f"{name}-{i}"
        if i % 2:
            when = killed_in_a_save(train(settings, folder), draw, calls)
        else:
            when = killed_by_the_clock(train(settings, folder), folder, draw, lasts)
        could = loadable(folder)
        while draw.random() < 1 / 3:
            when += ", again " + killed_by_the_clock(gone_on(settings, folder), None, draw, lasts)
        code = ended(forked(gone_on(settings, folder)))
        yield Result(name, when, could, code == 0 and left_behind(folder) == expected)


def killed_in_a_save(work: Callable[[], int], draw: random.Random, calls: int) -> str:
    """Kill it at one of the system calls of its saves; which that was."""
    at = draw.randrange(calls)

    def breaks() -> int:
        Breaker(at, "kill")
        return work()

    assert ended(forked(breaks)) == -signal.SIGKILL
    return f"at call {at} of {calls} of its saves"


def killed_by_the_clock(work: Callable[[], int], new: Path | None, draw: random.Random, lasts: float) -> str:
    """Kill it at some moment; when that was. Mostly the clock of a new run starts with its first checkpoint, so that few
    moments fall before anything was done. A new run that was faster lives anew; a resumed one is over.
    """
    while True:
        pid, waits = forked(work), new is not None and draw.random() < 0.8
        while waits and not rotation.listed(new / "checkpoints") and not is_over(pid):
            time.sleep(0.002)
        pause, began = draw.random() * lasts, time.perf_counter()
        while time.perf_counter() - began < pause and not is_over(pid):
            time.sleep(0.002)
        os.kill(pid, signal.SIGKILL)  # it is a zombie at worst: nobody has waited for it
        if ended(pid) == -signal.SIGKILL:
            return f"{pause:.2f} s after its {'first checkpoint' if waits else 'start'}"
        if new is None:
            return "too late: it was over"
        clear(new)


def is_over(pid: int) -> bool:
    """Whether a process of ours has ended; it can still be waited for."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def clear(folder: Path) -> None:
    """Remove a run that ended before its time."""
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


# --- faults -----------------------------------------------------------------------------------------------------------


def faults(name: str, place: Path, every: int = 1) -> Iterator[Result]:
    """Every system call of one save in the middle of a run, broken in both ways; or every so many."""
    settings, whole = place / f"{name}.yaml", place / f"{name}-faultless"
    settings.write_text(configfile.to_yaml(CASES[name]()), encoding="utf-8")
    which = 5  # of the saves: an earlier one must go for it, and others have been kept
    calls = calls_of(train(settings, whole), which)
    expected = left_behind(whole)
    for at in range(0, len(calls), every):
        for how in ("full disk", "kill"):
            folder = place / f"{name}-{at}-{how.replace(' ', '-')}"

            def breaks(at: int = at, how: str = how, folder: Path = folder) -> int:
                Breaker(at, how, which)
                return train(settings, folder)()

            code = ended(forked(breaks))
            assert code == (-signal.SIGKILL if how == "kill" else 2), f"call {at}, {how}: {code}"
            could = loadable(folder)
            code = ended(forked(resume(folder)))
            yield Result(f"{at + 1} {calls[at]}", how, could, code == 0 and left_behind(folder) == expected)


# --- tables -----------------------------------------------------------------------------------------------------------


def table(results: list[Result]) -> str:
    """One line for each."""
    rows = [("what", "when", "loads", "ends equal"), *((*one[:3], "yes" if one.equal else "NO") for one in results)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(f"{word:<{width}}" for word, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def verdict(name: str, results: list[Result]) -> str:
    """One line for all."""
    return f"{name}: {sum(one.equal for one in results)} of {len(results)} end as the untouched run did\n"


def main() -> int:
    """Both parts, or those asked for; fails if anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="part", help="kills, faults (default: both)")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="which are killed (default: all)")
    parser.add_argument("--kills", type=int, default=20, help="of each case (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (default 0)")
    parser.add_argument("--json", type=Path, help="also write every result here")
    options = parser.parse_args()
    found: list[Result] = []
    with tempfile.TemporaryDirectory() as place:
        if not options.parts or "kills" in options.parts:
            for name in options.cases:
                results = list(kills(name, options.kills, options.seed, Path(place)))
                print(
                    table(results), f"\n{name}: {sum(one.equal for one in results)} of {len(results)} end equal\n", flush=True
                )
                found += results
        if not options.parts or "faults" in options.parts:
            results = list(faults(options.cases[0], Path(place)))
            print(table(results), verdict("faults", results), sep="\n", flush=True)
            found += results
    if options.json:
        options.json.write_text(json.dumps([one._asdict() for one in found], indent=1), encoding="utf-8")
    return int(not all(one.equal for one in found))


if __name__ == "__main__":
    raise SystemExit(main())
