import pytest

import strategies


@pytest.mark.slow
@pytest.mark.parametrize("market", ["A hidden drift", "B bull and bear", "E Brownian, 8 %"])
def test_known_policies_earn_what_the_reference_says(market):
    """Part of the table, on a quarter of the paths and another seed than the published one: |z| ≤ 3.5 in every cell.

    Eleven cells at 3.5 standard errors: a sound simulator fails once in 200 seeds; this seed is fixed.
    """
    found = strategies.cells(market, 128, 20, seed=11)
    assert {cell.policy: round(cell.z, 1) for cell in found if abs(cell.z) > 3.5} == {}
    assert len(found) >= 7


def test_the_simple_book_and_the_environment_agree():
    """Targets of 0 and 1 do not drift: the same book, but for when costs are taken, after the trade or before."""
    model, rows = strategies.MARKETS["E Brownian, 8 %"]
    world = strategies.Synthetic(model, paths=4, bars=200, features=strategies.blind)
    _, made = world.drawn(0, strategies.torch.device("cpu"))
    weights = rows["momentum 20"][1](model, made, made.close).double().clamp(min=0.0)
    ours = strategies.played_returns(world, weights)
    simple = strategies.policies.net_returns(weights, made.close, strategies.COST_BPS)
    assert float((ours - simple).abs().max()) < 5e-4 * 0.1
    assert float(simple.abs().max()) > 0.01
