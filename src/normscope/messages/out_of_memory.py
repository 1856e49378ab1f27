"""Recognize an error of torch that says there is not enough memory."""

_SAID = ("can't allocate memory", "not enough memory", "out of memory")


def out_of_memory(error: BaseException) -> bool:
    """Whether the error says that memory is used up; torch raises a plain RuntimeError for it on a CPU.

    Example:
        >>> out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory")), out_of_memory(RuntimeError("no"))
        (True, False)
    """
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(said in str(error).lower() for said in _SAID)
