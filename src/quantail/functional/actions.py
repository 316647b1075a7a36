"""Action laws: Gaussian, Gaussian squashed into an interval, categorical, several categoricals side by side.

Noise comes in: standard normal for Gaussians, uniform on [0, 1) for choices. What is stored and replayed is the *raw*
action, before squashing: inverting a squash loses digits exactly where the policy is surest.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from quantail.errors import InputError
from quantail.functional.categorical import draw_index
from quantail.functional.checks import (
    bad_shape,
    check_choice,
    check_count,
    check_last,
    check_rank,
    check_shape,
    check_tensor,
)

HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)
LOG_4 = math.log(4.0)
SQUASHES = ("tanh", "sigmoid", "none")


def gaussian_sample(mean: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
    """Raw action of a diagonal Gaussian: x = μ + σ·ξ   (Kingma & Welling 2014, reparameterised).

    mean [..., A], log_std [..., A] or [A], noise standard normal [..., A] (more leading axes: more draws) -> as noise.
    """
    _check_gaussian(mean, log_std)
    check_tensor("noise", noise)
    if noise.shape[noise.ndim - mean.ndim :] != mean.shape:
        bad_shape("noise", noise, f"{list(mean.shape)}, or more axes in front of it")
    return mean + log_std.exp() * noise


def gaussian_log_prob(raw: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log-density of a diagonal Gaussian: Σ_a −½·((x − μ)/σ)² − log σ − ½·log 2π   (Source: textbook; Bishop 2006, eq. 2.43).

    raw, mean [..., A], log_std [..., A] or [A] -> [...], one number per row.
    """
    _check_gaussian(mean, log_std)
    check_shape("raw", raw, mean.shape, "as mean")
    standard = (raw - mean) * torch.exp(-log_std)
    return (-0.5 * standard.square() - log_std - HALF_LOG_TAU).sum(-1)


def gaussian_entropy(log_std: Tensor) -> Tensor:
    """Entropy of a diagonal Gaussian: Σ_a log σ + ½·log 2πe   (Shannon 1948).

    log_std [..., A] -> [...].
    """
    check_rank("log_std", log_std, 1, "[..., actions]")
    return (log_std + HALF_LOG_TAU + 0.5).sum(-1)


def squash(raw: Tensor, kind: str) -> Tensor:
    """The action the environment sees: tanh(x) in (−1, 1), sigmoid(x) in (0, 1), or x itself   (Haarnoja et al. 2018).

    raw [...], kind "tanh", "sigmoid" or "none" -> [...].
    """
    check_tensor("raw", raw)
    check_choice("kind", kind, SQUASHES)
    if kind == "none":
        return raw
    return raw.tanh() if kind == "tanh" else raw.sigmoid()


def log_slope(raw: Tensor, kind: str) -> Tensor:
    """Log-derivative of the squash, element by element   (Haarnoja et al. 2018, appendix C, in a form that never underflows).

        tanh: log(1 − tanh²x) = log 4 + log s(2x) + log s(−2x)      sigmoid: log s(x) + log s(−x),   s the logistic function

    raw [...] -> [...].
    """
    check_tensor("raw", raw)
    check_choice("kind", kind, SQUASHES)
    if kind == "none":
        return torch.zeros_like(raw)
    if kind == "tanh":
        return LOG_4 + logsigmoid(2 * raw) + logsigmoid(-2 * raw)
    return logsigmoid(raw) + logsigmoid(-raw)


def squashed_log_prob(raw: Tensor, mean: Tensor, log_std: Tensor, kind: str) -> Tensor:
    """Log-density of the squashed action y = f(x), from its raw x: log N(x) − Σ_a log|f′(x)|   (Haarnoja et al. 2018).

    raw, mean [..., A], log_std [..., A] or [A] -> [...].
    """
    return gaussian_log_prob(raw, mean, log_std) - log_slope(raw, kind).sum(-1)


def squashed_entropy(mean: Tensor, log_std: Tensor, noise: Tensor, kind: str) -> Tensor:
    """Entropy of the squashed action: H(Gaussian) + 1/K·Σ_k Σ_a log|f′(μ + σ·ξ_k)|   (Cover & Thomas 2006, eq. 8.68).

    mean [..., A], log_std [..., A] or [A], noise standard normal [K, ..., A] -> [...], differentiable in both. Only the
    second term is sampled, so it has little noise; the entropy of the raw Gaussian alone would reward saturation.
    """
    _check_gaussian(mean, log_std)
    check_rank("noise", noise, 2, "[draws, ..., actions]")
    check_shape("noise", noise, (noise.shape[0], *mean.shape), "draws, then as mean")
    slopes = log_slope(gaussian_sample(mean, log_std, noise), kind).sum(-1).mean(0)
    return gaussian_entropy(log_std.expand(mean.shape)) + slopes


