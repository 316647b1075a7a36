"""Merging pairs of rows is the recurrence itself."""

import pytest
import torch

from kernels.judges import normal
from quantail.kernels.scan import scan_pairs, scan_rows


@pytest.mark.parametrize("rows", range(1, 18))
def test_pairs_are_rows(rows: int) -> None:
    decay, inflow, h0 = torch.rand(2, rows, 3, 4, dtype=torch.float64), normal(2, rows, 3, 4), normal(2, 3, 4)
    start = torch.rand(2, rows, 3) < 0.2
    by_rows = scan_rows(decay, inflow, start, h0)
    torch.testing.assert_close(scan_pairs(decay, inflow, start, h0), by_rows, rtol=1e-12, atol=1e-12)
    h = h0
    for t in range(rows):
        h = torch.where(start[:, t, :, None], 0.0, h) * decay[:, t] + inflow[:, t]
        torch.testing.assert_close(by_rows[:, t], h, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("scan", [scan_rows, scan_pairs])
def test_nothing_passes_a_start(scan) -> None:
    decay, inflow, h0 = torch.rand(9, 2, 1), normal(9, 2, 1).float(), torch.full((2, 1), torch.nan)
    start = torch.zeros(9, 2, dtype=torch.bool)
    start[0, 0] = start[5, 1] = True
    out = scan(decay, inflow, start, h0)
    assert out[:, 0].isfinite().all()
    assert out[:5, 1].isnan().all()
    assert out[5:, 1].isfinite().all()


def test_long_sequences_keep_their_digits_in_float32() -> None:
    decay, inflow, h0 = torch.rand(4096, 1, 2) * 0.2 + 0.8, torch.randn(4096, 1, 2), torch.randn(1, 2)
    start = torch.rand(4096, 1) < 0.001
    exact = scan_rows(decay.double(), inflow.double(), start, h0.double())
    assert (scan_pairs(decay, inflow, start, h0) - exact).abs().max() < 1e-5
