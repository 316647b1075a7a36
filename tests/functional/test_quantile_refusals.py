"""What the functions of quantile refuse: each argument of each, by shape, type and range."""

import math

import pytest
import torch

from functional.refusals import Refusal, assert_refused, name, never_refused
from quantail.functional import quantile

ROWS, OLD = torch.zeros(2, 3), torch.ones(2, 3)
GOOD = {
    quantile.midpoint_levels: {"n": 3},
    quantile.tail_levels: {"n": 3},
    quantile.quantile_mean: {"quantiles": ROWS, "masses": torch.ones(3)},
    quantile.sort_quantiles: {"quantiles": ROWS},
    quantile.quantile_huber_loss: {"quantiles": ROWS, "targets": torch.zeros(2, 5), "taus": torch.ones(3), "kappa": 1.0},
    quantile.pool_quantiles: {"critics": torch.zeros(4, 2, 3), "reduce": "min", "masses": torch.ones(3)},
    quantile.take_lowest: {"laws": torch.zeros(4, 2, 3), "means": torch.zeros(4, 2)},
    quantile.clip_quantiles: {
        "new": ROWS,
        "old": OLD,
        "radius": 0.1,
        "mode": "off",
        "variance_factor": 2,
        "masses": torch.ones(3),
    },
}
REFUSALS = [
    Refusal(quantile.midpoint_levels, "n", 0, "n=0; needs a whole number of at least 1"),
    Refusal(quantile.midpoint_levels, "n", 3.0, "n=3.0; needs a whole number"),
    Refusal(quantile.tail_levels, "n", 0, "n=0; needs a whole number of at least 1"),
    Refusal(quantile.tail_levels, "n", True, "n=True; needs a whole number"),
    Refusal(quantile.quantile_mean, "quantiles", [1.0], "quantiles is a list; needs a torch.Tensor"),
    Refusal(quantile.quantile_mean, "quantiles", torch.zeros(()), "quantiles has shape []; needs [..., quantiles]"),
    Refusal(
        quantile.quantile_mean,
        "quantiles",
        torch.zeros(2, 0),
        "quantiles has shape [2, 0]; needs [..., quantiles], no axis empty",
    ),
    Refusal(quantile.quantile_mean, "masses", torch.ones(2), "masses has shape [2]; needs [3] (one for each quantile)"),
    Refusal(quantile.sort_quantiles, "quantiles", torch.zeros(3).int(), "quantiles is torch.int32; needs floating point"),
    Refusal(quantile.quantile_huber_loss, "quantiles", torch.zeros(()), "quantiles has shape []; needs [..., quantiles]"),
    Refusal(
        quantile.quantile_huber_loss, "targets", torch.zeros(3, 5), "targets has shape [3, 5]; needs [2, 5] (rows as quantiles"
    ),
    Refusal(quantile.quantile_huber_loss, "targets", torch.zeros(5), "targets has shape [5]; needs [2, 5]"),
    Refusal(quantile.quantile_huber_loss, "targets", torch.zeros(1, 5), "targets has shape [1, 5]; needs [2, 5]"),
    Refusal(quantile.quantile_huber_loss, "targets", torch.zeros(()), "targets has shape []; needs [..., particles]"),
    Refusal(quantile.quantile_huber_loss, "taus", torch.ones(5), "taus has shape [5]; needs [3] (one for each quantile)"),
    Refusal(quantile.quantile_huber_loss, "kappa", -0.5, "kappa=-0.5 is outside [0, inf)"),
    Refusal(quantile.quantile_huber_loss, "kappa", math.nan, "kappa=nan is outside [0, inf)"),
    Refusal(quantile.pool_quantiles, "critics", torch.zeros(3), "critics has shape [3]; needs [critics, ..., quantiles]"),
    Refusal(quantile.pool_quantiles, "reduce", "max", "reduce='max'; needs one of 'mean', 'min'"),
    Refusal(quantile.pool_quantiles, "masses", torch.ones(2), "masses has shape [2]; needs [3]"),
    Refusal(quantile.take_lowest, "means", torch.zeros(4), "means has shape [4]; needs [4, 2]"),
    Refusal(quantile.clip_quantiles, "new", torch.zeros(()), "new has shape []; needs [..., quantiles]"),
    Refusal(quantile.clip_quantiles, "old", torch.ones(3), "old has shape [3]; needs [2, 3] (as new)"),
    Refusal(quantile.clip_quantiles, "radius", -0.1, "radius=-0.1 is outside [0, inf)"),
    Refusal(quantile.clip_quantiles, "radius", torch.ones(2), "radius has shape [2]; needs [] (a scalar)"),
    Refusal(quantile.clip_quantiles, "mode", "mean", "mode='mean'; needs one of 'off', 'mean_only'"),
    Refusal(quantile.clip_quantiles, "variance_factor", 0.5, "variance_factor=0.5 is outside [1, inf)"),
    Refusal(quantile.clip_quantiles, "masses", torch.ones(2), "masses has shape [2]; needs [3] (one for each quantile)"),
]
NEED_AN_AXIS = [
    (quantile.sort_quantiles, "quantiles"),
    (quantile.pool_quantiles, "critics"),
]
REFUSALS += [Refusal(*pair, torch.zeros(()), f"{pair[1]} has shape []; needs [") for pair in NEED_AN_AXIS]


@pytest.mark.parametrize("refusal", REFUSALS, ids=name)
def test_bad_argument(refusal):
    assert_refused(refusal, GOOD)


def test_every_parameter_is_refused_when_bad():
    # shared with `categorical`; whoever calls them has checked
    inner = {"take_lowest(laws)", "clip_excess(change)", "clip_excess(radius)"}
    inner |= {f"clip_moments({parameter})" for parameter in ("new", "old", "radius", "variance_factor")}
    assert never_refused(quantile, REFUSALS) == inner
