"""What the functions of categorical refuse: each argument of each, by shape, type and range."""

import math

import pytest
import torch

from functional.refusals import Refusal, assert_refused, name, never_refused
from quantail.functional import categorical
from quantail.types import Law

PROBS, ATOMS, GRID = torch.full((2, 3), 1 / 3), torch.zeros(3), torch.arange(4.0)
STEP_BACK = torch.tensor([0.0, 2.0, 1.0])
CLIP = {"logits": PROBS, "old_probs": PROBS, "atoms": GRID[:3], "radius": 0.1, "mode": "off", "variance_factor": 2}
GOOD = {
    categorical.support: {"low": 0, "high": 1, "n": 5},
    categorical.project: {"probs": PROBS, "atoms": ATOMS, "support": GRID},
    categorical.two_hot: {"values": ATOMS, "support": GRID},
    categorical.categorical_mean: {"probs": PROBS, "atoms": ATOMS},
    categorical.categorical_loss: {"logits": PROBS, "target": PROBS},
    categorical.pool_categorical: {"critics": torch.ones(5, 2, 3), "atoms": ATOMS, "reduce": "min"},
    categorical.clip_categorical: CLIP,
    categorical.draw: {"law": Law(ATOMS, PROBS), "noise": torch.zeros(2, 5)},
    categorical.draw_index: {"masses": PROBS, "noise": torch.zeros(2, 5)},
}
REFUSALS = [
    Refusal(categorical.support, "low", "0", "low is str '0'; needs a Python number"),
    Refusal(categorical.support, "low", -math.inf, "low=-inf is outside (-inf, inf)"),
    Refusal(categorical.support, "high", math.nan, "high=nan is outside (-inf, inf)"),
    Refusal(categorical.support, "high", 0, "low=0 and high=0 leave no room for 5 atoms; choose high > low"),
    Refusal(categorical.support, "high", -1, "choose high > low"),
    Refusal(categorical.support, "n", 1, "n=1; needs a whole number of at least 2"),
    Refusal(categorical.project, "probs", PROBS.long(), "probs is torch.int64; needs floating point"),
    Refusal(categorical.project, "probs", torch.zeros(()), "probs has shape []; needs [..., atoms]"),
    Refusal(categorical.project, "atoms", torch.zeros(2), "atoms has shape [2]; needs [2, 3] or [3]"),
    Refusal(categorical.project, "atoms", torch.zeros(1, 3), "atoms has shape [1, 3]; needs [2, 3] or [3]"),
    Refusal(categorical.project, "support", torch.zeros(1), "support has shape [1]; needs [atoms], at least 2"),
    Refusal(categorical.project, "support", torch.zeros(2, 4), "support has shape [2, 4]; needs [atoms]"),
    Refusal(categorical.project, "support", torch.ones(4), "support must increase strictly, but does not after index [0]"),
    Refusal(categorical.project, "support", STEP_BACK, "support must increase strictly, but does not after index [1]"),
    Refusal(categorical.two_hot, "values", ATOMS.int(), "values is torch.int32; needs floating point"),
    Refusal(categorical.two_hot, "support", torch.zeros(()), "support has shape []; needs [atoms]"),
    Refusal(
        categorical.categorical_mean, "probs", torch.ones(2, 0), "probs has shape [2, 0]; needs [..., atoms], no axis empty"
    ),
    Refusal(categorical.categorical_mean, "atoms", torch.zeros(2), "atoms has shape [2]; needs [2, 3] or [3]"),
    Refusal(categorical.categorical_loss, "logits", None, "logits is a NoneType; needs a torch.Tensor"),
    Refusal(categorical.categorical_loss, "target", torch.zeros(3), "target has shape [3]; needs [2, 3] (as logits)"),
    Refusal(categorical.categorical_loss, "target", torch.zeros(2, 3).long(), "target is torch.int64; needs floating point"),
    Refusal(categorical.pool_categorical, "critics", torch.ones(3), "critics has shape [3]; needs [critics, ..., atoms]"),
    Refusal(categorical.pool_categorical, "atoms", torch.zeros(2), "atoms has shape [2]; needs [5, 2, 3] or [3]"),
    Refusal(categorical.pool_categorical, "reduce", "max", "reduce='max'; needs one of 'mean', 'min'"),
    Refusal(categorical.clip_categorical, "logits", torch.zeros(()), "logits has shape []; needs [..., atoms]"),
    Refusal(categorical.clip_categorical, "old_probs", PROBS[0], "old_probs has shape [3]; needs [2, 3] (as logits)"),
    Refusal(categorical.clip_categorical, "atoms", GRID, "atoms has shape [4]; needs [3] (one for each logit)"),
    Refusal(categorical.clip_categorical, "atoms", STEP_BACK, "atoms must increase strictly, but does not after index [1]"),
    Refusal(categorical.clip_categorical, "radius", -1, "radius=-1 is outside [0, inf)"),
    Refusal(categorical.clip_categorical, "mode", "mean", "mode='mean'; needs one of 'off', 'mean_only'"),
    Refusal(categorical.clip_categorical, "variance_factor", 0.9, "variance_factor=0.9 is outside [1, inf)"),
    Refusal(categorical.draw, "law", Law(ATOMS, PROBS.long()), "masses is torch.int64; needs floating point"),
    Refusal(categorical.draw, "law", (ATOMS, PROBS), "law is a tuple; needs Law(locations, masses)"),
    Refusal(
        categorical.draw, "law", Law(ATOMS, PROBS[:, :2]), "law.masses has shape [2, 2]; needs [2, 3] or [3] (rows, atoms)"
    ),
    Refusal(
        categorical.draw, "law", Law(PROBS[:1], ATOMS), "law.locations has shape [1, 3]; needs [2, 3] or [3] (rows, atoms)"
    ),
    Refusal(categorical.draw, "law", Law(torch.tensor(0.0), ATOMS), "law.locations has shape []; needs [..., atoms]"),
    Refusal(categorical.draw, "noise", torch.zeros(2, 5).long(), "noise is torch.int64; needs floating point"),
    Refusal(categorical.draw, "noise", torch.zeros(()), "noise has shape []; needs [..., draws]"),
    Refusal(categorical.draw_index, "masses", torch.zeros(()), "masses has shape []; needs [..., cells]"),
    Refusal(categorical.draw_index, "noise", torch.zeros(5), "noise has shape [5]; needs [2, 5] (rows as masses, then draws)"),
    Refusal(categorical.draw_index, "noise", torch.zeros(2, 5).int(), "noise is torch.int32; needs floating point"),
    Refusal(categorical.draw_index, "noise", torch.zeros(()), "noise has shape []; needs [..., draws]"),
]
NEED_AN_AXIS = [
    (categorical.categorical_mean, "probs"),
    (categorical.categorical_loss, "logits"),
    (categorical.project, "support"),
    (categorical.clip_categorical, "atoms"),
    (categorical.pool_categorical, "critics"),
]
REFUSALS += [Refusal(*pair, torch.zeros(()), f"{pair[1]} has shape []; needs [") for pair in NEED_AN_AXIS]


@pytest.mark.parametrize("refusal", REFUSALS, ids=name)
def test_bad_argument(refusal):
    assert_refused(refusal, GOOD)


def test_every_parameter_is_refused_when_bad():
    assert never_refused(categorical, REFUSALS) == set()
