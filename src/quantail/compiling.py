"""Functions of nested records, compiled by torch."""

import logging
from collections.abc import Callable, Hashable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from quantail.trees import Build, flatten, kind_of, leaves_of

Function = Callable[..., Any]
LOG = logging.getLogger("quantail.engine")


def can_compile(device: torch.device) -> bool:
    """Whether torch's compiler finds what it needs: Triton on a GPU, a C++ compiler on a processor."""
    if device.type == "cuda":
        return torch.utils._triton.has_triton()
    from torch._inductor import config, cpp_builder

    try:
        cpp_builder.get_cpp_compiler()
    except (RuntimeError, OSError):
        return False
    return config.cpp.cxx is not None


class Compiled:
    """A function of nested records of tensors, compiled for what it is first given; anything else it is called with.

    What the compiler cannot take is called as it is, and said once.
    """

    def __init__(self, name: str, function: Function) -> None:
        self.name, self.function = name, function
        self.key: Hashable = None
        self.fast: Function | None = None
        self.shape: Build = lambda leaves: leaves  # known after the first call

    def __call__(self, *given: Any) -> Any:
        leaves, build = flatten(given)
        key = tuple(map(kind_of, leaves))
        if self.key is None:
            self.key, self.fast = key, self._compiled(leaves, build)
            made, self.shape = flatten(self.function(*given))
            self.rest = [None if isinstance(leaf, Tensor) else leaf for leaf in made]
        if self.fast is None or key != self.key:
            return self.function(*given)
        try:
            tensors = iter(self.fast(*(leaf for leaf in leaves if isinstance(leaf, Tensor))))
        except torch._dynamo.exc.TorchDynamoException as error:
            LOG.warning("%s cannot be compiled and is called as it is: %s", self.name, str(error).strip().splitlines()[0])
            self.fast = None
            return self.function(*given)
        return self.shape([next(tensors) if leaf is None else leaf for leaf in self.rest])

    def _compiled(self, leaves: list[Any], build: Build) -> Function:
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        constants = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]

        def flat(*tensors: Tensor) -> list[Tensor]:  # records are nothing that every compiler can hand out
            filled = list(constants)
            for i, tensor in zip(places, tensors, strict=True):
                filled[i] = tensor
            return [leaf for leaf in leaves_of(self.function(*build(filled))) if isinstance(leaf, Tensor)]

        own = FunctionType(flat.__code__.replace(co_name=f"flat_{id(self)}"), globals(), "flat", None, flat.__closure__)
        return torch.compile(own, dynamic=False, fullgraph=True)  # of one code it compiles a few only
