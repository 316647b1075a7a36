"""`quantail data`: what it prints, what it leaves, how it fails."""

import gzip
import json
import sys
from datetime import UTC, datetime

import pytest

from market.fetch.servers import Server
from market.fetch.test_binance import site
from quantail.cli import main
from quantail.market.bars import load_bars
from quantail.market.samples import SAMPLES

ROWS = "Date,Open,High,Low,Close\n2024-01-04,1,2,1,1\n2024-01-05,1,2,1,1\n"


def test_fetch_leaves_files_that_load_as_they_are(tmp_path, capsys):
    files = site()
    with Server(lambda path, query: files.get(path)) as server:
        words = ["data", "fetch", "binance", "BTCUSDT", "--start", "2024-11-01", "--end", "2025-02-28", "--to", str(tmp_path)]
        assert main([*words, "--host", server.url]) == 0
        first = capsys.readouterr().out
        assert main([*words, "--host", server.url]) == 0
    assert "3 files fetched, 0 were here, 1 not at the source (BTCUSDT-1h-2024-11.zip first)" in first
    assert "0 files fetched, 3 were here" in capsys.readouterr().out
    assert len(load_bars(tmp_path / "BTCUSDT-1h", echo=lambda line: None)) == 24 * 90


def test_fetch_that_fails_says_why_in_one_line(tmp_path, capsys):
    with Server(lambda path, query: None) as server:
        assert (
            main(["data", "fetch", "binance", "BTCUSDT", "--start", "2024-11-01", "--end", "2024-11-30", "--host", server.url])
            == 2
        )
    assert "has no bars of BTCUSDT at 1h from 2024-11-01 to 2024-11-30" in capsys.readouterr().err
    assert main(["data", "fetch", "binance", "BTCUSDT", "--start", "yesterday"]) == 2
    assert "--start yesterday: no such day" in capsys.readouterr().err


def test_samples_are_found_in_packages_without_importing_them(tmp_path, capsys, monkeypatch):
    for package in ("arch", "skfolio"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("arch", "skfolio", "bokeh_sampledata", "gym_anytrading"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for sample in (SAMPLES[0], SAMPLES[-1]):
        file = tmp_path / sample.package / sample.path
        file.parent.mkdir(parents=True)
        file.write_bytes(gzip.compress(ROWS.encode()))
    assert main(["data", "samples"]) == 0
    said = capsys.readouterr().out
    assert f"     2 rows  load_bars({str(tmp_path / 'arch' / SAMPLES[0].path)!r})" in said
    assert "5 US factor funds, days, 2014-2022" in said
    assert "closes alone" in said
    assert main(["data", "samples", "--json"]) == 0
    listed = [one for one in json.loads(capsys.readouterr().out) if str(tmp_path) in one["file"]]
    assert [(one["package"], one["rows"], one["bars"]) for one in listed] == [("arch", 2, True), ("skfolio", 2, False)]


def test_card_judges_a_file(tmp_path, capsys):
    path = tmp_path / "a.csv"
    path.write_text(ROWS)
    assert main(["data", "card", str(path)]) == 0
    assert "2 of 86400 s" in capsys.readouterr().out
    assert main(["data", "card", str(path), "--json", "--timezone", "Asia/Tokyo"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["bars"], found["start"]) == (2, "2024-01-03T15:00:00Z")
    path.write_text(ROWS + "2024-01-08,1,0.5,1,1\n")
    assert main(["data", "card", str(path)]) == 2
    assert "[high_below_low, 1 row]" in capsys.readouterr().err
    assert main(["data", "card", str(path), "--repair"]) == 0
    assert "line 4: masked (high_below_low)" in capsys.readouterr().out


def test_ccxt_and_yahoo_take_the_same_words(tmp_path, capsys, monkeypatch):
    pytest.importorskip("ccxt")
    from quantail.market.fetch import vendors

    asked = []
    monkeypatch.setattr(vendors, "from_ccxt", lambda *words: asked.append(words) or 5)
    monkeypatch.setattr(vendors, "from_yahoo", lambda *words: asked.append(words) or 7)
    assert (
        main(["data", "fetch", "ccxt", "BTC/USDT", "--exchange", "kraken", "--start", "2024-01-02", "--to", str(tmp_path)]) == 0
    )
    assert main(["data", "fetch", "yahoo", "AAPL", "--interval", "1d", "--start", "2024-01-02", "--to", str(tmp_path)]) == 0
    assert asked[0][0].id == "kraken"
    assert asked[0][1:4] == ("BTC/USDT", "1h", int(datetime(2024, 1, 2, tzinfo=UTC).timestamp() * 1000))
    assert asked[0][5] == tmp_path / "BTCUSDT-1h.csv"
    assert asked[1] == ("AAPL", "1d", "2024-01-02", None, tmp_path / "AAPL-1d.csv")
    said = capsys.readouterr().out
    assert "5 new rows" in said
    assert "7 new rows" in said
