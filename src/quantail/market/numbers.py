"""What the accounting asks of arithmetic, so that one text serves thousands of portfolios on a device and one in Python.

Each field is a function. With one asset, tensors have no asset axis and `total` and `spread` do nothing: that is the fast
case. Plain numbers are Python floats and bools (one portfolio, one asset), a hundred times cheaper than tensors of one
element.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

Value = Any  # a tensor [B] or [B, A], an array [A], or a Python number: whatever the functions below take


class Numbers(NamedTuple):
    """Arithmetic beyond + − * / < & | of one kind of value; B portfolios, A assets."""

    where: Callable[[Value, Value, Value], Value]  # of three of the same kind: a Python number would wait for the device
    larger: Callable[[Value, Value], Value]
    at_least: Callable[[Value, float], Value]
    at_most: Callable[[Value, float], Value]
    size: Callable[[Value], Value]  # |x|
    log: Callable[[Value], Value]
    root: Callable[[Value], Value]
    truncate: Callable[[Value], Value]  # towards 0
    tanh: Callable[[Value], Value]
    shares: Callable[[Value], Value]  # softmax [B, A + 1], without the last, which is cash -> [B, A]
    known: Callable[[Value], bool]  # whether something is surely true, as far as can be said without waiting for a device
    no: Callable[[Value], Value]  # of a bool; a bool times a number chooses between it and 0
    within: Callable[[Value, float], Value]  # between −x and x
    ratio: Callable[[Value, Value], Value]  # [B] a/b; 1 of exactly nothing
    inverse: Callable[[Value], Value]  # [B] 1/x of x at least `LEAST`; 0 where x is not above 0
    share: Callable[[Value, Value, float], Value]  # x/whole, within a bound; 0 where whole is not above 0
    total: Callable[[Value], Value]  # over assets: [B, A] -> [B]
    some: Callable[[Value], Value]  # whether any asset's is true: [B, A] -> [B]
    spread: Callable[[Value], Value]  # over assets: [B] -> [B, 1]
    real: Callable[[Value], Value]  # whole numbers as float64
    each: Callable[[Value], list[Value]]  # one by one: [B, A] -> A times [B]


LEAST = 1e-9  # of currency: less is as good as nothing


def _same(x: Value) -> Value:
    return x


def _share(logits: Value) -> float:
    """Of one asset beside cash, without overflow: 1/(1 + e^(cash − asset))."""
    return 0.5 * (1.0 + math.tanh(0.5 * (float(logits[0]) - float(logits[1]))))


def _ratio(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a / b).masked_fill_(b == 0, 1.0)


def _inverse(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(min=LEAST).reciprocal_().masked_fill_(x <= 0, 0.0)


def _share_of(x: torch.Tensor, whole: torch.Tensor, most: float) -> torch.Tensor:
    return (x / whole.clamp(min=LEAST)).clamp_(-most, most).masked_fill_(whole <= 0, 0.0)


def _within(x: Value, most: float) -> Value:
    return min(max(x, -most), most) if isinstance(x, float) else np.minimum(np.maximum(x, -most), most)


def _inverse_of_one(x: Value) -> float:
    return 1.0 / max(x, LEAST) if x > 0 else 0.0


def _ratio_of_one(a: Value, b: Value) -> Value:
    return a / b if b != 0 else 1.0


def _shares(logits: Value) -> Value:
    odds = np.exp(logits - np.max(logits))
    return odds[:-1] / odds.sum()


_TENSORS = Numbers(
    where=torch.where,
    larger=torch.maximum,
    at_least=lambda x, low: x.clamp(min=low),
    at_most=lambda x, high: x.clamp(max=high),
    size=torch.abs,
    log=torch.log,
    root=torch.sqrt,
    truncate=torch.trunc,
    tanh=torch.tanh,
    shares=lambda logits: torch.softmax(logits, -1)[:, 0],
    known=lambda x: False,
    no=torch.logical_not,
    within=lambda x, most: x.clamp(-most, most),
    ratio=_ratio,
    inverse=_inverse,
    share=_share_of,
    total=_same,
    some=_same,
    spread=_same,
    real=lambda x: x.double(),
    each=lambda x: [x],
)
ONE_ASSET = _TENSORS  # tensors [B] for portfolios and for their one asset
MANY_ASSETS = _TENSORS._replace(
    shares=lambda logits: torch.softmax(logits, -1)[..., :-1],
    total=lambda x: x.sum(-1),
    some=lambda x: x.any(-1),
    spread=lambda x: x[..., None],
    each=lambda x: list(x.unbind(-1)),
)
FLOATS = Numbers(
    where=lambda mask, yes, no: yes if mask else no,
    larger=max,
    at_least=max,
    at_most=min,
    size=abs,
    log=math.log,
    root=math.sqrt,
    truncate=math.trunc,
    tanh=math.tanh,
    shares=_share,
    known=bool,
    no=lambda x: not x,
    within=_within,
    ratio=_ratio_of_one,
    inverse=_inverse_of_one,
    share=lambda x, whole, most: _within(x / max(whole, LEAST), most) if whole > 0 else 0.0,
    total=_same,
    some=_same,
    spread=_same,
    real=_same,
    each=lambda x: [x],
)
ARRAYS = Numbers(  # one portfolio of several assets: Python numbers for the portfolio, arrays [A] for its assets
    where=np.where,
    larger=lambda x, y: max(x, y) if isinstance(x, float) else np.maximum(x, y),
    at_least=lambda x, low: max(x, low) if isinstance(x, float) else np.maximum(x, low),
    at_most=lambda x, high: min(x, high) if isinstance(x, float) else np.minimum(x, high),
    size=abs,
    log=math.log,
    root=np.sqrt,
    truncate=np.trunc,
    tanh=np.tanh,
    shares=_shares,
    no=np.logical_not,
    within=_within,
    ratio=_ratio_of_one,
    inverse=_inverse_of_one,
    share=lambda x, whole, most: _within(x / max(whole, LEAST), most) if whole > 0 else x * 0.0,
    known=bool,
    total=lambda x: float(np.add.reduce(x)),
    some=np.logical_or.reduce,
    spread=_same,
    real=_same,
    each=list,
)
