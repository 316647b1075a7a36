"""Nested records of tensors: one function on every tensor of alike ones."""

from collections.abc import Callable, Mapping
from typing import Any


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
