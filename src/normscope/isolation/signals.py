"""Signals that wait while something is entered or left, so that what they raise never leaves a job half done.

Python runs the handler of a signal between any two instructions of the main thread, and Ctrl-C's raises there: between
the line of an `__enter__` that changes something and the `with` that would undo it, or half way through an `__exit__`.
While a measurement lasts, a handler of ours stands before the user's: it looks at the stack that was interrupted. With
an `__enter__` or `__exit__` on it, of ours, of torch's or of anybody's, the signal is kept, until the next forward, the
next call of a watched layer or the end of the measurement; anywhere else the user's handler runs at once. Without a
signal this costs a few microseconds a measurement. Handlers are the main thread's, and so is all of this.
"""

import _signal  # type: ignore[import-not-found]
import contextlib
import signal
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
_NAMES = frozenset({"__enter__", "__exit__"})
_waited_for: set[CodeType] = {
    method.__code__
    for kind in (contextlib.ExitStack, *contextlib.ExitStack.__mro__)
    for name, method in vars(kind).items()
    if name in {"enter_context", "callback", "push", "close", "_push_cm_exit", "_push_exit_callback"}
}
# The handlers that ours stands before; kept afterwards for whoever has taken ours for theirs and puts it back.
_users: dict[int, Any] = {}
_waiting: list[int] = []
# The functions of these names in `signal` make enumerations of all they return, forty times as slowly.
_get, _set = _signal.getsignal, _signal.signal
_numbers = sorted(map(int, signal.valid_signals()))


def steady(function: Function) -> Function:
    """Signals wait until `function` has returned."""
    _waited_for.add(function.__code__)
    return function


def in_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


@steady
def take_over() -> None:
    """Puts our handler before each of the user's; all of them are the user's again if one of those raises meanwhile."""
    try:
        for number in _numbers:
            user = _get(number)
            if callable(user) and user is not _handle:
                _users[number] = user
                _set(number, _handle)
    except BaseException:
        give_back()
        raise


@steady
def give_back() -> None:
    """Puts the user's handlers back where ours stands, and runs them for the signals that wait."""
    raised: list[BaseException] = []
    # From the first that is back on, signals are the user's again and may raise here: begin anew until all are.
    while any(_get(number) is _handle for number in _users):
        try:
            for number, user in _users.items():
                if _get(number) is _handle:
                    _set(number, user)
        except BaseException as error:
            raised.append(error)
    try:
        run_all()
    except BaseException as error:
        raised.append(error)
    if raised:
        raise raised[0]


def deliver() -> None:
    """Called where signals that wait may be raised, if nothing is being entered or left there."""
    if _waiting and in_main_thread():
        frame = sys._getframe(1)
        if not _held_up(frame):
            run_all(frame)


def are_waiting() -> bool:
    return bool(_waiting)


def _handle(number: int, frame: FrameType | None) -> None:
    if _held_up(frame):
        _waiting.append(number)
    else:
        _users[number](number, frame)


def _held_up(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_name in _NAMES or frame.f_code in _waited_for:
            return True
        frame = frame.f_back
    return False


@steady
def run_all(frame: FrameType | None = None) -> None:
    """The user's handlers for all that waits, each once; the first error of theirs is raised when all have run."""
    raised: list[BaseException] = []
    for number in dict.fromkeys(_waiting):
        _waiting[:] = [other for other in _waiting if other != number]
        try:
            _users[number](number, frame)
        except BaseException as error:
            raised.append(error)
    if raised:
        raise raised[0]
