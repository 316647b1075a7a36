"""The checks themselves: what they let pass, what they refuse, and that the message tells enough to repair it."""

import inspect
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from quantail.errors import InputError, QuantailError
from quantail.functional import checks
from quantail.functional.checks import (
    bad_shape,
    check_choice,
    check_count,
    check_finite,
    check_increasing,
    check_knob,
    check_last,
    check_law,
    check_levels,
    check_mask,
    check_number,
    check_rank,
    check_record,
    check_shape,
    check_tensor,
)
from quantail.types import Law, Scale

NAN, INF = math.nan, math.inf
X = torch.zeros(5, 3)
ON_DEVICE = torch.ones(4, device="meta")  # no content to look at, as on an accelerator from the host's point of view

ACCEPTED = [
    (check_finite, {"a": X, "b": torch.tensor(0.0), "c": torch.zeros(0)}),
    (
        check_increasing,
        {"a": torch.tensor([-1.0, 0, 2]), "b": torch.tensor([[3.0], [1.0]]), "c": torch.tensor([[0.0, 1], [-5, 0]])},
    ),
    (check_increasing, {"a": ON_DEVICE}),
    (check_levels, {"name": "taus", "taus": torch.tensor([1e-9, 0.5, 1 - 1e-7])}),
    (check_levels, {"name": "taus", "taus": ON_DEVICE}),
    (check_tensor, {"name": "x", "tensor": X.half()}),
    (check_shape, {"name": "x", "tensor": X, "shape": [5, 3], "axes": "rows, features"}),
    (check_rank, {"name": "x", "tensor": X, "least": 2, "axes": "[rows, ...]"}),
    (check_rank, {"name": "x", "tensor": X[0, 0], "least": 0, "axes": "[...]"}),
    (check_last, {"name": "x", "tensor": X, "like": (5, 3), "axes": "rows, atoms"}),
    (check_last, {"name": "x", "tensor": X[0], "like": (5, 3), "axes": "rows, atoms"}),
    (check_law, {"name": "law", "law": Law(X, X[0]), "rows": (5,)}),
    (check_law, {"name": "law", "law": Law(X[0], X), "rows": [5]}),
    (check_law, {"name": "law", "law": Law(X[0], X[0]), "rows": (7, 2)}),
    (check_record, {"name": "law", "record": Law(X, X), "kind": Law}),
    (check_number, {"name": "x", "value": 0, "low": 0, "high": 0}),
    (check_number, {"name": "x", "value": np.float64(-1e300)}),
    (check_number, {"name": "x", "value": Fraction(1, 2), "low": 0.5, "high": 1, "high_open": True}),
    (check_knob, {"name": "x", "value": 0.0, "low": 0.0}),
    (check_knob, {"name": "x", "value": 1.0, "low": 0.0, "high": 1.0}),
    (check_knob, {"name": "x", "value": torch.tensor(-5.0), "low": 0.0, "low_open": True}),  # its content is not read
    (check_count, {"name": "n", "value": 2, "least": 2}),
    (check_count, {"name": "n", "value": 1}),
    (check_choice, {"name": "mode", "value": "b", "choices": ("a", "b")}),
]

