"""A small logger with the methods of stable-baselines3's: figures are recorded by name and dumped together."""

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, TextIO

KEY_WIDTH = 30


class Logs(Protocol):
    """What training and callbacks need of a logger, ours or stable-baselines3's."""

    def record(self, key: str, value: Any, exclude: Any = None) -> None:
        """Keep a figure until the next dump."""

    def dump(self, step: int = 0) -> None:
        """Write all figures, and forget them."""


class Table:
    """Figures as a table of text, section by section."""

    name = "stdout"

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, figures: Mapping[str, Any], step: int) -> None:
        """One table."""
        lines, section = [], ""
        for key, value in sorted(figures.items()):
            head, _, name = key.rpartition("/")
            if head != section:
                lines.append(f"| {head + '/':<{KEY_WIDTH}} | {'':<12} |")
                section = head
            text = f"{value:.4g}" if isinstance(value, float) else str(value)
            lines.append(f"|    {name[: KEY_WIDTH - 3]:<{KEY_WIDTH - 3}} | {text:<12} |")
        rule = "-" * (KEY_WIDTH + 19)
        self.stream.write("\n".join([rule, *lines, rule, ""]))
        self.stream.flush()

    def close(self) -> None:
        """Nothing to let go of."""


class Board:
    """Figures as TensorBoard events."""

    name = "tensorboard"

    def __init__(self, folder: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(log_dir=folder)

    def write(self, figures: Mapping[str, Any], step: int) -> None:
        """Numbers as curves, text as text."""
        for key, value in figures.items():
            if isinstance(value, str):
                self.writer.add_text(key, value, step)
            elif isinstance(value, int | float):
                self.writer.add_scalar(key, value, step)
        self.writer.flush()

    def close(self) -> None:
        """Close the file."""
        self.writer.close()


class Logger:
    """Figures by name, until they are dumped."""

    def __init__(self, folder: str | None, outputs: list[Table | Board]) -> None:
        self.dir, self.output_formats = folder, outputs
        self.name_to_value: dict[str, Any] = {}
        self.name_to_count: dict[str, int] = {}
        self.name_to_excluded: dict[str, tuple[str, ...]] = {}

    def record(self, key: str, value: Any, exclude: Any = None) -> None:
        """Keep a figure until the next dump; the last one counts. `exclude` names outputs that do not show it."""
        self.name_to_value[key] = value.item() if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 else value
        self.name_to_excluded[key] = (exclude,) if isinstance(exclude, str) else tuple(exclude or ())

    def record_mean(self, key: str, value: Any, exclude: Any = None) -> None:
        """As `record`, but figures of one name are averaged until the next dump."""
        if value is None:
            return
        count = self.name_to_count.get(key, 0)
        before = self.name_to_value.get(key, 0.0) if count else 0.0
        self.record(key, (before * count + value) / (count + 1), exclude)
        self.name_to_count[key] = count + 1

    def dump(self, step: int = 0) -> None:
        """Write all figures, and forget them."""
        for output in self.output_formats:
            shown = {key: value for key, value in self.name_to_value.items() if output.name not in self.name_to_excluded[key]}
            output.write(shown, step)
        self.name_to_value.clear()
        self.name_to_count.clear()
        self.name_to_excluded.clear()

    def get_dir(self) -> str | None:
        """The folder that is written to, if any."""
        return self.dir

    def close(self) -> None:
        """Close what was opened."""
        for output in self.output_formats:
            output.close()


def logger_for(verbose: int, folder: str | None, name: str, fresh: bool) -> Logs:
    """A table on the screen if verbose, events in a numbered folder if one is given; SB3's own where that is imported."""
    if "stable_baselines3" in sys.modules:
        from stable_baselines3.common.utils import configure_logger

        return configure_logger(verbose, folder, name, fresh)
    outputs: list[Table | Board] = [Table(sys.stdout)] if verbose else []
    path = None
    if folder is not None:
        path = str(Path(folder) / f"{name}_{_latest(folder, name) + bool(fresh)}")
        outputs.append(Board(path))
    return Logger(path, outputs)


def record_metrics(logger: Logs, metrics: Mapping[str, float]) -> None:
    """The figures of an iteration under their names; what stable-baselines3 does not have stays off the screen."""
    for name, value in metrics.items():
        if name.startswith(("time/", "rollout/")) or math.isnan(value):
            continue  # said by `dump_logs`; nothing was seen
        known = name.startswith("train/")
        exclude = "tensorboard" if name == "train/n_updates" else None if known else ("stdout", "log")
        logger.record(name, value, exclude=exclude)


def _latest(folder: str, name: str) -> int:
    """The highest number of a run of this name, at least 0."""
    numbers = [path.name.removeprefix(f"{name}_") for path in Path(folder).glob("*") if path.name.startswith(f"{name}_")]
    return max((int(number) for number in numbers if number.isdigit()), default=0)
