"""Configs as YAML, strict in both directions.

YAML as its version 1.2 means it: only `true` and `false` are booleans, so `clip: off` is the word, and `3e-4` is a number. A
key that comes twice is refused.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from quantail.config import Config
from quantail.errors import ConfigError


class _Loader(yaml.SafeLoader):
    """Reads plain values only; nothing in a file can make an object."""


class _Dumper(yaml.SafeDumper):
    """Writes short lists on one line."""


_INT = re.compile(r"^[-+]?\d+$")
_FLOAT = re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$|^[-+]?\.(inf|Inf|INF)$|^\.(nan|NaN|NAN)$")
_REPLACED = {f"tag:yaml.org,2002:{kind}" for kind in ("bool", "int", "float", "timestamp", "merge")}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in known if tag not in _REPLACED]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile(r"^(true|false)$"), list("tf"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if isinstance(key, list | dict) or key in seen:
            raise ConfigError(
                f"line {key_node.start_mark.line + 1}: the key {key!r} comes twice, or is no plain word; keep one"
            )
        seen[key] = loader.construct_object(value_node, deep=True)
    return seen


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)
_Dumper.add_representer(list, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True))


def to_yaml(config: Config) -> str:
    """Every setting of a config, in the order of the fields."""
    text: str = yaml.dump(config.to_dict(), Dumper=_Dumper, sort_keys=False, allow_unicode=True)
    return text


def from_yaml(text: str, base: Config | None = None) -> Config:
    """A config from text; what is left out is as in `base`, or has its default."""
    try:
        values = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"it is no YAML: {' '.join(str(error).split())}") from error
    if values is None:
        values = {}
    if not isinstance(values, dict):
        raise ConfigError(f"it holds {type(values).__name__}; needs settings by name, such as `total_timesteps: 100000`")
    return Config.from_dict(values if base is None else _over(base.to_dict(), values))


def read(path: Path, base: Config | None = None) -> Config:
    """A config from a file; the error names it."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ConfigError(f"{path} could not be read ({reason}); give a YAML file of settings") from error
    try:
        return from_yaml(text, base)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _over(base: dict[str, Any], values: dict[Any, Any]) -> dict[Any, Any]:
    """Nested settings over others; a field that is a mapping itself, like env.options, is taken whole."""
    whole = ("options",)
    return base | {
        key: _over(base[key], value)
        if isinstance(value, dict) and isinstance(base.get(key), dict) and key not in whole
        else value
        for key, value in values.items()
    }
