"""Three ways to understate a tail, measured: the read-out, the target, the loss.

    python studies/cvar_readout.py                      the tables
    python studies/cvar_readout.py --folder runs/tail   and report.html, readout.json
    python studies/cvar_readout.py --docs               and the table in docs/algorithms.md

Errors are in percent of the exact CVaR, + where the risk is understated. Everything is computed by `quantail.functional`
from exact quantiles of laws with known CVaR, so what is shown is the method's error and not sampling noise; only the
targets are sampled.
"""

import argparse
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from quantail.functional import quantile, returns, risk
from quantail.types import Law

SAMPLING = 0.7  # per cent: standard deviation of the errors of `target_errors` over seeds
ALPHAS = (0.01, 0.05, 0.1, 0.25)
COUNTS = (21, 32, 51, 101)
DOCS = Path(__file__).parents[1] / "docs" / "algorithms.md"
BEGIN, END = "<!-- readout: begin, written by studies/cvar_readout.py --docs -->", "<!-- readout: end -->"


class Reference(NamedTuple):
    """A law with mean 0 and standard deviation 1 whose quantiles and CVaR are known."""

    name: str
    quantiles: Callable[[Tensor], Tensor]
    cvar: Callable[[float], float]


def probit(u: Tensor | float) -> Tensor:
    z: Tensor = torch.special.ndtri(torch.as_tensor(u, dtype=torch.float64))
    return z


