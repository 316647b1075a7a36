"""The fixed point of bootstrapped quantiles: the table in the docs, and two roads to the same numbers."""

import importlib.util
from pathlib import Path

import pytest
import torch

from quantail.functional.quantile import tail_levels
from quantail.functional.returns import distributional_targets
from quantail.types import Law

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("bootstrap", ROOT / "studies" / "bootstrap.py")
study = importlib.util.module_from_spec(spec)
spec.loader.exec_module(study)


def test_one_step_is_what_sampled_particles_say():
    """Quantiles of 4 million particles of the library's own targets, within five of their standard errors."""
    gamma, lam, count, rows = 0.9, 0.7, 9, 60
    taus, masses = tail_levels(count, dtype=torch.float64)
    belief = torch.linspace(-2.0, 2.0, count, dtype=torch.float64)
    source = torch.Generator().manual_seed(0)
    spread = (1 - gamma**2) ** -0.5
    reward = torch.randn(rows, 20_000, generator=source, dtype=torch.float64)
    ends = torch.zeros_like(reward, dtype=torch.bool)
    noise = [torch.rand(rows, 20_000, 200 // 20, generator=source, dtype=torch.float64) for _ in range(2)]
    law = Law((spread * belief).expand(rows + 1, 20_000, count), masses)
    particles = distributional_targets(reward, law, ends, ends, gamma, lam, *noise)[:20] / spread
    sampled = torch.quantile(particles[0].flatten(), taus)
    found = study.step(belief, taus, masses, lam, gamma)
    assert (sampled - found)[2:].abs().max() < 0.02  # 20 000 rewards in a row; density .1 at the outermost level
    assert (found - belief).abs().max() > 0.1


@pytest.mark.parametrize(("count", "cvar"), [(21, 6.5), (51, 3.1)])
def test_midpoints_end_where_an_earlier_computation_ended(count, cvar):
    """QR-21 and QR-51 at λ = .95, iterated on a finer grid by another program: +6.5 and +3.1 %."""
    assert study.belief(count, "midpoint").cvar == pytest.approx(cvar, abs=0.06)


def test_the_table_in_the_docs_is_the_one_that_is_computed():
    text = (ROOT / "docs" / "algorithms.md").read_text("utf-8")
    table = text[text.index(study.BEGIN) : text.index(study.END)]
    for lam, levels, count in ((0.95, "tail", 32), (0.8, "midpoint", 32)):
        row = next(line for line in table.splitlines() if line.startswith(f"| {lam:g} | {levels} |"))
        assert row.split(" | ")[2 + study.COUNTS.index(count)].strip(" |") == study.cell(study.belief(count, levels, lam))
