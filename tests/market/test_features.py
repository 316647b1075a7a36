"""Features are causal, finite, aligned and named; a function that looks ahead is caught, whatever it looks at."""

import math
import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from market.worlds import bars_of, marked
from quantail.errors import InputError
from quantail.market.features import NAMES, compute
from quantail.market.series import NANOSECONDS

BARS = bars_of(700, 3, seed=5, missing=0.05)


def column(features, name):
    return features.values[..., features.names.index(name)]


def test_the_default_set_is_warm_finite_and_in_order():
    features = compute(BARS)
    assert features.names == NAMES
    assert features.values.shape == (700, 3, len(NAMES))
    assert 60 < features.warmup < 80  # sixty valid bars of the asset that misses most
    assert (features.values[features.warmup :].std((0, 1)) > 0).all()


@pytest.mark.parametrize("end", [90, 333, 699])
def test_a_prefix_gives_the_same_rows(end):
    whole, part = compute(BARS), compute(BARS.rows(0, end))
    assert torch.equal(part.values, whole.values[:end])


def test_what_comes_later_may_be_anything():
    changed = {name: getattr(BARS, name).clone() for name in ("open", "high", "low", "close")}
    for part in changed.values():
        part[400:] *= 0.01
    whole, other = compute(BARS), compute(replace(BARS, **changed))
    assert torch.equal(whole.values[:400], other.values[:400])
    assert not torch.equal(whole.values[400:], other.values[400:])


def test_a_missing_bar_is_no_bar_of_its_own():
    """The features of an asset are those of its valid bars closed up, and the last ones stand where it has none."""
    alone = compute(BARS)
    for at in range(3):
        valid = BARS.valid[:, at]
        closed = compute(
            replace(
                BARS,
                **{
                    name: getattr(BARS, name)[valid][:, [at]]
                    for name in ("open", "high", "low", "close", "volume", "valid", "funding")
                },
                time=BARS.time[valid],
                symbols=("X",),
            ),
        )
        own = [name for name in NAMES if name != "since_valid"]
        for name in own:
            assert torch.equal(column(alone, name)[valid, at], column(closed, name)[:, 0])
        stays = ~valid & (torch.arange(700) > 100)
        for name in ("rsi_14", "return_5", "volume_60"):
            rows = stays.nonzero()[:, 0]
            assert torch.equal(column(alone, name)[rows, at], column(alone, name)[rows - 1, at])


def test_since_gap_and_since_valid():
    bars = bars_of(10, 1)
    time = bars.time.clone()
    time[4:] += 5 * 3600 * NANOSECONDS
    assert column(compute(replace(bars, time=time), ["since_gap"]), "since_gap")[:, 0].tolist() == pytest.approx(
        [0, 0, 0, 0, 1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6]
    )
    valid = torch.ones(10, 1, dtype=torch.bool)
    valid[[0, 3, 4]] = False
    found = column(compute(replace(bars, valid=valid), ["since_valid"]), "since_valid")[:, 0].tolist()
    assert found == pytest.approx([0, 0, 0, math.log(2), math.log(3), 0, 0, 0, 0, 0])


def test_gaps_and_absences_are_forgotten_after_500_bars():
    bars = bars_of(1200, 2)
    time, valid = bars.time.clone(), torch.ones(1200, 2, dtype=torch.bool)
    time[100:] += 5 * 3600 * NANOSECONDS
    valid[400:, 1] = False
    seen = compute(replace(bars, time=time, valid=valid, close=marked(bars.close, valid)), ["since_gap", "since_valid"])
    gap, absent = column(seen, "since_gap")[:, 0], column(seen, "since_valid")[:, 1]
    assert gap[[99, 100, 599, 600, 1199]].tolist() == pytest.approx([0, 1, 1 / 500, 0, 0])
    assert absent[[399, 400, 898, 899, 900, 1199]].tolist() == pytest.approx(
        [0, math.log(2), math.log(500), *[math.log(501)] * 3]
    )


def test_the_calendar_is_the_clock_at_the_end_of_the_bar():
    bars = bars_of(400, 1)
    features = compute(bars, ["day_sin", "day_cos", "week_sin", "week_cos"])
    for row in (0, 5, 23, 399):
        day, week = ((row + 1) / 24) % 1, ((row + 1) / 168) % 1
        expected = [f(2 * math.pi * share) for share in (day, week) for f in (math.sin, math.cos)]
        assert features.values[row, 0].tolist() == pytest.approx(expected, abs=1e-6)


def test_days_of_23_hours_are_known_as_well_before_as_after():
    bars = bars_of(60, 1)
    days = torch.arange(60) * 86400 * NANOSECONDS
    days[30:] -= 3600 * NANOSECONDS
    compute(replace(bars, time=days, bar_seconds=86400.0), ["day_sin", "since_gap", "return_1"])


def test_an_asset_that_is_listed_late_does_not_hold_up_the_others():
    valid = BARS.valid.clone()
    valid[:500, 2] = False
    features = compute(replace(BARS, valid=valid), ["return_60", "rsi_14"])
    assert 60 <= features.warmup < 80
    assert (features.values[:560, 2, 0] == 0).all()
    assert features.values[600:, 2].abs().min() >= 0
    assert features.values[600:, 2, 0].std() > 0


def test_functions_of_the_user_go_along():
    features = compute(
        BARS, ["return_1"], {"range": lambda bars: bars.high / bars.low - 1, "row": lambda bars: np.arange(len(bars))}
    )
    assert features.names == ("return_1", "range", "row")
    valid = BARS.valid
    assert torch.equal(column(features, "range")[valid], (BARS.high / BARS.low - 1).float()[valid])
    assert column(features, "row").tolist() == [[float(row)] * 3 for row in range(700)]


