"""What comes in: the quick look and the slow one say the same, and what was handed out may be written over."""

import pytest
import torch

from quantail import intake
from quantail.types import Step


def step(**changes):
    ends = torch.zeros(3, dtype=torch.bool)
    return Step(torch.randn(3, 4), torch.randn(3), ends, ends, pnl=torch.randn(3))._replace(**changes)


BROKEN = {
    "nothing": step(),
    "no pnl": step(pnl=None),
    "reward": step(reward=torch.tensor([1.0, torch.nan, 2.0])),
    "both infinities": step(pnl=torch.tensor([torch.inf, -torch.inf, 0.0])),
    "observation": step(obs=torch.randn(3, 4).index_fill(1, torch.tensor([2]), torch.inf)),
    "a part": step(obs={"a": torch.full((3, 2), torch.nan), "b": torch.arange(3)}),
    "too large to add": step(reward=torch.full((3,), 3e38)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_quick_look_says_what_the_slow_one_says(name, monkeypatch):
    quick = intake.finite(BROKEN[name])
    monkeypatch.setattr(intake, "free_to_look", lambda tensor: False)
    slow = intake.finite(BROKEN[name])
    assert bool(slow[3].any()) != (name in ("nothing", "no pnl", "too large to add"))
    for one, other in zip(quick, slow, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_only_what_is_surely_finite_is_looked_at_once():
    assert {name for name, one in BROKEN.items() if intake.surely_finite(one)} == {"nothing", "no pnl"}


def test_an_environment_may_write_over_what_it_handed_out():
    given = step()
    kept = [part.clone() for part in (given.reward, given.pnl, given.obs)]
    found = intake.finite(given)[:3]
    for part in (given.reward, given.pnl, given.obs):
        part.fill_(7.0)
    for one, other in zip(found, kept, strict=True):
        assert torch.equal(one, other)
