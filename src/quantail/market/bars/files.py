"""Files as columns: CSV (also zipped, gzipped, UTF-16), Parquet, and folders of either; broken ones give one clear error."""

import codecs
import gzip
import hashlib
import io
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from quantail.errors import InputError
from quantail.market.columns import headerless, is_header, shown

ENDINGS = (".csv", ".txt", ".tsv", ".zip", ".gz", ".parquet", ".pq")
HEAD_BYTES = 1 << 16
DELIMITERS = (",", "\t", ";", "|")
THREADS_FROM = 1 << 24  # bytes; a pool of threads is not worth its start below, and may outlive a short program
LONG_INTEGERS = {pa.int64(): pd.Int64Dtype(), pa.uint64(): pd.UInt64Dtype()}  # a float cannot hold nanoseconds since 1970
EXPECTED = (OSError, EOFError, ValueError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError, pa.ArrowException)


class Part(NamedTuple):
    """The columns of one file or frame."""

    source: str  # what errors call it
    symbol: str  # of its rows, unless a column says so
    columns: Mapping[str, Callable[[], "pd.Series[Any]"]]  # name -> its values, read when asked for
    names: tuple[str, ...]  # as in the file; one may come twice
    place: Callable[[int], str]  # row -> where that is
    ragged: tuple[str, ...] = ()  # lines with too many or too few cells, which are not among the rows


def files_below(path: Path) -> list[Path]:
    """The file itself, or the data files of a folder in the order of their names."""
    if path.is_file():
        return [path]
    if not path.exists():
        raise InputError(f"there is no {path}; name a CSV or Parquet file, or a folder of them")
    found = sorted(one for one in path.iterdir() if one.name.lower().endswith(ENDINGS))
    if not found:
        raise InputError(f"{path} holds none of {', '.join(ENDINGS)}; name a CSV or Parquet file, or a folder of them")
    return found


def hash_of(paths: list[Path]) -> str:
    """SHA-256 over the bytes of all files, in this order."""
    total = hashlib.sha256()
    for path in paths:
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                total.update(block)
    return total.hexdigest()


def parts_of(path: Path, symbol: str | None) -> Iterator[Part]:
    """The parts of one file: by what it holds, not by what it is called."""
    name = symbol or symbol_of(path)
    try:
        with path.open("rb") as stream:
            magic = stream.read(4)
        if magic == b"PAR1" or path.suffix.lower() in (".parquet", ".pq"):
            yield of_table(pa.parquet.ParquetFile(path).read(use_threads=path.stat().st_size >= THREADS_FROM), str(path), name)
        elif magic[:2] == b"PK":
            yield from members(path, name)
        elif magic[:2] == b"\x1f\x8b":
            yield text_part(gzip.decompress(path.read_bytes()), str(path), name)
        else:
            yield text_part(path, str(path), name)
    except EXPECTED as error:
        if isinstance(error, InputError):
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0][:160]
        raise InputError(f"{path} cannot be read ({reason}); needs a whole CSV or Parquet file: get it anew") from error


def symbol_of(path: Path) -> str:
    """BTCUSDT-1h-2021-01.zip -> BTCUSDT."""
    found = re.match(r"[A-Za-z0-9.=^]+", path.name.split(".")[0])
    return found.group() if found else path.stem


def members(path: Path, symbol: str) -> Iterator[Part]:
    """The text files of a zip archive, as exchanges pack them."""
    with zipfile.ZipFile(path) as archive:
        found = [one for one in archive.namelist() if one.lower().endswith((".csv", ".txt", ".tsv"))]
        if not found:
            raise InputError(f"{path} holds {shown(archive.namelist(), 4)}; needs a CSV file inside")
        for one in found:
            yield text_part(archive.read(one), f"{path}:{one}", symbol)


def of_table(table: pa.Table, source: str, symbol: str) -> Part:
    """Columns of an Arrow table."""
    columns = {name: reader(table, at) for at, name in enumerate(table.column_names)}
    return Part(source, symbol, columns, tuple(table.column_names), lambda row: f"{source} row {row}")


def reader(table: pa.Table, at: int) -> Callable[[], "pd.Series[Any]"]:
    """A column that becomes a series when it is needed."""
    return lambda: table.column(at).to_pandas(types_mapper=LONG_INTEGERS.get, date_as_object=False)


# --- text -------------------------------------------------------------------------------------------------------------


