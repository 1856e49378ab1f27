"""What holds of every test."""

import signal

import pytest
import torch

# A shell starts a background job with SIGINT ignored, and its children inherit that; some tests interrupt children.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Each draws the same numbers, whichever ran before it in its process; before fixtures, those of a module too."""
    torch.manual_seed(0)
