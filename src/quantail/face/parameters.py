"""Weights, optimizer and statistics by name, out and in."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from quantail.errors import ConfigError
from quantail.loop import Progress
from quantail.types import Moments, Scale

NEEDED = ("policy", "policy.optimizer")
STATISTICS = "statistics"  # what normalises observations and returns; may be left out


def parameters_of(progress: Progress) -> dict[str, dict[str, Any]]:
    """Everything that was learned."""
    return {
        STATISTICS: statistics_of(progress),
        "policy": progress.agent.state_dict(),
        "policy.optimizer": progress.optimizer.state_dict(),
    }


def statistics_of(progress: Progress) -> dict[str, Tensor]:
    """What normalises observations and returns, under flat names."""
    carry = progress.carry
    records = {f"observations.{name}": moments for name, moments in carry.obs_moments.items()}
    records |= {"returns": carry.return_moments, "history": carry.return_history, "charges": carry.risk.moments}
    found = {f"{name}.{field}": value for name, record in records.items() for field, value in record._asdict().items()}
    scales = {"scale": carry.scale, "cost_scale": carry.risk.scale}
    return found | {f"{name}.{field}": value for name, scale in scales.items() for field, value in scale._asdict().items()}


def with_parameters(progress: Progress, given: Mapping[str, Any], exact: bool) -> Progress:
    """The progress with these; weights and optimizer change in place."""
    for name in given:
        if name not in (*NEEDED, STATISTICS):
            raise ConfigError(f"Key {name} is an invalid object name; known are {', '.join((*NEEDED, STATISTICS))}")
    missing = [name for name in NEEDED if name not in given]
    if missing and exact:
        raise ConfigError(f"Names of parameters do not match agents' parameters: {missing} missing; use exact_match=False")
    if "policy" in given:
        progress.agent.load_state_dict(given["policy"], strict=exact)
    if "policy.optimizer" in given:
        progress.optimizer.load_state_dict(given["policy.optimizer"])
    return _with_statistics(progress, given[STATISTICS], exact) if STATISTICS in given else progress


def _with_statistics(progress: Progress, given: Mapping[str, Tensor], exact: bool) -> Progress:
    known = statistics_of(progress)
    if exact and set(given) != set(known):
        raise ConfigError(f"statistics hold {sorted(given)}; this model needs {sorted(known)}")
    values = {name: torch.as_tensor(given.get(name, old)).to(old, copy=True) for name, old in known.items()}

    def record(kind: Any, name: str) -> Any:
        return kind(**{field: values[f"{name}.{field}"] for field in kind._fields})

    carry = progress.carry
    observed = {name: record(Moments, f"observations.{name}") for name in carry.obs_moments}
    returns, history, scale = record(Moments, "returns"), record(Moments, "history"), record(Scale, "scale")
    risk = carry.risk._replace(moments=record(Moments, "charges"), scale=record(Scale, "cost_scale"))
    carry = carry._replace(obs_moments=observed, return_moments=returns, return_history=history, scale=scale, risk=risk)
    return progress._replace(carry=carry)
