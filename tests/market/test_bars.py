"""What is read from a file is what stands in it: names, times and symbols in the ways that exchanges write them."""

import gzip
import hashlib
import zipfile
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch

from quantail.errors import InputError
from quantail.market.bars import load_bars

PRICES = [(10.0, 12.0, 9.0, 11.0, 5.0), (11.0, 13.0, 10.5, 12.5, 7.0), (12.5, 12.75, 8.0, 9.0, 0.0)]
FIRST = datetime(2024, 3, 4, 5, tzinfo=UTC)  # hourly from here on
HOURS = [int(FIRST.timestamp()) + 3600 * row for row in range(3)]


def quiet(line):
    return None


def written(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def check(bars, symbol=None, volume=True, shift=0):
    """The three bars above."""
    assert bars.time.tolist() == [(second + shift) * 10**9 for second in HOURS]
    names = ("open", "high", "low", "close", "volume")[: 5 if volume else 4]
    found = [tuple(getattr(bars, name)[row, 0].item() for name in names) for row in range(3)]
    assert found == [row[: len(names)] for row in PRICES]
    assert volume or bars.volume is None
    assert bars.valid.all()
    assert bars.bar_seconds == 3600
    assert symbol is None or bars.symbols == (symbol,)


def lines(header, stamp, mark=",", tail=""):
    rows = [mark.join([stamp(second), *map(repr, row)]) + tail for second, row in zip(HOURS, PRICES, strict=True)]
    return "\n".join(([header] if header else []) + rows) + "\n"


def at(style):
    return lambda second: datetime.fromtimestamp(second, UTC).strftime(style)


CONVENTIONS = {
    "ccxt": ("timestamp,open,high,low,close,volume", lambda s: str(s * 1000), ",", ""),
    "ccxt without names": ("", lambda s: str(s * 1000), ",", ""),
    "binance dump": ("", lambda s: str(s * 1000), ",", ",1709531999999,0,1,0,0,0"),
    "binance dump since 2025": ("", lambda s: str(s * 10**6), ",", ",1709531999999999,0,1,0,0,0"),
    "binance futures": (
        "open_time,open,high,low,close,volume,close_time,quote_volume,count,taker_buy_volume,taker_buy_quote_volume,ignore",
        *(lambda s: str(s * 1000), ",", ",1709531999999,0,1,0,0,0"),
    ),
    "yahoo": ("Datetime,Open,High,Low,Close,Volume", at("%Y-%m-%d %H:%M:%S+00:00"), ",", ""),
    "alpaca": ("timestamp,open,high,low,close,volume,trade_count,vwap", at("%Y-%m-%dT%H:%M:%SZ"), ",", ",17,10.5"),
    "alpaca short": ("t,o,h,l,c,v,n,vw", at("%Y-%m-%dT%H:%M:%SZ"), ",", ",17,10.5"),
    "metatrader 5": (
        "<DATE>\t<TIME>\t<OPEN>\t<HIGH>\t<LOW>\t<CLOSE>\t<TICKVOL>\t<VOL>\t<SPREAD>",
        *(at("%Y.%m.%d\t%H:%M:%S"), "\t", "\t0\t3"),
    ),
    "metatrader 4": ("", at("%Y.%m.%d,%H:%M"), ",", ""),
    "stooq": ("<DATE>,<TIME>,<OPEN>,<HIGH>,<LOW>,<CLOSE>,<VOL>", at("%Y%m%d,%H%M%S"), ",", ""),
    "histdata": ("time;open;high;low;close;volume", at("%Y%m%d %H%M%S"), ";", ""),
    "dukascopy": ("Gmt time,Open,High,Low,Close,Volume", at("%d.%m.%Y %H:%M:%S.000"), ",", ""),
    "an index without a name": (",Open,High,Low,Close,Volume", at("%Y-%m-%d %H:%M:%S"), ",", ""),
    "seconds": ("time,open,high,low,close,volume", str, ",", ""),
    "nanoseconds": ("ts_event,open,high,low,close,volume", lambda s: str(s * 10**9), ",", ""),
    "quoted": ("date,open,high,low,close,volume", lambda s: f'"{at("%Y-%m-%d %H:%M")(s)}"', ",", ""),
}


@pytest.mark.parametrize("name", CONVENTIONS)
def test_the_usual_conventions_are_understood(name, tmp_path):
    header, stamp, mark, tail = CONVENTIONS[name]
    path = written(tmp_path / "ABC-1h-2024.csv", lines(header, stamp, mark, tail))
    check(load_bars(path, echo=quiet), symbol="ABC")


def test_decimal_commas_beside_semicolons(tmp_path):
    text = lines("time;open;high;low;close;volume", str, ";").replace(".", ",")
    check(load_bars(written(tmp_path / "a.csv", text), echo=quiet))


def test_packed_files_and_other_encodings(tmp_path):
    text = lines("time,open,high,low,close,volume", str)
    for name, content in (
        ("a.csv", text.encode("utf-16")),
        ("b.csv", text.encode("utf-8-sig")),
        ("c.csv", text.replace("\n", "\r\n").encode()),
        ("d.csv.gz", gzip.compress(text.encode())),
        ("e.txt", text.replace("\n", "\n\n").encode()),
    ):
        (tmp_path / name).write_bytes(content)
        check(load_bars(tmp_path / name, echo=quiet), symbol=name[0])


@pytest.mark.parametrize("mode", ["strict", "repair"])
def test_a_quote_that_is_never_closed_swallows_nothing(tmp_path, mode):
    rows = lines("time,open,high,low,close,volume,note", str, tail=",x").splitlines()
    rows[2] = rows[2].removesuffix("x") + '"x'
    with pytest.raises(InputError, match=r"a\.csv line 3: a quote runs over several lines; close it"):
        load_bars(written(tmp_path / "a.csv", "\n".join(rows)), mode=mode, bar_seconds=3600, echo=quiet)


def test_a_folder_of_archives_is_one_series(tmp_path):
    rows = lines("", lambda s: str(s * 1000), ",", ",1709531999999,0,1,0,0,0").splitlines()
    rows[2] = rows[2].replace(str(HOURS[2] * 1000), str(HOURS[2] * 10**6), 1)  # the unit of Binance's dumps changed in 2025
    for number, row in enumerate(rows):
        with zipfile.ZipFile(tmp_path / f"BTCUSDT-1h-2024-0{number}.zip", "w") as archive:
            archive.writestr(f"BTCUSDT-1h-2024-0{number}.csv", row + "\n")
    bars = load_bars(tmp_path, echo=quiet)
    check(bars, symbol="BTCUSDT")
    assert "times are epoch numbers in us, UTC" in bars.card.notes


def frame(**more):
    columns = dict(zip(("open", "high", "low", "close", "volume"), map(list, zip(*PRICES, strict=True)), strict=True))
    return pd.DataFrame({"time": pd.to_datetime(HOURS, unit="s"), **columns, **more})


def test_frames_of_pandas_polars_and_arrow():
    check(load_bars(frame(), symbol="X", echo=quiet), symbol="X")
    check(load_bars(frame().set_index("time"), echo=quiet))
    check(
        load_bars(
            frame().set_index(frame()["time"].dt.tz_localize("UTC").dt.tz_convert("Asia/Tokyo")).drop(columns="time"),
            echo=quiet,
        )
    )
    check(load_bars(pl.DataFrame(frame().to_dict("list")), echo=quiet))
    check(load_bars(pa.Table.from_pandas(frame()), echo=quiet))
    check(load_bars(frame().astype({"open": "Float32", "volume": "Int64"}), echo=quiet))
    check(load_bars(frame(open=[f" {row[0]}" for row in PRICES]), echo=quiet))


def test_parquet_keeps_nanoseconds_where_a_stamp_is_missing(tmp_path):
    stamps = [second * 10**9 + 1 for second in HOURS]
    table = pa.Table.from_pandas(frame().drop(columns="time")).append_column("time", pa.array(stamps, pa.int64()))
    pa.parquet.write_table(table, tmp_path / "odd.parquet")
    assert load_bars(tmp_path / "odd.parquet", echo=quiet).time.tolist() == stamps
    table = table.set_column(5, "time", pa.array([stamps[0], None, stamps[2]], pa.int64()))
    pa.parquet.write_table(table, tmp_path / "odd.parquet")
    bars = load_bars(tmp_path / "odd.parquet", mode="repair", bar_seconds=3600, echo=quiet)
    assert bars.time.tolist() == [stamps[0], stamps[2]]


def test_yfinance_frames_have_two_levels_of_columns():
    wide = pd.concat({"AAA": frame().set_index("time"), "BBB": frame().set_index("time")[1:]}, axis=1)
    wide.columns = wide.columns.set_names(["Ticker", "Price"])
    for one in (wide, wide.swaplevel(axis=1)):
        bars = load_bars(one, echo=quiet)
        assert bars.symbols == ("AAA", "BBB")
        assert bars.valid.tolist() == [[True, False], [True, True], [True, True]]
        assert bars.close[:, 0].tolist() == [11.0, 12.5, 9.0]


def test_many_assets_share_one_clock_and_nothing_is_filled_in():
    long = pd.concat([frame(symbol="LATE")[1:], frame(symbol="FULL"), frame(symbol="HOLE")[::2]])
    bars = load_bars(long.sort_values("time", kind="stable"), bar_seconds=3600, echo=quiet)
    order = [bars.symbols.index(name) for name in ("FULL", "LATE", "HOLE")]
    assert bars.valid[:, order].tolist() == [[True, False, True], [True, True, False], [True, True, True]]
    for name in ("open", "high", "low", "volume"):
        assert torch.equal(getattr(bars, name).isnan(), ~bars.valid)
    marks = bars.close[:, order].tolist()
    assert np.isnan(marks[0][1])
    assert [marks[0][0], marks[0][2], *marks[1], *marks[2]] == [11.0, 11.0, 12.5, 12.5, 11.0, 9.0, 9.0, 9.0]
    mapped = load_bars({"A": frame(), "B": frame()[1:]}, bar_seconds=3600, echo=quiet)
    assert mapped.symbols == ("A", "B")
    assert mapped.valid.tolist() == [[True, False], [True, True], [True, True]]


def test_times_without_a_zone_are_in_the_one_that_is_said(tmp_path):
    path = written(tmp_path / "a.csv", lines("time,open,high,low,close,volume", at("%Y-%m-%d %H:%M")))
    check(load_bars(path, timezone="America/New_York", echo=quiet), shift=5 * 3600)
    assert "read as UTC" in load_bars(path, echo=quiet).card.notes[0]
    assert "America/New_York" in load_bars(path, timezone="America/New_York", echo=quiet).card.notes[0]
    with pytest.raises(InputError, match="'Mars/Olympus' is no time zone"):
        load_bars(path, timezone="Mars/Olympus", echo=quiet)


def test_an_hour_that_the_clock_shows_twice_or_never_is_no_time(tmp_path):
    rows = [f"2021-{day} {hour}:30,1,2,1,1,0" for day, hour in (("10-31", "01"), ("10-31", "02"), ("10-31", "03"))]
    path = written(tmp_path / "a.csv", "\n".join(["date,open,high,low,close,volume", *rows]))
    with pytest.raises(InputError, match=r"a\.csv line 3 \(a, no time\): its time cannot be read as one moment"):
        load_bars(path, timezone="Europe/Berlin", echo=quiet)
    bars = load_bars(path, timezone="Europe/Berlin", mode="repair", bar_seconds=3600, echo=quiet)
    assert bars.time.tolist() == [pd.Timestamp(f"2021-10-{x}").value for x in ("30T23:30", "31T02:30")]


@pytest.mark.parametrize(
    ("days", "expected"),
    [(("1/2/2021", "13/2/2021"), ["2021-02-01", "2021-02-13"]), (("1/2/2021", "1/13/2021"), ["2021-01-02", "2021-01-13"])],
)
def test_day_and_month_are_read_as_the_numbers_prove(days, expected, tmp_path):
    path = written(tmp_path / "a.csv", "date,open,high,low,close\n" + "".join(f"{day},1,2,1,1\n" for day in days))
    assert [pd.Timestamp(x).strftime("%Y-%m-%d") for x in load_bars(path, echo=quiet).time.tolist()] == expected


def test_day_and_month_are_never_guessed(tmp_path):
    path = written(tmp_path / "a.csv", "date,open,high,low,close\n1/2/2021,1,2,1,1\n2/2/2021,1,2,1,1\n")
    with pytest.raises(InputError, match="begins with the day or the month cannot be seen"):
        load_bars(path, echo=quiet)


def test_days_as_numbers_and_daily_bars(tmp_path):
    path = written(tmp_path / "a.csv", "date,open,high,low,close\n20240104,1,2,1,1\n20240105,1,2,1,1\n20240108,1,2,1,1\n")
    bars = load_bars(path, echo=quiet)
    assert bars.bar_seconds == 86400
    assert bars.card.gaps == 1
    assert bars.card.start == "2024-01-04T00:00:00Z"
    assert bars.card.end == "2024-01-09T00:00:00Z"


def test_adjusted_prices_are_scaled_all_four_or_not_at_all():
    raw = frame(**{"Adj Close": [5.5, 12.5, 9.0]})
    assert load_bars(raw, echo=quiet).close[:, 0].tolist() == [11.0, 12.5, 9.0]
    scaled = load_bars(raw, adjusted=True, allow=("split_like",), echo=quiet)
    assert [getattr(scaled, name)[0, 0].item() for name in ("open", "high", "low", "close")] == [5.0, 6.0, 4.5, 5.5]
    assert scaled.volume[0, 0] == 5.0
    with pytest.raises(InputError, match="needs a column of adjusted closes"):
        load_bars(frame(), adjusted=True, echo=quiet)


def test_what_was_understood_is_told_and_kept(tmp_path):
    path = written(tmp_path / "ABC.csv", lines("when,o,h,l,c,v", str))
    told = []
    bars = load_bars(path, columns={"time": "when"}, echo=told.append)
    assert any("time = 'when', open = 'o', high = 'h'" in line for line in told)
    assert any("epoch numbers in s" in line for line in told)
    card = bars.card.to_dict()
    assert card["columns"] == {"time": "when", "open": "o", "high": "h", "low": "l", "close": "c", "volume": "v"}
    assert card["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (card["rows_read"], card["bars"], card["gaps"], card["symbols"]) == (3, 3, 0, ("ABC",))
    assert "sha256" in str(bars.card)


@pytest.mark.parametrize(
    ("header", "given", "sentence"),
    [
        ("when,open,high,low,close,volume", None, "none that is time"),
        ("time,open,high,low,price,volume", None, "none that is close"),
        ("time,open,Close,low,close,volume", {"high": "open"}, "2 columns that could be close: 'Close', 'close'"),
        ("time,open,high,low,close,volume", {"price": "open"}, "columns names 'price'"),
        ("time,open,high,low,close,volume", {"open": "opn"}, "did you mean 'open'?"),
        ("time,open,high,low,open,volume", {"open": "open"}, "2 columns named 'open'"),
        ("a,b,c,d,e,f", None, "needs time"),
    ],
)
def test_columns_that_are_not_clear_are_refused(header, given, sentence, tmp_path):
    path = written(tmp_path / "a.csv", lines(header, str))
    with pytest.raises(InputError) as error:
        load_bars(path, columns=given, echo=quiet)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("nowhere.csv", "there is no nowhere.csv"),
        ([], "empty list"),
        ({}, "empty mapping"),
        (17, "source is a int"),
        (Path(__file__).parent / "nothing", "there is no"),
        (pl.DataFrame({"x": [1.0]}), "none that is time, open"),
    ],
)
def test_sources_that_are_none_are_refused(source, sentence):
    with pytest.raises(InputError, match=sentence):
        load_bars(source, echo=quiet)


