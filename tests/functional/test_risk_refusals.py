"""What the functions of risk refuse: each argument of each, by shape, type and range."""

import pytest
import torch

from functional.refusals import Refusal, assert_refused, name, never_refused
from quantail.functional import risk

X, LAW, ATOMS, QUANTILES = torch.zeros(2, 5), torch.full((2, 3), 1 / 3), torch.zeros(3), torch.zeros(2, 3)
TAUS = torch.tensor([0.2, 0.5, 0.9])
STATE = risk.pid_start(3)
GOOD = {
    risk.cvar_of_samples: {"x": X, "alpha": 0.1, "weights": torch.ones(2, 5)},
    risk.var_of_samples: {"x": X, "alpha": 0.1, "weights": torch.ones(5)},
    risk.cvar_from_categorical: {"p": LAW, "atoms": ATOMS, "alpha": 0.1},
    risk.var_from_categorical: {"p": LAW, "atoms": ATOMS, "alpha": 0.1},
    risk.cvar_from_quantiles: {"q": QUANTILES, "alpha": 0.1, "taus": TAUS},
    risk.cvar_weights: {"taus": TAUS, "alpha": 0.1},
    risk.area_weights: {"taus": TAUS, "u": torch.tensor([0.1])},
    risk.var_from_quantiles: {"q": QUANTILES, "alpha": 0.1, "taus": TAUS},
    risk.ru_cost: {"x": X, "nu": 0.0, "alpha": 0.1},
    risk.cvar_charge: {"x": X, "nu": torch.zeros(2, 5), "alpha": 0.1, "limit": 0.0},
    risk.blend_advantages: {"reward_advantages": X, "cost_advantages": X, "weight": 0.5},
    risk.penalize_advantages: {"reward_advantages": X, "cost_advantages": X, "multiplier": 0.5},
    risk.pid_start: {"delay": 2},
    risk.pid_step: {"state": STATE, "violation": torch.zeros(()), "gains": risk.PidGains()},
}
BAD_ALPHAS = [
    Refusal(function, "alpha", bad, words)
    for function in GOOD
    for bad, words in ((0.0, "alpha=0.0 is outside (0, 1"), (1.5, "alpha=1.5 is outside (0, 1"), ("5%", "alpha is str '5%'"))
    if "alpha" in GOOD[function]
]
REFUSALS = [
    *BAD_ALPHAS,
    Refusal(risk.var_from_quantiles, "alpha", 1.0, "alpha=1.0 is outside (0, 1)"),
    Refusal(risk.cvar_of_samples, "x", X.int(), "x is torch.int32; needs floating point"),
    Refusal(risk.cvar_of_samples, "x", torch.zeros(()), "x has shape []; needs [..., samples]"),
    Refusal(risk.cvar_of_samples, "weights", torch.ones(2), "weights has shape [2]; needs [2, 5] or [5]"),
    Refusal(risk.cvar_of_samples, "weights", torch.ones(5).bool(), "weights is torch.bool; needs floating point"),
    Refusal(risk.var_of_samples, "x", torch.zeros(2, 0), "x has shape [2, 0]; needs [..., samples], no axis empty"),
    Refusal(risk.var_of_samples, "weights", torch.ones(3, 5), "weights has shape [3, 5]; needs [2, 5] or [5]"),
    Refusal(risk.cvar_from_categorical, "p", torch.zeros(()), "p has shape []; needs [..., atoms]"),
    Refusal(risk.cvar_from_categorical, "atoms", torch.zeros(2), "atoms has shape [2]; needs [2, 3] or [3]"),
    Refusal(risk.var_from_categorical, "p", [0.5], "p is a list; needs a torch.Tensor"),
    Refusal(risk.var_from_categorical, "atoms", ATOMS.long(), "atoms is torch.int64; needs floating point"),
    Refusal(risk.cvar_from_quantiles, "q", torch.zeros(()), "q has shape []; needs [..., quantiles]"),
    Refusal(
        risk.cvar_from_quantiles, "taus", torch.tensor([0.2, 0.5]), "taus has shape [2]; needs [3] (one for each quantile)"
    ),
    Refusal(risk.cvar_weights, "taus", torch.rand(2, 3), "taus has shape [2, 3]; needs [levels]"),
    Refusal(risk.cvar_weights, "taus", torch.tensor([0.2, 0.2]), "taus must increase strictly, but does not after index [0]"),
    Refusal(
        risk.cvar_weights, "taus", torch.tensor([0.0, 0.2]), "taus runs from 0 to 0.2; needs levels strictly between 0 and 1"
    ),
    Refusal(
        risk.cvar_weights, "taus", torch.tensor([0.5, 1.0]), "taus runs from 0.5 to 1; needs levels strictly between 0 and 1"
    ),
    Refusal(risk.area_weights, "taus", TAUS[:0], "taus has shape [0]; needs [levels], no axis empty"),
    Refusal(risk.area_weights, "u", torch.zeros(()), "u has shape []; needs [levels]"),
    Refusal(risk.var_from_quantiles, "q", QUANTILES.half().int(), "q is torch.int32; needs floating point"),
    Refusal(risk.var_from_quantiles, "taus", TAUS.flip(0), "taus must increase strictly, but does not after index [0]"),
    Refusal(risk.ru_cost, "x", 0.0, "x is a float; needs a torch.Tensor"),
    Refusal(risk.ru_cost, "nu", torch.zeros(5), "nu has shape [5]; needs [] (a scalar)"),
    Refusal(risk.cvar_charge, "x", X.long(), "x is torch.int64; needs floating point"),
    Refusal(risk.cvar_charge, "nu", None, "nu is NoneType None; needs a Python number"),
    Refusal(risk.cvar_charge, "limit", X, "limit has shape [2, 5]; needs [] (a scalar)"),
    Refusal(risk.blend_advantages, "reward_advantages", X.int(), "reward_advantages is torch.int32"),
    Refusal(
        risk.blend_advantages, "cost_advantages", X[0], "cost_advantages has shape [5]; needs [2, 5] (as reward_advantages)"
    ),
    Refusal(risk.blend_advantages, "weight", -0.1, "weight=-0.1 is outside [0, 1]"),
    Refusal(risk.blend_advantages, "weight", 1.1, "weight=1.1 is outside [0, 1]"),
    Refusal(risk.penalize_advantages, "reward_advantages", None, "reward_advantages is a NoneType"),
    Refusal(risk.penalize_advantages, "cost_advantages", X[:1], "cost_advantages has shape [1, 5]; needs [2, 5]"),
    Refusal(risk.penalize_advantages, "multiplier", -1.0, "multiplier=-1.0 is outside [0, inf)"),
    Refusal(risk.pid_start, "delay", 0, "delay=0; needs a whole number of at least 1"),
    Refusal(risk.pid_step, "violation", torch.zeros(1), "violation has shape [1]; needs [] (a scalar)"),
    Refusal(risk.pid_step, "state", None, "state is a NoneType; needs PidState(integral, smoothed, steps)"),
    Refusal(risk.pid_step, "gains", tuple(risk.PidGains()), "gains is a tuple; needs PidGains(proportional, integral, "),
    Refusal(risk.pid_step, "violation", 0.1, "violation is a float; needs a torch.Tensor"),
    *(
        Refusal(risk.pid_step, "gains", risk.PidGains(**{gain: -1.0}), f"{gain}=-1.0 is outside [0, ")
        for gain in risk.PidGains._fields
    ),
    Refusal(risk.pid_step, "gains", risk.PidGains(smoothing=1.0), "smoothing=1.0 is outside [0, 1)"),
]
NEED_AN_AXIS = [
    (risk.var_of_samples, "x"),
    (risk.var_from_categorical, "p"),
    (risk.var_from_quantiles, "q"),
    (risk.cvar_weights, "taus"),
]
REFUSALS += [Refusal(*pair, torch.zeros(()), f"{pair[1]} has shape []; needs [") for pair in NEED_AN_AXIS]


@pytest.mark.parametrize("refusal", REFUSALS, ids=name)
def test_bad_argument(refusal):
    assert_refused(refusal, GOOD)


def test_every_parameter_is_refused_when_bad():
    assert never_refused(risk, REFUSALS) == set()
