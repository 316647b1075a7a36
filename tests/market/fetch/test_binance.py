"""Dumps in Binance's own format come whole, or one sentence says why not; nothing that is half done looks done."""

import hashlib
import io
import zipfile
from datetime import UTC, date, datetime, timedelta

import pytest

from market.fetch.servers import Server
from quantail.errors import InputError, SourceError
from quantail.market.bars import load_bars
from quantail.market.fetch import binance
from quantail.market.fetch.binance import Dump, fetch, urls
from quantail.market.fetch.download import Patience, download

QUICK = Patience(tries=3, pause_seconds=0.0, timeout_seconds=0.3)
MONTHS = Dump("BTCUSDT", "1h", date(2024, 11, 1), date(2025, 2, 28))


def packed(name, first, bars):
    """A zip as Binance packs it: twelve columns, no names, microseconds from 2025 on."""
    rows = []
    for hour in range(bars):
        moment = first + timedelta(hours=hour)
        stamp = int(moment.timestamp() * (10**6 if moment.year >= 2025 else 10**3))
        price = 100 + (hour % 7) / 10
        rows.append(f"{stamp},{price},{price + 1},{price - 1},{price + 0.5},12.5,{stamp},1,3,1,1,0")
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(zipfile.ZipInfo(name + ".csv"), "\n".join(rows) + "\n")
    return content.getvalue()


def site(months=("2024-12", "2025-01", "2025-02"), days=()):
    """The files of a site, with their checksums; November 2024 came before the listing."""
    files = {}
    for period in (*months, *days):
        name = f"BTCUSDT-1h-{period}"
        first = datetime.fromisoformat(period if period.count("-") == 2 else f"{period}-01").replace(tzinfo=UTC)
        folder = "daily" if period in days else "monthly"
        path = f"/data/spot/{folder}/klines/BTCUSDT/1h/{name}.zip"
        following = (first.replace(day=1) + timedelta(days=32)).replace(day=1)
        files[path] = packed(name, first, 24 if period in days else (following - first).days * 24)
        files[path + ".CHECKSUM"] = f"{hashlib.sha256(files[path]).hexdigest()}  {name}.zip\n".encode()
    return files


@pytest.fixture
def server():
    files = site()
    with Server(lambda path, query: files.get(path)) as one:
        one.files = files
        yield one


def month(period):
    return f"/data/spot/monthly/klines/BTCUSDT/1h/BTCUSDT-1h-{period}.zip"


def test_months_come_whole_and_load_as_one_series(server, tmp_path):
    told = []
    found = fetch(MONTHS._replace(host=server.url), tmp_path, QUICK, told.append)
    assert (found.new, found.kept, found.missing) == (3, 0, ("BTCUSDT-1h-2024-11.zip",))
    assert told == [f"BTCUSDT-1h-{period}.zip: fetched" for period in ("2024-12", "2025-01", "2025-02")]
    bars = load_bars(tmp_path, echo=lambda line: None)
    assert len(bars) == 24 * (31 + 31 + 28)
    assert (bars.symbols, bars.card.gaps, bars.card.start) == (("BTCUSDT",), 0, "2024-12-01T00:00:00Z")


def test_who_watches_sees_every_file_before_it_comes(server, tmp_path):
    seen = []

    def watch(files):
        for file in files:
            seen.append((file.rpartition("-1h-")[2], len(list(tmp_path.glob("*.zip")))))
            yield file

    fetch(MONTHS._replace(host=server.url), tmp_path, QUICK, watch=watch)
    assert seen == [("2024-11.zip", 0), ("2024-12.zip", 0), ("2025-01.zip", 1), ("2025-02.zip", 2)]


def test_what_is_here_is_not_asked_for_again(server, tmp_path):
    fetch(MONTHS._replace(host=server.url), tmp_path, QUICK)
    server.asked.clear()
    found = fetch(MONTHS._replace(host=server.url), tmp_path, QUICK)
    assert (found.new, found.kept) == (0, 3)
    assert set(server.asked) == {month("2024-11") + ".CHECKSUM"}


def test_a_file_that_was_damaged_on_disk_comes_anew(server, tmp_path):
    fetch(MONTHS._replace(host=server.url), tmp_path, QUICK)
    path = tmp_path / "BTCUSDT-1h-2025-01.zip"
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert fetch(MONTHS._replace(host=server.url), tmp_path, QUICK).new == 1
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "moods", [["cut"], ["cut", "cut", "cut", "cut"], ["stall"], ["slow"], [500, 503], ["damaged"], ["cut", "whole"]]
)
def test_trouble_on_the_way_is_got_over(server, tmp_path, moods):
    server.moods[month("2025-01")] = list(moods)
    found = fetch(MONTHS._replace(host=server.url), tmp_path, QUICK)
    assert found.new == 3
    assert (tmp_path / "BTCUSDT-1h-2025-01.zip").read_bytes() == server.files[month("2025-01")]
    assert not list(tmp_path.glob("*.part"))


def test_a_transfer_goes_on_where_it_was_cut_off(server, tmp_path):
    server.moods[month("2025-01")] = ["cut"]
    fetch(MONTHS._replace(host=server.url), tmp_path, QUICK)
    half = len(server.files[month("2025-01")]) // 2
    assert [asked for path, asked in server.ranges if path == month("2025-01")] == [None, f"bytes={half}-"]


