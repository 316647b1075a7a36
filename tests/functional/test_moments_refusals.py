"""What the functions of moments refuse: each argument of each, by shape, type and range."""

import pytest
import torch

from functional.refusals import Refusal, assert_refused, name, never_refused
from quantail.functional import moments
from quantail.functional.moments import (
    average_moments,
    batch_moments,
    finite_moments,
    limit_scale,
    merge_moments,
    no_moments,
    pool_moments,
    popart_rescale,
    scale_of,
    standardize,
)
from quantail.types import Scale

SEEN = no_moments((3,))
SHORT = SEEN._replace(variance=torch.ones(2))
X, UNITS = torch.ones(5, 3), Scale(torch.tensor(0.0), torch.tensor(1.0))
FOUR = Scale(torch.zeros(4), torch.ones(4))
SOUND = {
    no_moments: {"shape": (3,)},
    batch_moments: {"x": X, "dims": 0, "weights": torch.ones(5)},
    finite_moments: {"moments": SEEN},
    merge_moments: {"a": SEEN, "b": SEEN},
    average_moments: {"a": SEEN, "b": SEEN, "rate": 0.1},
    standardize: {"x": X, "moments": SEEN, "clip": 5.0},
    pool_moments: {"moments": no_moments((2, 3))},
    limit_scale: {"old": FOUR, "new": FOUR, "step": 0.1},
    scale_of: {"moments": SEEN, "std_floor": 1e-4, "std_cap": 1e6},
    popart_rescale: {"weight": torch.ones(4, 3), "bias": torch.ones(4), "old": UNITS, "new": UNITS},
}
REFUSED = [
    Refusal(no_moments, "shape", (3, -1), "shape=-1; needs a whole number of at least 0"),
    Refusal(batch_moments, "dims", 2, "dims=(2,); needs axes of x, whole numbers from -2 to 1"),
    Refusal(batch_moments, "dims", (0, -3), "dims=(0, -3); needs axes of x, whole numbers from -2 to 1"),
    Refusal(batch_moments, "dims", (0.0,), "dims=(0.0,); needs axes of x"),
    *(
        Refusal(f, "moments", UNITS, "moments is a Scale; needs Moments(mean, variance, weight)")
        for f in (standardize, scale_of, finite_moments)
    ),
    *(Refusal(merge_moments, side, tuple(SEEN), f"{side} is a tuple; needs Moments(mean, variance, weight)") for side in "ab"),
    *(Refusal(popart_rescale, scale, SEEN, f"{scale} is a Moments; needs Scale(mean, std)") for scale in ("old", "new")),
    Refusal(pool_moments, "moments", UNITS, "moments is a Scale; needs Moments(mean, variance, weight)"),
    Refusal(pool_moments, "moments", SHORT, "moments.variance has shape [2]; needs [3] (all parts alike, batches last)"),
    Refusal(pool_moments, "moments", no_moments(), "moments.mean has shape []; needs [..., batches]"),
    Refusal(limit_scale, "old", SEEN, "old is a Moments; needs Scale(mean, std)"),
    Refusal(limit_scale, "new", UNITS, "new.mean has shape []; needs [4] (all parts of both alike)"),
    Refusal(limit_scale, "step", 0.0, "step=0.0 is outside (0, inf)"),
    Refusal(popart_rescale, "old", FOUR, "old.mean has shape [4]; needs [] (a scalar)"),
    Refusal(popart_rescale, "new", UNITS._replace(std=torch.ones(4)), "new.std has shape [4]; needs [] (a scalar)"),
    Refusal(popart_rescale, "new", Scale(0.0, 1.0), "new.mean is a float; needs a torch.Tensor"),
    Refusal(batch_moments, "x", torch.tensor(1.0), "x has shape []"),
    Refusal(batch_moments, "x", X[:0], "x has shape [0, 3]"),
    Refusal(batch_moments, "x", X.long(), "x is torch.int64; needs floating point"),
    Refusal(batch_moments, "weights", torch.ones(3), "weights has shape [3]; needs [5, 3] or its leading axes"),
    Refusal(batch_moments, "weights", torch.ones(5, 3, 1), "weights has shape [5, 3, 1]; needs [5, 3]"),
    Refusal(batch_moments, "weights", torch.ones(5) > 0, "weights is torch.bool; needs floating point"),
    Refusal(finite_moments, "moments", SHORT, "moments.variance has shape [2]; needs [3]"),
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


def test_each_head_of_several_may_have_its_own_scale_and_no_other_shape():
    heads = torch.randn(2, 4, 3, dtype=torch.float64)
    units, each = torch.ones((), dtype=torch.float64), torch.tensor([2.0, 5.0], dtype=torch.float64)
    moved, _ = popart_rescale(heads, heads[..., 0], Scale(units, units), Scale(units, each))
    torch.testing.assert_close(moved, torch.stack([heads[0] / 2, heads[1] / 5]), rtol=1e-14, atol=0)
    with pytest.raises(ValueError, match=r"new.std has shape \[4\]; needs \[\] or \[2\] \(for all heads, or each\)"):
        popart_rescale(heads, heads[..., 0], Scale(units, units), FOUR._replace(mean=units))


@pytest.mark.parametrize("refusal", REFUSED, ids=name)
def test_is_refused_by_name(refusal):
    assert refusal.argument in assert_refused(refusal, SOUND)


def test_every_argument_is_listed():
    assert never_refused(moments, REFUSED) == set()
