"""Value heads: levels, laws, order, and a change of units that changes nothing."""

import pytest
import torch
from torch import Tensor

from quantail.config import CriticConfig
from quantail.errors import InputError
from quantail.nets.values import ValueHeads
from quantail.types import Scale

ROWS, ENVS, N, WIDTHS = 6, 5, 8, (4, 3)


def make(kind: str = "quantile", widths=WIDTHS, **options) -> ValueHeads:
    return ValueHeads(widths, CriticConfig(kind=kind, atoms=N, **options)).double()


def latents(heads: ValueHeads, size: float = 1.0) -> list[Tensor]:
    return [size * torch.randn(ROWS, ENVS, head.in_features, dtype=torch.float64) for head in heads.heads]


@pytest.mark.parametrize(("kind", "atoms"), [("quantile", N), ("categorical", N), ("scalar", 1)])
@pytest.mark.parametrize("widths", [(4,), (4, 3)])
def test_each_critic_has_its_own_layer(kind, atoms, widths) -> None:
    heads = make(kind, widths)
    inputs = latents(heads)
    out = heads(inputs)
    assert out.shape == (len(widths), ROWS, ENVS, atoms)
    for one, layer, x in zip(out, heads.heads, inputs, strict=True):
        torch.testing.assert_close(one, x @ layer.weight.T + layer.bias, rtol=1e-13, atol=1e-13)
    with pytest.raises(InputError, match="one for each critic"):
        heads([*inputs, inputs[0]])


def test_levels_of_a_quantile_critic() -> None:
    tail, middle = make(levels="tail"), make(levels="midpoint")
    torch.testing.assert_close(middle.taus, (torch.arange(N).double() + 0.5) / N, rtol=0, atol=1e-15)
    torch.testing.assert_close(middle.masses, torch.full((N,), 1 / N, dtype=torch.float64), rtol=0, atol=1e-15)
    torch.testing.assert_close(tail.taus[:4], 0.1 * ((torch.arange(4).double() + 0.5) / 4) ** 2, rtol=0, atol=1e-15)
    assert tail.masses.sum().item() == pytest.approx(1, abs=1e-15)
    assert ValueHeads((4,), CriticConfig()).taus.dtype == torch.float32


def test_laws_and_means() -> None:
    quantile, categorical, scalar = make(), make("categorical", support_width=3.5), make("scalar")
    out = quantile(latents(quantile))
    law = quantile.law(out)
    assert law.locations is out
    torch.testing.assert_close(quantile.mean(out), (out * quantile.masses).sum(-1))
    logits = categorical(latents(categorical))
    law = categorical.law(logits)
    assert law.locations.tolist() == pytest.approx([-3.5 + 7 * i / (N - 1) for i in range(N)], abs=1e-14)
    torch.testing.assert_close(law.masses, logits.exp() / logits.exp().sum(-1, keepdim=True))
    torch.testing.assert_close(categorical.mean(logits), (law.masses * law.locations).sum(-1))
    values = scalar(latents(scalar))
    assert torch.equal(scalar.mean(values), values[..., 0])


@pytest.mark.parametrize("levels", ["tail", "midpoint"])
def test_noncrossing_quantiles_are_in_order_around_their_mean(levels) -> None:
    heads = make(levels=levels, noncrossing=True)
    inputs = latents(heads, 20.0)
    out = heads(inputs)
    assert (out.diff(dim=-1) >= 0).all()
    raw = torch.stack([x @ layer.weight.T + layer.bias for layer, x in zip(heads.heads, inputs, strict=True)])
    torch.testing.assert_close(heads.mean(out), raw[..., 0], rtol=1e-12, atol=1e-10)
    assert (make(levels=levels)(inputs).diff(dim=-1) < 0).any()
    flat = heads([torch.zeros_like(x) for x in inputs])[0, 0, 0]
    standard = torch.distributions.Normal(0.0, 1.0).icdf(heads.taus)
    torch.testing.assert_close(flat, standard - (standard * heads.masses).sum(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", [{}, {"noncrossing": True}, {"kind": "scalar"}])
def test_a_change_of_units_changes_nothing(options) -> None:
    heads = make(**options)
    inputs = latents(heads)
    old = Scale(torch.tensor(1.5, dtype=torch.float64), torch.tensor(0.3, dtype=torch.float64))
    new = Scale(torch.tensor(-20.0, dtype=torch.float64), torch.tensor(7.0, dtype=torch.float64))
    before = heads(inputs) * old.std + old.mean
    heads.rescale_(old, new)
    torch.testing.assert_close(heads(inputs) * new.std + new.mean, before, rtol=1e-12, atol=1e-12)
    heads.rescale_(new, old)
    torch.testing.assert_close(heads(inputs) * old.std + old.mean, before, rtol=1e-12, atol=1e-12)


def test_categorical_atoms_stay_in_normalised_units() -> None:
    heads = make("categorical")
    inputs = latents(heads)
    before = heads(inputs)
    one, two = torch.ones((), dtype=torch.float64), torch.full((), 2.0, dtype=torch.float64)
    heads.rescale_(Scale(one, one), Scale(two, two))
    assert torch.equal(heads(inputs), before)


def test_a_categorical_critic_begins_near_the_standard_normal_law() -> None:
    """Equal logits on ±5 would have a deviation of 2.9: the first targets are draws from this, and set the atoms' scale."""
    heads = ValueHeads(WIDTHS, CriticConfig(kind="categorical")).double()
    law = heads.law(heads([torch.zeros(1, width, dtype=torch.float64) for width in WIDTHS]))
    normal = torch.distributions.Normal(0.0, 1.0).log_prob(law.locations).exp() * 0.1  # atoms lie 0.1 apart
    torch.testing.assert_close(law.masses, normal.expand_as(law.masses), rtol=1e-5, atol=1e-9)
