"""Units of the training window, fitted on nothing else, and back from JSON to the last bit."""

import json
import math
import re

import numpy as np
import pytest
import torch

from market.worlds import bars_of
from quantail.errors import InputError
from quantail.market.features import compute
from quantail.market.normalise import Normalisation, fit
from quantail.market.series import Features

BARS = bars_of(500, 2, seed=1, missing=0.1)
FEATURES = compute(BARS, ["return_5", "rsi_14", "volume_60"], {"flat": lambda bars: np.full(len(bars), 3.0)})


def test_training_rows_get_mean_0_and_deviation_1():
    normalisation = fit(FEATURES, BARS, range(100, 300))
    scaled = normalisation.apply(FEATURES)
    for which in range(3):
        rows = np.array([
            scaled.values[row, asset, which].item() for row in range(100, 300) for asset in range(2) if BARS.valid[row, asset]
        ])  # fmt: skip
        assert rows.mean() == pytest.approx(0, abs=1e-6)
        assert rows.std() == pytest.approx(1, rel=1e-6)
    assert (scaled.values[..., 3] == 0).all()
    assert (scaled.names, scaled.warmup) == (FEATURES.names, FEATURES.warmup)


def test_nothing_outside_the_training_window_is_looked_at():
    values = FEATURES.values.clone()
    values[300:] = 1e6
    values[:100] = -1e6
    values[~BARS.valid] = 77.0
    assert fit(Features(values, FEATURES.names, FEATURES.warmup), BARS, range(100, 300)) == fit(FEATURES, BARS, range(100, 300))
    warm = fit(FEATURES, BARS, range(300))
    assert warm == fit(FEATURES, BARS, range(FEATURES.warmup, 300))


def test_json_keeps_the_last_bit():
    normalisation = fit(FEATURES, BARS, range(100, 300), clip=4.0)
    assert Normalisation.from_dict(json.loads(json.dumps(normalisation.to_dict()))) == normalisation


def test_what_explodes_later_is_limited():
    values = FEATURES.values.clone()
    values[400, 0] = 1e9
    features = Features(values, FEATURES.names, FEATURES.warmup)
    assert fit(FEATURES, BARS, range(100, 300), clip=4.0).apply(features).values.max() == 4
    assert fit(FEATURES, BARS, range(100, 300), clip=math.inf).apply(features).values.max() > 1e9


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: fit(FEATURES, BARS, range(501)), "rows 0 to 501 of 500 bars"),
        (lambda: fit(FEATURES, BARS, range(30)), "features are warm from row"),
        (lambda: fit(FEATURES, BARS, range(80, 80)), "rows 80 to 80"),
        (lambda: Normalisation(("a",), (0.0,), (0.0,)), "scales above 0"),
        (lambda: Normalisation(("a",), (math.nan,), (1.0,)), "finite numbers"),
        (lambda: Normalisation(("a", "b"), (0.0,), (1.0,)), "2 names, 1 means"),
        (lambda: Normalisation(("a",), (0.0,), (1.0,), clip=0.0), "clip=0.0"),
        (lambda: Normalisation.from_dict({"names": ["a"]}), "this is no saved normalisation"),
        (lambda: Normalisation(("a",), (0.0,), (1.0,)).apply(FEATURES), "this normalisation was fitted on ('a',)"),
    ],
)
def test_what_makes_no_sense_is_refused(call, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        call()


def test_a_single_bar_knows_no_scale():
    one = Features(torch.zeros(500, 2, 1), ("x",), 0)
    bars = bars_of(500, 2)
    assert fit(one, bars, range(2)).scale == (1.0,)
    with pytest.raises(InputError, match="needs at least two"):
        fit(Features(torch.zeros(500, 1, 1), ("x",), 0), bars_of(500, 1), range(1))
