"""CVaR and VaR read from quantiles: exact for a Gaussian, and as good for heavy tails as the table promises."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch.autograd import gradcheck

from oracles import risk as oracle
from quantail.functional import risk
from quantail.functional.quantile import midpoint_levels, tail_levels

EXACT = {"rtol": 0, "atol": 1e-12}
ALPHAS = (0.01, 0.05, 0.1, 0.25)


def doubles(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64)


LEVELS = {"midpoint": midpoint_levels, "tail": tail_levels}
LAWS = {"normal": stats.norm(), "t3": stats.t(3), "lognormal": stats.lognorm(0.5)}


def read_cvar(law: str, alpha: float, taus: torch.Tensor) -> tuple[float, float]:
    """(CVaR read from exact quantiles, true CVaR); "-lognormal" is the mirrored law. In units of the standard deviation."""
    if law == "-lognormal":  # lower tail of −X: −E[X | X above its 1 − α quantile]
        levels, quantile_of, truth = taus.numpy(), lambda u: -LAWS["lognormal"].isf(u), mirrored_tail_mean(alpha)
    else:
        levels, quantile_of, truth = taus.numpy(), LAWS[law].ppf, oracle.tail_mean(LAWS[law], alpha)
    kind = LAWS[law.removeprefix("-")]
    mean, std = (-1 if law.startswith("-") else 1) * kind.mean(), kind.std()
    read = risk.cvar_from_quantiles(torch.as_tensor((quantile_of(levels) - mean) / std), alpha, taus)
    return read.item(), (truth - mean) / std


def mirrored_tail_mean(alpha: float) -> float:
    """−E[X; X in the top α]/α of lognormal(½): −e^{s²/2}·Φ(s − Φ⁻¹(1 − α))/α."""
    return -math.exp(0.125) * stats.norm.cdf(0.5 - stats.norm.isf(alpha)) / alpha


def error_percent(law: str, alpha: float, taus: torch.Tensor) -> float:
    """By how much the risk is understated."""
    read, truth = read_cvar(law, alpha, taus)
    return 100 * (read - truth) / abs(truth)


@pytest.mark.property
@given(
    data=st.data(),
    alpha=st.sampled_from([1e-4, 0.01, 0.05, 0.1, 0.25, 0.7, 1.0]),
    kind=st.sampled_from(["midpoint", "tail", "random"]),
)
def test_a_gaussian_is_read_exactly_at_any_levels(data, alpha, kind):
    n = data.draw(st.integers(2, 101))
    if kind == "random":
        spaced = 0.1 + np.random.default_rng(n).random(n + 1)
        taus = torch.as_tensor(np.cumsum(spaced)[:-1] / spaced.sum())
    else:
        taus = LEVELS[kind](n, dtype=torch.float64)[0]
    quantiles = torch.as_tensor(stats.norm(3, 2).ppf(taus.numpy()))
    truth = 3 - 2 * stats.norm.pdf(stats.norm.ppf(alpha)) / alpha
    assert risk.cvar_from_quantiles(quantiles, alpha, taus).item() == pytest.approx(truth, abs=1e-9)
    if kind == "midpoint":
        assert risk.cvar_from_quantiles(quantiles, alpha).item() == pytest.approx(truth, abs=1e-9)
    if alpha < 1:
        assert risk.var_from_quantiles(quantiles, alpha, taus).item() == pytest.approx(stats.norm(3, 2).ppf(alpha), abs=1e-9)


# cells of docs/algorithms.md, midpoint levels: per cent of risk understated for t3, −lognormal(½), lognormal(½)
MIDPOINT_ERRORS = {
    (21, 0.01): (29.5, 12.4, -4.7),
    (101, 0.01): (10.4, 2.5, -0.5),
    (32, 0.05): (7.9, 2.4, -0.5),
    (51, 0.05): (5.7, 1.4, -0.2),
    (51, 0.1): (3.7, 0.9, -0.1),
    (21, 0.25): (4.3, 1.4, -0.2),
}
# the same with tail levels
TAIL_ERRORS = {
    (21, 0.01): (-0.6, -0.3, 0.1),
    (32, 0.01): (-0.4, -0.2, 0.0),
    (21, 0.05): (-0.4, -0.2, 0.0),
    (21, 0.25): (-0.4, -0.3, 0.1),
}


@pytest.mark.parametrize(
    ("levels", "n", "alpha", "errors"),
    [("midpoint", *cell, errors) for cell, errors in MIDPOINT_ERRORS.items()]
    + [("tail", *cell, errors) for cell, errors in TAIL_ERRORS.items()],
)
def test_read_out_errors_are_those_of_the_table(levels, n, alpha, errors):
    taus, _ = LEVELS[levels](n, dtype=torch.float64)
    found = [error_percent(law, alpha, taus) for law in ("t3", "-lognormal", "lognormal")]
    assert found == pytest.approx(errors, abs=0.051)


@pytest.mark.parametrize("n", [21, 32, 51, 101])
def test_tail_levels_read_heavy_tails_within_the_promise(n):
    taus, _ = tail_levels(n, dtype=torch.float64)
    errors = {(law, alpha): error_percent(law, alpha, taus) for law in ("t3", "-lognormal", "lognormal") for alpha in ALPHAS}
    assert max(map(abs, errors.values())) <= 0.6
    assert max(abs(error_percent("normal", alpha, taus)) for alpha in ALPHAS) <= 1e-6


@pytest.mark.property
@given(data=st.data(), alpha=st.sampled_from([1e-5, 0.03, 0.2, 0.5, 0.97, 1.0]), kind=st.sampled_from(["midpoint", "tail"]))
def test_weights_against_adaptive_quadrature(data, alpha, kind):
    n = data.draw(st.integers(2, 9))
    taus, quantiles = LEVELS[kind](n, dtype=torch.float64)[0], doubles(n).sort().values
    weights = risk.cvar_weights(taus, alpha)
    assert (weights @ quantiles).item() == pytest.approx(
        oracle.integrated_cvar(taus.numpy(), quantiles.numpy(), alpha), abs=1e-9
    )
    assert weights.sum().item() == pytest.approx(1, abs=1e-11)
    assert weights.dtype == torch.float64


def test_weights_of_two_levels_by_hand():
    """θ = a + b·z through both nodes, so CVaR = a − b·φ(Φ⁻¹(α))/α, whatever the levels."""
    low, high = stats.norm.ppf([0.2, 0.7])
    tail = -stats.norm.pdf(stats.norm.ppf(0.05)) / 0.05
    expected = [(high - tail) / (high - low), (tail - low) / (high - low)]
    np.testing.assert_allclose(risk.cvar_weights(torch.tensor([0.2, 0.7], dtype=torch.float64), 0.05), expected, atol=1e-12)
    assert expected[1] < 0  # the upper node only extrapolates
    assert risk.cvar_weights(torch.tensor([0.4]), 0.05).tolist() == [1]


def test_weights_beyond_the_next_level_are_zero():
    weights = risk.cvar_weights(midpoint_levels(10, dtype=torch.float64)[0], 0.24)
    assert weights[3:].abs().max() == 0
    assert weights[:3].min() > 0


def test_cvar_is_smooth_across_the_levels_and_falls_with_alpha():
    """The read-out was once biased where α met the edge of a cell."""
    quantiles, taus = doubles(7), midpoint_levels(7, dtype=torch.float64)[0]
    for tau in taus.tolist():
        left, right = (risk.cvar_from_quantiles(quantiles, tau + step).item() for step in (-1e-9, 1e-9))
        assert left == pytest.approx(right, abs=1e-7)
    ladder = [risk.cvar_from_quantiles(quantiles, alpha).item() for alpha in np.linspace(0.01, 1, 40)]
    assert ladder == sorted(ladder)


@pytest.mark.parametrize(("n", "within"), [(21, 2e-2), (101, 5e-3)])
def test_a_uniform_law(n, within):
    """A fair 0 or 1 for ever at γ = ½: Z is uniform on [0, 2] and CVaR_α = α, met but for the outermost cells."""
    taus, _ = midpoint_levels(n, dtype=torch.float64)
    for alpha in (0.25, 0.5, 0.9):
        assert risk.cvar_from_quantiles(2 * taus, alpha).item() == pytest.approx(alpha, abs=within)
        assert risk.var_from_quantiles(2 * taus, alpha).item() == pytest.approx(2 * alpha, abs=within)
    assert risk.cvar_from_quantiles(2 * taus, 1.0).item() == pytest.approx(1, abs=1e-12)


def test_crossed_quantiles_are_sorted_first():
    quantiles, taus = doubles(3, 4, 6), tail_levels(6, dtype=torch.float64)[0]
    ordered = torch.as_tensor(np.sort(quantiles.numpy(), -1))
    for read in (risk.cvar_from_quantiles, risk.var_from_quantiles):
        assert torch.equal(read(quantiles, 0.2, taus), read(ordered, 0.2, taus))
        assert read(quantiles, 0.2, taus).shape == (3, 4)
    weights = risk.cvar_weights(taus, 0.2)
    torch.testing.assert_close(risk.cvar_from_quantiles(quantiles, 0.2, taus), ordered @ weights, **EXACT)


@pytest.mark.parametrize("alpha", [1e-6, 0.03, 0.1, 0.34, 0.5, 0.77, 0.9, 0.999])
@pytest.mark.parametrize("kind", LEVELS)
def test_var_interpolates_on_the_probit_axis(alpha, kind):
    taus, quantiles = LEVELS[kind](5, dtype=torch.float64)[0], doubles(2, 3, 5)
    var = risk.var_from_quantiles(quantiles, alpha, taus)
    for row in np.ndindex(2, 3):
        expected = oracle.probit_linear(taus.numpy(), np.sort(quantiles[row].numpy()))(stats.norm.ppf(alpha))
        assert var[row].item() == pytest.approx(expected, abs=1e-10)


def test_var_at_a_level_is_its_quantile():
    taus, quantiles = tail_levels(6, dtype=torch.float64)[0], doubles(6).sort().values
    assert [risk.var_from_quantiles(quantiles, tau, taus).item() for tau in taus.tolist()] == pytest.approx(quantiles.tolist())


def test_var_is_the_slope_of_the_tail_integral():
    """d(α·CVaR_α)/dα = VaR_α, whatever the levels."""
    taus, quantiles = tail_levels(8, dtype=torch.float64)[0], doubles(8)
    for alpha in (0.004, 0.06, 0.3, 0.8):
        high, low = ((alpha + step) * risk.cvar_from_quantiles(quantiles, alpha + step, taus).item() for step in (1e-6, -1e-6))
        assert risk.var_from_quantiles(quantiles, alpha, taus).item() == pytest.approx((high - low) / 2e-6, abs=1e-5)


@pytest.mark.parametrize("alpha", [0.01, 0.5])
def test_one_quantile_is_the_whole_law(alpha):
    quantiles = doubles(3, 1)
    assert torch.equal(risk.cvar_from_quantiles(quantiles, alpha), quantiles[:, 0])
    assert torch.equal(risk.var_from_quantiles(quantiles, alpha), quantiles[:, 0])


@pytest.mark.parametrize("read", [risk.cvar_from_quantiles, risk.var_from_quantiles])
def test_read_outs_keep_the_dtype_and_have_gradients(read):
    quantiles = doubles(2, 6).requires_grad_()
    assert gradcheck(lambda q: read(q, 0.15), quantiles)
    assert read(quantiles.float(), 0.15).dtype == torch.float32
    assert read(quantiles.float(), 0.15, tail_levels(6)[0]).dtype == torch.float32
