"""Settings that refuse nonsense: checks for fields of a frozen dataclass, strict conversion to and from plain values."""

import dataclasses
import math
import numbers
import types
import typing
from difflib import get_close_matches
from typing import Any

from quantail.errors import ConfigError


def to_plain(value: Any) -> Any:
    """Nested dataclasses as nested mappings, tuples as lists."""
    if dataclasses.is_dataclass(value):
        return {one.name: to_plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {key: to_plain(inner) for key, inner in value.items()}
    return list(value) if isinstance(value, tuple) else value


def build(cls: Any, values: Any, path: str) -> Any:
    """A dataclass from a mapping; what is left out has its default, an unknown or ill-typed key is refused."""
    if not isinstance(values, dict):
        raise ConfigError(f"{path.rstrip('.') or 'the config'} is {values!r}; needs a mapping of {cls.__name__}'s fields")
    kinds = typing.get_type_hints(cls)
    for key in values:
        if key not in kinds:
            close = get_close_matches(str(key), kinds, n=1)
            hint = f"did you mean {path}{close[0]}?" if close else f"it has {', '.join(kinds)}"
            raise ConfigError(f"{path}{key} is no setting; {hint}")
    return cls(**{key: _convert(kinds[key], value, f"{path}{key}") for key, value in values.items()})


def _convert(kind: Any, value: Any, path: str) -> Any:
    """The value as the field's type, or an error that names the key."""
    if dataclasses.is_dataclass(kind):
        return build(kind, value, f"{path}.")
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if value is None and type(None) in options:
        return None
    if float in options and int not in options and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    for option in options:
        if typing.get_origin(option) is tuple and isinstance(value, list | tuple):
            return tuple(_convert(typing.get_args(option)[0], item, f"{path}[{i}]") for i, item in enumerate(value))
        if typing.get_origin(option) is dict and isinstance(value, dict):
            return _mapping(typing.get_args(option)[1], value, path)
        if isinstance(option, type) and type(value) is option:
            return value
    wanted = " or ".join("nothing" if option is type(None) else getattr(option, "__name__", str(option)) for option in options)
    raise ConfigError(f"{path}={value!r} is {type(value).__name__}; needs {wanted}")


def _mapping(kind: Any, values: dict[Any, Any], path: str) -> dict[str, Any]:
    """Names and values of a field that is a mapping itself."""
    for name in values:
        if not isinstance(name, str):
            raise ConfigError(f"{path} has the name {name!r}, which is {type(name).__name__}; needs text")
    return {name: _convert(kind, value, f"{path}.{name}") for name, value in values.items()}


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """One of a few words."""
    if value not in choices:
        close = get_close_matches(str(value), choices, n=1)
        raise ConfigError(
            f"{name}={value!r}; needs one of {', '.join(choices)}{f' (did you mean {close[0]}?)' if close else ''}"
        )


def check_counts(**values: int) -> None:
    """Whole numbers of things."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ConfigError(f"{name}={value!r}; needs a whole number of at least 1")


def check_sizes(**values: tuple[int, ...]) -> None:
    """Layer sizes."""
    for name, sizes in values.items():
        if not isinstance(sizes, tuple) or any(not isinstance(size, int) or size < 1 for size in sizes):
            raise ConfigError(f"{name}={sizes!r}; needs a tuple of whole numbers of at least 1, one for each layer")


def check_within(
    name: str, value: float, low: float = -math.inf, high: float = math.inf, *, low_open: bool = False, high_open: bool = False
) -> None:
    """A finite number in an interval."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ConfigError(f"{name}={value!r} is {type(value).__name__}; needs a number")
    inside = (value > low if low_open else value >= low) and (value < high if high_open else value <= high)
    if not inside or not math.isfinite(value):
        interval = f"{'(' if low_open else '['}{low:g}, {high:g}{')' if high_open else ']'}"
        raise ConfigError(f"{name}={value!r} is outside {interval}; choose a finite value inside")
