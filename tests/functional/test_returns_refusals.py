"""What the functions of returns refuse: each argument of each, by shape, type and range."""

import math

import pytest
import torch

from functional.refusals import Refusal, assert_refused, name, never_refused
from quantail.functional import returns
from quantail.functional.returns import distributional_targets, gae, lambda_return, normalize_advantages, vtrace
from quantail.types import Law

T, B, N, M = 5, 3, 4, 7
WHOLE = torch.ones(T, B, dtype=torch.int64)
NEVER = torch.zeros(T, B, dtype=torch.bool)
MASSES = torch.full((N,), 1 / N)

ROWS = {"rewards": torch.ones(T, B), "terminated": NEVER, "truncated": NEVER, "gamma": 0.9, "lam": 0.8, "valid": ~NEVER}
SCALAR = {**ROWS, "values": torch.ones(T + 1, B), "final_values": torch.ones(T, B)}
SOUND = {
    gae: SCALAR,
    lambda_return: SCALAR,
    vtrace: {**SCALAR, "log_ratio": torch.zeros(T, B)},
    distributional_targets: {
        **ROWS,
        "law": Law(torch.ones(T + 1, B, N), MASSES),
        "final_law": Law(torch.ones(N), torch.full((T, B, N), 1 / N)),
        "follow_noise": torch.zeros(T, B, M),
        "level_noise": torch.zeros(T, B, M),
    },
    normalize_advantages: {"advantages": torch.ones(T, B), "weights": torch.ones(T, B), "magnitude": torch.ones(T, B)},
}

OF_ROWS = [
    ("rewards", torch.tensor(1.0), "[time, ...]"),
    ("rewards", torch.ones(0, B), "no axis empty"),
    ("rewards", WHOLE, "floating point"),
    ("rewards", [1.0], "needs a torch.Tensor"),
    ("terminated", NEVER[:, :1], "needs [5, 3]"),
    ("terminated", 0.0, "needs a bool torch.Tensor"),
    ("truncated", NEVER[:-1], "needs [5, 3]"),
    ("truncated", NEVER + 1j, "needs a bool tensor"),
    ("valid", NEVER[None], "needs [5, 3]"),
    ("gamma", 1.01, "[0, 1]"),
    ("gamma", -0.01, "[0, 1]"),
    ("gamma", torch.tensor(0.9), "needs a Python number"),
    ("lam", 1.01, "[0, 1]"),
    ("lam", math.nan, "[0, 1]"),
    ("lam", True, "needs a Python number"),
]
OF_VALUES = [
    ("values", torch.ones(T, B), "needs [6, 3] (as rewards, with one row more"),
    ("values", torch.ones(T + 1, B).long(), "floating point"),
    ("final_values", torch.ones(T + 1, B), "needs [5, 3]"),
    ("final_values", WHOLE, "floating point"),
]
REFUSED = [
    *(Refusal(function, *row) for function in (gae, lambda_return, vtrace) for row in OF_ROWS + OF_VALUES),
    *(Refusal(distributional_targets, *row) for row in OF_ROWS if row[:1] != ("rewards",) or "axis" not in row[2]),
    Refusal(vtrace, "log_ratio", torch.zeros(T), "needs [5, 3]"),
    Refusal(vtrace, "log_ratio", WHOLE, "floating point"),
    Refusal(vtrace, "rho_max", 0.0, "(0, inf)"),
    Refusal(vtrace, "rho_max", math.inf, "finite"),
    Refusal(vtrace, "c_max", 0, "(0, inf)"),
    Refusal(vtrace, "c_max", "1", "needs a Python number"),
    Refusal(distributional_targets, "law", Law(torch.ones(T, B, N), MASSES), "needs [6, 3, 4] or [4]"),
    Refusal(distributional_targets, "law", Law(torch.ones(T + 1, B, N), MASSES[:-1]), "needs [6, 3, 4] or [4]"),
    Refusal(distributional_targets, "law", Law(torch.ones(N), torch.ones(N).long()), "floating point"),
    Refusal(distributional_targets, "law", torch.ones(T + 1, B, N), "law is a Tensor; needs Law(locations, masses)"),
    Refusal(distributional_targets, "final_law", Law(torch.tensor(1.0), MASSES), "final_law.locations has shape []"),
    Refusal(distributional_targets, "final_law", Law(torch.ones(T + 1, B, N), MASSES), "needs [5, 3, 4] or [4]"),
    Refusal(distributional_targets, "final_law", Law(torch.ones(N), torch.ones(T, N)), "needs [5, 3, 4] or [4]"),
    Refusal(distributional_targets, "follow_noise", torch.zeros(T, B, M + 1), "needs [5, 3, 7]"),
    Refusal(distributional_targets, "follow_noise", torch.zeros(T, B, M).long(), "floating point"),
    Refusal(distributional_targets, "level_noise", torch.zeros(T), "[time, ..., particles]"),
    Refusal(distributional_targets, "level_noise", torch.zeros(T, B, 0), "no axis empty"),
    Refusal(distributional_targets, "level_noise", torch.zeros(T, M), "needs [5, 3, 7]"),
    Refusal(normalize_advantages, "advantages", torch.tensor(1.0), "[time, ...]"),
    Refusal(normalize_advantages, "advantages", torch.ones(0), "no axis empty"),
    Refusal(normalize_advantages, "advantages", WHOLE, "floating point"),
    Refusal(normalize_advantages, "mode", "batch", "needs one of 'global', 'env', 'off'"),
    Refusal(normalize_advantages, "weights", torch.ones(B), "needs [5, 3]"),
    Refusal(normalize_advantages, "weights", ~NEVER, "floating point"),
    Refusal(normalize_advantages, "magnitude", torch.ones(T, 1), "needs [5, 3]"),
    Refusal(normalize_advantages, "magnitude", 2.0, "needs a torch.Tensor"),
]


@pytest.mark.parametrize("refusal", REFUSED, ids=name)
def test_is_refused_by_name(refusal):
    assert refusal.argument in assert_refused(refusal, SOUND)


def test_every_argument_is_listed():
    assert never_refused(returns, REFUSED) == set()


def test_an_error_also_stops_when_the_mode_would_not_look():
    with pytest.raises(ValueError, match="weights"):
        normalize_advantages(torch.ones(T), "off", weights=torch.ones(B))