def normal_cdf(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


def gaussian() -> Reference:
    def cvar(alpha: float) -> float:
        return -math.exp(-0.5 * float(probit(alpha)) ** 2) / math.sqrt(2 * math.pi) / alpha

    return Reference("Normal", probit, cvar)


def student3() -> Reference:
    """t with 3 degrees of freedom: with x = √3·tan θ, F(x) = ½ + (θ + sin θ·cos θ)/π, inverted by bisection."""

    def quantiles(u: Tensor) -> Tensor:
        low, high = torch.full_like(u, -math.pi / 2), torch.full_like(u, math.pi / 2)
        for _ in range(100):
            mid = (low + high) / 2
            below = 0.5 + (mid + mid.sin() * mid.cos()) / math.pi < u
            low, high = torch.where(below, mid, low), torch.where(below, high, mid)
        return low.tan()  # √3·tan θ over the standard deviation √3

    def cvar(alpha: float) -> float:
        q = math.sqrt(3) * float(quantiles(torch.tensor(alpha, dtype=torch.float64)))
        density = 2 / (math.pi * math.sqrt(3) * (1 + q * q / 3) ** 2)
        return -density * (3 + q * q) / 2 / alpha / math.sqrt(3)

    return Reference("t(3)", quantiles, cvar)


def lognormal(sign: int, sigma: float = 0.5) -> Reference:
    """±exp(σZ): the minus sign puts the heavy tail on the side of the losses."""
    mean = math.exp(sigma**2 / 2)
    std = math.sqrt((math.exp(sigma**2) - 1) * math.exp(sigma**2))

    def quantiles(u: Tensor) -> Tensor:
        return sign * (torch.exp(sign * sigma * probit(u)) - mean) / std

    def cvar(alpha: float) -> float:
        z = float(probit(alpha))
        partial = mean * (normal_cdf(z - sigma) if sign > 0 else normal_cdf(z + sigma))
        return sign * (partial / alpha - mean) / std

    return Reference(f"{'+' if sign > 0 else '−'}lognormal(.5)", quantiles, cvar)


LAWS = (gaussian(), student3(), lognormal(-1), lognormal(1))


def partial_atom(law: Reference, n: int, alpha: float) -> Tensor:
    taus, masses = quantile.midpoint_levels(n, dtype=torch.float64)
    return risk.cvar_of_samples(law.quantiles(taus), alpha, masses)


def probit_midpoint(law: Reference, n: int, alpha: float) -> Tensor:
    taus, _ = quantile.midpoint_levels(n, dtype=torch.float64)
    return risk.cvar_from_quantiles(law.quantiles(taus), alpha, taus)


def probit_tail(law: Reference, n: int, alpha: float) -> Tensor:
    taus, _ = quantile.tail_levels(n, dtype=torch.float64)
    return risk.cvar_from_quantiles(law.quantiles(taus), alpha, taus)


READOUTS = {"average of atoms": partial_atom, "probit axis": probit_midpoint, "probit axis, tail levels": probit_tail}


def readout_errors() -> dict[tuple[str, str, float, int], float]:
    """Percent by (read-out, law, α, N)."""
    return {
        (name, law.name, alpha, n): 100 * (1 - float(read(law, n, alpha)) / law.cvar(alpha))
        for name, read in READOUTS.items()
        for law in LAWS
        for alpha in ALPHAS
        for n in COUNTS
    }


def target_errors(gamma: float = 0.99, lam: float = 0.95, alpha: float = 0.05) -> list[tuple[str, float, float]]:
    """What a critic is told about Z = Σ γᵗ·r_t of independent N(0, 1) rewards: (target, spread, CVaR error)."""
    noise = torch.Generator().manual_seed(0)
    time, far_from_end, envs, particles = 120, 20, 4000, 2
    taus, masses = quantile.tail_levels(401, dtype=torch.float64)
    sigma = 1 / math.sqrt(1 - gamma**2)
    law = Law((sigma * probit(taus)).expand(time + 1, envs, -1), masses)
    rewards = torch.randn(time, envs, generator=noise, dtype=torch.float64)
    never = torch.zeros(time, envs, dtype=torch.bool)
    follow, level = torch.rand(2, time, envs, particles, generator=noise, dtype=torch.float64)
    values = quantile.quantile_mean(law.locations, masses)
    told = {
        "scalar λ-return": returns.lambda_return(rewards, values, never, never, gamma, lam),
        "particles, SR(λ)": returns.distributional_targets(rewards, law, never, never, gamma, lam, follow, level),
    }
    exact = sigma * LAWS[0].cvar(alpha)
    return [
        (name, float(y.std()) / sigma, 100 * (1 - float(risk.cvar_of_samples(y.flatten(), alpha)) / exact))
        for name, y in ((name, y[:far_from_end]) for name, y in told.items())
    ]


def loss_errors(n: int = 51, alpha: float = 0.05) -> list[tuple[float, float]]:
    """CVaR error of the quantiles that minimise the expected quantile-Huber loss of a N(0, 1): (κ, error)."""
    x = probit((torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000)
    taus, _ = quantile.midpoint_levels(n, dtype=torch.float64)
    rows = []
    for kappa in (0.01, 0.1, 1.0):
        low, high = torch.full((n,), -6.0, dtype=torch.float64), torch.full((n,), 6.0, dtype=torch.float64)
        for _ in range(40):  # the expected loss is convex in each quantile: bisect on its slope
            theta = ((low + high) / 2).requires_grad_()
            (slope,) = torch.autograd.grad(quantile.quantile_huber_loss(theta, x, taus, kappa), theta)
            theta = theta.detach()
            low, high = torch.where(slope < 0, theta, low), torch.where(slope < 0, high, theta)
        rows.append((kappa, 100 * (1 - float(risk.cvar_from_quantiles(theta, alpha, taus)) / LAWS[0].cvar(alpha))))
    return rows


def readout_table(errors: dict[tuple[str, str, float, int], float]) -> tuple[list[str], list[list[str]]]:
    header = ["α", "read-out", *(f"N = {n}" for n in COUNTS)]
    rows = []
    for alpha in ALPHAS:
        for name in READOUTS:
            cells = [" / ".join(percent(errors[name, law.name, alpha, n]) for law in LAWS) for n in COUNTS]
            rows.append([f"{alpha:g}", name, *cells])
    return header, rows


def percent(error: float) -> str:
    return "0" if abs(error) < 5e-5 else f"{error:+.2f}" if abs(error) < 1 else f"{error:+.1f}"


def summary(errors: dict[tuple[str, str, float, int], float]) -> str:
    exact = max(abs(e) for (name, law, _, _), e in errors.items() if name.startswith("probit") and law == "Normal")
    tail = max(abs(e) for (name, _, _, _), e in errors.items() if "tail" in name)
    return f"Largest error of the probit axis for the Normal: {exact:.1e} %. Of the tail levels for any law: {tail:.2f} %."


def markdown(errors: dict[tuple[str, str, float, int], float]) -> str:
    header, rows = readout_table(errors)
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header), *(f"| {' | '.join(row)} |" for row in rows)]
    laws = " / ".join(law.name for law in LAWS)
    return f"Cells: {laws}, in percent, + where the risk is understated.\n\n" + "\n".join(lines) + f"\n\n{summary(errors)}"


def refresh_docs(text: str, errors: dict[tuple[str, str, float, int], float]) -> str:
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{markdown(errors)}\n{END}{rest.split(END)[1]}"


