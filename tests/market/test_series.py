"""Bars and features refuse what makes no sense, by name; times mean what they say."""

import re
from dataclasses import replace

import pytest
import torch

from market.worlds import HOUR, bars_of
from quantail.errors import InputError
from quantail.market.series import NANOSECONDS, Features


def test_a_bar_is_known_at_its_end_and_never_after_the_next_opens():
    days = [0, 86400, 86400 + 82800, 3 * 86400 + 82800]  # the second day has 23 hours, then a day is missing
    bars = replace(bars_of(4, 1), time=torch.tensor(days) * NANOSECONDS, bar_seconds=86400.0)
    ends = [end / NANOSECONDS for end in bars.end.tolist()]
    assert ends == [86400, 86400 + 82800, 2 * 86400 + 82800, 4 * 86400 + 82800]
    assert bars.elapsed_seconds.tolist() == [86400, 82800, 86400, 2 * 86400]


def test_a_year_has_as_many_bars_as_the_stamps_say():
    hourly = bars_of(8767, 1)
    assert hourly.bars_per_year == pytest.approx(365.25 * 24, rel=1e-12)
    assert bars_of(1, 1).bars_per_year == pytest.approx(365.25 * 24, rel=1e-12)
    weekly = replace(hourly, time=hourly.time * 7)
    assert weekly.bars_per_year == pytest.approx(365.25 * 24 / 7, rel=1e-12)


def test_rows_are_a_view_of_every_tensor():
    bars = bars_of(9, 2)
    part = bars.rows(3, 7)
    assert len(part) == 4
    for name in ("time", "open", "high", "low", "close", "valid", "volume", "funding"):
        assert torch.equal(getattr(part, name), getattr(bars, name)[3:7])
        assert getattr(part, name).data_ptr() == getattr(bars, name)[3:].data_ptr()
    assert part.to("cpu").symbols == bars.symbols


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"symbols": ("A", "A")}, "needs each name once"),
        ({"symbols": ()}, "at least one of each"),
        ({"bar_seconds": 0.0}, "bar_seconds=0.0"),
        ({"bar_seconds": float("inf")}, "bar_seconds=inf"),
        ({"open": torch.ones(5, 2)}, "open is torch.float32 [5, 2]; needs torch.float64 [5, 2]"),
        ({"valid": torch.ones(5, 3, dtype=torch.bool)}, "valid is torch.bool [5, 3]"),
        ({"volume": torch.full((5, 2), -1.0, dtype=torch.float64)}, "row 0 holds an impossible bar"),
        ({"funding": torch.full((5, 2), float("nan"), dtype=torch.float64)}, "funding has entries that are not finite"),
        ({"time": torch.tensor([0, 1, 3, 3, 4])}, "time does not move on after row 2"),
    ],
)
def test_what_makes_no_sense_is_refused(change, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        replace(bars_of(5, 2), **change)


@pytest.mark.parametrize("name", ["open", "high", "low", "close"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_an_impossible_bar_is_refused_unless_it_is_masked(name, value):
    bars = bars_of(5, 2)
    prices = getattr(bars, name).clone()
    prices[3, 1] = value
    with pytest.raises(InputError, match="row 3 holds an impossible bar"):
        replace(bars, **{name: prices})
    valid = bars.valid.clone()
    valid[3, 1] = False
    replace(bars, **{name: prices, "valid": valid})


def test_open_and_close_lie_within_low_and_high():
    bars = bars_of(5, 2)
    for name, other, factor in (("open", "high", 1.01), ("close", "high", 1.01), ("open", "low", 0.99), ("close", "low", 0.99)):
        prices = getattr(bars, name).clone()
        prices[2, 0] = getattr(bars, other)[2, 0] * factor
        with pytest.raises(InputError, match="row 2 holds an impossible bar"):
            replace(bars, **{name: prices})


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 3), (2, 9)])
def test_rows_that_are_not_there_are_refused(start, stop):
    with pytest.raises(InputError, match="needs 0 <= start < stop"):
        bars_of(5, 2).rows(start, stop)
    with pytest.raises(InputError, match="needs 0 <= start < stop"):
        Features(torch.zeros(5, 2, 1), ("x",), 0).rows(start, stop)


def test_features_are_finite_named_and_warm():
    values = torch.zeros(6, 2, 3)
    names = ("a", "b", "c")
    assert Features(values, names, 4).rows(1, 6).warmup == 3
    assert Features(values, names, 4).rows(5, 6).warmup == 0
    assert Features(values, names, 4).rows(0, 2).warmup == 2
    broken = values.clone()
    broken[4, 1, 2] = float("nan")
    for wrong, sentence in (
        ((values.double(), names, 0), "needs torch.float32"),
        ((values, ("a", "b"), 0), "a name for each"),
        ((values, ("a", "b", "b"), 0), "each name once"),
        ((values, names, 7), "warmup=7 of 6 rows"),
        ((broken, names, 0), "feature 'c' is not finite at row 4, asset 1"),
    ):
        with pytest.raises(InputError, match=re.escape(sentence)):
            Features(*wrong)


def test_the_hour_of_the_helper_is_an_hour():
    assert bars_of(3, 1).time.diff().tolist() == [HOUR * NANOSECONDS] * 2
