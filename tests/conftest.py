"""What holds of every test."""

import pytest
import torch


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Each draws the same numbers, whichever ran before it in its process; before fixtures, those of a module too."""
    torch.manual_seed(0)
