"""What a second process adds: `python benchmarks/side_by_side.py [--ranks 2] [--envs 1024]`.

The same training, of as many environments and batches of the same size, by one process and by several that share them (gloo,
one thread each); rows a second by the wall, best iteration. A busy machine says nothing: there should be a free core for each.
"""

import argparse
import os
import socket
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import multiprocessing

from quantail import ranks
from quantail.bench.scene import Sizes, config_of, market_of
from quantail.loop import train


def best(sizes: Sizes, iterations: int) -> float:
    """Rows a second of all processes together."""
    part = market_of(Sizes(**vars(sizes) | {"envs": sizes.envs // ranks.count()}))
    reports, before, found = train(config_of(sizes), part), 0, []
    for _ in range(iterations + 1):
        began = time.perf_counter()
        report = next(reports)
        found.append((report.env_steps - before) / (time.perf_counter() - began))
        before = report.env_steps
    return max(found[1:])


def side(place: int, count: int, port: int, sizes: Sizes, iterations: int, path: Path) -> None:
    """One of several processes."""
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(place), "WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with ranks.joined():
        found = best(sizes, iterations)
        if ranks.writes():
            path.write_text(str(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--envs", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=16_384)
    parser.add_argument("--iterations", type=int, default=6)
    asked = parser.parse_args()
    sizes, found = Sizes(envs=asked.envs, batch=asked.batch), []
    for count in (1, asked.ranks):
        with socket.socket() as free, TemporaryDirectory() as folder:
            free.bind(("127.0.0.1", 0))
            port, path = free.getsockname()[1], Path(folder) / "found"
            free.close()
            multiprocessing.start_processes(
                side, (count, port, sizes, asked.iterations, path), nprocs=count, start_method="spawn"
            )
            found.append(float(path.read_text()))
        print(f"{count} processes: {found[-1]:,.0f} rows a second", flush=True)
    print(f"{found[1] / found[0]:.2f} times as many")


if __name__ == "__main__":
    main()
