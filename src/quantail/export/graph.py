"""Writing an ONNX graph node by node: a value is its name, a tensor becomes a constant."""

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from quantail.nets.encoder import ACTIVATIONS

DTYPES = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "uint8": TensorProto.UINT8,
    "int64": TensorProto.INT64,
    "bool": TensorProto.BOOL,
}


class Graph:
    """Nodes in the order in which they are written."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []

    def __call__(self, op: str, *inputs: str | Tensor, **attributes: Any) -> str:
        """A node; the name of its result."""
        return self.several(op, *inputs, outputs=1, **attributes)[0]

    def several(self, op: str, *inputs: str | Tensor, outputs: int, **attributes: Any) -> list[str]:
        """A node with several results; their names."""
        names = [f"{op}_{len(self.nodes)}_{i}" for i in range(outputs)]
        given = [self.constant(one) if isinstance(one, Tensor) else one for one in inputs]
        self.nodes.append(helper.make_node(op, given, names, **attributes))
        return names

    def constant(self, value: Tensor, name: str = "") -> str:
        """A tensor of the graph itself; with the name of an input, what that is where nothing is given."""
        name = name or f"constant_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value.detach().cpu().contiguous().numpy(), name))
        return name

    def input(self, name: str, dtype: str, shape: Sequence[int | str]) -> str:
        """What the caller gives; an axis with a name may have any size."""
        self.inputs.append(helper.make_tensor_value_info(name, DTYPES[dtype], shape))
        return name

    def output(self, name: str, value: str, shape: Sequence[int | str], dtype: str = "float32") -> None:
        """What the caller gets."""
        self.nodes.append(helper.make_node("Identity", [value], [name]))
        self.outputs.append(helper.make_tensor_value_info(name, DTYPES[dtype], shape))

    def cast(self, x: str, dtype: str) -> str:
        """In another type."""
        return self("Cast", x, to=DTYPES[dtype])

    def affine(self, x: str, weight: Tensor, bias: Tensor) -> str:
        """x·Wᵀ + b."""
        return self("Gemm", x, weight, bias, transB=1)

    def layers(self, net: nn.Module, x: str) -> str:
        """Linear layers and convolutions, the activations between them."""
        for layer in cast(nn.Sequential, net):
            if isinstance(layer, nn.Linear):
                x = self.affine(x, layer.weight, layer.bias)
            elif isinstance(layer, nn.Conv2d):
                x = self("Conv", x, layer.weight, cast(Tensor, layer.bias), strides=[2, 2], pads=[1, 1, 1, 1])
            else:
                x = self.activation(layer, x)
        return x

    def activation(self, layer: nn.Module, x: str) -> str:
        """One of `NetConfig.activation`."""
        kind = next(name for name, cls in ACTIVATIONS.items() if type(layer) is cls)
        if kind == "silu":
            return self("Mul", x, self("Sigmoid", x))
        if kind == "gelu":  # ½x·(1 + erf(x/√2)): a node of its own came in later opsets
            share = self("Add", self("Erf", self("Mul", x, number(math.sqrt(0.5)))), number(1.0))
            return self("Mul", self("Mul", x, number(0.5)), share)
        if kind == "leaky_relu":
            return self("LeakyRelu", x, alpha=0.01)
        return self({"tanh": "Tanh", "relu": "Relu", "elu": "Elu"}[kind], x)


def number(x: float) -> Tensor:
    """One float32."""
    return torch.tensor(x, dtype=torch.float32)


def index(*x: int) -> Tensor:
    """Axes, or places along one."""
    return torch.tensor(x, dtype=torch.int64)
