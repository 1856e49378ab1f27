"""One measurement at a time, and signals that wait at its edges."""

import signal
import threading
import time
from contextlib import contextmanager

import pytest

from normscope.isolation import one_at_a_time, signals
from normscope.isolation.one_at_a_time import in_turn, turn


class Struck(BaseException):
    """Raised by the handler."""


@pytest.fixture
def struck():
    def strike(number, frame):
        raise Struck

    before = signal.signal(signal.SIGUSR1, strike)
    yield strike
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_waits_until_something_is_entered(struck):
    steps = []

    @contextmanager
    def entered():
        signal.raise_signal(signal.SIGUSR1)
        steps.append("entered")
        try:
            yield
        finally:
            steps.append("left")

    def work():
        with turn, entered():
            signals.deliver()
            steps.append("never")

    with pytest.raises(Struck):
        work()
    assert steps == ["entered", "left"]
    assert signal.getsignal(signal.SIGUSR1) is struck


def test_a_signal_while_leaving_comes_at_the_end(struck):
    steps = []

    @contextmanager
    def left():
        try:
            yield
        finally:
            signal.raise_signal(signal.SIGUSR1)
            steps.append("left")

    with pytest.raises(Struck), turn, left():
        pass
    assert steps == ["left"]
    assert turn._depth == 0


def test_elsewhere_it_comes_at_once(struck):
    with turn, pytest.raises(Struck):
        signal.raise_signal(signal.SIGUSR1)
    assert signal.getsignal(signal.SIGUSR1) is struck


def test_threads_take_turns_and_may_enter_again():
    inside, most = [], []

    @in_turn
    def work():
        with turn:
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.01)
            inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1, 1]


def test_who_waits_for_the_one_that_waits_for_it_is_refused(monkeypatch):
    monkeypatch.setattr(one_at_a_time, "PATIENCE", 0.3)
    found = []

    def within():
        try:
            with turn:
                found.append("measured")
        except RuntimeError as error:
            found.append(str(error))

    with turn:
        thread = threading.Thread(target=within)
        thread.start()
        thread.join()
    assert "Only one thread can measure at a time" in found[0]
    with turn:
        pass
