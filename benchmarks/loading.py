"""How long it takes to load and check bars: ten million rows from Parquet and CSV, one asset and fifty.

python benchmarks/loading.py [--rows 10000000]
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from quantail.market.bars import load_bars


def table(rows: int, assets: int) -> pa.Table:
    """Minute bars of a random walk, the assets one after the other."""
    draw = np.random.default_rng(0)
    each = rows // assets
    close = 100 * np.exp(np.cumsum(draw.normal(0, 5e-4, each)))
    opened = np.concatenate([close[:1], close[:-1]])
    prices = {
        "time": 1_000_000_000_000 + 60_000 * np.arange(each),
        "open": opened,
        "high": np.maximum(opened, close) * 1.0005,
        "low": np.minimum(opened, close) * 0.9995,
        "close": close,
        "volume": np.round(draw.exponential(10, each), 3),
    }
    symbols = {"symbol": np.repeat([f"A{i:02}" for i in range(assets)], each)} if assets > 1 else {}
    return pa.table({**{name: np.tile(part, assets) for name, part in prices.items()}, **symbols})


def seconds(path: Path) -> tuple[float, float]:
    """By the clock on the wall, and of the processor, all threads together; one after the other, the better of two."""
    walls, costs = [], []
    for _ in range(2):
        wall, cost = time.perf_counter(), time.process_time()
        load_bars(path, echo=lambda line: None)
        walls.append(time.perf_counter() - wall)
        costs.append(time.process_time() - cost)
    return min(walls), min(costs)


def main() -> None:
    """A table for docs/benchmarks.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    rows = parser.parse_args().rows
    print("| File | Assets | Rows | Seconds | Of the processor |\n| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for kind, assets in (("parquet", 1), ("parquet", 50), ("csv", 1), ("csv", 50)):
            path = Path(folder) / f"bars.{kind}"
            bars = table(rows, assets)
            pa.parquet.write_table(bars, path) if kind == "parquet" else pa.csv.write_csv(bars, path)
            wall, cost = seconds(path)
            size = f"{path.stat().st_size / 1e6:.0f} MB"
            print(f"| {kind}, {size} | {assets} | {len(bars):,} | {wall:.1f} | {cost:.1f} |", flush=True)
            path.unlink()


if __name__ == "__main__":
    main()
