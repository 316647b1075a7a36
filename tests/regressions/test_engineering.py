"""What a library must not do to its surroundings, and what its surroundings must not do to it."""

import ast
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from architecture.test_imports import CORE
from quantail.errors import TrainingError
from quantail.loop import make_agent, train
from rivers import B, Ragged, settings

TESTS = Path(__file__).parents[1]


def test_importing_changes_nothing_in_torch():
    """Not a single name of torch, its functions, its tensors or its modules means something else afterwards."""
    program = f"""
import importlib, json, sys
import torch, numpy
pytest = type(sys)("pytest")  # the library once behaved differently where it saw a test runner
sys.modules.setdefault("pytest", pytest)
places = [torch, torch.Tensor, torch.nn, torch.nn.functional, torch.nn.Module, torch.optim, torch.random, torch.Generator,
          numpy, numpy.random]
before = [dict(vars(place)) for place in places]
settings = torch.get_default_dtype(), torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
stream = torch.random.get_rng_state()
for name in {sorted(CORE)!r}:
    importlib.import_module(name)
changed = [f"{{place.__name__}}.{{name}}" for place, old in zip(places, before) for name, value in old.items()
           if vars(place).get(name) is not value]
same = settings == (torch.get_default_dtype(), torch.get_num_threads(), torch.are_deterministic_algorithms_enabled())
print(json.dumps([changed, same, bool((stream == torch.random.get_rng_state()).all())]))
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(answer.stdout) == [[], True, True]


def test_no_test_puts_anything_in_the_place_of_a_module():
    """`sys.modules[...] = stub` outlives its test. Programs that run in a process of their own may."""
    found = []
    for path in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else []
            found += [path.name for target in targets if ast.unparse(target).startswith("sys.modules")]
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("sys.modules.update", "sys.modules.setdefault"):
                found.append(path.name)
    assert found == []


class Sized(Ragged):
    """Rewards of any size, in float32."""

    def __init__(self, size):
        super().__init__("real")
        self.size = size

    def step(self, state, action, noise):
        after, step = super().step(state, action, noise)
        huge = torch.where(torch.arange(B) == 2, self.size, step.reward.clamp(-1, 1))
        return after, step._replace(reward=torch.where(step.reward == 0, 0.0, huge).float())


@pytest.mark.parametrize("kind", ["scalar", "quantile", "categorical"])
@pytest.mark.parametrize("size", [1e-30, 1e6, 1e20, 3e38])
def test_rewards_of_any_size_break_no_weight(size, kind):
    """Where the sums no longer fit into a float32, training stops and says so."""
    config, env = settings("real", {"kind": kind}), Sized(size)
    agent = make_agent(config, env)
    stopped = ""
    try:
        list(itertools.islice(train(config, env, agent), 3))
    except TrainingError as error:
        stopped = str(error)
    assert all(p.isfinite().all() for p in agent.parameters())
    assert size < 1e30 or "non-finite entr" in stopped
    assert size > 1e10 or not stopped
