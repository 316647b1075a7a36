"""What UPGD and its kin can be told."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import torch
from torch import Tensor

from quantail.errors import ConfigError
from quantail.optim.gates import GATES
from quantail.settings import check_choice, check_within

SCALES = ("global", "tensor", "unit")
NORMALISERS = ("corrected", "reference")
NOISES = ("fixed", "tracked")


class Gating(TypedDict, total=False):
    """What all of them can be told besides learning rate and decay; in a parameter group also one by one."""

    utility_beta: float  # β of the trace, 0.999
    gate: str  # sigmoid | tanh
    strength: float  # 1; with 0 every gate is 1
    scale: str  # M over what: global | tensor | unit, the weights into one unit
    normaliser: str  # corrected | reference
    protecting: bool  # True: the gate holds the whole step; False: only the noise
    sigma: float  # of the noise, 0.001
    noise: str  # fixed | tracked: sigma in units of the root mean square of d, tensor by tensor
    seed: int  # of the noise
    foreach: bool  # all tensors of a kind together, or one by one
    capturable: bool  # counters on the device: a captured graph may replay the step
    population: bool  # the first axis of every parameter counts agents, who share nothing but the table of noise


DEFAULTS = Gating(
    utility_beta=0.999, gate="sigmoid", strength=1.0, scale="global", normaliser="corrected", protecting=True,
    sigma=1e-3, noise="fixed", seed=0, foreach=True, capturable=False, population=False,
)  # fmt: skip


def check_group(group: Mapping[str, Any]) -> None:
    """Refuse settings that make no sense."""
    if isinstance(lr := group["lr"], Tensor):
        if not group["capturable"]:
            raise ConfigError(
                "lr is a Tensor, which only capturable=True reads on its device; pass a number, or capturable=True"
            )
        if lr.ndim:
            raise ConfigError(f"lr is a Tensor of shape {list(lr.shape)}; needs one number, [], for each group")
    check_within("lr", float(lr), 0.0)
    for name in ("weight_decay", "sigma", "strength", "eps"):
        check_within(name, group.get(name, 0.0), 0.0)
    if len(betas := group.get("betas", (0.0, 0.0))) != 2:
        raise ConfigError(f"betas has {len(betas)} numbers; needs two, of the first and of the second moment")
    for i, beta in enumerate((group["utility_beta"], *group.get("betas", ()))):
        check_within(f"betas[{i - 1}]" if i else "utility_beta", beta, 0.0, 1.0, high_open=True)
    check_within("seed", group["seed"], 0)
    check_choice("gate", group["gate"], tuple(GATES))
    check_choice("scale", group["scale"], SCALES)
    check_choice("normaliser", group["normaliser"], NORMALISERS)
    check_choice("noise", group["noise"], NOISES)
    if any(not p.is_floating_point() for p in group["params"]):
        raise ConfigError("a parameter is not of real floating-point numbers; leave it out, or pass it as such")
    if any(p.dtype == torch.float16 for p in group["params"]):
        raise ConfigError("a parameter is float16, in which utilities and moments vanish or overflow; use bfloat16 or float32")
    if group["population"]:
        check_agents(group["params"])


def check_agents(params: Sequence[Tensor]) -> None:
    """The first axis of every parameter counts the same agents."""
    if any(p.ndim == 0 for p in params):
        raise ConfigError("population=True with a parameter of no axis; each needs a first axis that counts the agents")
    if len(counts := {len(p) for p in params}) > 1:
        raise ConfigError(
            f"population=True with first axes of {sorted(counts)}; each parameter needs the same number of agents"
        )
