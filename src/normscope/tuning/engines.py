"""Engines make the rehearsals of a wave; each yields them in the order asked for."""

from collections.abc import Iterator, Sequence
from typing import Protocol

from normscope.tuning.rehearsal import Rehearsal, rehearse
from normscope.tuning.stage import Stage


class Engine(Protocol):
    """The interface of an engine."""

    def run(self, stage: Stage, rates: Sequence[float], steps: int) -> Iterator[Rehearsal]:
        """Rehearse each of the rates for `steps` steps."""

    def close(self) -> None:
        """Release what the engine holds."""


class Local:
    """An engine that rehearses one rate after another in this process: one copy at a time."""

    def run(self, stage: Stage, rates: Sequence[float], steps: int) -> Iterator[Rehearsal]:
        for rate in rates:
            yield rehearse(stage, rate, steps)

    def close(self) -> None:
        """Do nothing: the engine holds nothing."""


def engine_named(name: str, address: str | None) -> Engine:
    """The engine "local" or "ray"; the latter joins the cluster at `address`, or starts one on this machine."""
    if name == "local":
        return Local()
    from normscope.tuning.cluster import Ray

    return Ray(address)