def text_part(content: Path | bytes, source: str, symbol: str) -> Part:
    """The columns of a text file, with or without a line of names."""
    head = content[:HEAD_BYTES] if isinstance(content, bytes) else first_bytes(content)
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):  # as MetaTrader and Excel export
        whole = content if isinstance(content, bytes) else content.read_bytes()
        content = whole.decode("utf-16").encode()
        head = content[:HEAD_BYTES]
    quoted = check_text(content, source)
    lines = [line for line in re.split(r"[\r\n]+", head.decode("utf-8-sig", errors="replace")) if line.strip()][:50]
    if not lines:
        raise InputError(f"{source} is empty; needs lines of time, open, high, low, close")
    mark = max(DELIMITERS, key=lines[0].count)
    named = is_header(lines[0].split(mark))
    names = None if named else headerless(source, lines[0].count(mark) + 1)
    comma = mark == ";" and not any("." in line for line in lines[named:]) and any("," in line for line in lines[named:])
    table, ragged = parsed(content, mark, "," if comma else ".", names)
    where = LineNumbers(content, source, frozenset(ragged), skipped=int(named))
    if quoted:
        check_quotes(len(table), where)
    if ragged and len(ragged) > len(table):
        raise InputError(
            f"{where.line(ragged[0])} and {len(ragged) - 1} others do not have {len(table.column_names)} cells; needs one table"
        )
    return of_table(table, source, symbol)._replace(place=where, ragged=tuple(where.line(one) for one in ragged))


def first_bytes(path: Path) -> bytes:
    """What is needed to see how a file is written."""
    with path.open("rb") as stream:
        return stream.read(HEAD_BYTES)


def check_text(content: Path | bytes, source: str) -> bool:
    """Refuse what is not UTF-8, from the first byte to the last; whether there are quotes in it."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    done, quoted = 0, False
    with io.BytesIO(content) if isinstance(content, bytes) else content.open("rb") as stream:
        try:
            while block := stream.read(1 << 20):
                decoder.decode(block)
                quoted = quoted or b'"' in block
                done += len(block)
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            raise InputError(
                f"{source} is not UTF-8 after byte {done + error.start}; save it as UTF-8, or get it anew"
            ) from error
    return quoted


def parsed(content: Path | bytes, mark: str, point: str, names: tuple[str, ...] | None) -> tuple[pa.Table, list[int]]:
    """The table and the numbers of the lines that do not fit into it, counted from 1 without blank lines."""
    ragged: list[int] = []

    def note(row: Any) -> str:
        ragged.append(row.number or 0)
        return "skip"

    def attempt(threads: bool) -> pa.Table:
        return pa.csv.read_csv(
            content if isinstance(content, Path) else pa.BufferReader(content),
            pa.csv.ReadOptions(use_threads=threads, column_names=names),
            pa.csv.ParseOptions(delimiter=mark, invalid_row_handler=note),
            pa.csv.ConvertOptions(decimal_point=point, strings_can_be_null=True),
        )

    size = content.stat().st_size if isinstance(content, Path) else len(content)
    table = attempt(threads=size >= THREADS_FROM)
    if ragged and size >= THREADS_FROM:  # only a single thread knows the numbers
        ragged.clear()
        table = attempt(threads=False)
    return table, ragged


def check_quotes(rows: int, lines: "LineNumbers") -> None:
    """A quote that is never closed swallows the lines that follow: not one of them may go missing."""
    lines.count()
    if len(lines.rows) != rows:
        where = lines.line(lines.odd[0] if lines.odd else 1)
        raise InputError(f"{where}: a quote runs over several lines; close it, or take the quotes out")


class LineNumbers:
    """Where a row stands in a text file: the file is counted through only when somebody asks."""

    def __init__(self, content: Path | bytes, source: str, ragged: frozenset[int], skipped: int) -> None:
        self.content, self.source, self.ragged, self.skipped = content, source, ragged, skipped
        self.rows: list[int] = []  # physical line of each row, once counted
        self.all: list[int] = []  # physical line of each line that is not blank
        self.odd: list[int] = []  # of those, counted from 1, the lines in which a quote stays open

    def __call__(self, row: int) -> str:
        self.count()
        return f"{self.source} line {self.rows[row]}" if row < len(self.rows) else f"{self.source} row {row}"

    def line(self, number: int) -> str:
        """The line that is so many lines from the top, blank ones not counted."""
        self.count()
        return f"{self.source} line {self.all[number - 1]}" if 0 < number <= len(self.all) else f"{self.source}, a line"

    def count(self) -> None:
        """Number the lines, once."""
        if self.all:
            return
        with io.BytesIO(self.content) if isinstance(self.content, bytes) else self.content.open("rb") as stream:
            lines = [(number, line.count(b'"')) for number, line in enumerate(stream, 1) if line.strip(b"\r\n")]
        self.all = [number for number, _ in lines]
        self.odd = [place for place, (_, quotes) in enumerate(lines, 1) if quotes % 2]
        self.rows = [line for number, line in enumerate(self.all, 1) if number > self.skipped and number not in self.ragged]
