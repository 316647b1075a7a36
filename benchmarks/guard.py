"""Has training become slower? `python benchmarks/guard.py [--write]`, also a part of `make bench`.

Rows a second, divided by what this machine multiplies in a second: a number that hardly depends on the machine. It fails where
that has fallen below `KEPT` of the committed reference, benchmarks/guard.json, which `--write` renews. Without a C compiler
nothing is compared: the reference had one.
"""

import argparse
import json
import sys
from pathlib import Path

import torch

from quantail.bench import Sizes, measure
from quantail.bench.ceilings import ceilings
from quantail.kernels import native

REFERENCE = Path(__file__).with_suffix(".json")
KEPT = 0.75  # what disturbs a measurement is not the code's
ROUNDS = 3
CASES = {
    "large": Sizes(batch=8192),
    "small": Sizes(envs=16, batch=2048),
    "deep": Sizes(envs=64, batch=2048, net="deep"),
}


def ratio(sizes: Sizes) -> float:
    """Rows for a billion operations, which are measured before and after."""
    before = ceilings(torch.device("cpu"))
    rows = measure(sizes, 4, "cpu", before).steps_per_second
    return round(rows / (max(before.flops, ceilings(torch.device("cpu")).flops) / 1e9), 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="the reference anew")
    asked = parser.parse_args()
    if native.library() is None:
        print("no C compiler: nothing to compare with")
        return 0
    torch.set_num_threads(1)
    found = {name: max(ratio(sizes) for _ in range(ROUNDS)) for name, sizes in CASES.items()}
    if asked.write:
        REFERENCE.write_text(json.dumps(found, indent=2) + "\n")
    reference = json.loads(REFERENCE.read_text())
    for name, rows in found.items():
        print(f"{name:6} {rows:8.2f} rows for a billion operations, {rows / reference[name]:.2f} of the reference")
    slow = [name for name, rows in found.items() if rows < KEPT * reference[name]]
    if slow:
        print(f"slower than {KEPT:.0%} of the reference: {', '.join(slow)}", file=sys.stderr)
    return int(bool(slow))


if __name__ == "__main__":
    sys.exit(main())