NUMBER, KNOB = {"name": "x"}, {"name": "x", "low": 0.0}
LAST = {"name": "x", "like": (5, 3), "axes": "rows, atoms"}
MASK = {"name": "m", "shape": (5, 3), "axes": "as x"}
REFUSED = [
    (
        check_finite,
        {"x": torch.tensor([1.0, NAN])},
        "x has 1 non-finite entry of 2, the first is nan at [1]; remove it or mask its row",
    ),
    (
        check_finite,
        {"good": X, "x": torch.tensor([[0.0, 1], [-INF, NAN], [INF, 2]])},
        "x has 3 non-finite entries of 6, the first is -inf at [1, 0]; remove them or mask their rows",
    ),
    (
        check_finite,
        {"x": torch.tensor(INF)},
        "x has 1 non-finite entry of 1, the first is inf at []; remove it or mask its row",
    ),
    (check_finite, {"x": X.long()}, "x is torch.int64; needs floating point: pass x.float() or x.double()"),
    (
        check_increasing,
        {"x": torch.tensor([0.0, 1, 1])},
        "x must increase strictly, but does not after index [1]; sort it and drop duplicates",
    ),
    (
        check_increasing,
        {"a": torch.tensor([0.0, 1]), "x": torch.tensor([[0.0, 1], [2, 1]])},
        "x must increase strictly, but does not after index [1, 0]",
    ),
    (check_increasing, {"x": torch.tensor([0.0, NAN])}, "does not after index [0]"),
    (check_levels, {"name": "t", "taus": X}, "t has shape [5, 3]; needs [levels]"),
    (check_levels, {"name": "t", "taus": torch.tensor(0.5)}, "t has shape []; needs [levels]"),
    (check_levels, {"name": "t", "taus": torch.tensor([0.2, 0.1])}, "t must increase strictly"),
    (
        check_levels,
        {"name": "t", "taus": torch.tensor([0.0, 0.5])},
        "t runs from 0 to 0.5; needs levels strictly between 0 and 1",
    ),
    (
        check_levels,
        {"name": "t", "taus": torch.tensor([0.5, 1.0])},
        "t runs from 0.5 to 1; needs levels strictly between 0 and 1",
    ),
    (check_levels, {"name": "t", "taus": torch.tensor([NAN])}, "t runs from nan to nan"),
    (check_tensor, {"name": "x", "tensor": [1.0]}, "x is a list; needs a torch.Tensor: pass torch.as_tensor(x)"),
    (check_tensor, {"name": "x", "tensor": X.long()}, "x is torch.int64; needs floating point: pass x.float() or x.double()"),
    (check_tensor, {"name": "x", "tensor": X > 0}, "x is torch.bool; needs floating point"),
    (check_tensor, {"name": "x", "tensor": X + 1j}, "x is torch.complex64; needs floating point"),
    (check_shape, {"name": "x", "tensor": X, "shape": (3, 5), "axes": "a, b"}, "x has shape [5, 3]; needs [3, 5] (a, b)"),
    (check_shape, {"name": "x", "tensor": X.long(), "shape": (5, 3), "axes": "a, b"}, "x is torch.int64"),
    (
        check_rank,
        {"name": "x", "tensor": X, "least": 3, "axes": "[t, b, n]"},
        "x has shape [5, 3]; needs [t, b, n], no axis empty",
    ),
    (check_rank, {"name": "x", "tensor": X[:, :0], "least": 1, "axes": "[t]"}, "x has shape [5, 0]; needs [t], no axis empty"),
    (check_rank, {"name": "x", "tensor": 3.0, "least": 1, "axes": "[t]"}, "x is a float"),
    (check_last, {**LAST, "tensor": X[:, 0]}, "x has shape [5]; needs [5, 3] or [3] (rows, atoms)"),
    (check_last, {**LAST, "tensor": X[None]}, "x has shape [1, 5, 3]; needs [5, 3] or [3] (rows, atoms)"),
    (check_last, {**LAST, "tensor": X.long()}, "x is torch.int64"),
    (check_record, {"name": "x", "record": (X, X), "kind": Law}, "x is a tuple; needs Law(locations, masses)"),
    (check_record, {"name": "x", "record": Scale(X, X), "kind": Law}, "x is a Scale; needs Law(locations, masses)"),
    (check_law, {"name": "x", "law": X, "rows": (5,)}, "x is a Tensor; needs Law(locations, masses)"),
    (check_law, {"name": "x", "law": Law(X[0, 0], X), "rows": (5,)}, "x.locations has shape []; needs [..., atoms]"),
    (check_law, {"name": "x", "law": Law(X[:4], X), "rows": (5,)}, "x.locations has shape [4, 3]; needs [5, 3] or [3]"),
    (check_law, {"name": "x", "law": Law(X, X[0, :2]), "rows": (5,)}, "x.masses has shape [2]; needs [5, 3] or [3]"),
    (check_law, {"name": "x", "law": Law(X, X.long()), "rows": (5,)}, "x.masses is torch.int64"),
    (check_mask, {**MASK, "mask": True}, "m is a bool; needs a bool torch.Tensor: pass torch.as_tensor(m)"),
    (check_mask, {**MASK, "mask": X + 1j}, "m is torch.complex64; needs a bool tensor"),
    (check_mask, {**MASK, "mask": X[0] > 0}, "m has shape [3]; needs [5, 3] (as x)"),
    (check_number, {**NUMBER, "value": 1, "low": 1, "low_open": True}, "x=1 is outside (1, inf); choose a finite value inside"),
    (check_number, {**NUMBER, "value": 0.99, "low": 1}, "x=0.99 is outside [1, inf)"),
    (check_number, {**NUMBER, "value": 2, "high": 2, "high_open": True}, "x=2 is outside (-inf, 2)"),
    (check_number, {**NUMBER, "value": 2.01, "low": 1, "high": 2}, "x=2.01 is outside [1, 2]"),
    (check_number, {**NUMBER, "value": NAN}, "x=nan is outside (-inf, inf)"),
    (check_number, {**NUMBER, "value": INF}, "x=inf is outside (-inf, inf); choose a finite value inside"),
    (check_number, {**NUMBER, "value": -INF}, "x=-inf is outside (-inf, inf)"),
    (check_number, {**NUMBER, "value": True}, "x is bool True; needs a Python number"),
    (check_number, {**NUMBER, "value": "1"}, "x is str '1'; needs a Python number"),
    (check_number, {**NUMBER, "value": None}, "x is NoneType None; needs a Python number"),
    (check_knob, {**KNOB, "value": -0.1}, "x=-0.1 is outside [0, inf)"),
    (check_knob, {**KNOB, "value": 0.0, "low_open": True}, "x=0.0 is outside (0, inf)"),
    (check_knob, {**KNOB, "value": 1.1, "high": 1.0}, "x=1.1 is outside [0, 1]"),
    (check_knob, {**KNOB, "value": X}, "x has shape [5, 3]; needs [] (a scalar)"),
    (check_knob, {**KNOB, "value": torch.tensor(1)}, "x is torch.int64; needs floating point"),
    (check_count, {"name": "n", "value": 1, "least": 2}, "n=1; needs a whole number of at least 2"),
    (check_count, {"name": "n", "value": 0}, "n=0; needs a whole number of at least 1"),
    (check_count, {"name": "n", "value": 2.0}, "n=2.0; needs a whole number"),
    (check_count, {"name": "n", "value": True}, "n=True; needs a whole number"),
    (check_choice, {"name": "mode", "value": "c", "choices": ("a", "b")}, "mode='c'; needs one of 'a', 'b'"),
    (bad_shape, {"name": "x", "tensor": X, "needed": "[T] (time)"}, "x has shape [5, 3]; needs [T] (time)"),
]


