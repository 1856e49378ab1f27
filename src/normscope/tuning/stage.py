"""The stage: what all rehearsals of one tuning share, so that they differ in the learning rate alone.

Batches are read once and kept, so that every rehearsal trains on the same ones in the same order and their losses can
be compared pair by pair. A loader that ends before a rehearsal does is read again from its first batch.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from normscope.isolation.batch_copies import Copies
from normscope.isolation.batches import samples
from normscope.isolation.loaders import first_batches, to_device
from normscope.scheduler_factors import factors_of_scheduler
from normscope.setup import Setup
from normscope.tuning.schedules import without_warm_up


@dataclass(frozen=True, eq=False)
class Stage:
    """A copy of the setup without its loaders, the batches that were read, and the schedule.

    factors: the factor on the learning rate at each step; None where the setup's scheduler sets it. seed: of the
    random numbers that a rehearsal draws (dropout). warm_up: whether the schedule's warm-up was left out.
    course: the factor of the schedule at each step of the training.
    """

    setup: Setup
    batches: list[Any]
    held_out: list[Any]
    factors: tuple[float, ...] | None
    seed: int
    warm_up: bool = False
    course: tuple[float, ...] = ()

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return next((p.device for p in self.setup.model.parameters()), torch.device("cpu"))

    @property
    def batch_size(self) -> int:
        """The number of samples in the first batch."""
        return samples(self.batches[0])

    def training_batches(self, steps: int) -> list[Any]:
        """The batches of `steps` steps, copied, since a forward may write into them; read again where they end."""
        count = steps * self.setup.accumulate
        return [self._taken(self.batches[number % len(self.batches)]) for number in range(count)]

    def first_batches(self, count: int) -> list[Any]:
        """The first `count` training batches, copied; fewer if fewer were read."""
        return [self._taken(batch) for batch in self.batches[:count]]

    def held_out_batches(self) -> list[Any]:
        """The batches to judge on, copied."""
        return [self._taken(batch) for batch in self.held_out]

    def _taken(self, batch: Any) -> Any:
        return Copies(to_device(batch, self.device)).take()

    def key(self) -> str:
        """A hash of everything that decides what a rehearsal shows, beside its rate and its number of steps."""
        setup, digest = self.setup, hashlib.sha256()
        for name, tensor in setup.model.state_dict().items():
            _add(digest, name, tensor)
        optimizer = setup.optimizer
        state = optimizer.state_dict() if optimizer is not None else {}
        for number, leaf in enumerate(tree_leaves([state, self.batches, self.held_out])):
            _add(digest, str(number), leaf)
        words = {
            "optimizer": type(optimizer).__name__,
            "modes": [module.training for module in setup.model.modules()],
            "functions": [
                _function(getattr(setup, name)) for name in ("loss_fn", "forward", "metric", "training_step")
            ],
            "scheduler": type(setup.scheduler).__name__,
            "clip": setup.clip if isinstance(setup.clip, (int, float)) else _function(setup.clip),
            "accumulate": setup.accumulate,
            "autocast": str(setup.autocast),
            "factors": self.factors,
            "seed": self.seed,
            "torch": torch.__version__,
        }
        digest.update(json.dumps(words, sort_keys=True).encode())
        return digest.hexdigest()[:32]


def staged(
    setup: Setup, *, steps: int, held_out: int, factors: tuple[float, ...] | None, horizon: int, seed: int
) -> Stage:
    """The stage of a setup, with batches for `steps` steps and at most `held_out` batches to judge on.

    Where the schedule over `horizon` steps warms up for longer than a rehearsal, rehearsals have its full rate.

    Raises:
        ValueError: the loader gives no batch.
    """
    batches = first_batches(setup.batches, steps * setup.accumulate)[0] if setup.batches is not None else []
    if not batches:
        raise ValueError("The batches are empty. Check the loader: is the dataset empty, or drop_last=True?")
    judged = first_batches(setup.eval_batches, held_out)[0] if setup.eval_batches is not None and held_out else []
    alone = replace(setup, batches=None, eval_batches=None).copied()
    course = factors
    if course is None:
        probe = alone.copied()
        assert probe.optimizer is not None
        course = factors_of_scheduler(probe.optimizer, probe.scheduler, horizon)
    full = without_warm_up(course, steps)
    return Stage(
        alone, batches, judged, factors if full is None else full, seed, warm_up=full is not None, course=course
    )


def trains_on(batches: Sequence[Any], held_out: Iterable[Any]) -> int:
    """The number of held-out batches that are among the training batches."""
    seen = {_fingerprint(batch) for batch in batches}
    return sum(_fingerprint(batch) in seen for batch in held_out)


def _fingerprint(batch: Any) -> str:
    digest = hashlib.sha256()
    for leaf in tree_leaves(batch):
        if isinstance(leaf, Tensor):
            # The order of the samples in a batch does not matter: a shuffled training batch is the same batch.
            rows = leaf.detach().cpu().flatten(1) if leaf.ndim > 1 else leaf.detach().cpu()
            flat = rows.double().sum(tuple(range(1, rows.ndim))) if rows.ndim > 1 else rows.double()
            _add(digest, "", flat.sort().values)
    return digest.hexdigest()


def _add(digest: Any, name: str, value: Any) -> None:
    digest.update(name.encode())
    if isinstance(value, Tensor):
        tensor = value.detach().cpu().contiguous()
        digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
        if tensor.numel():
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    else:
        digest.update(repr(value).encode() if not isinstance(value, nn.Module) else type(value).__name__.encode())


def _function(function: Any) -> str:
    """A name for a function that changes with its code; a module counts with its settings."""
    if function is None or isinstance(function, nn.Module):
        return repr(function)
    code = getattr(function, "__code__", None)
    name = getattr(function, "__qualname__", type(function).__qualname__)
    body = "" if code is None else hashlib.sha256(code.co_code + repr(code.co_consts).encode()).hexdigest()[:16]
    return f"{name} {body}"