def figure(errors: dict[tuple[str, str, float, int], float], alpha: float = 0.05) -> str:
    """The read-out error by number of quantiles as an inline SVG that takes the page's text colour."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "quantail", "font.family": "sans-serif"}):
        drawing, axes = plt.subplots(1, len(LAWS), figsize=(11, 3), sharey=True, layout="constrained")
        for panel, law in zip(axes, LAWS, strict=True):
            for name, style in zip(READOUTS, ("o:", "s--", "D-"), strict=True):
                panel.plot(COUNTS, [errors[name, law.name, alpha, n] for n in COUNTS], style, label=name)
            panel.axhline(0, linewidth=0.8, color="gray")
            panel.set_title(law.name)
            panel.set_xticks(COUNTS)
            panel.set_xlabel("quantiles N")
        axes[0].set_ylabel(f"error of CVaR$_{{{alpha:g}}}$, %")
        axes[0].legend(frameon=False, fontsize=8)
        buffer = io.StringIO()
        drawing.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
        plt.close(drawing)
    svg = buffer.getvalue()
    return svg[svg.index("<svg") :].replace("#000000", "currentColor")


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Quantail: can the tail be believed?</title>
<style>
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 74rem; margin: 2rem auto; padding: 0 1rem; }
h1 { line-height: 1.2; } .wide { overflow-x: auto; } svg { width: 100%; min-width: 44rem; height: auto; fill: currentColor; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
td:first-child, th:first-child, .readout td:nth-child(2), .readout th:nth-child(2) { text-align: left; }
tr.best td { background: var(--soft); font-weight: 600; }
.note { padding: .8rem 1rem; background: var(--soft); border-radius: .4rem; }
</style></head><body>
<h1>Can the tail be believed?</h1>
<p class="note">No agent is trained here: this report shows how well the tail figures are computed that every agent
stands on. Errors are in percent of the exact CVaR; + means the risk is <b>understated</b>.</p>
<h2>1. What a critic is told</h2>
<p>Independent N(0, 1) rewards, γ = .99, λ = .95, CVaR<sub>.05</sub> of the discounted return. A scalar λ-return is a mean
of means: its spread is a fraction of the truth, and a critic trained on it cannot know the tail. Simulated:
sampling error {{ sampling }} %.</p>
<div class="wide">{{ targets }}</div>
<h2>2. Which loss it learns by</h2>
<p>N = 51 quantiles that minimise the expected quantile-Huber loss of a unit Gaussian, read on the probit axis. With κ as
large as the standard deviation the quantiles collapse towards the mean.</p>
{{ losses }}
<h2>3. How CVaR is read from its quantiles</h2>
<div class="wide">{{ figure }}</div>
<p>{{ summary }} Cells: {{ laws }}.</p>
<div class="wide readout">{{ readout }}</div>
</body></html>
"""


def html_table(header: list[str], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{cell}</th>" for cell in header)
    body = "".join(
        f"<tr{' class=best' if 'tail' in row[1] else ''}>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def report(errors: dict[tuple[str, str, float, int], float], targets: list[list[str]], losses: list[list[str]]) -> str:
    from jinja2 import Template

    return Template(PAGE, autoescape=False).render(
        targets=html_table(["target", "spread, share of the truth", "CVaR error, %"], targets),
        losses=html_table(["κ / σ", "CVaR error, %"], losses),
        readout=html_table(*readout_table(errors)),
        figure=figure(errors),
        summary=summary(errors),
        laws=" / ".join(law.name for law in LAWS),
        sampling=SAMPLING,
    )


def plain_table(header: list[str], rows: list[list[str]]) -> str:
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [header, *rows]]
    return "\n".join([lines[0], "  ".join("─" * width for width in widths), *lines[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, help="write report.html and readout.json there")
    parser.add_argument("--docs", action="store_true", help="refresh the table in docs/algorithms.md")
    chosen = parser.parse_args()
    torch.set_num_threads(1)

    errors = readout_errors()
    targets = [[name, f"{spread:.2f}", percent(error)] for name, spread, error in target_errors()]
    losses = [[f"{kappa:g}", percent(error)] for kappa, error in loss_errors()]
    print("No agent is trained here. How well the tail figures are computed that every agent stands on:\n")
    print("CVaR error in percent, + where the risk is understated\n")
    print(f"1. What a critic is told (γ = .99, λ = .95, Gaussian rewards, α = .05; sampling error {SAMPLING} %)\n")
    print(plain_table(["target", "spread, share of the truth", "CVaR error"], targets))
    print("\n2. Which loss it learns by (51 quantiles, Gaussian, α = .05)\n")
    print(plain_table(["κ / σ", "CVaR error"], losses))
    print(f"\n3. How CVaR is read from its quantiles (cells: {' / '.join(law.name for law in LAWS)})\n")
    print(plain_table(*readout_table(errors)))
    print("\n" + summary(errors))
    if chosen.docs:
        DOCS.write_text(refresh_docs(DOCS.read_text("utf-8"), errors), "utf-8")
    if chosen.folder:
        chosen.folder.mkdir(parents=True, exist_ok=True)
        record = {"readout": [[*key, error] for key, error in errors.items()], "targets": targets, "losses": losses}
        (chosen.folder / "readout.json").write_text(json.dumps(record, indent=1, ensure_ascii=False), "utf-8")
        (chosen.folder / "report.html").write_text(report(errors, targets, losses), "utf-8")
        print(f"\nThe report lies in {chosen.folder / 'report.html'}")


if __name__ == "__main__":
    main()
