"""Small runs that tests start, break and compare."""

import hashlib
import json
import math

import torch

from quantail import checkpoint
from quantail.checkpoint import rotation
from rivers import B, Ragged, configured

SMALL = {
    "env.id": "quantail/CartPole",
    "env.num_envs": 3,
    "run.sinks": ["jsonl"],
    "run.save_every": 3,
    "run.evaluate_rows": 120,
}


def small(total=300, **values):
    """A small config; settings at paths, with __ for the dots."""
    return configured("choice", {"total_timesteps": total, **SMALL, **{k.replace("__", "."): v for k, v in values.items()}})


def rows(folder):
    """The log without the clock."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [{name: value for name, value in json.loads(line).items() if not name.startswith("time/")} for line in lines]


def end_of(folder):
    """What a run left behind: SHA-256 of all weights, the whole last checkpoint, the log."""
    last = rotation.listed(folder / "checkpoints")[-1]
    digest = hashlib.sha256()
    for name, weight in sorted(checkpoint.restore_agent(checkpoint.read(last)).state_dict().items()):
        digest.update(name.encode() + weight.numpy().tobytes())
    return digest.hexdigest(), last.name, last.read_bytes(), rows(folder)


class Stop(Exception):
    """What stands for a power cut in the middle of a run."""


class At:
    """A sink that does something at an iteration."""

    def __init__(self, iteration, action):
        self.iteration, self.action = iteration, action

    def __call__(self, report):
        if report.iteration == self.iteration:
            self.action()

    def sync(self):
        pass

    def close(self):
        pass


def cut():
    raise Stop


class Spoiled(Ragged):
    """Reward or observation is not a number: once in environment 3, or from then on in all."""

    def __init__(self, what, forever=False):
        super().__init__("real")
        self.what, self.forever, self.steps = what, forever, 0

    def step(self, state, action, noise):
        after, step = super().step(state, action, noise)
        self.steps += 1
        broken = torch.full((B,), self.steps >= 40) if self.forever else (torch.arange(B) == 3) & torch.tensor(self.steps == 40)
        value = getattr(step, self.what)
        return after, step._replace(**{self.what: torch.where(broken.view(-1, *[1] * (value.ndim - 1)), math.nan, value)})
