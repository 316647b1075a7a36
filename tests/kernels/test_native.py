"""The compiled loops give what torch gives; without a compiler, or where they are not wanted, nobody notices."""

import shutil

import pytest
import torch

from quantail.functional import quantile as plain
from quantail.functional import returns as plain_returns
from quantail.kernels import native, quantile, returns
from quantail.types import Law

compiled = pytest.mark.skipif(native.library() is None, reason="needs a C compiler")


@pytest.fixture
def fresh(monkeypatch, tmp_path):
    """A cache that holds nothing yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native.library.cache_clear()
    yield tmp_path
    native.library.cache_clear()


@compiled
@pytest.mark.parametrize("kappa", [0.0, 0.01, 1.0])
@pytest.mark.parametrize("sizes", [(1, 1), (7, 5), (16, 3), (19, 33)])
@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_the_loss_is_the_plain_one(kappa, sizes, dtype, rtol):
    n, m = sizes
    q = torch.randn(3, 2, n, dtype=dtype, requires_grad=True)
    y = torch.randn(2, 3, m, dtype=dtype).transpose(0, 1)  # not contiguous
    q.data[..., 0] = y[..., 0]  # hits
    levels = plain.midpoint_levels(n, dtype=dtype)[0]
    assert native.fits(q, y)
    found, expected = (loss(q, y, levels, kappa) for loss in (quantile.quantile_huber_loss, plain.quantile_huber_loss))
    torch.testing.assert_close(found, expected, rtol=rtol, atol=rtol * 1e-2)
    slopes = [torch.autograd.grad(loss.square().sum(), q)[0] for loss in (found, expected)]
    torch.testing.assert_close(*slopes, rtol=rtol, atol=rtol * 1e-2)


@compiled
@pytest.mark.parametrize("kappa", [0.0, 0.3])
@pytest.mark.parametrize("side", ["quantiles", "targets"])
def test_what_is_not_finite_is_told_as_torch_tells_it(kappa, side):
    q, y = torch.randn(4, 7), torch.randn(4, 5)
    broken = q if side == "quantiles" else y
    broken[1, 2], broken[2, 3] = torch.nan, torch.inf
    levels = plain.midpoint_levels(7)[0]
    loss, slopes = native.quantile_huber(q, y, levels, kappa)
    expected = plain.quantile_huber_loss(q, y, levels, kappa)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6, equal_nan=True)
    assert slopes[1].isnan().any()


@compiled
@pytest.mark.parametrize("n", [1, 2, 5, 16, 31, 32, 33, 256])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rows_come_out_in_order(n, dtype):
    x = torch.randn(3, 7, n, dtype=dtype).movedim(0, 1)
    x[0, 0, 0], x[1, 2, n // 2], x[2, 1, -1] = torch.inf, torch.nan, -torch.inf
    x[3, 0] = x[3, 0, :1]  # all equal
    assert torch.equal(native.sort_rows(x).nan_to_num(7e7), x.sort(-1).values.nan_to_num(7e7))


@compiled
def test_pooled_quantiles_are_those_of_the_plain_function():
    critics, masses = torch.randn(2, 5, 7), torch.rand(7)
    for reduce in ("mean", "min"):
        expected = plain.pool_quantiles(critics, reduce, masses)
        assert torch.equal(quantile.pool_quantiles(critics, reduce, masses), expected)
    slope = torch.autograd.functional.jacobian(lambda x: quantile.pool_quantiles(x, "mean", masses), critics)
    assert slope.any()


@compiled
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("sizes", [(1, 1), (5, 7), (32, 32), (19, 33)])
def test_particles_are_the_plain_ones_to_the_bit(sizes, dtype):
    n, m = sizes
    steps, envs = 9, 3
    rewards = torch.randn(steps, envs, dtype=dtype)
    law = Law(torch.randn(steps + 1, envs, n, dtype=dtype), plain.tail_levels(n, dtype=dtype)[1])
    terminated, truncated = torch.rand(steps, envs) < 0.2, torch.rand(steps, envs) < 0.2
    valid = torch.rand(steps, envs) < 0.8
    follow, level = (torch.rand(steps, envs, m, dtype=dtype) for _ in range(2))
    level[2, 1, 0], level[3, 0, -1] = 0.0, 1 - torch.finfo(dtype).eps / 2  # the ends of what a uniform can be
    terms = (rewards, law, terminated, truncated, 0.9, 0.7, follow, level)
    assert returns._in_one_loop(rewards, law, (follow, level), None, valid)
    found, expected = (f(*terms, valid=valid) for f in (returns.distributional_targets, plain_returns.distributional_targets))
    assert torch.equal(found, expected)


@compiled
def test_what_the_loop_of_particles_cannot_do_is_left_to_torch():
    rewards, law, noise = torch.zeros(4, 2), Law(torch.zeros(5, 2, 3), torch.ones(3) / 3), (torch.zeros(4, 2, 6),) * 2
    valid = torch.ones(4, 2, dtype=torch.bool)
    assert returns._in_one_loop(rewards, law, noise, None, valid)
    assert not returns._in_one_loop(rewards, law, noise, law, valid)
    assert not returns._in_one_loop(rewards, law, noise, None, None)
    assert not returns._in_one_loop(rewards, Law(law.locations, torch.ones(5, 2, 3)), noise, None, valid)
    assert not returns._in_one_loop(rewards, Law(torch.zeros(3), law.masses), noise, None, valid)
    assert not returns._in_one_loop(rewards, law, (noise[0], noise[0][..., :2]), None, valid)
    assert not returns._in_one_loop(rewards.requires_grad_(), law, noise, None, valid)


def test_other_kinds_of_tensors_stay_with_torch():
    here = torch.zeros(2, 3)
    assert not native.fits(here, here.double())
    assert not native.fits(here.half())
    assert not native.fits(here.to("meta"))
    assert torch.vmap(lambda x: x + float(native.fits(x)))(here).sum() == 0


@compiled
def test_it_is_built_once(fresh, monkeypatch):
    assert native.library() is not None
    (made,) = (fresh / "quantail").iterdir()
    native.library.cache_clear()
    monkeypatch.setattr(native, "build", lambda *_: pytest.fail("built again"))
    assert native.library() is not None
    assert [made] == list((fresh / "quantail").iterdir())


def test_without_a_compiler_torch_does_it(fresh, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert native.library() is None
    assert not native.fits(torch.zeros(2))


def test_a_compiler_that_fails_is_no_error(fresh, monkeypatch):
    monkeypatch.setenv("CC", "false")
    assert native.library() is None
    assert list((fresh / "quantail").iterdir()) == []


def test_it_can_be_turned_off(fresh, monkeypatch):
    monkeypatch.setenv("QUANTAIL_NATIVE", "0")
    assert native.library() is None
