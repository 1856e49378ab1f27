"""A lock that lets one thread of a process measure at a time.

A measurement replaces functions of torch, sets random generators and uses the single level of forward-mode
differentiation. All of these are shared by the threads of a process, so threads measure one after the other. The thread
that holds the lock may start another measurement inside the first; other threads wait. Signals are delayed as
`signals.py` describes.

Deadlock: a measurement may itself wait for the thread that waits for the lock (a forward that starts a thread and joins
it, ranks simulated by threads). If the measuring thread has stayed in the same wait of Python's `threading` or `queue`
for `PATIENCE` seconds, the waiting thread gets a `NoTurn`.
"""

import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from normscope.isolation import signals
from normscope.isolation.refusals import NoTurn

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
PATIENCE = 10.0
_WAITS = {threading.__file__, queue.__file__}


class Turn:
    """A context manager around every measurement; re-entrant within its thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._thread = 0

    def __enter__(self) -> None:
        # Only this thread ever writes its own identifier to `_thread`, so the comparison is safe without the lock.
        if self._thread != threading.get_ident():
            if signals.in_main_thread():
                signals.take_over()
            try:
                self._wait()
            except BaseException:
                if signals.in_main_thread():
                    signals.give_back()
                raise
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth:
            return
        self._thread = 0
        self._lock.release()
        if signals.in_main_thread():
            signals.give_back()

    def _wait(self) -> None:
        last_wait, since = None, time.monotonic()
        while not self._lock.acquire(timeout=0.05):
            if signals.are_waiting():
                # The user's handlers may raise here; if they do not, the wait goes on.
                signals.run_all()
            wait = self._wait_of_measuring_thread()
            if wait is None or wait != last_wait:
                last_wait, since = wait, time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                raise NoTurn(
                    f"Another thread is measuring, and has waited inside its measurement for {PATIENCE:g} s, perhaps "
                    "for this thread. Only one thread can measure at a time. Measure in that other thread, or after "
                    "its measurement."
                )
        self._thread = threading.get_ident()

    def _wait_of_measuring_thread(self) -> tuple[int, int] | None:
        """The frame and instruction where the measuring thread waits; None if it is not waiting."""
        frame = sys._current_frames().get(self._thread)
        if frame is None or frame.f_code.co_filename not in _WAITS:
            return None
        return id(frame), frame.f_lasti

    def forget(self) -> None:
        """Reset the lock in a forked process: the thread that held the lock does not exist there."""
        if self._thread != threading.get_ident():
            self.__init__()  # type: ignore[misc]


turn = Turn()
os.register_at_fork(after_in_child=turn.forget)


def in_turn(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Decorator for a function that changes more than the model it lends: `function` runs while holding `turn`."""

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with turn:
            return function(*args, **kwargs)

    return call
