"""What the functions of actions refuse: each argument of each, by shape, type and range."""

import pytest
import torch

from functional.refusals import Refusal, assert_refused, name, never_refused
from quantail.functional import actions

SIZES = (3, 1, 4)
MEAN, STD, DRAWS = torch.zeros(2, 3), torch.zeros(3), torch.zeros(5, 2, 3)
LOGITS, CHOICE, WIDE, CHOICES = torch.zeros(2, 3), torch.zeros(2).long(), torch.zeros(2, 8), torch.zeros(2, 3).long()
GOOD = {
    actions.gaussian_sample: {"mean": MEAN, "log_std": STD, "noise": DRAWS},
    actions.gaussian_log_prob: {"raw": MEAN, "mean": MEAN, "log_std": STD},
    actions.gaussian_entropy: {"log_std": STD},
    actions.squash: {"raw": MEAN, "kind": "tanh"},
    actions.log_slope: {"raw": MEAN, "kind": "tanh"},
    actions.squashed_log_prob: {"raw": MEAN, "mean": MEAN, "log_std": STD, "kind": "tanh"},
    actions.squashed_entropy: {"mean": MEAN, "log_std": STD, "noise": DRAWS, "kind": "tanh"},
    actions.categorical_sample: {"logits": LOGITS, "noise": torch.zeros(2)},
    actions.categorical_log_prob: {"logits": LOGITS, "action": CHOICE},
    actions.categorical_entropy: {"logits": LOGITS},
    actions.multi_categorical_sample: {"logits": WIDE, "sizes": SIZES, "noise": torch.zeros(2, 3)},
    actions.multi_categorical_log_prob: {"logits": WIDE, "sizes": SIZES, "action": CHOICES},
    actions.multi_categorical_entropy: {"logits": WIDE, "sizes": SIZES},
}
BAD_EVERYWHERE = {
    "mean": (MEAN.int(), "mean is torch.int32; needs floating point"),
    "log_std": (torch.zeros(()), "log_std has shape []; needs"),
    "raw": ([0.0], "raw is a list; needs a torch.Tensor"),
    "kind": ("relu", "kind='relu'; needs one of 'tanh', 'sigmoid', 'none'"),
    "logits": (torch.zeros(()), "logits has shape []; needs [..., choices]"),
    "noise": (torch.zeros(7), "noise has shape [7]; needs"),
    "action": (torch.zeros(2), "action is torch.float32; needs a tensor of whole numbers, the indices of the choices"),
    "sizes": ((3, 0, 5), "sizes=0; needs a whole number of at least 1"),
}
REFUSALS = [Refusal(function, argument, *BAD_EVERYWHERE[argument]) for function in GOOD for argument in GOOD[function]]
REFUSALS += [
    Refusal(actions.gaussian_sample, "mean", torch.zeros(()), "mean has shape []; needs [..., actions]"),
    Refusal(actions.gaussian_sample, "log_std", torch.zeros(2), "log_std has shape [2]; needs [2, 3] or [3] (rows, actions)"),
    Refusal(actions.gaussian_sample, "noise", DRAWS[..., :2], "noise has shape [5, 2, 2]; needs [2, 3], or more axes in front"),
    Refusal(actions.gaussian_sample, "noise", DRAWS.long(), "noise is torch.int64; needs floating point"),
    Refusal(actions.gaussian_log_prob, "raw", STD, "raw has shape [3]; needs [2, 3] (as mean)"),
    Refusal(actions.squashed_entropy, "noise", MEAN, "noise has shape [2, 3]; needs [2, 2, 3] (draws, then as mean)"),
    Refusal(
        actions.categorical_sample, "noise", torch.zeros(2, 3), "noise has shape [2, 3]; needs [2] (one for each row of logits)"
    ),
    Refusal(actions.categorical_log_prob, "action", 1, "action is int; needs a tensor of whole numbers"),
    Refusal(actions.categorical_log_prob, "action", CHOICE.bool(), "action is torch.bool; needs a tensor of whole numbers"),
    Refusal(actions.categorical_log_prob, "action", CHOICES, "action has shape [2, 3]; needs [2] (one index for each choice)"),
    Refusal(
        actions.multi_categorical_entropy,
        "logits",
        LOGITS,
        "logits has shape [2, 3]; needs [..., 8], the sum of sizes=[3, 1, 4]",
    ),
    Refusal(actions.multi_categorical_entropy, "sizes", (3, 4), "needs [..., 7], the sum of sizes=[3, 4]"),
    Refusal(
        actions.multi_categorical_sample, "noise", torch.zeros(2, 8), "noise has shape [2, 8]; needs [2, 3] (rows, then one"
    ),
    Refusal(
        actions.multi_categorical_log_prob, "action", CHOICE, "action has shape [2]; needs [2, 3] (one index for each choice)"
    ),
]
NEED_AN_AXIS = [
    (actions.gaussian_log_prob, "mean"),
    (actions.gaussian_entropy, "log_std"),
    (actions.categorical_entropy, "logits"),
]
REFUSALS += [Refusal(*pair, torch.zeros(()), f"{pair[1]} has shape []; needs [") for pair in NEED_AN_AXIS]


@pytest.mark.parametrize("refusal", REFUSALS, ids=name)
def test_bad_argument(refusal):
    assert_refused(refusal, GOOD)


def test_every_parameter_is_refused_when_bad():
    assert never_refused(actions, REFUSALS) == set()
