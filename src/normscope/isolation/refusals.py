"""Exceptions of lending; the command line tells them from exceptions of the user's code by their classes."""


class NotLent(TypeError):
    """The model, or something that it holds, cannot be lent."""


class NotPutBack(RuntimeError):
    """Something could not be put back after a measurement; everything else is back."""


class NoTurn(RuntimeError):
    """Another thread is measuring and waits, perhaps for this one."""


class TooMuchMemory(ValueError):
    """The copies would take more memory than `max_memory` allows."""
