"""The fused loss is the plain one: values, gradients, in populations, in one graph, whatever fits into a cache."""

import pytest
import torch

from quantail.errors import InputError
from quantail.functional import quantile as plain
from quantail.kernels import native
from quantail.kernels import quantile as fused

KAPPAS = [0.0, 0.01, 0.3, 1.0]
LEVELS = plain.tail_levels(7, dtype=torch.float64)[0]


def rows(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    quantiles = torch.randn(*shape, 7, dtype=torch.float64, requires_grad=True)
    targets = torch.randn(*shape, 5, dtype=torch.float64)
    with torch.no_grad():
        targets[..., 0] = quantiles[..., 2]  # hits
    return quantiles, targets


def gradient(loss, quantiles, targets, kappa):
    return torch.autograd.grad((loss(quantiles, targets, LEVELS, kappa) ** 2).sum(), quantiles)[0]


@pytest.mark.parametrize("kappa", KAPPAS)
@pytest.mark.parametrize("pairs", [1, 7 * 5 * 4, 1 << 17])
def test_values_and_gradients_are_those_of_the_plain_loss(monkeypatch, kappa, pairs):
    monkeypatch.setitem(fused.PAIRS_AT_ONCE, "cpu", pairs)
    monkeypatch.setattr(native, "fits", lambda *tensors: False)
    quantiles, targets = rows(3, 2)
    expected = plain.quantile_huber_loss(quantiles, targets, LEVELS, kappa)
    torch.testing.assert_close(fused.quantile_huber_loss(quantiles, targets, LEVELS, kappa), expected, rtol=1e-13, atol=1e-14)
    expected = gradient(plain.quantile_huber_loss, quantiles, targets, kappa)
    found = gradient(fused.quantile_huber_loss, quantiles, targets, kappa)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kappa", [0.05, 1.0])
def test_gradcheck(kappa):
    quantiles, targets = torch.randn(3, 7, dtype=torch.float64, requires_grad=True), torch.randn(3, 5, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda q: fused.quantile_huber_loss(q, targets, LEVELS, kappa), quantiles)


@pytest.mark.parametrize("axes", [(0, 0), (1, None), (0, 1)])
def test_a_population_is_its_members(axes):
    members = torch.randn(4, 3, 7, dtype=torch.float64)
    targets = torch.randn(3, 5, dtype=torch.float64) if axes[1] is None else torch.randn(4, 3, 5, dtype=torch.float64)

    def slope(q, y):
        return torch.func.grad(lambda q: fused.quantile_huber_loss(q, y, LEVELS, 0.1).square().sum())(q)

    together = torch.vmap(slope, axes)(members.movedim(0, axes[0]), targets if axes[1] is None else targets.movedim(0, axes[1]))
    for member in range(4):
        alone = targets if axes[1] is None else targets[member]
        expected = gradient_of(members[member].clone().requires_grad_(), alone)
        torch.testing.assert_close(together[member], expected, rtol=1e-12, atol=1e-14)


def gradient_of(quantiles, targets):
    return torch.autograd.grad(plain.quantile_huber_loss(quantiles, targets, LEVELS, 0.1).square().sum(), quantiles)[0]


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch.compile does it to trace
def test_traces_as_one_graph():
    quantiles, targets = rows(6)
    compiled = torch.compile(fused.quantile_huber_loss, fullgraph=True, backend="aot_eager")
    expected = fused.quantile_huber_loss(quantiles, targets, LEVELS, 0.1)
    torch.testing.assert_close(compiled(quantiles, targets, LEVELS, 0.1), expected)


def test_targets_learn_nothing_and_a_second_derivative_is_refused():
    quantiles, targets = rows(3)
    targets.requires_grad_()
    loss = fused.quantile_huber_loss(quantiles, targets, LEVELS, 1.0).sum()
    (slope,) = torch.autograd.grad(loss, quantiles, create_graph=True)
    assert torch.autograd.grad(loss, targets, allow_unused=True, retain_graph=True) == (None,)
    with pytest.raises(InputError, match="quantile_huber_loss has no second derivative"):
        torch.autograd.grad(slope.sum(), quantiles)
