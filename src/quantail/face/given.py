"""Attributes that say what was asked for, or what holds; setting one would change nothing, so it is refused."""

from collections.abc import Callable
from typing import Any

from quantail.config import Config


class _ReadOnly:
    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __set__(self, model: Any, value: Any) -> None:
        raise AttributeError(
            f"{self.name} is fixed once the model is made; give it to the constructor, or to load(path, {self.name}=...)"
        )


class Given(_ReadOnly):
    """A keyword as it was given."""

    def __get__(self, model: Any, owner: type) -> Any:
        return self if model is None else getattr(model.arguments, self.name)


class Derived(_ReadOnly):
    """What follows from the model's parts."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self.read = read

    def __get__(self, model: Any, owner: type) -> Any:
        return self if model is None else self.read(model)


class Setting(_ReadOnly):
    """What the config says, under the name of a keyword."""

    def __init__(self, read: Callable[[Config], Any]) -> None:
        self.read = read

    def __get__(self, model: Any, owner: type) -> Any:
        return self if model is None else self.read(model.config)


class Scheduled(Setting):
    """A keyword that may be a function; if it is none, what the config says."""

    def __get__(self, model: Any, owner: type) -> Any:
        given = None if model is None else getattr(model.arguments, self.name)
        return given if callable(given) else super().__get__(model, owner)
