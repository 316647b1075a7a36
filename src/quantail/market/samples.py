"""Real series that lie in packages which happen to be installed: nothing is downloaded, nothing is imported."""

import gzip
import importlib.util
from pathlib import Path
from typing import NamedTuple


class Sample(NamedTuple):
    """A file, and what is known of it."""

    package: str
    path: str  # below the package's folder
    what: str
    bars: bool  # opens, highs, lows and closes: `load_bars` reads it; otherwise closes alone
    options: str = ""  # what `load_bars` has to be told


SAMPLES = (
    Sample("arch", "data/sp500/sp500.csv.gz", "S&P 500, days, 1999-2018", True),
    Sample("arch", "data/nasdaq/nasdaq.csv.gz", "NASDAQ, days, 1999-2018", True),
    Sample("arch", "data/vix/vix.csv.gz", "VIX, days, 2014-2018", False),
    Sample("arch", "data/wti/wti.csv.gz", "oil (WTI), days, 1986-2018", False),
    Sample(
        *("bokeh_sampledata", "_data/stocks.csv.gz", "AAPL, FB, GOOG, IBM, MSFT, days, 2000-2013", True),
        "adjusted=True",  # raw prices, with three splits
    ),
    Sample("gym_anytrading", "datasets/data/FOREX_EURUSD_1H_ASK.csv", "EURUSD, hours, 2017", True),
    Sample("gym_anytrading", "datasets/data/STOCKS_GOOGL.csv", "GOOGL, days, 2009-2018", True),
    Sample("skfolio", "datasets/data/sp500_dataset.csv.gz", "20 US stocks, days, 1990-2022", False),
    Sample("skfolio", "datasets/data/sp500_index.csv.gz", "S&P 500, days, 1990-2022", False),
    Sample("skfolio", "datasets/data/factors_dataset.csv.gz", "5 US factor funds, days, 2014-2022", False),
)


class Found(NamedTuple):
    """A sample that is here."""

    sample: Sample
    file: Path
    rows: int


def found() -> list[Found]:
    """The samples whose packages are installed and whose files are there."""
    here = []
    for sample in SAMPLES:
        folder = folder_of(sample.package)
        if folder is not None and (file := folder / sample.path).is_file():
            here.append(Found(sample, file, lines_of(file) - 1))
    return here


def folder_of(package: str) -> Path | None:
    """Where a package lies, without importing it."""
    spec = importlib.util.find_spec(package)
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(places[0]) if places else None


def lines_of(file: Path) -> int:
    """Lines of a text file, packed or not."""
    with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
        return sum(1 for _ in stream)
