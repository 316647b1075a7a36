"""ccxt and yfinance against a server that plays their sources; what they bring is what the server had."""

import json
import re
import time

import pytest

from market.fetch.servers import Server
from quantail.errors import InputError, SourceError
from quantail.market.bars import load_bars
from quantail.market.fetch.download import Patience
from quantail.market.fetch.vendors import exchange, from_ccxt, from_yahoo, last_stamp

ccxt = pytest.importorskip("ccxt")
QUICK = Patience(tries=3, pause_seconds=0.0, timeout_seconds=1.0)
HOUR = 3_600_000
START = 1_700_000_000_000 // HOUR * HOUR


def kline(stamp):
    price = 100 + (stamp // HOUR) % 7
    return [
        stamp,
        f"{price}.0",
        f"{price + 1}.5",
        f"{price - 1}.5",
        f"{price}.25",
        "3.5",
        stamp + HOUR - 1,
        "1",
        7,
        "1",
        "1",
        "0",
    ]


MARKET = {
    "symbol": "BTCUSDT",
    "status": "TRADING",
    "baseAsset": "BTC",
    "baseAssetPrecision": 8,
    "quoteAsset": "USDT",
    "quotePrecision": 8,
    "quoteAssetPrecision": 8,
    "orderTypes": ["LIMIT", "MARKET"],
    "isSpotTradingAllowed": True,
    "isMarginTradingAllowed": False,
    "permissions": ["SPOT"],
    "permissionSets": [["SPOT"]],
    "filters": [
        {"filterType": "PRICE_FILTER", "minPrice": "0.01", "maxPrice": "1000000.00", "tickSize": "0.01"},
        {"filterType": "LOT_SIZE", "minQty": "0.00001", "maxQty": "9000.0", "stepSize": "0.00001"},
    ],
}


def binance_api(path, query):
    if path.endswith("exchangeInfo"):
        return json.dumps({"timezone": "UTC", "serverTime": START, "rateLimits": [], "symbols": [MARKET]}).encode()
    if path.endswith("klines"):
        if query["symbol"] != "BTCUSDT":
            return json.dumps({"code": -1121, "msg": "Invalid symbol."}).encode()
        first = -(-int(query["startTime"]) // HOUR) * HOUR
        stamps = [first + HOUR * i for i in range(min(int(query["limit"]), 1000))]
        return json.dumps([kline(stamp) for stamp in stamps if stamp <= int(time.time() * 1000)]).encode()
    return None


@pytest.fixture
def server():
    with Server(binance_api) as one:
        yield one


@pytest.fixture
def source(server):
    found = exchange("binance")
    found.urls["api"] = dict.fromkeys(found.urls["api"], server.url + "/api/v3")
    found.options["fetchMarkets"] = {"types": ["spot"]}
    found.options["fetchCurrencies"] = False
    found.enableRateLimit = False
    found.timeout = 400
    yield found
    found.session.close()


def test_pages_become_one_file(source, server, tmp_path):
    path = tmp_path / "BTCUSDT.csv"
    assert from_ccxt(source, "BTC/USDT", "1h", START, START + 2499 * HOUR, path, QUICK) == 2500
    bars = load_bars(path, echo=lambda line: None)
    assert bars.time.tolist() == [(START + i * HOUR) * 10**6 for i in range(2500)]
    assert bars.close[:7, 0].tolist() == [float(kline(START + i * HOUR)[4]) for i in range(7)]
    assert server.asked["/api/v3/klines"] == 3


def test_it_goes_on_where_the_file_ends(source, tmp_path):
    path = tmp_path / "BTCUSDT.csv"
    from_ccxt(source, "BTC/USDT", "1h", START, START + 10 * HOUR, path, QUICK)
    whole = path.read_bytes()
    path.write_bytes(whole + b"1700")  # a crash in the middle of a row
    assert from_ccxt(source, "BTC/USDT", "1h", START, START + 14 * HOUR, path, QUICK) == 4
    assert from_ccxt(source, "BTC/USDT", "1h", START, START + 14 * HOUR, path, QUICK) == 0
    assert len(load_bars(path, echo=lambda line: None)) == 15
    assert path.read_bytes().startswith(whole)


def test_a_bar_that_is_not_over_is_not_written(source, tmp_path):
    path = tmp_path / "BTCUSDT.csv"
    now = int(time.time() * 1000)
    from_ccxt(source, "BTC/USDT", "1h", now - 5 * HOUR, now + 5 * HOUR, path, QUICK)
    assert last_stamp(path) + HOUR <= int(time.time() * 1000)
    assert len(load_bars(path, echo=lambda line: None)) >= 3


@pytest.mark.parametrize("moods", [[500, 503], ["cut"], ["stall"]])
def test_trouble_on_the_way_is_got_over(source, server, tmp_path, moods):
    source.load_markets()
    server.moods["/api/v3/klines"] = list(moods)
    assert from_ccxt(source, "BTC/USDT", "1h", START, START + 10 * HOUR, tmp_path / "a.csv", QUICK) == 11


def test_trouble_without_end_keeps_what_came(source, server, tmp_path):
    path = tmp_path / "a.csv"
    source.load_markets()
    server.moods["/api/v3/klines"] = ["", 500, 500, 500]
    with pytest.raises(SourceError, match=r"binance failed 3 times in a row .* it goes on from there"):
        from_ccxt(source, "BTC/USDT", "1h", START, START + 1500 * HOUR, path, QUICK)
    assert last_stamp(path) == START + 999 * HOUR
    assert from_ccxt(source, "BTC/USDT", "1h", START, START + 1500 * HOUR, path, QUICK) == 501


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda source, path: from_ccxt(source, "NO/SUCH", "1h", START, START + HOUR, path, QUICK), "binance refused"),
        (lambda source, path: from_ccxt(source, "BTC/USDT", "7m", START, START + HOUR, path, QUICK), "interval='7m'"),
        (lambda source, path: from_ccxt(object(), "BTC/USDT", "1h", START, START, path, QUICK), "gives no bars"),
        (lambda source, path: exchange("nasdaq"), "is none that ccxt knows"),
    ],
)
def test_what_cannot_be_had_is_said(call, sentence, source, tmp_path):
    with pytest.raises((InputError, SourceError), match=sentence):
        call(source, tmp_path / "a.csv")
    (tmp_path / "b.csv").write_text("a,b\nx,y\n")
    with pytest.raises(InputError, match="does not end with a row of bars"):
        last_stamp(tmp_path / "b.csv")


