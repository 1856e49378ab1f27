"""Records of the parts of a look, and the context that explains why a part is not to be had."""

from dataclasses import dataclass
from typing import Any

from normscope.diagnosis.look.passes import NotLooked
from normscope.diagnosis.look.protection import UsersOwn
from normscope.diagnosis.look.trace import Trace
from normscope.setup import Setup


@dataclass(frozen=True, eq=False)
class Start:
    """Passes over a few batches before any step. trace: what was seen. losses: of each batch; empty without a loss."""

    trace: Trace
    losses: tuple[float, ...]
    gradients: dict[str, float]


@dataclass(frozen=True, eq=False)
class Trained:
    """A copy after a short training.

    Attributes:
        copy: the trained copy.
        losses: of every step before the step.
        diverged_at: the step of divergence or None.
        trace: what was seen in all its passes.
        moved: names of parameters whose values changed.
        steps: number of steps.
    """

    copy: Setup
    losses: tuple[float, ...]
    diverged_at: int | None
    trace: Trace
    moved: frozenset[str]
    steps: int


class Explained:
    """A context in which `UsersOwn` becomes `NotLooked`."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, UsersOwn):
            raise NotLooked(f"nothing could be trained: {error} Hand in functions that use their arguments") from error
