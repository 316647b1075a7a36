"""Nested values go to tensors and JSON and come back equal, onto templates that fit and onto no others."""

import json
import math
from typing import Any, NamedTuple

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from quantail.checkpoint.tree import Fields, decoded, encoded, rebuilt
from quantail.errors import CheckpointError, InputError

CPU = torch.device("cpu")


class Inner(NamedTuple):
    x: Any
    y: Any = None


class Outer(NamedTuple):
    inner: Inner
    parts: Any
    count: int = 0


def there_and_back(value):
    tensors: dict[str, torch.Tensor] = {}
    plain = json.loads(json.dumps(encoded(value, tensors), allow_nan=False))
    return decoded(plain, tensors)


def alike(one, other):
    """Equal in kind, and bit for bit in content."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and one.numpy().tobytes() == other.numpy().tobytes()
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(alike, one, other))
    return repr(one) == repr(other)  # tells -0.0 from 0.0, and NaN is NaN


TENSORS = [
    torch.tensor([1.5, -0.0, math.nan, math.inf], dtype=torch.float32),
    torch.tensor(3.0, dtype=torch.float64),
    torch.zeros(2, 0, dtype=torch.bool),
    torch.arange(6).reshape(2, 3),
    torch.tensor([[7, 255]], dtype=torch.uint8),
    torch.tensor([1.5, 2.5], dtype=torch.bfloat16).float().half(),
]
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text()
VALUES = st.recursive(
    PLAIN | st.sampled_from(TENSORS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.integers() | st.text(alphabet="abc", min_size=1, max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@pytest.mark.property
@given(VALUES)
def test_everything_comes_back_as_it_was(value):
    assert alike(there_and_back(value), value)


def test_records_come_back_as_fields_and_onto_a_template_as_records():
    saved = Outer(Inner(torch.ones(2), None), {"a": (torch.zeros(3), Inner(1.5))}, 4)
    plain = there_and_back(saved)
    assert type(plain) is Fields
    assert type(plain["inner"]) is Fields
    template = Outer(Inner(torch.zeros(2), 3), {"a": (torch.ones(3), Inner(0.0))})
    back = rebuilt(template, plain, CPU)
    assert alike(back, saved)
    assert isinstance(back.parts["a"][1], Inner)


def test_what_comes_back_shares_no_memory():
    shared = torch.ones(3)
    tensors: dict[str, torch.Tensor] = {}
    plain = encoded((shared, shared.expand(2, 3)), tensors)
    one, other = decoded(plain, tensors)
    one += 1
    assert torch.equal(shared, torch.ones(3))
    assert torch.equal(other, torch.ones(2, 3))
    assert torch.equal(decoded(plain, tensors)[0], torch.ones(3))


@pytest.mark.parametrize(
    ("template", "saved"),
    [
        ((), (1.0, 2.0)),  # a history grows
        (((1.0, 2.0),), ()),
        (None, 3),  # nothing known yet
        (3, None),
        (0.0, 2),  # a whole number is a number
        (None, torch.ones(2)),
        (None, ("a", 1.0)),
        (torch.zeros(2), torch.tensor([0.1, 0.2], dtype=torch.float64)),  # as fine as it was
    ],
)
def test_what_was_saved_counts(template, saved):
    assert alike(rebuilt(template, there_and_back(saved), CPU), saved)


@pytest.mark.parametrize(
    ("template", "saved", "words"),
    [
        (torch.ones(2), torch.ones(3), r"v is float32 \[3\] in the file; this run needs float32 \[2\]"),
        (torch.ones(2), torch.ones(2).long(), r"v is int64 \[2\] in the file; this run needs float32 \[2\]"),
        (torch.ones(2), 1.0, r"v is 1.0 in the file; this run needs float32 \[2\]"),
        (1.0, torch.ones(2), r"v is float32 \[2\] in the file; this run needs 1.0"),
        (1.0, "one", "v is 'one' in the file; this run needs 1.0"),
        (True, 1, "v is 1 in the file; this run needs True"),
        (None, Inner(1), "v is a Fields in the file; this run needs None"),
        ((), (torch.ones(1),), "v is a tuple in the file"),
        ((torch.ones(1),), (), r"v holds \(\) in the file; this run needs 1 parts"),
        ((torch.ones(1),), [torch.ones(1)], "v holds a list in the file; this run needs 1 parts"),
        (Inner(1), {"x": 1, "y": 2}, r"v holds a dict; this run needs \['x', 'y'\]"),
        (Inner(1), Outer(Inner(1), 2), r"v holds \['count', 'inner', 'parts'\]; this run needs \['x', 'y'\]"),
        ({"a": 1}, Inner(1), r"v holds a Fields; this run needs \['a'\]"),
        ({"a": 1}, {"b": 1}, r"v holds \['b'\]; this run needs \['a'\]"),
        ({"a": torch.ones(1)}, {"a": torch.ones(2)}, r"v\.a is float32 \[2\]"),
        (Inner((torch.ones(1),)), Inner((torch.ones(2),)), r"v\.x\.0 is float32 \[2\]"),
    ],
)
def test_what_does_not_fit_is_named(template, saved, words):
    with pytest.raises(CheckpointError, match=words):
        rebuilt(template, there_and_back(saved), CPU, "v")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"a": object()}, "a is a object; a checkpoint holds tensors"),
        ({"a": {1.5: 0}}, r"a has the key 1\.5"),
        ({"a": {True: 0}}, "a has the key True"),
        ({"a": {1, 2}}, "a is a set"),
        ({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}, r"two tensors are called 'a\.b'"),
    ],
)
def test_what_cannot_be_saved_is_refused(value, words):
    with pytest.raises(InputError, match=words):
        encoded(value, {})


@pytest.mark.parametrize("plain", [{"tensor": "gone"}, {"shell": "rm"}, {"a": 1, "b": 2}, {}, [1], {"map": [[1.5, 2]]}])
def test_what_was_never_encoded_is_no_value(plain):
    with pytest.raises((ValueError, KeyError, InputError)):
        decoded(plain, {})