def label(value: object) -> str:
    return value.__name__ if callable(value) else ""


@pytest.mark.parametrize(("check", "arguments"), ACCEPTED, ids=label)
def test_lets_pass(check, arguments):
    assert check(**arguments) is None


@pytest.mark.parametrize(("check", "arguments", "message"), REFUSED, ids=label)
def test_refuses_and_says_why(check, arguments, message):
    with pytest.raises(InputError) as raised:
        check(**arguments)
    assert message in str(raised.value)


def test_every_check_refuses_something():
    functions = {f for _, f in inspect.getmembers(checks, inspect.isfunction) if not f.__name__.startswith("_")}
    assert functions - {checks.free_to_look} == {check for check, *_ in REFUSED}


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32])
def test_masks_come_back_as_bool(dtype):
    mask = torch.tensor([[0, 1, 0], [1, 1, 0]], dtype=dtype)
    found = check_mask("m", mask, (2, 3), "rows")
    assert torch.equal(found, torch.tensor([[False, True, False], [True, True, False]]))


def test_one_except_clause_catches_them_all():
    assert issubclass(InputError, QuantailError)
    assert issubclass(InputError, ValueError)


def test_content_is_not_read_inside_a_compiled_region():
    @torch.compile(fullgraph=True, backend="eager")
    def looks(x):
        check_increasing(x=x)
        return x + 1

    falling = torch.tensor([1.0, 0.0])
    assert looks(falling).tolist() == [2, 1]
    with pytest.raises(InputError, match="x must increase"):
        check_increasing(x=falling)


def test_gradients_do_not_disturb_the_look():
    check_increasing(x=torch.tensor([0.0, 1.0], requires_grad=True))
