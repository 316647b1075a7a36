"""Every public function traces as one graph that computes what the plain call does; its gradients are finite differences."""

import inspect
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

from quantail.functional import actions, categorical, laws, moments, policy, quantile, returns, risk
from quantail.types import Law, Moments, Scale

MODULES = (actions, categorical, laws, moments, policy, quantile, returns, risk)
T, B, N, M, A, K = 5, 3, 7, 6, 2, 4

# Plain Python numbers in, fresh tensors out: called when something is built, nothing to trace.
BUILDERS = {"support", "midpoint_levels", "tail_levels", "no_moments", "pid_start"}


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def uniform(*shape: int) -> Tensor:
    return torch.rand(shape, dtype=torch.float64)


def cases() -> dict[str, tuple[Callable[..., object], list[Tensor]]]:
    """A call per public function, and the inputs whose gradients are compared."""
    torch.manual_seed(0)
    ended, cut = uniform(T, B) < 0.3, uniform(T, B) < 0.3
    taus, masses = quantile.tail_levels(N, dtype=torch.float64)
    atoms = categorical.support(-2, 2, N, dtype=torch.float64)
    law, final, old = Law(normal(T + 1, B, N), masses), Law(normal(T, B, N), masses), Law(normal(B, N), masses)
    old_probs, weights = normal(B, N).softmax(-1), uniform(T, B)
    noise, choices, draws = uniform(T, B, M), torch.randint(2, (B, 2)), normal(K, B, A)
    seen, more = Moments(normal(A), uniform(A), uniform(A) + 1), Moments(normal(A), uniform(A), uniform(A) + 1)
    scale, new_scale = Scale(normal(), uniform()), Scale(normal(), uniform())
    thresholds, happened = normal(T, B, K), normal(T, B)
    start, gains, knob, sizes = risk.pid_start(3), risk.PidGains(), uniform(), [K, N - K]
    return {
        "gae": (lambda r, v: returns.gae(r, v, ended, cut, 0.9, 0.8), [normal(T, B), normal(T + 1, B)]),
        "lambda_return": (
            lambda r, v, f: returns.lambda_return(r, v, ended, cut, 0.9, 0.8, final_values=f),
            [normal(T, B), normal(T + 1, B), normal(T, B)],
        ),
        "distributional_targets": (
            lambda r: returns.distributional_targets(r, law, ended, cut, 0.9, 0.8, noise, noise.flip(0), final_law=final),
            [normal(T, B)],
        ),
        "vtrace": (
            lambda x, r, v: returns.vtrace(x, r, v, ended, cut, 0.9, 0.8),
            [normal(T, B), normal(T, B), normal(T + 1, B)],
        ),
        "normalize_advantages": (lambda a: returns.normalize_advantages(a, "env", weights=weights), [normal(T, B)]),
        "quantile_mean": (lambda q: quantile.quantile_mean(q, masses), [normal(B, N)]),
        "sort_quantiles": (quantile.sort_quantiles, [normal(B, N)]),
        "quantile_huber_loss": (lambda q, y: quantile.quantile_huber_loss(q, y, taus, 0.5), [normal(B, N), normal(B, M)]),
        "pool_quantiles": (lambda q: quantile.pool_quantiles(q, "min", masses), [normal(2, B, N)]),
        "take_lowest": (lambda q: quantile.take_lowest(q, q.mean(-1)), [normal(2, B, N)]),
        "clip_quantiles": (
            lambda q, o: quantile.clip_quantiles(q, o, knob, "mean_and_variance", 1.0, masses),
            [normal(B, N), normal(B, N)],
        ),
        "clip_moments": (lambda q: quantile.clip_moments(Law(q, masses), old, 0.1, 2.0), [normal(B, N)]),
        "clip_excess": (lambda x: quantile.clip_excess(x, 0.5), [normal(B, N)]),
        "project": (lambda p, z: categorical.project(p, z, atoms), [uniform(B, M), normal(B, M)]),
        "two_hot": (lambda v: categorical.two_hot(v, atoms), [normal(B, M)]),
        "categorical_mean": (lambda p: categorical.categorical_mean(p, atoms), [uniform(B, N)]),
        "categorical_loss": (categorical.categorical_loss, [normal(B, N), uniform(B, N)]),
        "pool_categorical": (lambda p: categorical.pool_categorical(p, atoms, "min"), [uniform(2, B, N)]),
        "clip_categorical": (
            lambda x: categorical.clip_categorical(x, old_probs, atoms, 0.1, "per_quantile"),
            [normal(B, N)],
        ),
        "draw": (lambda q: categorical.draw(Law(q, masses), noise[0]), [normal(B, N)]),
        "draw_index": (lambda p: categorical.draw_index(p, noise[0]), [uniform(B, N)]),
        "cvar_of_samples": (lambda x, w: risk.cvar_of_samples(x, 0.3, w), [normal(B, N), uniform(B, N)]),
        "var_of_samples": (lambda x: risk.var_of_samples(x, 0.3), [normal(B, N)]),
        "cvar_from_categorical": (lambda p: risk.cvar_from_categorical(p, atoms, 0.3), [uniform(B, N)]),
        "var_from_categorical": (lambda p: risk.var_from_categorical(p, atoms, 0.3), [uniform(B, N)]),
        "cvar_from_quantiles": (lambda q: risk.cvar_from_quantiles(q, 0.05, taus), [normal(B, N)]),
        "var_from_quantiles": (lambda q: risk.var_from_quantiles(q, 0.05, taus), [normal(B, N)]),
        "cvar_weights": (lambda t: risk.cvar_weights(t, 0.05), [taus.clone()]),
        "area_weights": (lambda t: risk.area_weights(t, masses), [taus.clone()]),
        "interpolate_quantiles": (lambda q: laws.interpolate_quantiles(q, taus, masses), [normal(B, N)]),
        "interpolate_atoms": (lambda p: laws.interpolate_atoms(p, atoms, masses), [uniform(B, N)]),
        "cell_means": (lambda q: laws.cell_means(q, taus, masses), [normal(B, N)]),
        "share_below": (lambda w: laws.share_below(thresholds, happened, w), [uniform(T, B)]),
        "ru_cost": (lambda x: risk.ru_cost(x, 0.1, 0.05), [normal(B)]),
        "cvar_charge": (lambda x: risk.cvar_charge(x, knob, 0.05, -0.2), [normal(B)]),
        "blend_advantages": (lambda a, c: risk.blend_advantages(a, c, 0.3), [normal(T, B), normal(T, B)]),
        "penalize_advantages": (lambda a, c: risk.penalize_advantages(a, c, knob), [normal(T, B), normal(T, B)]),
        "pid_step": (lambda d: risk.pid_step(start, d, gains), [uniform()]),
        "clamp_log_ratio": (lambda x: policy.clamp_log_ratio(x, 1.0, "tanh"), [normal(B)]),
        "clipped_surrogate": (lambda x, a: policy.clipped_surrogate(x, a, knob), [normal(B), normal(B)]),
        "kl_estimate": (policy.kl_estimate, [normal(B)]),
        "kl_gaussian": (policy.kl_gaussian, [normal(B, A), normal(A), normal(B, A), normal(A)]),
        "kl_categorical": (policy.kl_categorical, [normal(B, K), normal(B, K)]),
        "awr_weights": (lambda a: policy.awr_weights(a, 0.5), [normal(B)]),
        "awr_loss": (lambda x, a: policy.awr_loss(x, a, 0.5), [normal(B), normal(B)]),
        "gaussian_sample": (actions.gaussian_sample, [normal(B, A), normal(A), normal(K, B, A)]),
        "gaussian_log_prob": (actions.gaussian_log_prob, [normal(B, A), normal(B, A), normal(A)]),
        "gaussian_entropy": (actions.gaussian_entropy, [normal(B, A)]),
        "squash": (lambda x: actions.squash(x, "tanh"), [normal(B, A)]),
        "log_slope": (lambda x: actions.log_slope(x, "sigmoid"), [normal(B, A)]),
        "squashed_log_prob": (
            lambda x, m, s: actions.squashed_log_prob(x, m, s, "tanh"),
            [normal(B, A), normal(B, A), normal(A)],
        ),
        "squashed_entropy": (lambda m, s: actions.squashed_entropy(m, s, draws, "tanh"), [normal(B, A), normal(A)]),
        "categorical_sample": (lambda x: actions.categorical_sample(x, noise[0, :, 0]), [normal(B, K)]),
        "categorical_log_prob": (lambda x: actions.categorical_log_prob(x, choices[:, 0]), [normal(B, K)]),
        "categorical_entropy": (actions.categorical_entropy, [normal(B, K)]),
        "multi_categorical_sample": (
            lambda x: actions.multi_categorical_sample(x, sizes, noise[0, :, :2]),
            [normal(B, N)],
        ),
        "multi_categorical_log_prob": (lambda x: actions.multi_categorical_log_prob(x, sizes, choices), [normal(B, N)]),
        "multi_categorical_entropy": (lambda x: actions.multi_categorical_entropy(x, sizes), [normal(B, N)]),
        "batch_moments": (lambda x: moments.batch_moments(x, (0, 1), weights), [normal(T, B, A)]),
        "finite_moments": (lambda m: moments.finite_moments(seen._replace(mean=m)), [normal(A)]),
        "merge_moments": (lambda m: moments.merge_moments(seen._replace(mean=m), more), [normal(A)]),
        "average_moments": (lambda m: moments.average_moments(seen._replace(mean=m), more, 0.1), [normal(A)]),
        "pool_moments": (lambda m: moments.pool_moments(seen._replace(mean=m)), [normal(A)]),
        "limit_scale": (lambda m: moments.limit_scale(scale, new_scale._replace(mean=m), 0.1), [normal()]),
        "standardize": (lambda x: moments.standardize(x, seen, 2.0), [normal(T, B, A)]),
        "scale_of": (lambda m: moments.scale_of(seen._replace(mean=m)), [normal(A)]),
        "popart_rescale": (lambda w, b: moments.popart_rescale(w, b, scale, new_scale), [normal(N, A), normal(N)]),
    }