def test_words_that_mean_nothing_are_refused(tmp_path):
    with pytest.raises(InputError, match="mode='fix'; needs one of strict, repair"):
        load_bars(frame(), mode="fix", echo=quiet)
    with pytest.raises(InputError, match="only uneven, split_like are a matter of judgement"):
        load_bars(frame(), allow=("high_below_low",), echo=quiet)
    with pytest.raises(InputError, match="bar_seconds=-1"):
        load_bars(frame(), bar_seconds=-1, echo=quiet)
    with pytest.raises(InputError, match="no two stamps that differ"):
        load_bars(frame()[:1], echo=quiet)
    assert len(load_bars(frame()[:1], bar_seconds=3600, echo=quiet)) == 1
    with pytest.raises(InputError, match="bars of different length"):
        load_bars({"A": frame(), "B": frame()[::2]}, echo=quiet)
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds none of"):
        load_bars(tmp_path / "empty", echo=quiet)


def test_the_hash_of_a_frame_is_that_of_its_values():
    hashes = [
        load_bars(one, echo=quiet).card.sha256
        for one in (frame(), frame(), frame(symbol="X"), frame(volume=[5.0, 7.0, 1.0]), frame(open=["10", "11", "12.5"]))
    ]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 4


def test_funding_goes_along_and_is_0_where_none_falls_due():
    bars = load_bars(frame(funding_rate=[1e-4, None, -2e-4]), echo=quiet)
    assert bars.funding[:, 0].tolist() == [1e-4, 0.0, -2e-4]
