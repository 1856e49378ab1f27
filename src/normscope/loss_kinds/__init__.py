"""The kind of a loss, squared error, cross-entropy or another, found from the gradients of the loss."""

from normscope.loss_kinds.finding import find_kind, kind_of, loss_kind
from normscope.loss_kinds.kinds import (
    CROSS_ENTROPY,
    DIVERGES,
    FLAT,
    KINDS,
    OTHER,
    SQUARED,
    SURVIVES,
    UNCERTAIN,
    LossKind,
    beyond_limit,
    kind_by_name,
)

__all__ = [
    "CROSS_ENTROPY",
    "DIVERGES",
    "FLAT",
    "KINDS",
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
]
