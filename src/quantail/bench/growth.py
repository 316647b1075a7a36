"""How the cost of a row grows with each size, the others as they are."""

from collections.abc import Iterator
from dataclasses import asdict, replace

import torch

from quantail.backtest.charts import STYLE, line
from quantail.bench.ceilings import Ceilings
from quantail.bench.measure import PHASES, Measured, measure
from quantail.bench.scene import Sizes

# Each size on its own way: shares of what it is in the start.
WAYS: dict[str, tuple[float, ...]] = {
    "envs": (1 / 32, 1 / 8, 1 / 2, 2),
    "steps": (1 / 8, 1 / 4, 1 / 2, 2),
    "hidden": (1 / 4, 1 / 2, 2, 4),
    "quantiles": (1 / 4, 1 / 2, 2, 4),
    "assets": (2, 4, 8),
}
EPISODES = (20, 200, 5000)


def ways(start: Sizes) -> Iterator[tuple[str, Sizes]]:
    """The start, then one size changed at a time; a batch stays the same share of the rollout."""
    yield "start", start
    for name, shares in WAYS.items():
        for share in shares:
            changed = replace(start, **{name: max(1, round(asdict(start)[name] * share))})
            yield name, replace(changed, batch=max(changed.steps, start.batch * changed.rows // start.rows))
    for rows in EPISODES:
        yield "episode", replace(start, episode=rows)


def grown(start: Sizes, iterations: int, device: torch.device | str, known: Ceilings) -> Iterator[tuple[str, Measured]]:
    """One after the other, as they are measured."""
    for name, sizes in ways(start):
        yield name, measure(sizes, iterations, device, known)


def table(measured: list[tuple[str, Measured]]) -> str:
    """A line for each, in Markdown: rows a second, microseconds of a row in each phase, shares of the roofline."""
    heads = [f"{'what':<20}", f"{'rows/s':>11}", *(f"{name + ', µs':>12}" for name in PHASES), f"{'roofline':>8}"]
    rules = [":" + "-" * (len(heads[0]) + 1), *("-" * (len(head) + 1) + ":" for head in heads[1:])]
    lines = [f"| {' | '.join(heads)} |", f"|{'|'.join(rules)}|"]
    for name, one in measured:
        label = name if name == "start" else f"{name} {asdict(one.sizes)[name]}"
        each = " | ".join(f"{1e6 * one.phases[phase].seconds / one.sizes.rows:12.2f}" for phase in PHASES)
        lines.append(f"| {label:<20} | {one.steps_per_second:11,.0f} | {each} | {one.roofline:8.1%} |")
    return "\n".join(lines)


def plain(measured: list[tuple[str, Measured]]) -> list[dict[str, object]]:
    """For a program to read."""
    return [
        {
            "what": name,
            **asdict(one.sizes),
            "steps_per_second": one.steps_per_second,
            "roofline": one.roofline,
            "phases": {phase: found._asdict() for phase, found in one.phases.items()},
            "ceilings": one.ceilings._asdict(),
        }
        for name, one in measured
    ]


def page_of(measured: list[tuple[str, Measured]], title: str) -> str:
    """A page of charts: microseconds of a row over each size, on logarithmic axes of time."""
    start = measured[0][1]
    figures = []
    for way in (*WAYS, "episode"):
        found = sorted((asdict(one.sizes)[way], one) for name, one in measured if name in (way, "start"))
        sizes = [size for size, _ in found]
        if len(sizes) < 2:
            continue
        whole = [1e6 / one.steps_per_second for _, one in found]
        parts = {
            phase: [1e6 * one.phases[phase].seconds / one.sizes.rows for _, one in found] for phase in ("update", "collect")
        }
        note = f"elsewhere {', '.join(f'{k} {v}' for k, v in asdict(start.sizes).items() if k != way)}"
        figures.append(line(f"µs of a row over {way}", sizes, {"all": whole, **parts}, log=True, note=note))
    head = f'<!doctype html><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
    return f"{head}<h1>{title}</h1>\n{''.join(figures)}"
