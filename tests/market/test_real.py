"""A year of real bars, where they lie beside the repository or where QUANTAIL_DATA says."""

import os
from pathlib import Path

import pandas as pd
import pytest
import torch

from quantail.audit import QUESTIONS
from quantail.audit.subject import Subject
from quantail.market import features, normalise, splits
from quantail.market.bars import load_bars

FOLDER = Path(os.environ.get("QUANTAIL_DATA", Path(__file__).parents[3] / "shared" / "data"))
FILE = FOLDER / "BTCUSDT_1h.parquet"

pytestmark = pytest.mark.skipif(not FILE.is_file(), reason="no BTCUSDT_1h.parquet; set QUANTAIL_DATA to its folder")


def test_real_bars_are_read_as_pandas_reads_them():
    bars = load_bars(FILE, echo=lambda line: None)
    table = pd.read_parquet(FILE)
    assert bars.symbols == ("BTCUSDT",)
    assert (bars.card.findings, bars.card.gaps, bars.bar_seconds) == ((), 0, 3600)
    assert bars.time.tolist() == (table["ts_ms"] * 10**6).tolist()
    for name in ("open", "high", "low", "close", "volume"):
        assert getattr(bars, name)[:, 0].tolist() == table[name].tolist()
    assert bars.bars_per_year == pytest.approx(8766)


def test_real_features_are_causal_and_scaled_by_the_training_window():
    bars = load_bars(FILE, echo=lambda line: None)
    seen = features.compute(bars)
    parts = splits.split_by_time(bars, "2021-09-01", "2021-11-01", purge=100, embargo=20)
    scaled = normalise.fit(seen, bars, parts.train).apply(seen)
    rows = scaled.values[seen.warmup : parts.train.stop, 0].double()
    varies = rows.std(0) > 0
    assert rows.mean(0).abs().max() < 0.01  # a little is clipped at ±10
    assert (rows.std(0)[varies] - 1).abs().max() < 0.05
    assert [name for name, one in zip(seen.names, varies.tolist(), strict=True) if not one] == ["since_gap", "since_valid"]
    assert torch.equal(features.compute(bars.rows(0, 5000)).values, seen.values[:5000])


@pytest.mark.parametrize("name", [name for name, _ in QUESTIONS if name != "oracle feature"])
def test_real_bars_pass_the_audit(name):
    check = dict(QUESTIONS)[name](Subject(load_bars(FILE, echo=lambda line: None)))
    assert check.ok, check
