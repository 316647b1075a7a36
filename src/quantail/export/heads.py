"""What a graph says of a row: the action and its law, the value and the law of the return."""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from quantail.config import CriticConfig
from quantail.export.graph import Graph, index, number
from quantail.nets.heads import LOG_STD_RANGE, SDE_VARIANCE, ChoiceHead, GaussianHead
from quantail.nets.values import ValueHeads
from quantail.types import Scale

# --- the policy -------------------------------------------------------------------------------------------------------


def gaussian(write: Graph, head: GaussianHead, latent: str) -> None:
    """mean and log_std of the raw action, and the likeliest action within its box."""
    mean = write.affine(latent, head.mean.weight, head.mean.bias)
    if head.log_std_layer is not None:
        free = write.affine(latent, head.log_std_layer.weight, head.log_std_layer.bias)
        log_std = write("Clip", free, *(number(side) for side in LOG_STD_RANGE))
    elif head.gsde:
        induced = write("MatMul", write("Mul", latent, latent), (2 * cast(Tensor, head.log_std)).exp())
        log_std = write("Mul", write("Log", write("Add", induced, number(SDE_VARIANCE))), number(0.5))
    else:
        log_std = write("Expand", cast(Tensor, head.log_std), write("Shape", mean))
    low, high = (cast(Tensor, side).float() for side in (head.low, head.high))
    action = mean
    if head.squash != "none":
        share = write("Sigmoid" if head.squash == "sigmoid" else "Tanh", mean)
        if head.squash == "tanh":
            share = write("Mul", write("Add", share, number(1.0)), number(0.5))
        action = write("Add", write("Mul", share, high - low), low)
    action = write("Min", write("Max", action, low), high)
    write.output("action", write("Reshape", action, index(-1, *head.shape)), ["batch", *head.shape])
    for name, value in (("mean", mean), ("log_std", log_std)):
        write.output(name, value, ["batch", head.noise_dim])


def choices(write: Graph, head: ChoiceHead, latent: str, masked: bool) -> None:
    """logits, -inf of what `action_mask` forbids, and the likeliest choices; without masks that is no input."""
    sizes, several = index(*head.sizes), len(head.sizes) > 1
    logits = write.affine(latent, head.logits.weight, head.logits.bias)
    if masked:
        mask = write.input("action_mask", "bool", ["batch", sum(head.sizes)])
        blocks = write.several("Split", mask, sizes, axis=-1, outputs=len(head.sizes)) if several else [mask]
        allowed = [_some(write, block) for block in blocks]
        logits = write("Where", write("Concat", *allowed, axis=-1), logits, number(-math.inf))
    sides = write.several("Split", logits, sizes, axis=-1, outputs=len(head.sizes)) if several else [logits]
    best = [write("ArgMax", side, axis=-1, keepdims=int(not head.single)) for side in sides]
    action = write("Concat", *best, axis=-1) if several else best[0]
    write.output("action", action, ["batch"] if head.single else ["batch", len(head.sizes)], "int64")
    write.output("logits", logits, ["batch", sum(head.sizes)])


def _some(write: Graph, allowed: str) -> str:
    """A mask that forbids all forbids none."""
    most = write("ReduceMax", write.cast(allowed, "float32"), axes=[-1], keepdims=1)
    return write("Or", allowed, write("Equal", most, number(0.0)))


# --- the critics ------------------------------------------------------------------------------------------------------


def values(write: Graph, heads: ValueHeads, latents: Sequence[str], scale: Scale, config: CriticConfig) -> None:
    """The law of the return that all critics together stand for, in raw units, as `estimate.pooled_law`; and its mean."""
    said = [_said(write, heads, at, latent) for at, latent in enumerate(latents)]
    if config.kind == "categorical":
        atoms = (heads.atoms * scale.std + scale.mean).float()
        law = _pooled(write, [write("Softmax", one, axis=-1) for one in said], atoms, config.twin_reduce)
        _tell(write, law, atoms, heads, "probabilities")
        return
    laws = [write("Add", write("Mul", one, scale.std.float()), scale.mean.float()) for one in said]
    if config.twin_reduce == "mean":
        laws = [_sorted(write, one, heads) for one in laws]
    law = _pooled(write, laws, heads.masses, config.twin_reduce)
    _tell(write, law, heads.masses, heads, "quantiles")


def _tell(write: Graph, law: str, weights: Tensor, heads: ValueHeads, name: str) -> None:
    """The mean Σ x·w, and the law itself where it is more than that."""
    write.output("value", write("MatMul", law, weights), ["batch"])
    if heads.kind != "scalar":
        write.output(name, law, ["batch", len(weights)])


def _pooled(write: Graph, laws: Sequence[str], weights: Tensor, reduce: str) -> str:
    """The mean of the laws, or the one whose mean is lowest, of equal ones the first."""
    if len(laws) == 1:
        return laws[0]
    if reduce == "mean":
        return write("Mean", *laws)
    one, other = laws
    column = weights[:, None]
    lower = write("Less", write("MatMul", other, column), write("MatMul", one, column))
    return write("Where", lower, other, one)


def _said(write: Graph, heads: ValueHeads, at: int, latent: str) -> str:
    """What one critic says, [B, N] in normalised units."""
    layer = cast(nn.Linear, heads.heads[at])
    raw = write.affine(latent, layer.weight, layer.bias)
    if heads.sorting:
        return _sorted(write, raw, heads)
    if not heads.noncrossing:
        return raw
    size = len(heads.masses)
    mean, steps = write.several("Split", raw, index(1, size - 1), axis=-1, outputs=2)
    gaps = cast(Tensor, heads.exact_gaps).float() / math.log(2)
    rise = write("MatMul", write("Mul", write("Softplus", steps), gaps), torch.ones(size - 1, size).triu(1))
    centred = write("Sub", rise, write("MatMul", rise, heads.masses[:, None]))
    gain, shift = cast(Tensor, heads.gain)[at], cast(Tensor, heads.shift)[at]
    return write("Add", write("Mul", write("Add", mean, centred), gain), shift)


def _sorted(write: Graph, x: str, heads: ValueHeads) -> str:
    """Along the quantiles, the lowest first."""
    return write.several("TopK", x, index(len(heads.masses)), axis=-1, largest=0, sorted=1, outputs=2)[0]
