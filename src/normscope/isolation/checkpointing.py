"""Activation checkpointing of the reentrant kind, which refuses `torch.autograd.grad`, run as the other kind."""

import inspect
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils import checkpoint as home

_CHECKPOINT = inspect.unwrap(home.checkpoint).__code__


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
    except BaseException as error:
        _close_generators(error)
        raise
    finally:
        home.CheckpointFunction = kept  # type: ignore[misc]


def _close_generators(error: BaseException) -> None:
    """Ends the checkpoints that `error` has left half way.

    Before 2.13 torch leaves its generator open there, and with it hooks on saved tensors that would go into whatever
    runs next, until the traceback is collected.
    """
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is _CHECKPOINT:
            generator = trace.tb_frame.f_locals.get("gen")
            if isinstance(generator, Generator):
                generator.close()
        trace = trace.tb_next
