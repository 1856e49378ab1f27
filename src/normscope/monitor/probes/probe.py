"""Protocols of a probe and of its result: the methods that the Monitor calls."""

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

from normscope.monitor.snapshot import Snapshot
from normscope.stability.verdict import Verdict


class Result(Protocol):
    """The result of a probe: a frozen dataclass of plain numbers."""

    def summary(self) -> dict[str, float]: ...

    def by_layer(self) -> dict[str, dict[str, float]]: ...

    def verdicts(self, loss_kind: str) -> list[Verdict]: ...


@runtime_checkable
class HasHistograms(Protocol):
    """A result that also has a histogram for each layer: name of the layer, both ends, counts."""

    def histograms(self) -> Iterator[tuple[str, tuple[float, float], tuple[int, ...]]]: ...


class Probe(Protocol):
    """An object that measures one quantity in a snapshot.

    name: the key of its result in a record. forward_only: whether it needs no gradient.

    More attributes are optional. `begin()` is called before the snapshot's first pass. `watch(name, module, args,
    output)` is called after each module of that pass. `traces = True` asks for the order of the modules. `follow_up =
    True` asks for a measurement at the next step as well. `notes` holds sentences on the last measurement.
    """

    @property
    def name(self) -> str: ...

    @property
    def forward_only(self) -> bool: ...

    # A probe's result is a `Result`; `Any` lets a user's probe go without annotations.
    def measure(self, snapshot: Snapshot) -> Any: ...
