"""What a quantile critic believes that learns from itself, had it all the data in the world.

    python studies/bootstrap.py            the table
    python studies/bootstrap.py --docs     and into docs/algorithms.md

Rewards are independent N(0, 1), so Z = Σ γᵗ·r_t is N(0, 1/(1 − γ²)). A particle is the sum of k rewards and γᵏ times a draw
from the critic, k geometric with mean 1/(1 − λ) (`functional.returns.distributional_targets`). The critic's atoms are drawn by
their cell masses and the sum is normal given k, so the particles' distribution function is a finite sum. Its quantiles are the
critic's next belief, again and again until nothing changes: no sampling, no optimizer, no network, nothing but bootstrapping.
"""

import argparse
import math
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from quantail.functional.laws import interpolate_quantiles
from quantail.functional.quantile import midpoint_levels, tail_levels
from quantail.functional.risk import cvar_from_quantiles

ALPHA, GAMMA = 0.05, 0.99
COUNTS, LAMBDAS = (32, 51, 64, 101), (0.8, 0.9, 0.95)
LEVELS = {"tail": tail_levels, "midpoint": midpoint_levels}
GRID, WIDTH = 401, 5.0  # points of the distribution function, within so many deviations
STILL = 1e-5  # a step this small leaves at most twenty times as much to go
DOCS = Path(__file__).parents[1] / "docs" / "algorithms.md"
BEGIN, END = "<!-- bootstrap: begin, written by studies/bootstrap.py --docs -->", "<!-- bootstrap: end -->"


class Belief(NamedTuple):
    """Errors of the fixed point: percent of mean − CVaR (+: risk understated), and of the deviation."""

    cvar: float
    w1: float
    mean: float


def probit(u: Tensor) -> Tensor:
    z: Tensor = torch.special.ndtri(u)
    return z


def lengths(lam: float) -> tuple[Tensor, Tensor]:
    """How many rewards a particle sums, and with which probability; what is left beyond 1e-6 is dropped."""
    most = math.ceil(math.log(1e-6) / math.log(lam))
    k = torch.arange(1, most + 1, dtype=torch.float64)
    mass = (1 - lam) * lam ** (k - 1)
    return k, mass / mass.sum()


def step(quantiles: Tensor, taus: Tensor, masses: Tensor, lam: float, gamma: float) -> Tensor:
    """The quantiles [N] of particles that are drawn from a critic of such quantiles; in deviations of Z."""
    x = torch.linspace(-WIDTH, WIDTH, GRID, dtype=torch.float64)
    below = torch.zeros_like(x)
    for k, mass in zip(*lengths(lam), strict=True):
        own = (1 - gamma ** (2 * k)).sqrt()  # deviation of the sum of k rewards, in those of Z
        below += mass * (torch.special.ndtr((x[:, None] - gamma**k * quantiles) / own) @ masses)
    z = probit(below.clamp(1e-15, 1 - 1e-15))
    at = probit(taus)
    upper = torch.searchsorted(z, at).clamp(1, GRID - 1)
    share = (at - z[upper - 1]) / (z[upper] - z[upper - 1])
    return torch.lerp(x[upper - 1], x[upper], share)


def belief(count: int, levels: str = "tail", lam: float = 0.95, gamma: float = GAMMA) -> Belief:
    """Where a critic of so many quantiles ends."""
    taus, masses = LEVELS[levels](count, dtype=torch.float64)
    before, quantiles = torch.zeros_like(taus), probit(taus)
    while (quantiles - before).abs().max() > STILL:
        before, quantiles = quantiles, step(quantiles, taus, masses, lam, gamma)
    tail = math.exp(-(float(probit(torch.tensor(ALPHA, dtype=torch.float64))) ** 2) / 2) / math.sqrt(2 * math.pi) / ALPHA
    u = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
    apart = (interpolate_quantiles(quantiles, taus, u) - probit(u)).abs().mean()
    cvar = float(cvar_from_quantiles(quantiles, ALPHA, taus))
    return Belief(100 * (cvar + tail) / tail, 100 * float(apart), 100 * float(quantiles @ masses))


def table() -> str:
    """As Markdown, each cell the error of CVaR, W1 and the error of the mean."""
    head = f"| λ | levels | {' | '.join(f'N = {count}' for count in COUNTS)} |\n|---|---|{'---|' * len(COUNTS)}"
    rows = [
        f"| {lam:g} | {levels} | {' | '.join(cell(belief(count, levels, lam)) for count in COUNTS)} |"
        for lam in LAMBDAS
        for levels in LEVELS
    ]
    return "\n".join([head, *rows])


def cell(errors: Belief) -> str:
    return " / ".join(f"{error + 0.0:.1f}".replace("-0.0", "0.0") for error in errors)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--docs", action="store_true", help="refresh the table in docs/algorithms.md")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    found = table()
    print(
        f"CVaR_{ALPHA:g} in percent of mean − CVaR (+: risk understated) / W1 / mean in percent of the deviation, γ = {GAMMA:g}"
    )
    print(found)
    if chosen.docs:
        text = DOCS.read_text("utf-8")
        before, after = text[: text.index(BEGIN)], text[text.index(END) :]
        DOCS.write_text(f"{before}{BEGIN}\n{found}\n{after}", "utf-8")


if __name__ == "__main__":
    main()
