"""Broken files give a valid market or one clear error: never another package's, never a number that the file does not hold.

300 files here, 10,000 by `make fuzz`.
"""

import os
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from market.corrupt import drawn_file, prices_in
from quantail.errors import QuantailError
from quantail.market.bars import load_bars

FILES = 10_000 if os.environ.get("HYPOTHESIS_PROFILE") == "fuzz" else 300
SETTINGS = settings(max_examples=FILES // 2, suppress_health_check=[HealthCheck.function_scoped_fixture])


def loaded(path, mode):
    """The bars of a file, or nothing where one clear error refuses it."""
    said = []
    try:
        bars = load_bars(path, mode=mode, echo=said.append)
    except QuantailError as error:
        said = str(error)
        bars = None
    if bars is None:
        assert "bars" in said
        assert 20 < len(said) < 3000
    return bars


@pytest.mark.property
@SETTINGS
@given(seed=st.integers(0, 2**63))
def test_strict_loading_takes_every_row_as_it_is_or_none(tmp_path, seed):
    path = drawn_file(seed, tmp_path)
    bars = loaded(path, "strict")
    if bars is None:
        return
    held = list(zip(*(getattr(bars, name)[:, 0].tolist() for name in ("open", "high", "low", "close")), strict=True))
    assert bars.valid.all()
    assert not bars.card.touched
    assert held == prices_in(path)


@pytest.mark.property
@SETTINGS
@given(seed=st.integers(0, 2**63))
def test_repair_tells_of_every_row_and_invents_nothing(tmp_path, seed):
    path = drawn_file(seed, tmp_path)
    bars = loaded(path, "repair")
    if bars is None:
        return
    rows = prices_in(path)
    valid = bars.valid[:, 0]
    held = zip(*(getattr(bars, name)[:, 0][valid].tolist() for name in ("open", "high", "low", "close")), strict=True)
    assert not Counter(held) - Counter(rows)
    gone = len({touch.place for touch in bars.card.touched if touch.action != "moved"})
    assert len(rows) - int(valid.sum()) == gone
