"""What the functions of policy refuse: each argument of each, by shape, type and range."""

import pytest
import torch

from functional.refusals import Refusal, assert_refused, name, never_refused
from quantail.functional import policy
from quantail.functional.policy import (
    awr_loss,
    awr_weights,
    clamp_log_ratio,
    clipped_surrogate,
    kl_categorical,
    kl_estimate,
    kl_gaussian,
)

B, A = 5, 3
ROW, WHOLE = torch.zeros(B), torch.zeros(B).long()
MEAN = torch.zeros(B, A)
SOUND = {
    clamp_log_ratio: {"log_ratio": ROW, "bound": 20.0, "mode": "hard"},
    clipped_surrogate: {"log_ratio": ROW, "advantages": ROW, "clip": 0.2},
    kl_estimate: {"log_ratio": ROW, "kind": "k3"},
    kl_gaussian: {"mean_p": MEAN, "log_std_p": MEAN[0], "mean_q": MEAN, "log_std_q": MEAN},
    kl_categorical: {"logits_p": MEAN, "logits_q": MEAN},
    awr_weights: {"advantages": ROW, "beta": 1.0, "max_weight": 20.0},
    awr_loss: {"log_prob": ROW, "advantages": ROW, "beta": 1.0, "max_weight": 20.0},
}
REFUSED = [
    *(
        Refusal(function, "log_ratio", WHOLE, "floating point")
        for function in (clamp_log_ratio, clipped_surrogate, kl_estimate)
    ),
    Refusal(clamp_log_ratio, "log_ratio", 0.0, "needs a torch.Tensor"),
    Refusal(clamp_log_ratio, "bound", 0.0, "(0, inf)"),
    Refusal(clamp_log_ratio, "bound", ROW[0], "needs a Python number"),
    Refusal(clamp_log_ratio, "mode", "soft", "needs one of 'hard', 'tanh'"),
    Refusal(clipped_surrogate, "advantages", ROW[:-1], "needs [5]"),
    Refusal(clipped_surrogate, "advantages", MEAN, "needs [5]"),
    Refusal(clipped_surrogate, "clip", -0.1, "[0, inf)"),
    Refusal(clipped_surrogate, "clip", ROW, "needs []"),
    Refusal(clipped_surrogate, "clip", WHOLE[0], "floating point"),
    Refusal(kl_estimate, "kind", "k4", "needs one of 'k1', 'k2', 'k3'"),
    Refusal(kl_gaussian, "mean_p", torch.tensor(0.0), "[..., actions]"),
    Refusal(kl_gaussian, "mean_p", torch.zeros(B, 0), "no axis empty"),
    Refusal(kl_gaussian, "log_std_p", torch.zeros(B), "needs [5, 3] or [3]"),
    Refusal(kl_gaussian, "mean_q", MEAN[0], "needs [5, 3]"),
    Refusal(kl_gaussian, "log_std_q", torch.zeros(B, 1), "needs [5, 3] or [3]"),
    Refusal(kl_gaussian, "log_std_q", MEAN.long(), "floating point"),
    Refusal(kl_categorical, "logits_p", torch.tensor(0.0), "[..., choices]"),
    Refusal(kl_categorical, "logits_q", torch.zeros(B, A + 1), "needs [5, 3]"),
    *(Refusal(function, "beta", 0.0, "(0, inf)") for function in (awr_weights, awr_loss)),
    *(Refusal(function, "beta", ROW, "needs []") for function in (awr_weights, awr_loss)),
    *(Refusal(function, "max_weight", 0.0, "(0, inf)") for function in (awr_weights, awr_loss)),
    Refusal(awr_weights, "advantages", WHOLE, "floating point"),
    Refusal(awr_loss, "advantages", MEAN, "needs [5]"),
    Refusal(awr_loss, "log_prob", WHOLE, "floating point"),
]


@pytest.mark.parametrize("refusal", REFUSED, ids=name)
def test_is_refused_by_name(refusal):
    assert refusal.argument in assert_refused(refusal, SOUND)


def test_every_argument_is_listed():
    assert never_refused(policy, REFUSED) == set()
