"""How well the noise of a gradient is measured: `python studies/gradient_noise.py [--docs]`.

Synthetic gradients whose noise-to-signal ratio ρ = tr Cov(g)/|E g|² is known: every element is 1 + √ρ·noise, with the noise
independent, cancelling in the mean of each tensor, or one and the same number in all elements. Shown is the error of both
estimators with a decay of 0.99 in percent of ρ: of the median of 200 independent runs of 1500 steps, and from the 10th to the
90th of 100; for ρ = 0 the largest ratio itself. Not the mean: a single run that finds hardly a signal would decide it.
`--docs` refreshes the table in docs/optimizers.md, which has the formula of the bias.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from quantail.optim import VarianceScaler

KINDS = ("independent", "cancelling", "shared")
RATIOS = (0.0, 0.25, 1.0, 4.0, 16.0)
SIZES = (40, 24, 60)  # elements of three tensors
DOCS = Path(__file__).parents[1] / "docs" / "optimizers.md"
BEGIN, END = "<!-- noise: begin, written by studies/gradient_noise.py --docs -->", "<!-- noise: end -->"


def noise(kind: str, runs: int, source: torch.Generator) -> list[Tensor]:
    """Unit variance in every element of every tensor: [runs, elements] each."""
    if kind == "shared":
        one = torch.randn(runs, 1, generator=source, dtype=torch.float64)
        return [one.expand(-1, size) for size in SIZES]
    if kind == "cancelling":
        halves = [torch.randn(runs, size // 2, generator=source, dtype=torch.float64) for size in SIZES]
        return [torch.cat([half, -half], 1) for half in halves]
    return [torch.randn(runs, size, generator=source, dtype=torch.float64) for size in SIZES]


def measured(
    estimator: str, kind: str, ratio: float, runs: int = 200, steps: int = 1500, parts: int = 2, decay: float = 0.99
) -> Tensor:
    """The ratio that each run ends with: [runs]."""
    source = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.zeros(runs, size, dtype=torch.float64)) for size in SIZES]
    scaler = VarianceScaler(params, estimator, population=True, decay=decay)
    count = parts if estimator == "two_batch" else 1
    for _ in range(steps):
        for i in range(count):  # the noise of a part is larger: that of the batch is `ratio`
            for p, drawn in zip(params, noise(kind, runs, source), strict=True):
                own = (1 + (ratio * count) ** 0.5 * drawn) / count
                p.grad = own if i == 0 or p.grad is None else p.grad + own
            if estimator == "two_batch":
                scaler.add_part(1 / count)
        scaler.observe()
    return scaler.ratio()


def rows(runs: int = 200, steps: int = 1500) -> list[tuple[str, str, list[str]]]:
    """Estimator, kind of noise, and for each ratio what was found."""
    return [
        (estimator, kind, [cell(measured(estimator, kind, ratio, runs, steps), ratio) for ratio in RATIOS])
        for estimator in ("elementwise", "two_batch")
        for kind in KINDS
    ]


def cell(found: Tensor, ratio: float) -> str:
    """The error of the median, and of the 10th and 90th percentile, in percent; for no noise the largest ratio."""
    if ratio == 0:
        return f"{float(found.max()):.0e}"
    low, middle, high = (100 * (float(found.quantile(level)) / ratio - 1) for level in (0.1, 0.5, 0.9))
    return f"{middle:+.1f} ({low:+.0f} to {f'{high:+.0f}' if high < 1000 else 'no signal'})"


def table(found: Sequence[tuple[str, str, list[str]]]) -> str:
    head = ["Estimator", "Noise", "ρ = 0", *(f"ρ = {ratio:g}, %" for ratio in RATIOS[1:])]
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    return "\n".join([*lines, *(f"| {estimator} | {kind} | {' | '.join(cells)} |" for estimator, kind, cells in found)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", action="store_true", help="refresh the table in docs/optimizers.md")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    shown = table(rows())
    print(shown)
    if asked.docs:
        text = DOCS.read_text("utf-8")
        before, rest = text.split(BEGIN)
        DOCS.write_text(f"{before}{BEGIN}\n{shown}\n{END}{rest.split(END)[1]}", "utf-8")


if __name__ == "__main__":
    main()
