"""The kind of a loss, squared error, cross-entropy or another, found from the gradients of the loss."""

from typing import TYPE_CHECKING

from normscope.importing.first_use import on_first_use
from normscope.losses.kind_names import CROSS_ENTROPY, OTHER, SQUARED

if TYPE_CHECKING:
    from normscope.loss_kinds.finding import (
        find_kind,
        kind_of,
        loss_kind,
    )
    from normscope.loss_kinds.kinds import (
        FLAT,
        KINDS,
        LossKind,
        kind_by_name,
    )
    from normscope.loss_kinds.meaning import (
        DIVERGES,
        MEANINGS,
        SURVIVES,
        UNCERTAIN,
        beyond_limit,
        outlook,
        usually_survives,
    )

__all__ = [
    "CROSS_ENTROPY",
    "DIVERGES",
    "FLAT",
    "KINDS",
    "MEANINGS",
    "OTHER",
    "SQUARED",
    "SURVIVES",
    "UNCERTAIN",
    "LossKind",
    "beyond_limit",
    "find_kind",
    "kind_by_name",
    "kind_of",
    "loss_kind",
    "outlook",
    "usually_survives",
]

__getattr__ = on_first_use(
    __name__,
    {
        "DIVERGES": "meaning",
        "FLAT": "kinds",
        "KINDS": "kinds",
        "MEANINGS": "meaning",
        "SURVIVES": "meaning",
        "UNCERTAIN": "meaning",
        "LossKind": "kinds",
        "beyond_limit": "meaning",
        "find_kind": "finding",
        "kind_by_name": "kinds",
        "kind_of": "finding",
        "loss_kind": "finding",
        "outlook": "meaning",
        "usually_survives": "meaning",
    },
)


def __dir__() -> list[str]:
    return __all__
