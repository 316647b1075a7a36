"""One argument of a good call goes bad: the table of a module's refusals, and what must hold of it."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from quantail.errors import InputError

Calls = Mapping[Callable[..., Any], Mapping[str, Any]]  # function -> the arguments of a call that works
OF_TORCH = {"dtype", "device"}  # handed on to torch, which refuses them in its own words


class Refusal(NamedTuple):
    """This argument, made bad, must be refused in these words."""

    function: Callable[..., Any]
    argument: str
    bad: Any
    words: str


def name(refusal: Refusal) -> str:
    """The test's name."""
    return f"{refusal.function.__name__}-{refusal.argument}"


def assert_refused(refusal: Refusal, good: Calls) -> str:
    """The good call works; with the one bad argument it raises InputError in the words of the table: the whole message."""
    arguments = good[refusal.function]
    refusal.function(**arguments)
    with pytest.raises(InputError) as caught:
        refusal.function(**{**arguments, refusal.argument: refusal.bad})
    assert refusal.words in str(caught.value)
    return str(caught.value)


def never_refused(module: ModuleType, table: Iterable[Refusal]) -> set[str]:
    """Parameters of the module's public functions that no entry of the table makes bad."""
    listed = {f"{refusal.function.__name__}({refusal.argument})" for refusal in table}
    return {
        f"{function.__name__}({parameter})"
        for function in vars(module).values()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and not function.__name__.startswith("_")
        for parameter in inspect.signature(function).parameters
        if parameter not in OF_TORCH
    } - listed
