"""One measurement at a time in a process, entered and left as a whole.

While something is measured, functions of torch are answered by others, generators stand elsewhere and forward mode has
its one level, for all threads. So threads that measure do it one after the other: the first to come has its turn, and
may measure again inside of it; the others wait. Signals wait as `signals.py` says.

A thread that waits for a measurement which waits for that very thread would wait forever (a forward that starts a
thread and joins it, ranks simulated by threads). When the measurement has stood for `PATIENCE` seconds in one and the
same wait of Python's, the thread that waits is refused.
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

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
PATIENCE = 10.0
_WAITS = {threading.__file__, queue.__file__}


class Turn:
    """Around all that measures; re-entrant within its thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._thread = 0

    def __enter__(self) -> None:
        # Nobody else writes this thread's number there, so the answer is right without the lock.
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
        seen, since = None, time.monotonic()
        while not self._lock.acquire(timeout=0.05):
            if signals.are_waiting():
                # Their handlers raise here, or else the wait goes on.
                signals.run_all()
            here = self._where()
            if here is None or here != seen:
                seen, since = here, time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                raise RuntimeError(
                    f"Another thread measures and has been waiting for {PATIENCE:g} s inside of its measurement, "
                    "perhaps for this thread, which waits for its end: one measurement at a time. Measure in the "
                    "thread that measures already, or after it."
                )
        self._thread = threading.get_ident()

    def _where(self) -> tuple[int, int] | None:
        """The wait of Python's in which the thread that measures stands; None where it does not wait."""
        frame = sys._current_frames().get(self._thread)
        if frame is None or frame.f_code.co_filename not in _WAITS:
            return None
        return id(frame), frame.f_lasti

    def forget(self) -> None:
        """In a process that was forked while another thread measured, which is not there."""
        if self._thread != threading.get_ident():
            self.__init__()  # type: ignore[misc]


turn = Turn()
os.register_at_fork(after_in_child=turn.forget)


def in_turn(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`function`, which measures and changes more than the model it lends."""

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with turn:
            return function(*args, **kwargs)

    return call
