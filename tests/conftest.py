"""What every test is given."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded():
    """Every test draws the same numbers, whichever tests ran before it in its process."""
    torch.manual_seed(0)