def last_of_day(bars):
    """The close of the day a bar lies in: a leak that shows only when a prefix ends within a day."""
    days = (bars.time // (86400 * NANOSECONDS)).numpy()
    last = np.searchsorted(days, days, side="right") - 1
    return bars.close.numpy()[last]


def only_late(bars):
    """Looks ahead by one bar, but only where prices are high, and so not at every row."""
    close = bars.close.clone()
    later = torch.cat([close[1:], close[-1:]])
    return torch.where(close > close[:100].nanmean(), later, close)


LEAKS = {
    "next return": lambda bars: torch.cat([bars.close[1:] / bars.close[:-1] - 1, torch.zeros(1, 3)]),
    "mean of all": lambda bars: bars.close - bars.close.nanmean(0),
    "scaled by all": lambda bars: bars.close / bars.close.nan_to_num().amax(0),
    "centred": lambda bars: torch.nn.functional.avg_pool1d(bars.close.nan_to_num().T, 5, 1, 2).T,
    "close of the day": last_of_day,
    "filled from behind": lambda bars: bars.open.flip(0).nan_to_num().cummax(0).values.flip(0),
    "from the end": lambda bars: torch.arange(len(bars), 0, -1),
    "only at times": only_late,
    "warm-up filled from behind": lambda bars: pd.DataFrame(bars.close.numpy()).rolling(20).mean().bfill().to_numpy(),
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_feature_that_looks_ahead_is_named_with_its_first_bar(name):
    with pytest.raises(InputError, match=rf"feature '{name}' looks ahead: for bar \d+ of S\d it gives"):
        compute(BARS, ["return_1"], {name: LEAKS[name]})


def test_the_first_bar_that_differs_is_the_one_that_looks_ahead():
    def leaks_at_300(bars):
        found = bars.close.nan_to_num().clone()
        if len(bars) > 600:
            found[300, 1] += bars.close[600, 1].nan_to_num()
        return found

    with pytest.raises(InputError, match="looks ahead: for bar 300 of S1"):
        compute(BARS, [], {"x": leaks_at_300})


def test_a_leak_beyond_the_rows_that_are_compared_one_by_one_is_still_compared_once():
    long = bars_of(9000, 1)
    with pytest.raises(InputError, match="looks ahead"):
        compute(long, [], {"x": lambda bars: bars.close / bars.close[-1] if len(bars) > 5000 else bars.close / bars.close[0]})


def next_return(bars):
    later = torch.cat([bars.close[1:], torch.full_like(bars.close[:1], math.nan)])
    return later / bars.close - 1


def test_a_leak_is_seen_however_long_a_feature_takes_to_be_known():
    """Of 9,000 bars a window of 5,000 knows nothing in the first 4,999."""

    def scored(bars):
        close = bars.close.numpy()
        mean = np.convolve(close[:, 0], np.ones(5000) / 5000)[: len(close), None] if len(close) >= 5000 else close
        return np.where(np.arange(len(close))[:, None] < 4999, math.nan, close - mean + next_return(bars).nan_to_num().numpy())

    with pytest.raises(InputError, match="looks ahead: for bar 4999 of S0"):
        compute(bars_of(9000, 1), [], {"x": scored})


@pytest.mark.parametrize(
    "lives", [[(0, 9000), (6000, 9000)], [(0, 9000), (6000, 6400)], [(0, 300), (5000, 5200), (7000, 7100)]]
)
@pytest.mark.parametrize("leaky", [0, 1, -1])
def test_a_leak_is_seen_in_every_asset_whenever_it_lives(lives, leaky):
    bars = bars_of(9000, len(lives))
    rows = torch.arange(9000)[:, None]
    lives = torch.tensor(lives)
    valid = (rows >= lives[:, 0]) & (rows < lives[:, 1])

    def leaks(bars):
        found = torch.zeros_like(bars.close)
        found[:, leaky] = next_return(bars)[:, leaky].nan_to_num() * bars.valid[:, leaky]
        return found

    with pytest.raises(InputError, match=f"looks ahead: for bar .* of S{leaky % len(lives)}"):
        compute(replace(bars, valid=valid), [], {"x": leaks})


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda bars: bars.close[:-1], "gave float64 [699, 3]; needs numbers [700, 3] or [700]"),
        (lambda bars: ["a"] * len(bars), "needs numbers"),
        (lambda bars: bars.nothing, "failed on 700 bars (AttributeError"),
        (lambda bars: bars.close / 0, "is inf at bar"),
        (lambda bars: torch.where(bars.time == BARS.time[50], math.nan, 1.0), "is nan at bar 50"),
        (
            lambda bars: torch.full((len(bars),), math.nan),
            "is not known at any of 700 bars, so nothing shows whether it looks ahead",
        ),
        (lambda bars: np.where(np.arange(len(bars)) < 699, math.nan, 1.0), "is not known at enough of 700 bars"),
    ],
)
def test_what_is_no_feature_is_refused(function, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        compute(BARS, [], {"mine": function})


def test_names_must_be_known_and_free():
    with pytest.raises(InputError, match="'rsi' is no default feature; there are return_1"):
        compute(BARS, ["rsi"])
    with pytest.raises(InputError, match="a function is called 'macd'"):
        compute(BARS, [], {"macd": lambda bars: bars.close})
    with pytest.raises(InputError, match="no feature is asked for"):
        compute(BARS, [])


def test_without_a_volume_its_feature_says_nothing():
    features = compute(replace(BARS, volume=None))
    assert (column(features, "volume_60") == 0).all()
