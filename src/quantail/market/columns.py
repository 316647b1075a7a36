"""Which column is which: the names that exchanges, brokers and libraries give to the same seven things.

Nothing here is believed in silence: what was understood is echoed, and two columns that could both be meant are an error.
"""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

from quantail.errors import InputError

PRICES = ("open", "high", "low", "close")
NEEDED = ("time", *PRICES)

# What we call it -> what files call it, in lower case without <>, blanks, dots, dashes and underscores; the first that is there
# is taken. MetaTrader's VOL is 0 for most brokers, so its TICKVOL goes first. An index that was saved without a name is "".
NAMES: Mapping[str, tuple[str, ...]] = {
    "time": (
        *("opentime", "timestamp", "datetime", "unix", "unixtime", "unixtimestamp", "ts", "tsms", "tsevent", "epoch"),
        *("starttime", "candlebegintime", "localtime", "gmttime", "date", "time", "t", "index", "unnamed:0", ""),
    ),
    "clock": ("time",),  # beside a date, as MetaTrader writes it
    "symbol": ("symbol", "ticker", "tic", "asset", "instrument", "pair", "s"),
    "open": ("open", "o", "openprice", "priceopen", "openingprice"),
    "high": ("high", "h", "highprice", "pricehigh", "max"),
    "low": ("low", "l", "lowprice", "pricelow", "min"),
    "close": ("close", "c", "closeprice", "priceclose", "closingprice", "last"),
    "volume": ("volume", "tickvol", "tickvolume", "vol", "v", "basevolume", "volumebtc"),
    "adjusted_close": ("adjclose", "adjustedclose", "closeadj"),
    "funding": ("fundingrate", "funding"),
}

# A file without a line of names -> what its columns are, by how many there are.
HEADERLESS: Mapping[int, tuple[str, ...]] = {
    5: ("time", *PRICES),
    6: ("time", *PRICES, "volume"),  # ccxt
    7: ("date", "time", *PRICES, "volume"),  # MetaTrader 4
    12: (  # Binance's dumps
        *("open_time", *PRICES, "volume", "close_time", "quote_volume"),
        *("count", "taker_buy_volume", "taker_buy_quote_volume", "ignore"),
    ),
}


def plain(name: object) -> str:
    """A column's name in the form of `NAMES`."""
    return re.sub(r"[<>\s_.\-]", "", str(name)).lower()


def is_header(cells: Sequence[str]) -> bool:
    """Whether a line holds names: not one of its cells is a number."""
    return not any(re.fullmatch(r"[+-]?\d+([.,]\d*)?(e[+-]?\d+)?", cell.strip("\"' "), re.IGNORECASE) for cell in cells)


def headerless(source: str, width: int) -> tuple[str, ...]:
    """The names of a file that has none."""
    if width not in HEADERLESS:
        raise InputError(
            f"{source} has no line of names and {width} columns; needs a first line such as time,open,high,low,close, or "
            f"{', '.join(map(str, HEADERLESS))} columns in the order of ccxt, MetaTrader or Binance: add that line"
        )
    return HEADERLESS[width]


def guess(source: str, names: Sequence[str], given: Mapping[str, str] | None = None) -> dict[str, str]:
    """What we call it -> what the file calls it; `given` goes before any guess."""
    chosen = checked(source, names, given or {})
    for role, known in NAMES.items():
        if role not in chosen and (name := first_of(source, role, known, names, chosen)) is not None:
            chosen[role] = name
    if chosen.get("clock") is not None and plain(chosen.get("time")) != "date":
        del chosen["clock"]  # a time beside a timestamp says nothing more
    missing = [role for role in NEEDED if role not in chosen]
    if missing:
        raise InputError(
            f"{source} has the columns {shown(names)} and none that is {', '.join(missing)}; needs time, open, high, low and "
            f"close: say which is which by columns={{'{missing[0]}': 'its name'}}"
        )
    return chosen


def checked(source: str, names: Sequence[str], given: Mapping[str, str]) -> dict[str, str]:
    """The columns that the caller names, if they are there."""
    for role, name in given.items():
        if role not in NAMES:
            raise InputError(f"columns names {role!r}, which is none of {', '.join(NAMES)}; use those words for its keys")
        if name not in names:
            close = get_close_matches(str(name), list(names), n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {shown(names)}"
            raise InputError(f"columns says {role} is {name!r}, but {source} has no such column; {hint}")
        if list(names).count(name) > 1:
            raise InputError(f"{source} has {list(names).count(name)} columns named {name!r}; rename them so that one is meant")
    return dict(given)


def first_of(source: str, role: str, known: Sequence[str], names: Sequence[str], taken: Mapping[str, str]) -> str | None:
    """The column that goes by the first of the known names, unless two do."""
    free = [name for name in names if name not in taken.values()]
    for word in known:
        same = [name for name in free if plain(name) == word]
        if len(same) > 1:
            raise InputError(
                f"{source} has {len(same)} columns that could be {role}: {shown(same)}; say which by columns={{{role!r}: ...}}"
            )
        if same:
            return same[0]
    return None


def shown(names: Sequence[str], most: int = 16) -> str:
    """Column names for a sentence."""
    listed = ", ".join(repr(str(name))[:40] for name in names[:most])
    return f"{listed} and {len(names) - most} more" if len(names) > most else listed or "(none)"