def test_an_interrupted_call_is_taken_up_by_the_next(server, tmp_path):
    server.moods[month("2025-01")] = ["cut", 500, 500, 500]
    with pytest.raises(SourceError, match=r"failed 3 times in a row \(the server answered 500\); call again"):
        fetch(MONTHS._replace(host=server.url), tmp_path, QUICK)
    part = tmp_path / "BTCUSDT-1h-2025-01.zip.part"
    half = part.stat().st_size
    assert 0 < half < len(server.files[month("2025-01")])
    assert not part.with_suffix("").exists()
    found = fetch(MONTHS._replace(host=server.url), tmp_path, QUICK)
    assert (found.new, found.kept) == (2, 1)
    assert (month("2025-01"), f"bytes={half}-") in server.ranges


@pytest.mark.parametrize("rest", [b"", b"xx", b"x" * 10**6])
def test_the_rest_of_another_file_is_not_believed(server, tmp_path, rest):
    part = tmp_path / "BTCUSDT-1h-2025-01.zip.part"
    part.write_bytes(rest)
    fetch(MONTHS._replace(host=server.url), tmp_path, QUICK)
    assert part.with_suffix("").read_bytes() == server.files[month("2025-01")]


def test_what_stays_damaged_is_refused(server, tmp_path):
    server.moods[month("2025-01")] = ["damaged"] * 9
    with pytest.raises(SourceError, match="came twice with another checksum"):
        fetch(MONTHS._replace(host=server.url), tmp_path, QUICK)
    assert not (tmp_path / "BTCUSDT-1h-2025-01.zip").exists()


def test_a_checksum_that_is_none_is_refused(server, tmp_path):
    server.files[month("2025-01") + ".CHECKSUM"] = b"<html>busy</html>"
    with pytest.raises(SourceError, match="needs a SHA-256"):
        fetch(MONTHS._replace(host=server.url), tmp_path, QUICK)


def test_a_server_that_is_silent_or_away_is_named(server, tmp_path):
    server.moods[month("2024-12") + ".CHECKSUM"] = [502] * 9
    with pytest.raises(SourceError, match="the server answered 502"):
        fetch(MONTHS._replace(host=server.url), tmp_path, QUICK)
    with pytest.raises(SourceError, match="failed 3 times in a row"):
        fetch(MONTHS._replace(host="http://127.0.0.1:9"), tmp_path, QUICK)


def test_what_the_source_does_not_have_is_said(server, tmp_path):
    with pytest.raises(SourceError, match=r"has no bars of ETHUSDT at 1h .* check symbol, market and dates"):
        fetch(MONTHS._replace(host=server.url, symbol="ETHUSDT"), tmp_path, QUICK)


def test_days_stand_in_for_a_month_that_is_not_over(tmp_path):
    dump = Dump("BTCUSDT", "1h", date(2024, 12, 20), date(2025, 1, 3), host="http://x")
    assert [url.rpartition("/")[2] for url in urls(dump, date(2025, 1, 10))] == [
        "BTCUSDT-1h-2024-12.zip",
        *(f"BTCUSDT-1h-2025-01-0{day}.zip" for day in (1, 2, 3)),
    ]
    assert [url.rpartition("/")[2] for url in urls(dump._replace(end=None), date(2025, 1, 3))][1:] == [
        "BTCUSDT-1h-2025-01-01.zip",
        "BTCUSDT-1h-2025-01-02.zip",
    ]
    assert "/futures/um/daily/" in list(urls(dump._replace(market="um"), date(2025, 1, 3)))[-1]


def test_days_go_when_their_month_has_come(tmp_path, monkeypatch):
    files = site(months=("2024-12",), days=("2025-01-01", "2025-01-02"))
    monkeypatch.setattr(binance, "datetime", Clock)
    with Server(lambda path, query: files.get(path)) as server:
        dump = Dump("BTCUSDT", "1h", date(2024, 12, 1), host=server.url)
        Clock.today = datetime(2025, 1, 3, tzinfo=UTC)
        assert fetch(dump, tmp_path, QUICK).new == 3
        assert len(load_bars(tmp_path, echo=lambda line: None)) == 24 * 33
        files |= site(months=("2025-01",))
        Clock.today = datetime(2025, 2, 1, tzinfo=UTC)
        assert fetch(dump, tmp_path, QUICK).new == 1
        assert len(load_bars(tmp_path, echo=lambda line: None)) == 24 * 62


class Clock(datetime):
    """A clock that can be set."""

    today = None

    @classmethod
    def now(cls, tz=None):
        return cls.today


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"symbol": "btc/usdt"}, "needs one in Binance's spelling"),
        ({"interval": "7m"}, "interval='7m'; needs one of 1s, 1m"),
        ({"market": "margin"}, "market='margin'; needs one of spot, um, cm"),
        ({"end": date(2020, 1, 1)}, "lies before start"),
        ({"host": "file:///etc"}, "is no web address"),
    ],
)
def test_what_makes_no_sense_is_refused(change, sentence, tmp_path):
    with pytest.raises(InputError, match=sentence):
        fetch(MONTHS._replace(**change), tmp_path, QUICK)


def test_a_server_that_ignores_the_range_begins_the_file_anew(server, tmp_path):
    server.moods[month("2025-01")] = ["cut", "whole"]
    assert download(server.url + month("2025-01"), tmp_path / "a.zip", patience=QUICK)
    assert (tmp_path / "a.zip").read_bytes() == server.files[month("2025-01")]


def test_a_file_without_a_checksum_is_kept_as_it_is(server, tmp_path):
    url = server.url + month("2025-01")
    assert download(url, tmp_path / "a.zip", patience=QUICK)
    assert not download(url, tmp_path / "a.zip", patience=QUICK)
