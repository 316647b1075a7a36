"""Nested values as tensors and plain JSON, and back again onto templates.

What may be nested: NamedTuples, mappings with keys of text or whole numbers, tuples and lists; what may lie inside: tensors,
numbers, text, None. A record comes back as its fields by name until a template says which NamedTuple it was, so a file can
make nothing but plain containers.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from quantail.errors import CheckpointError, InputError

Json = Any  # what json.loads may give


class Fields(dict[str, Any]):
    """A NamedTuple as it comes out of a file: its fields by name."""


def encoded(value: Any, tensors: dict[str, Tensor], path: str = "") -> Json:
    """The value as JSON; each tensor in it goes into `tensors` under its path, and the JSON holds that name."""
    if isinstance(value, Tensor):
        if path in tensors:
            raise InputError(f"two tensors are called {path!r}; rename a key that has a dot in it")
        tensors[path] = value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        return {"tensor": path}
    if isinstance(value, Mapping):
        return {"map": [[_key(key, path), encoded(inner, tensors, joined(path, key))] for key, inner in value.items()]}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = zip(value._fields, value, strict=True)
        return {"record": {name: encoded(inner, tensors, joined(path, name)) for name, inner in fields}}
    if isinstance(value, tuple | list):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [encoded(inner, tensors, joined(path, i)) for i, inner in enumerate(value)]}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(float(value))}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(f"{path} is a {type(value).__name__}; a checkpoint holds tensors, numbers, text and records of these")


def decoded(plain: Json, tensors: Mapping[str, Tensor]) -> Any:
    """The inverse of `encoded`, but for NamedTuples, which come back as `Fields`."""
    if not isinstance(plain, dict):
        if isinstance(plain, list):
            raise ValueError("a list without its kind")
        return plain
    ((kind, inside),) = plain.items()
    match kind:
        case "tensor":
            return tensors[inside].clone()
        case "map":
            return {_key(key, "map"): decoded(inner, tensors) for key, inner in inside}
        case "record":
            return Fields({name: decoded(inner, tensors) for name, inner in inside.items()})
        case "tuple":
            return tuple(decoded(inner, tensors) for inner in inside)
        case "list":
            return [decoded(inner, tensors) for inner in inside]
        case "float":
            return float(inside)
    raise ValueError(f"{kind!r} is no kind of value")


def rebuilt(template: Any, saved: Any, device: torch.device, path: str = "") -> Any:
    """What was saved, in the shape of a template: its NamedTuples, its keys, its tensors' shapes; on the device.

    Plain values take what was saved, also where the template has none yet, or another number of them.
    """
    if isinstance(template, Tensor):
        return _tensor(template, saved, path).to(device)
    if isinstance(template, tuple) and hasattr(template, "_fields"):
        _same_names(template._fields, saved, Fields, path)
        inner = {
            name: rebuilt(part, saved[name], device, joined(path, name))
            for name, part in zip(template._fields, template, strict=True)
        }
        return type(template)(**inner)
    if isinstance(template, Mapping):
        _same_names(template, saved, dict, path)
        return {key: rebuilt(part, saved[key], device, joined(path, key)) for key, part in template.items()}
    if isinstance(template, tuple | list) and not is_plain(template):
        if type(saved) is not type(template) or len(saved) != len(template):
            raise CheckpointError(f"{path} holds {_described(saved)} in the file; this run needs {len(template)} parts")
        pairs = zip(cast(Sequence[Any], template), saved, strict=True)
        return type(template)(rebuilt(part, inner, device, joined(path, i)) for i, (part, inner) in enumerate(pairs))
    if template is None and isinstance(saved, Tensor):
        return saved.to(device)
    if not is_plain(saved) or not _alike(template, saved):
        raise CheckpointError(f"{path} is {_described(saved)} in the file; this run needs {_described(template)}")
    return saved


def is_plain(value: Any) -> bool:
    """Whether there is no tensor and no record inside."""
    if isinstance(value, tuple | list):
        return not hasattr(value, "_fields") and all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def joined(path: str, name: Any) -> str:
    """One step further into a tree."""
    return f"{path}.{name}" if path else str(name)


def _tensor(template: Tensor, saved: Any, path: str) -> Tensor:
    """The saved tensor as fine as it was: a template of zeros may be coarser than what a run made of it."""
    if not isinstance(saved, Tensor) or saved.shape != template.shape or not _same_kind(saved.dtype, template.dtype):
        raise CheckpointError(
            f"{path} is {_described(saved)} in the file; this run needs {_described(template)}: use the environment and "
            "the settings it was saved with"
        )
    return saved


def _same_kind(one: torch.dtype, other: torch.dtype) -> bool:
    return one == other or (one.is_floating_point and other.is_floating_point)


def _same_names(needed: Iterable[Any], saved: Any, kind: type, path: str) -> None:
    names = set(saved) if isinstance(saved, dict) and type(saved) is kind else None
    if names != set(needed):
        seen = _described(saved) if names is None else sorted(map(str, names))
        raise CheckpointError(f"{path or 'the checkpoint'} holds {seen}; this run needs {sorted(map(str, needed))}")


def _alike(template: Any, saved: Any) -> bool:
    """Whether one can stand for the other; None can for everything plain."""
    if template is None or saved is None:
        return True
    numbers = [isinstance(value, int | float) and not isinstance(value, bool) for value in (template, saved)]
    return all(numbers) or type(template) is type(saved)


def _key(key: Any, path: str) -> str | int:
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise InputError(f"{path} has the key {key!r}; a checkpoint needs keys of text or whole numbers")
    return key


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return repr(value) if is_plain(value) and len(repr(value)) < 60 else f"a {type(value).__name__}"
