"""Activation checkpointing of the reentrant kind, which refuses `torch.autograd.grad`, run as the other kind."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils import checkpoint as home


class _NotReentrant:
    """In the place of torch's CheckpointFunction: the same arithmetic, recomputed by saved-tensor hooks instead.

    The reentrant kind also gives no gradient at all to a block none of whose inputs needs one, which is every block
    whose inputs are answered from memory.
    """

    @staticmethod
    def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        return home.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state)


@contextmanager
def without_reentrant_checkpoints() -> Iterator[None]:
    """Inside, `torch.utils.checkpoint.checkpoint` with use_reentrant=True can be differentiated by anything."""
    kept = home.CheckpointFunction
    home.CheckpointFunction = _NotReentrant  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        home.CheckpointFunction = kept  # type: ignore[misc]
