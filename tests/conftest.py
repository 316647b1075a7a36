"""What every test shares: one thread, one seed, and how hard hypothesis searches."""

import os

import pytest
import torch
from hypothesis import settings

settings.register_profile("default", derandomize=True, deadline=None, max_examples=50, database=None)
settings.register_profile("fuzz", deadline=None, max_examples=3000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Each test starts from the same random state, whichever tests ran before it."""
    torch.manual_seed(20)
