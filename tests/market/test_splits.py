"""Blocks in order of time, with purge and embargo between them."""

import re

import pytest

from market.worlds import bars_of
from quantail.errors import InputError
from quantail.market.splits import split_by_time

BARS = bars_of(1000, 1)  # hourly from 1970-01-01


def test_shares_and_dates_name_the_same_borders():
    shares = split_by_time(BARS, 0.6, 0.84)
    assert shares == (range(600), range(600, 840), range(840, 1000))
    assert split_by_time(BARS, "1970-01-26", "1970-02-05") == shares
    assert split_by_time(BARS, "1970-01-26T02:00:00+02:00", "1970-02-04T23:00:01") == shares


def test_rows_name_borders_too_and_the_outer_ones_leave_out_what_lies_beyond():
    """As a walk forward needs it: no validation, training and test between two rows."""
    assert split_by_time(BARS, 600, 840) == split_by_time(BARS, 0.6, 0.84)
    walked = split_by_time(BARS, 500, 500, purge=10, embargo=3, begin=200, end=0.9)
    assert walked == (range(200, 490), range(500, 500), range(503, 900))
    assert split_by_time(BARS, 0.6, 0.84, begin="1970-01-02")[0] == range(24, 600)


def test_purge_and_embargo_add_up():
    train, validation, test = split_by_time(BARS, 0.6, 0.8, purge=7, embargo=5)
    assert (train, validation, test) == (range(593), range(605, 793), range(805, 1000))
    for earlier, later in ((train, validation), (validation, test)):
        assert later.start - earlier.stop == 12


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        ({"validation": 0.8, "test": 0.7}, "validation has no bar"),
        ({"validation": 0.6, "test": 0.8, "begin": 0.6}, "train has no bar"),
        ({"validation": 0.6, "test": 0.8, "end": 0.7}, "test has no bar"),
        ({"validation": 0.6, "test": 1001}, "test=1001; needs a share"),
        ({"validation": True, "test": 0.8}, "validation=True; needs a share"),
        ({"validation": 0.6, "test": 0.8, "purge": 600}, "train has no bar"),
        ({"validation": 0.6, "test": 0.8, "embargo": 200}, "validation has no bar"),
        ({"validation": 0.6, "test": "2030-01-01"}, "test has no bar"),
        ({"validation": 0.0, "test": 0.8}, "validation=0.0; needs a share"),
        ({"validation": 0.5, "test": 1.5}, "test=1.5; needs a share"),
        ({"validation": "soon", "test": 0.8}, "validation='soon' is no date"),
        ({"validation": 0.6, "test": 0.8, "purge": -1}, "purge=-1; needs a number of bars"),
        ({"validation": 0.6, "test": 0.8, "embargo": 1.5}, "embargo=1.5; needs a number of bars"),
    ],
)
def test_what_leaves_nothing_is_refused(call, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        split_by_time(BARS, **call)
