"""A run that is cut off and gone on with is the run that never stopped. Prints how many weights differ: 0.

python examples/06_resume.py [STEPS]
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import quantail as qt
from quantail.config import RunConfig
from quantail.loop import Report


class PowerCut:
    """A sink that ends everything in the fifth iteration, as Ctrl-C or a crash would."""

    def __call__(self, report: Report) -> None:
        if report.iteration == 5:
            raise ConnectionAbortedError("the power is gone")

    def sync(self) -> None:
        """Nothing to write."""

    def close(self) -> None:
        """Nothing to close."""


def main(steps: int = 12_000) -> int:
    """One run in one go, another in two."""
    config = replace(qt.presets.cartpole(), total_timesteps=steps, run=RunConfig(save_every=2, sinks=("jsonl",)))
    with tempfile.TemporaryDirectory() as folder:
        whole = qt.run(config, Path(folder) / "whole")
        try:
            qt.run(config, Path(folder) / "cut", sinks=(PowerCut(),))
        except ConnectionAbortedError:
            cut = qt.resume(Path(folder) / "cut")
        pairs = zip(whole.agent.parameters(), cut.agent.parameters(), strict=True)
        return sum(int((one != other).sum()) for one, other in pairs)


if __name__ == "__main__":
    print(main(*map(int, sys.argv[1:])))
