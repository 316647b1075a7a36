"""What the functions of moments refuse: each argument of each, by shape, type and range."""

import pytest
import torch

from functional.refusals import Refusal, assert_refused, name, never_refused
from quantail.functional import moments
from quantail.functional.moments import (
    average_moments,
    batch_moments,
    merge_moments,
    no_moments,
    popart_rescale,
    scale_of,
    standardize,
)
from quantail.types import Scale

SEEN = no_moments((3,))
SHORT = SEEN._replace(variance=torch.ones(2))
X, UNITS = torch.ones(5, 3), Scale(torch.tensor(0.0), torch.tensor(1.0))
SOUND = {
    batch_moments: {"x": X, "weights": torch.ones(5)},
    merge_moments: {"a": SEEN, "b": SEEN},
    average_moments: {"a": SEEN, "b": SEEN, "rate": 0.1},
    standardize: {"x": X, "moments": SEEN, "clip": 5.0},
    scale_of: {"moments": SEEN, "std_floor": 1e-4, "std_cap": 1e6},
    popart_rescale: {"weight": torch.ones(4, 3), "bias": torch.ones(4), "old": UNITS, "new": UNITS},
}
REFUSED = [
    Refusal(batch_moments, "x", torch.tensor(1.0), "x has shape []"),
    Refusal(batch_moments, "x", X[:0], "x has shape [0, 3]"),
    Refusal(batch_moments, "x", X.long(), "x is torch.int64; needs floating point"),
    Refusal(batch_moments, "weights", torch.ones(3), "weights has shape [3]; needs [5, 3] or its leading axes"),
    Refusal(batch_moments, "weights", torch.ones(5, 3, 1), "weights has shape [5, 3, 1]; needs [5, 3]"),
    Refusal(batch_moments, "weights", torch.ones(5) > 0, "weights is torch.bool; needs floating point"),
    *(Refusal(f, "a", SHORT, "a.variance has shape [2]; needs [3]") for f in (merge_moments, average_moments)),
    *(Refusal(f, "b", SHORT, "b.variance has shape [2]; needs [3]") for f in (merge_moments, average_moments)),
    *(Refusal(f, "b", no_moments((5, 3)), "b.mean has shape [5, 3]; needs [3]") for f in (merge_moments, average_moments)),
    Refusal(merge_moments, "b", SEEN._replace(weight=X[0].long()), "b.weight is torch.int64; needs floating point"),
    Refusal(average_moments, "rate", 0.0, "rate=0.0 is outside (0, 1]"),
    Refusal(average_moments, "rate", 1.01, "rate=1.01 is outside (0, 1]"),
    Refusal(standardize, "x", X.int(), "x is torch.int32; needs floating point"),
    Refusal(standardize, "x", X[:, :2], "x has shape [5, 2]; needs [..., 3]"),
    Refusal(standardize, "moments", no_moments((5, 2)), "needs [..., 5, 2], ending as the moments"),
    Refusal(standardize, "moments", no_moments((1, 5, 3)), "needs [..., 1, 5, 3], ending as the moments"),
    Refusal(standardize, "clip", 0.0, "clip=0.0 is outside (0, inf)"),
    Refusal(scale_of, "std_floor", 0.0, "std_floor=0.0 is outside (0, inf)"),
    Refusal(scale_of, "std_cap", 1e-5, "std_cap=1e-05 is outside [0.0001, inf)"),
    Refusal(popart_rescale, "weight", torch.ones(4), "weight has shape [4]; needs [..., outputs, inputs]"),
    Refusal(popart_rescale, "bias", torch.ones(3), "bias has shape [3]; needs [4]"),
    Refusal(popart_rescale, "bias", torch.ones(4).long(), "bias is torch.int64; needs floating point"),
]


@pytest.mark.parametrize("refusal", REFUSED, ids=name)
def test_is_refused_by_name(refusal):
    assert refusal.argument in assert_refused(refusal, SOUND)


def test_every_argument_is_listed_but_those_that_torch_refuses_itself():
    by_torch = {"no_moments(shape)", "batch_moments(dims)", "scale_of(moments)", "popart_rescale(old)", "popart_rescale(new)"}
    assert never_refused(moments, REFUSED) == by_torch
