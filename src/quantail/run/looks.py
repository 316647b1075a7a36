"""Every agent that is judged on the same held-out bars is counted, in files beside the runs that share a folder.

The same bars are those with the same stamps and prices, whatever their file is called, however long it is, and where the
test begins: tests that overlap are the same look, taken twice. Of two markets that were made up, those by the same options.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantail.backtest.course import Course
from quantail.backtest.holdout import HoldOut
from quantail.config import Config
from quantail.market.world import Recorded

LOOKS = "looks"  # the folder beside the runs
WEEK = 7 * 86400 * 10**9


class Seen(NamedTuple):
    """What is known of all agents that were judged on these bars."""

    trials: int
    sharpes: tuple[float, ...]  # per period, as far as they are known


def hold_out(folder: Path, there: Course, config: Config) -> HoldOut:
    """The file that counts the looks at these bars."""
    if isinstance(there.market.world, Recorded):
        data = json.dumps(prints(there), sort_keys=True)
    else:
        names = ("source", "seed", "paths", "bars", "assets", "overnight")
        data = json.dumps({name: config.env.options[name] for name in names if name in config.env.options}, sort_keys=True)
    name = hashlib.sha256(f"{data} {there.first} {there.periods}".encode()).hexdigest()[:12]
    file = folder.resolve().parent / LOOKS / f"{name}.jsonl"
    return HoldOut(file, len(there.bars), there.periods, data)


def prints(there: Course) -> dict[str, Any]:
    """Fingerprints of the judged bars: of all together, and of the last of each week, by which overlaps are known."""
    times = there.bars.time[there.first + 1 :].cpu().numpy()
    closes = there.bars.close[there.first + 1 :].cpu().numpy()
    turns = np.flatnonzero(np.diff(times // WEEK))
    return {"bars": print_of(times, closes), "weeks": [print_of(times[i], closes[i])[:8] for i in turns]}


def print_of(times: NDArray[np.int64], closes: NDArray[Any]) -> str:
    """Of some bars."""
    return hashlib.sha256(times.tobytes() + closes.tobytes()).hexdigest()[:16]


def counted(looks: HoldOut, label: str, sharpe: float) -> Seen:
    """How many have been judged here, this one included; the same one once more is no new look."""
    if label not in looks.labels:
        looks.result(looks.look(label)[0], sharpe)
    files = [looks, *overlapping(looks)]
    labels = {one for file in files for one in file.labels}
    found: dict[str, float] = {}
    for file in reversed(files):  # its own file has the last word
        found |= file.found
    return Seen(len(labels), tuple(found.values()))


def overlapping(looks: HoldOut) -> Iterator[HoldOut]:
    """Other files in the folder that count looks at some of these bars."""
    weeks = weeks_of(looks.data)
    for file in sorted(Path(looks.file).parent.glob("*.jsonl")):
        if weeks and file != looks.file:
            with open(file, encoding="utf-8") as lines:
                other = HoldOut(file, **json.loads(lines.readline()))
            if weeks & weeks_of(other.data):
                yield other


def weeks_of(data: str) -> set[str]:
    """The fingerprints of weeks; none of a market that was made up."""
    return set(json.loads(data).get("weeks", ())) if data.startswith("{") else set()
