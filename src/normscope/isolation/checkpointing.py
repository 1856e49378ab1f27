"""Run reentrant activation checkpoints as non-reentrant ones: the reentrant kind refuses `torch.autograd.grad`."""

import inspect
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils import checkpoint as torch_checkpoint

_CHECKPOINT = inspect.unwrap(torch_checkpoint.checkpoint).__code__


class _NotReentrant:
    """Stand-in for torch's CheckpointFunction: the same arithmetic, recomputed by hooks on saved tensors.

    The reentrant kind also gives no gradient to a block if none of its inputs needs a gradient. That holds for every
    block whose inputs are answered from memory (`Replay`).
    """

    @staticmethod
    def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        return torch_checkpoint.checkpoint(function, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state)


@contextmanager
def without_reentrant_checkpoints() -> Iterator[None]:
    """While this context lasts, reentrant checkpoints (use_reentrant=True) run as non-reentrant ones."""
    original = torch_checkpoint.CheckpointFunction
    torch_checkpoint.CheckpointFunction = _NotReentrant  # type: ignore[misc, assignment]
    try:
        yield
    except BaseException as error:
        _close_generators(error)
        raise
    finally:
        torch_checkpoint.CheckpointFunction = original  # type: ignore[misc]


def _close_generators(error: BaseException) -> None:
    """End the checkpoints that `error` interrupted.

    Before version 2.13, torch leaves the checkpoint's generator open. Its hooks on saved tensors would then act on
    whatever runs next, until the traceback is collected.
    """
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is _CHECKPOINT:
            generator = trace.tb_frame.f_locals.get("gen")
            if isinstance(generator, Generator):
                generator.close()
        trace = trace.tb_next
