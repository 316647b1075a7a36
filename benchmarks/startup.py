"""How long a user waits before anything happens: wall times of the shortest commands, best of seven.

    python benchmarks/startup.py

The promise is that `quantail --help` answers within 0.5 s. The bare interpreter is listed beside it, because what it
costs is not ours to save.
"""

import subprocess
import sys
import time

REPEATS = 7
PROMISED_SECONDS = 0.5

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import quantail": ["-c", "import quantail"],
    "quantail --help": ["-m", "quantail", "--help"],
    "quantail --version": ["-m", "quantail", "--version"],
    "import torch": ["-c", "import torch"],
}


def best_seconds(arguments: list[str]) -> float:
    """The fastest of a few runs: what disturbs a run can only make it slower."""
    return min(one_run(arguments) for _ in range(REPEATS))


def one_run(arguments: list[str]) -> float:
    """Wall time of one process from start to exit."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> int:
    """Print one line for each command; fail if the promise is broken."""
    seconds = {name: best_seconds(arguments) for name, arguments in COMMANDS.items()}
    for name, value in seconds.items():
        print(f"{name:<20} {1000 * value:7.0f} ms")
    return int(seconds["quantail --help"] > PROMISED_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
