"""SIGTERM and SIGHUP end a verb as Ctrl-C does: finished work is kept, and one message says so."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Terminated(KeyboardInterrupt):
    """The process received SIGTERM or SIGHUP."""


@contextmanager
def stopping() -> Iterator[None]:
    """Turns both signals into `Terminated`; a signal that is ignored, as under nohup, stays so."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    owner, before = os.getpid(), {}

    def stop(number: int, frame: object) -> None:
        if os.getpid() != owner:
            # A forked worker ends as it would without this handler.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        raise Terminated

    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
