"""The last rows, kept for the end, and a file that remembers every look at them.

Whoever looks at a test again after changing something has made the test a part of the search. So each look is written down
*before* the rows are handed out, also if the evaluation then fails, and the number of looks enters the deflated Sharpe ratio.
"""

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from quantail.backtest.series import as_numbers, check_whole
from quantail.backtest.significance import deflated_sharpe
from quantail.backtest.splits import Rows
from quantail.errors import InputError


@dataclass(frozen=True)
class HoldOut:
    """The last `size` of `rows` rows of some data. Its file belongs to exactly these rows, and only grows.

    >>> import tempfile
    >>> test = HoldOut(f"{tempfile.mkdtemp()}/looks.jsonl", rows=1000, size=200, data="BTCUSDT 1h 2024")
    >>> len(test.search_rows(purge=50))
    750
    >>> number, rows = test.look("final agent, seed 0")
    >>> test.result(number, 0.05)
    >>> number, int(rows[0]), len(rows), test.count, test.sharpes
    (1, 800, 200, 1, (0.05,))
    """

    file: str | os.PathLike[str]
    rows: int
    size: int
    data: str  # what the rows are of: a name, better a hash

    def __post_init__(self) -> None:
        check_whole("rows", self.rows, 2)
        check_whole("size", self.size, 1)
        if self.size >= self.rows:
            raise InputError(f"size={self.size} of {self.rows} rows; needs fewer, to leave something to learn from")
        self._records()

    def search_rows(self, purge: int = 0) -> Rows:
        """The rows before it, less the purge: all that may be looked at as often as one likes."""
        check_whole("purge", purge, 0)
        if self.rows - self.size - purge < 1:
            raise InputError(f"purge={purge} leaves none of the {self.rows - self.size} rows before the hold-out; shorten it")
        return np.arange(self.rows - self.size - purge)

    def look(self, label: str) -> tuple[int, Rows]:
        """Count one more look, then hand out the rows: its number, and the last `size` rows."""
        if not Path(self.file).exists():
            self._append({"rows": self.rows, "size": self.size, "data": self.data})
        number = self.count + 1
        self._append({"look": number, "label": label, "time": datetime.now(UTC).isoformat(timespec="seconds")})
        return number, np.arange(self.rows - self.size, self.rows)

    def result(self, number: int, sharpe: float) -> None:
        """Note what a look has shown: its Sharpe ratio per period."""
        if number not in {record["look"] for record in self._records() if "look" in record}:
            raise InputError(
                f"look {number} is not in {self.file}, which counts {self.count}; give the number that look() gave"
            )
        as_numbers("sharpe", [sharpe])
        self._append({"result": number, "sharpe": float(sharpe)})

    @property
    def count(self) -> int:
        """How often it was looked at."""
        return sum("look" in record for record in self._records())

    @property
    def labels(self) -> tuple[str, ...]:
        """Who looked, in order: the same agent on the same rows sees nothing new."""
        return tuple(record["label"] for record in self._records() if "look" in record)

    @property
    def sharpes(self) -> tuple[float, ...]:
        """What the looks have shown, as far as it was noted, in order."""
        return tuple(record["sharpe"] for record in self._records() if "result" in record)

    @property
    def found(self) -> dict[str, float]:
        """The Sharpe ratio per period that each label has shown, as far as it was noted."""
        records = self._records()
        labels = {record["look"]: record["label"] for record in records if "look" in record}
        return {labels[record["result"]]: record["sharpe"] for record in records if "result" in record}

    def deflated_sharpe(self, returns: ArrayLike, search_sharpes: ArrayLike = ()) -> float:
        """`significance.deflated_sharpe` with N = trials of the search + looks   (Bailey & López de Prado 2014).

        returns [T] of the look that is reported, search_sharpes [n] per period of all that was tried before -> scalar.
        """
        tried = (*np.atleast_1d(np.asarray(search_sharpes, dtype=np.float64)), *self.sharpes)
        if not tried:
            raise InputError(f"{self.file} holds no result yet; take the rows from look(), note its result(), then ask again")
        return deflated_sharpe(returns, tried, len(tried) - len(self.sharpes) + max(self.count, len(self.sharpes)))

    def _append(self, record: dict[str, Any]) -> None:
        """One line, in one write, on the disk before anything else happens."""
        Path(self.file).parent.mkdir(parents=True, exist_ok=True)
        with open(self.file, "a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _records(self) -> list[dict[str, Any]]:
        """The lines of the file, none if it does not exist yet; refuses a file of other rows."""
        path = Path(self.file)
        if not path.exists():
            return []
        records = []
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if not isinstance(record, dict):
                raise InputError(f"{path} line {number} is no record, so looks cannot be counted; restore the file")
            records.append(record)
        ours = {"rows": self.rows, "size": self.size, "data": self.data}
        if not records or records[0] != ours:
            raise InputError(
                f"{path} counts looks at {records[0] if records else 'nothing'}, not at {ours}; keep one file for each hold-out"
            )
        return records
