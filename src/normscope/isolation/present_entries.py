"""The entries of a model's containers and slots at one moment, and their restoring."""

from collections.abc import Sequence

from normscope.isolation.containers import Kept
from normscope.isolation.module_contents import Contents, called, put_slot, read_slot
from normscope.isolation.refusals import NotPutBack


class PresentEntries:
    """The present entries of a model's containers and slots."""

    def __init__(self, contents: Contents) -> None:
        self._kept = Kept(contents.containers)
        self._empty = contents.empty
        self._slots = [(module, member, read_slot(module, member)) for module, member, _ in contents.slots]

    def put_back(self) -> list[tuple[str, BaseException]]:
        """Restore the entries; returns the names of those that could not be restored, each with the exception."""
        failed = [] if self._kept.same() else [(called(name), error) for name, error in self._kept.put_back()]
        # `_empty` lists plain containers only, so `any` runs no `__bool__` of the user's.
        if any(self._empty):
            for container in self._empty:
                container.clear()
        for module, member, value in self._slots:
            if read_slot(module, member) is not value:
                put_slot(module, member, value)
        return failed


def raise_first(failed: Sequence[tuple[str, BaseException]]) -> None:
    """Raise one error that names everything that could not be put back; everything else is back by then."""
    for _, error in failed:
        if not isinstance(error, Exception):
            raise error
    if failed:
        places = "; ".join(f"{name} ({type(error).__name__}: {error})" for name, error in failed)
        raise NotPutBack(f"Everything but this was put back after a measurement: {places}.") from failed[0][1]
