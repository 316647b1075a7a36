"""Files of bars, broken in a way that a seed chooses; and a slow reader that knows what is still in them."""

import csv
import gzip
import io
import random
import re
import zipfile
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq

NAMES = ["time", "open", "high", "low", "close", "volume"]
CELLS = (
    "",
    "NaN",
    "abc",
    "-1",
    "0",
    "1e400",
    "inf",
    "-inf",
    '"',
    "1,2",
    " 7 ",
    "0x10",
    "1_000",
    "1e-3",
    "12:00",
    "true",
    "é",
    "null",
)
STAMPS = (
    "",
    "tomorrow",
    "2261-01-01T00:00:00Z",
    "0",
    "20210101",
    "1609459200",
    "01/02/2021 00:00",
    "2021-13-01",
    "-5",
    "9" * 18,
)
NAMELIKE = ("open", "Close", "adj close", "", "price", "VOL", "date", "ticker")


def clean(draw, rows):
    """Hourly rows of text, in one of the usual ways to write a time."""
    style = draw.choice(["ms", "s", "iso", "naive"])
    price, table = 100.0, []
    for row in range(rows):
        stamp = 1_600_000_000 + 3600 * row
        iso = datetime.fromtimestamp(stamp, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        time = {"ms": str(stamp * 1000), "s": str(stamp), "iso": iso + "Z", "naive": iso.replace("T", " ")}[style]
        o = price
        price *= draw.uniform(0.98, 1.02)
        high, low = max(o, price) * draw.uniform(1, 1.01), min(o, price) * draw.uniform(0.99, 1)
        table.append([time, *(f"{x:.5f}" for x in (o, high + 1e-4, low - 1e-4, price)), f"{draw.uniform(0, 9):.3f}"])
    return table


def change_cell(draw, table):
    row = draw.choice(table)
    if row:
        at = draw.randrange(len(row))
        row[at] = draw.choice(STAMPS if at == 0 else CELLS)


def swap_cells(draw, table):
    row = draw.choice(table)
    if len(row) > 4:
        a, b = draw.sample(range(1, 5), 2)
        row[a], row[b] = row[b], row[a]


def repeat_row(draw, table):
    table.insert(draw.randrange(len(table) + 1), list(draw.choice(table)))


def swap_rows(draw, table):
    a, b = draw.randrange(len(table)), draw.randrange(len(table))
    table[a], table[b] = table[b], table[a]


def lose_row(draw, table):
    if len(table) > 1:
        table.pop(draw.randrange(len(table)))


def lose_cell(draw, table):
    row = draw.choice(table)
    if row:
        row.pop(draw.randrange(len(row)))


def extra_cell(draw, table):
    draw.choice(table).append(draw.choice(["", "1", "x"]))


def split(draw, table):
    at, factor = draw.randrange(len(table)), draw.choice([2.0, 0.5, 10.0])
    for row in table[at:]:
        row[1:5] = [f"{float(x) * factor:.5f}" if x.replace(".", "").isdigit() else x for x in row[1:5]]


def adjust_closes(draw, table):
    for row in table[: draw.randrange(len(table) + 1)]:
        if len(row) > 4 and row[4].replace(".", "").isdigit():
            row[4] = f"{float(row[4]) * 0.9:.5f}"


def nothing(draw, table):
    return


ROW_FAULTS = (change_cell,) * 6 + (
    swap_cells,
    repeat_row,
    swap_rows,
    lose_row,
    lose_cell,
    extra_cell,
    split,
    adjust_closes,
    nothing,
)


def broken_table(draw):
    """Names and rows after one to three faults."""
    table = clean(draw, draw.choice([2, 5, 30, 80]))
    for _ in range(draw.choice([0, 0, 1, 1, 1, 2, 3])):
        draw.choice(ROW_FAULTS)(draw, table)
    names = list(NAMES)
    if draw.random() < 0.1:
        names[draw.randrange(6)] = draw.choice(NAMELIKE)
    return names, table


def broken_bytes(draw, content):
    """Bytes flipped, lost, doubled, cut off; or left as they are."""
    if not content or draw.random() < 0.8:
        return content
    at = draw.randrange(len(content))
    run = draw.randrange(1, 9)
    match draw.choice(["flip", "lose", "cut", "junk", "double", "blank", "empty"]):
        case "flip":
            return content[:at] + bytes([content[at] ^ (1 << draw.randrange(8))]) + content[at + 1 :]
        case "lose":
            return content[:at] + content[at + run :]
        case "cut":
            return content[:at]
        case "junk":
            return content[:at] + bytes(draw.randrange(256) for _ in range(run)) + content[at:]
        case "double":
            return content[:at] + content[max(0, at - 200) :]
        case "blank":
            return content.replace(b"\n", b"\n\n", 2)
    return b""


def csv_file(draw, folder):
    """A CSV file, perhaps packed, and its text."""
    names, table = broken_table(draw)
    mark = draw.choice([",", ",", ";", "\t"])
    lines = [mark.join(row) for row in ([names, *table] if draw.random() < 0.9 else table)]
    if draw.random() < 0.05:
        lines.insert(draw.randrange(len(lines)), mark.join(names))
    text = draw.choice(["\n", "\r\n"]).join(lines) + draw.choice(["", "\n", "\n\n"])
    content = broken_bytes(draw, text.encode(draw.choice(["utf-8"] * 6 + ["utf-8-sig", "utf-16"])))
    path = folder / "bars.csv"
    match draw.choice(["plain"] * 5 + ["gzip", "zip"]):
        case "gzip":
            path.write_bytes(broken_bytes(draw, gzip.compress(content)))
        case "zip":
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("bars.csv", content)
            path.write_bytes(broken_bytes(draw, packed.getvalue()))
        case "plain":
            path.write_bytes(content)
    return path


def parquet_file(draw, folder):
    """A Parquet file with columns of the right types, or not."""
    names, table = broken_table(draw)
    columns = []
    for at in range(6):
        cells = [row[at] if at < len(row) else None for row in table]
        kind = draw.choice(["number"] * 9 + ["text", "list", "bool", "int", "null"])
        columns.append(arrow_column(cells, kind if at else draw.choice(["number", "number", "text"])))
    path = folder / "bars.parquet"
    pq.write_table(pa.Table.from_arrays(columns, names=names), path)
    path.write_bytes(broken_bytes(draw, path.read_bytes()))
    return path


def arrow_column(cells, kind):
    numbers = [number(cell) for cell in cells]
    match kind:
        case "number" if all(x is None or (x.is_integer() and abs(x) < 2**62) for x in numbers):
            return pa.array([None if x is None else int(x) for x in numbers], pa.int64())
        case "number":
            return pa.array(numbers, pa.float64())
        case "list":
            return pa.array([[x] for x in numbers])
        case "bool":
            return pa.array([bool(x) for x in numbers])
        case "int":
            return pa.array([int(x) if x is not None and abs(x) < 2**31 else None for x in numbers], pa.int32())
        case "null":
            return pa.nulls(len(cells))
    return pa.array(cells, pa.string())


# --- the slow reader --------------------------------------------------------------------------------------------------


def number(cell):
    """What a cell says, if it says a number."""
    try:
        return None if cell is None or "_" in cell else float(cell)
    except ValueError:
        return None


def prices_in(path):
    """Every row of a readable file that has four prices, as text or numbers give them: a list of (open, high, low, close)."""
    content = path.read_bytes()
    if content[:4] == b"PAR1":
        table = pq.read_table(path)
        at = [next(i for i, name in enumerate(table.column_names) if name.lower() == role) for role in NAMES[1:5]]
        rows = list(zip(*(table.column(i).to_pylist() for i in at), strict=True))
        return [tuple(number(str(x)) if x is not None else None for x in row) for row in rows]
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    if content[:2] == b"PK":
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            content = archive.read(archive.namelist()[0])
    text = content.decode("utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig", errors="replace")
    lines = [line for line in re.split(r"\r\n|\n|\r", text) if line.strip()]
    mark = max(",;\t", key=lines[0].count)
    rows = list(csv.reader(lines, delimiter=mark))
    named = "open" in [cell.strip().lower() for cell in rows[0]]
    at = [[cell.strip().lower() for cell in rows[0]].index(role) for role in NAMES[1:5]] if named else [1, 2, 3, 4]
    return [tuple(number(row[i].strip()) if i < len(row) else None for i in at) for row in rows[named:]]


def drawn_file(seed, folder):
    """The file that a seed stands for."""
    draw = random.Random(seed)
    return (csv_file if draw.random() < 0.7 else parquet_file)(draw, folder)
