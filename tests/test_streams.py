"""The counter is the whole state of the random numbers."""

import itertools

import numpy as np
import torch
from scipy import stats

from quantail.streams import Stream, generator, normal, uniform


def first(seed, stream, iteration):
    return tuple(uniform((4,), generator(seed, stream, iteration)).tolist())


def test_the_same_address_gives_the_same_numbers():
    assert first(3, Stream.ACT, 5) == first(3, Stream.ACT, 5)


def test_every_other_address_gives_others():
    seeds = (0, 1, 2, 2**31, 2**32, 2**32 + 1, 2**63, 2**64 + 1)
    addresses = list(itertools.product(seeds, Stream, (0, 1, 2, 10**6)))
    assert len({first(*address) for address in addresses}) == len(addresses)


def test_an_iteration_draws_the_same_whatever_was_drawn_before():
    torch.manual_seed(1)
    one = first(0, Stream.ENVIRONMENT, 9)
    torch.manual_seed(2)
    torch.rand(100)
    generator(0, Stream.ENVIRONMENT, 8)
    assert first(0, Stream.ENVIRONMENT, 9) == one


def test_drawing_leaves_the_global_stream_alone():
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    normal((5,), generator(0, Stream.ACT, 0))
    assert torch.equal(torch.rand(3), expected)


def test_the_numbers_of_streams_never_change():
    """They are part of every saved run."""
    named = {"INIT": 0, "RESET": 1, "ACT": 2, "ENVIRONMENT": 3, "TARGETS": 4, "ORDER": 6, "DROPOUT": 7, "EXPLORE": 8}
    assert {one.name: one.value for one in Stream} == named | {"PLAY": 9, "PLAY_ACT": 10, "OPTIM": 16}


def test_laws_shapes_and_types():
    source = generator(0, Stream.ACT, 0)
    drawn = normal((40, 50), source, torch.float64)
    assert drawn.shape == (40, 50)
    assert drawn.dtype == torch.float64
    assert stats.kstest(drawn.flatten().numpy(), "norm").pvalue > 1e-3
    flat = uniform((2000,), source)
    assert flat.dtype == torch.float32
    assert 0 <= flat.min() < flat.max() < 1
    assert stats.kstest(flat.numpy(), "uniform").pvalue > 1e-3


def test_streams_are_not_correlated():
    rows = [normal((2000,), generator(0, stream, i)).numpy() for stream in Stream for i in (0, 1)]
    off = np.corrcoef(rows)[~np.eye(len(rows), dtype=bool)]
    assert np.abs(off).max() < 5 / np.sqrt(2000)
