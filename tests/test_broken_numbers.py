"""What `benchmarks/broken_numbers.py` promises: weights stay finite, words name what broke, training ends as it should."""

import math

import pytest

import broken_numbers


@pytest.mark.parametrize(("what", "forever"), [("reward", False), ("observation", False), ("observation", True)])
def test_broken_numbers_are_named_and_reach_no_weight(what, forever):
    """Also where each episode begins with a row that is whole: of too few of those nothing is learned."""
    outcome = broken_numbers.attempt("quantail", what, math.nan, forever, 10_000 if forever else 500)
    assert broken_numbers.kept(outcome), outcome
    seen = "obs" if what == "observation" else what
    assert f"{seen} was not finite in environments [0]" in outcome.words or forever
