"""Delay signals while a context is entered or left, so that an exception from a handler cannot leave it half done.

Python runs the handler of a signal between any two instructions of the main thread, and the handler of Ctrl-C raises
there. That can be between the line of an `__enter__` that changes something and the `with` that would undo it, or in
the middle of an `__exit__`.

While a measurement lasts, each of the user's handlers is replaced by `_handle`, which inspects the interrupted stack.
If an `__enter__` or `__exit__` of any library is on the stack, the signal is stored until the next forward, the next
call of a watched layer or the end of the measurement. Otherwise the user's handler runs at once. Without a signal this
costs a few microseconds a measurement. Python runs handlers in the main thread only, so this file acts only there.
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
_uninterrupted: set[CodeType] = {
    method.__code__
    for kind in (contextlib.ExitStack, *contextlib.ExitStack.__mro__)
    for name, method in vars(kind).items()
    if name in {"enter_context", "callback", "push", "close", "_push_cm_exit", "_push_exit_callback"}
}
# The user's handlers by signal number. They are kept after a measurement: other code may have read `_handle` during it
# as the present handler, and may put `_handle` back later.
_users: dict[int, Any] = {}
_waiting: list[int] = []
# The functions of the same names in `signal` convert all they return to enumerations, and are forty times as slow.
_get, _set = _signal.getsignal, _signal.signal
_numbers = sorted(map(int, signal.valid_signals()))


def steady(function: Function) -> Function:
    """Decorator: signals wait until `function` has returned."""
    _uninterrupted.add(function.__code__)
    return function


def in_main_thread() -> bool:
    return threading.get_ident() == threading.main_thread().ident


@steady
def take_over() -> None:
    """Replace each of the user's handlers by `_handle`; if a handler raises meanwhile, all are put back."""
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
    """Put the user's handlers back, and run them for the signals that wait."""
    raised: list[BaseException] = []
    # As soon as one handler is back, its signal may raise in this loop: repeat until all handlers are back.
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
    """Run the handlers of waiting signals, unless a context is being entered or left."""
    if _waiting and in_main_thread():
        frame = sys._getframe(1)
        if not _must_wait(frame):
            run_all(frame)


def are_waiting() -> bool:
    return bool(_waiting)


def _handle(number: int, frame: FrameType | None) -> None:
    if _must_wait(frame):
        _waiting.append(number)
    else:
        _users[number](number, frame)


def _must_wait(frame: FrameType | None) -> bool:
    """Whether a context is being entered or left, or a `steady` function runs, anywhere on the stack."""
    while frame is not None:
        if frame.f_code.co_name in _NAMES or frame.f_code in _uninterrupted:
            return True
        frame = frame.f_back
    return False


@steady
def run_all(frame: FrameType | None = None) -> None:
    """Run the user's handler of each waiting signal once; then raise the first error of a handler, if any."""
    raised: list[BaseException] = []
    for number in dict.fromkeys(_waiting):
        _waiting[:] = [other for other in _waiting if other != number]
        try:
            _users[number](number, frame)
        except BaseException as error:
            raised.append(error)
    if raised:
        raise raised[0]