# --- Yahoo ------------------------------------------------------------------------------------------------------------


def chart(symbol):
    """What Yahoo's chart service answers."""
    if symbol != "AAPL":
        return {
            "chart": {"result": None, "error": {"code": "Not Found", "description": "No data found, symbol may be delisted"}}
        }
    stamps = [1_704_205_800 + 86400 * day for day in (0, 1, 2, 3, 6)]  # 2 January 2024, 9:30 in New York
    close = [185.5, 184.25, 181.875, 181.0, 185.5]
    quote = {
        "open": [x - 0.5 for x in close],
        "high": [x + 1 for x in close],
        "low": [x - 1 for x in close],
        "close": close,
        "volume": [1000] * 5,
    }
    meta = {
        "currency": "USD",
        "symbol": symbol,
        "instrumentType": "EQUITY",
        "exchangeTimezoneName": "America/New_York",
        "gmtoffset": -18000,
        "timezone": "EST",
        "dataGranularity": "1d",
        "range": "",
        "priceHint": 2,
        "validRanges": ["1d", "5d", "1mo", "max"],
        "firstTradeDate": 345479400,
    }
    indicators = {"quote": [quote], "adjclose": [{"adjclose": [x * 0.99 for x in close]}]}
    return {"chart": {"result": [{"meta": meta, "timestamp": stamps, "indicators": indicators}], "error": None}}


def yahoo_api(path, query):
    found = re.fullmatch(r"/v8/finance/chart/(\w+)", path)
    return json.dumps(chart(found.group(1))).encode() if found else b"crumb"


@pytest.fixture
def session(tmp_path):
    """A session that takes every request to the server of the test."""
    yfinance = pytest.importorskip("yfinance")
    requests = pytest.importorskip("requests")
    yfinance.set_tz_cache_location(str(tmp_path / "cache"))
    with Server(yahoo_api) as server:

        class Here(requests.Session):
            def request(self, method, url, *more, **others):
                return super().request(method, re.sub(r"https://[^/]+", server.url, url), *more, **others)

        with Here() as one:
            one.server = server
            yield one


@pytest.mark.filterwarnings("ignore:The inplace keyword in DataFrame")  # yfinance's own use of pandas
def test_yahoo_gives_raw_and_adjusted_closes(session, tmp_path):
    path = tmp_path / "AAPL.csv"
    assert from_yahoo("AAPL", "1d", "2024-01-01", "2024-01-10", path, session) == 5
    bars = load_bars(path, echo=lambda line: None)
    assert bars.symbols == ("AAPL",)
    assert bars.close[:, 0].tolist() == [185.5, 184.25, 181.875, 181.0, 185.5]
    assert bars.card.start == "2024-01-02T05:00:00Z"  # midnight in New York
    assert bars.card.gaps == 1  # the weekend
    adjusted = load_bars(path, adjusted=True, echo=lambda line: None)
    assert adjusted.close[:, 0].tolist() == pytest.approx([x * 0.99 for x in bars.close[:, 0].tolist()])


def test_a_ticker_that_yahoo_does_not_have_is_said(session, tmp_path):
    with pytest.raises(SourceError, match=r"Yahoo gave no bars of NOSUCH .* check symbol"):
        from_yahoo("NOSUCH", "1d", "2024-01-01", "2024-01-10", tmp_path / "x.csv", session)
    assert not list(tmp_path.glob("x.csv*"))
