"""A forbidden step changes nothing, also where the flag cannot be read and the step has to be undone."""

import itertools

import pytest
import torch

from quantail.config import OptimConfig, VarianceConfig
from quantail.optim import gated
from quantail.optim.gated import moved_by, step_if
from quantail.optim.joint import make

FLAGS = (True, False, True, True, False)
CASES = {
    "adam": OptimConfig(name="adam"),
    "adamw": OptimConfig(name="adamw", weight_decay=0.1),
    "sgd": OptimConfig(name="sgd"),
    "upgd": OptimConfig(name="upgd"),
    "adaptive_upgd": OptimConfig(name="adaptive_upgd"),
    "muon": OptimConfig(name="muon"),
    "adamw, scaled": OptimConfig(name="adamw", variance=VarianceConfig(estimator="elementwise", warmup=1)),
}


def weights():
    source = torch.Generator().manual_seed(3)
    return [torch.nn.Parameter(torch.randn(shape, generator=source, dtype=torch.float64)) for shape in ((4, 3), (5,))]


def walk(params, optimizer, flags, absent=()):
    """Weights and all that is kept after a step for each flag, with gradients that are NaN where it is False.

    In the steps that `absent` names the first parameter has none.
    """
    measured = itertools.count()
    for t, flag in enumerate(flags):
        for p in params:
            p.grad = p.detach().sin() + 0.1 if flag else torch.full_like(p, torch.nan)
        if t in absent:
            params[0].grad = None
        step_if(torch.tensor(flag), optimizer, params, lambda: measure(optimizer, measured))
    return moved_by(optimizer, params), next(measured)


def made(name):
    params = weights()
    return params, make(params, [], CASES[name], seed=0)


def measure(optimizer, measured):
    next(measured)
    if (scaler := gated.scaler_of(optimizer)) is not None:
        scaler.observe()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("flags", [FLAGS, (False, True), (False,)])
def test_a_step_that_is_undone_is_one_that_was_not_taken(name, flags, monkeypatch):
    expected, taken = walk(*made(name), flags)
    assert taken == sum(flags)
    monkeypatch.setattr(gated, "free_to_look", lambda flag: False)
    found, tried = walk(*made(name), flags)
    assert tried == len(flags)
    if any(flags):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    else:
        torch.testing.assert_close(found[:2], expected[:2], rtol=0, atol=0)
        assert all(not x.any() for x in found[2:])


@pytest.mark.parametrize("name", ["adam", "upgd", "adaptive_upgd"])
def test_a_step_is_undone_too_where_a_gradient_is_missing_for_the_first_time(name, monkeypatch):
    """Those that had counted on one tensor part there: what replaces it goes back as well."""
    flags, absent = (True, True, False, True, True), (2, 3)
    expected, _ = walk(*made(name), flags, absent)
    monkeypatch.setattr(gated, "free_to_look", lambda flag: False)
    (params, optimizer) = made(name)
    found, _ = walk(params, optimizer, flags, absent)
    assert [int(optimizer.state[p]["step"]) for p in params] == [3, 4]
    torch.testing.assert_close(found[:2], expected[:2], rtol=0, atol=0)


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_torchs_fused_optimizers_skip_by_themselves(name, monkeypatch):
    expected, _ = walk(*made(name), FLAGS)
    monkeypatch.setattr(gated, "free_to_look", lambda flag: False)
    monkeypatch.setattr(gated, "moved_by", None)  # nothing is kept and put back
    params, config = weights(), CASES[name]
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[name]
    options = {} if name == "sgd" else {"betas": (config.beta1, config.beta2), "eps": config.eps}
    optimizer = kind(params, config.learning_rate, weight_decay=config.weight_decay, fused=True, **options)
    found, _ = walk(params, optimizer, FLAGS)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12, check_dtype=False)
    for p in params:
        p.grad = torch.ones_like(p)
    before = [p.detach().clone() for p in params]
    optimizer.step()  # the last flag forbade its own step alone
    assert all(bool((p != old).all()) for p, old in zip(params, before, strict=True))