def categorical_sample(logits: Tensor, noise: Tensor) -> Tensor:
    """Choice by inverse transform: the first k with Σ_{j≤k} softmax(x)_j > u   (Devroye 1986).

    logits [..., K] (−∞ forbids), noise uniform on [0, 1) [...] -> indices [...] (int64).
    """
    check_rank("logits", logits, 1, "[..., choices]")
    check_shape("noise", noise, logits.shape[:-1], "one for each row of logits")
    return draw_index(logits.softmax(-1), noise[..., None])[..., 0]


def categorical_log_prob(logits: Tensor, action: Tensor) -> Tensor:
    """Log-probability of a choice: log softmax(x)_a   (Source: definition; Sutton & Barto 2018, §13.1).

    logits [..., K], action indices [...] -> [...].
    """
    check_rank("logits", logits, 1, "[..., choices]")
    _check_indices(action, logits.shape[:-1])
    return logits.log_softmax(-1).gather(-1, action.long()[..., None])[..., 0]


def categorical_entropy(logits: Tensor) -> Tensor:
    """Entropy of a choice: −Σ_k p_k·log p_k, forbidden choices (logit −∞) counting 0   (Shannon 1948).

    logits [..., K] -> [...].
    """
    check_rank("logits", logits, 1, "[..., choices]")
    log_p = logits.log_softmax(-1)
    return -(log_p.exp() * torch.where(log_p == -math.inf, 0.0, log_p)).sum(-1)


def multi_categorical_sample(logits: Tensor, sizes: Sequence[int], noise: Tensor) -> Tensor:
    """Independent choices side by side, each as `categorical_sample`: a_d = sample(x_d)   (Tavakoli et al. 2018).

    logits [..., ΣK] in blocks of `sizes`, noise uniform on [0, 1) [..., D] -> indices [..., D].
    """
    blocks = _blocks(logits, sizes)
    check_shape("noise", noise, (*logits.shape[:-1], len(sizes)), "rows, then one for each choice")
    return torch.stack([categorical_sample(block, noise[..., d]) for d, block in enumerate(blocks)], -1)


def multi_categorical_log_prob(logits: Tensor, sizes: Sequence[int], action: Tensor) -> Tensor:
    """Log-probability of independent choices: Σ_d log softmax(x_d)_{a_d}   (Tavakoli et al. 2018).

    logits [..., ΣK], action indices [..., D] -> [...], one number per row.
    """
    blocks = _blocks(logits, sizes)
    _check_indices(action, (*logits.shape[:-1], len(sizes)))
    return torch.stack([categorical_log_prob(block, action[..., d]) for d, block in enumerate(blocks)]).sum(0)


def multi_categorical_entropy(logits: Tensor, sizes: Sequence[int]) -> Tensor:
    """Entropy of independent choices: Σ_d H(x_d)   (Shannon 1948).

    logits [..., ΣK] -> [...], one number per row.
    """
    return torch.stack([categorical_entropy(block) for block in _blocks(logits, sizes)]).sum(0)


def _check_gaussian(mean: Tensor, log_std: Tensor) -> None:
    check_rank("mean", mean, 1, "[..., actions]")
    check_last("log_std", log_std, mean.shape, "rows, actions")


def _check_indices(action: Tensor, shape: Sequence[int]) -> None:
    if not isinstance(action, Tensor) or action.dtype.is_floating_point or action.dtype == torch.bool:
        kind = action.dtype if isinstance(action, Tensor) else type(action).__name__
        raise InputError(f"action is {kind}; needs a tensor of whole numbers, the indices of the choices")
    if tuple(action.shape) != tuple(shape):
        bad_shape("action", action, f"{list(shape)} (one index for each choice)")


def _blocks(logits: Tensor, sizes: Sequence[int]) -> Sequence[Tensor]:
    check_rank("logits", logits, 1, "[..., choices]")
    for size in sizes:
        check_count("sizes", size)
    if sum(sizes) != logits.shape[-1]:
        bad_shape("logits", logits, f"[..., {sum(sizes)}], the sum of sizes={list(sizes)}")
    return torch.split(logits, list(sizes), -1)
