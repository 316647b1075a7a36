"""Every figure that a run logs is explained in docs/monitoring.md, and every figure explained there is logged by a run."""

import itertools
import re

import pytest
import torch

from architecture.rules import ROOT
from quantail.config import Config, OptimConfig, RiskConfig, VarianceConfig
from quantail.loop import train
from quantail.types import Box, Group
from rivers import Ragged, settings

PAGE = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")
EXPLAINED = re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE)
PATTERNS = {name: re.compile(re.sub(r"<\w+>", "[\\\\w./-]+", name)) for name in EXPLAINED}


class Succeeds(Ragged):
    """Its episodes say whether they succeeded; it shows two things side by side."""

    observation_space = Group((("left", Box((3,))), ("right", Box((1,)))))

    def reset(self, noise):
        state, obs = super().reset(noise)
        return state, {"left": obs[:, :3], "right": obs[:, 3:]}

    def step(self, state, action, noise):
        state, step = super().step(state, action, noise)
        success = (step.reward > 0).double()
        return state, step._replace(obs={"left": step.obs[:, :3], "right": step.obs[:, 3:]}, info={"is_success": success})


GATED = OptimConfig("adaptive_upgd", critic_learning_rate=1e-4, variance=VarianceConfig("elementwise"))
RUNS: dict[str, tuple[Config, Ragged]] = {
    "choices": (settings("choices", net={"memory": "gru", "trunks": "shared"}), Ragged("choices")),
    "real": (settings("tanh", net={"layers": 2}), Ragged("tanh")),
    "categorical": (settings("real", {"kind": "categorical", "twin": False}, net={"memory": "none"}), Ragged("real")),
    "risk": (
        settings("choice", risk=RiskConfig(horizon="step", limit=1.0, weight=0.1), net={"trunks": "each"}),
        Ragged("choice"),
    ),
    "group": (settings("choice", net={"trunks": "each"}), Succeeds("choice")),
    "gated": (settings("real", optim=GATED), Ragged("real")),
}


@pytest.fixture(scope="module")
def logged():
    torch.manual_seed(0)
    return {
        name: {figure for report in itertools.islice(train(config, env), 2) for figure in report.metrics}
        for name, (config, env) in RUNS.items()
    }


@pytest.mark.parametrize("name", RUNS)
def test_every_figure_is_explained(name, logged):
    assert [figure for figure in sorted(logged[name]) if not any(one.fullmatch(figure) for one in PATTERNS.values())] == []


def test_every_figure_that_is_explained_is_logged(logged):
    everything = set().union(*logged.values())
    assert len(EXPLAINED) == len(set(EXPLAINED)) > 80
    assert [name for name, one in PATTERNS.items() if not any(map(one.fullmatch, everything))] == []
