"""Nested records of tensors: one function on every tensor of alike ones, and records as flat lists."""

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import torch
from torch import Tensor

Build = Callable[[list[Any]], Any]


def tree_map(function: Callable[..., Any], first: Any, *others: Any) -> Any:
    """The function on every tensor of alike nested records; None stays None."""
    if first is None:
        return None
    if isinstance(first, Mapping):
        return {key: tree_map(function, value, *(other[key] for other in others)) for key, value in first.items()}
    if isinstance(first, tuple):
        parts = [tree_map(function, *values) for values in zip(first, *others, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    return function(first, *others)


def flatten(tree: Any) -> tuple[list[Any], Build]:
    """All leaves of nested records, in order, and how to build such records from others. None is no leaf."""
    leaves: list[Any] = []

    def place(node: Any) -> Build:
        if node is None:
            return lambda _: None
        if isinstance(node, Mapping):
            named = {key: place(value) for key, value in node.items()}
            return lambda values: {key: build(values) for key, build in named.items()}
        if isinstance(node, tuple | list):
            builds, kind = [place(part) for part in node], type(node)
            if hasattr(kind, "_fields"):
                return lambda values: kind(*(build(values) for build in builds))
            return lambda values: kind(build(values) for build in builds)
        at = len(leaves)
        leaves.append(node)
        return lambda values: values[at]

    return leaves, place(tree)


def leaves_of(tree: Any) -> list[Any]:
    """The leaves alone, in the order of `flatten`."""
    if tree is None:
        return []
    if isinstance(tree, Mapping):
        return [leaf for value in tree.values() for leaf in leaves_of(value)]
    if isinstance(tree, tuple | list):
        return [leaf for part in tree for leaf in leaves_of(part)]
    return [tree]


def kind_of(leaf: Any) -> Hashable:
    """What two leaves have in common for which the same calls are made: shape and dtype, or the value of what is no tensor."""
    if isinstance(leaf, Tensor):
        return (leaf.shape, leaf.dtype)
    return torch.Generator if isinstance(leaf, torch.Generator) else leaf