CASES = cases()

# Inputs that learn nothing, on purpose: what a prediction is kept near, and the advantage that weighs a probability.
FIXED = {"clip_quantiles": {1}, "awr_loss": {1}}
# What is picked out of given values, or weighs: nothing moves it by a little.
CHOICES = {"draw_index", "var_from_categorical", "awr_weights", "categorical_sample", "multi_categorical_sample"}


def public_functions(module: ModuleType) -> set[str]:
    found = inspect.getmembers(module, inspect.isfunction)
    return {name for name, value in found if value.__module__ == module.__name__ and not name.startswith("_")}


def test_every_public_function_has_a_case() -> None:
    functions = set.union(*(public_functions(module) for module in MODULES))
    assert len(functions) > 50
    assert functions - BUILDERS == set(CASES)


def results_and_gradients(call: Callable[..., object], inputs: list[Tensor]) -> list[Tensor]:
    """All tensors of the result, and the gradient of their sum by each input that has one."""
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    result = call(*leaves)
    tensors = [x for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, Tensor)]
    smooth = [x.sum() for x in tensors if x.requires_grad]
    gradients = torch.autograd.grad(torch.stack(smooth).sum(), leaves, allow_unused=True) if smooth else ()
    return [x.detach() for x in [*tensors, *gradients] if x is not None]


@pytest.mark.parametrize("name", CASES)
def test_traces_without_a_break_and_computes_the_same(name: str) -> None:
    call, inputs = CASES[name]
    torch.compiler.reset()
    traced = torch.compile(call, fullgraph=True, backend="aot_eager")
    plain, compiled = results_and_gradients(call, inputs), results_and_gradients(traced, inputs)
    assert plain
    torch.testing.assert_close(compiled, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    """At the inputs of the cases, which lie at no kink."""
    call, inputs = CASES[name]
    leaves = [tensor.clone().requires_grad_(i not in FIXED.get(name, ())) for i, tensor in enumerate(inputs)]

    def smooth(*arguments: Tensor) -> tuple[Tensor, ...]:
        return tuple(x for x in torch.utils._pytree.tree_leaves(call(*arguments)) if isinstance(x, Tensor) and x.requires_grad)

    if smooth(*leaves):
        assert name not in CHOICES
        assert torch.autograd.gradcheck(smooth, leaves)
    else:
        assert name in CHOICES
