"""The attacks in small; each script takes a larger `--count`."""

import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import attack_exceptions
import attack_ranks
import attack_signals
import attack_threads

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _handlers_and_hooks():
    before = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_exceptions():
    found = attack_exceptions.attack(100)
    assert found["exceptions"] == 100
    assert found["traces"] == 0, found["first"]


# A signal that strikes in a callback of the collector is lost, as Python has it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_signals():
    found = attack_signals.attack(100)
    assert found["signals"] == 100
    assert found["traces"] == 0, found["first"]


def test_threads():
    found = attack_threads.attack(8)
    assert found["wrong"] == 0, found


def test_two_ranks_one_raising():
    found = attack_ranks.attack()
    assert all(seconds < 30 for seconds in found["seconds"].values())
    assert found["wrong"] == 0, found
