"""Observe, in one forward pass of the lent model, whether layers of the user's own classes normalize.

The names of the classes play no part. The first layer of each class is called three times more, on the input that it
gets in the network (`norms/scale_invariance.py`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from normscope.curvature.session.session import Session
from normscope.isolation.module_calls import answering
from normscope.isolation.processes import FailedElsewhere
from normscope.norms.find_norms import has_known_normalizer
from normscope.norms.recognition import known
from normscope.norms.scale_invariance import Normalizing, normalizing


@dataclass(frozen=True)
class Normalizers:
    """Whether a network has normalizers.

    Attributes:
        present: whether a layer is one, by its class or by what it computes.
        of_own_over_batch: whether a layer of another class normalizes over the samples of a batch.
        notes: a note on layers that could not be observed, where no other layer normalizes.
    """

    present: bool
    of_own_over_batch: bool = False
    notes: tuple[str, ...] = ()


def observe_normalizers(session: Session, stats: str) -> Normalizers:
    """The normalizers of the session's model; costs a forward pass if it has layers of other classes than torch's."""
    present = has_known_normalizer(session.model)
    layers = {name: module for name, module in session.model.named_modules() if _may_normalize(module)}
    if not layers:
        return Normalizers(present)
    seen: dict[type, Normalizing] = {}
    failed: dict[type, str] = {}

    def local() -> list[Tensor]:
        with torch.no_grad():
            session.networks(stats)[0].output(around=answering(layers, _observing(session, seen, failed)))
        flags = [[each.normalizes, each.over_samples] for each in seen.values()] or [[False, False]]
        return [torch.tensor(flags).any(0).float()]

    normalizes, over_samples = session.processes.mean(local)[0].tolist()
    present = present or bool(normalizes)
    notes = () if present or not failed else (_not_observed(failed),)
    return Normalizers(present, bool(over_samples), notes)


def _may_normalize(module: nn.Module) -> bool:
    """Whether a layer is of a class of the user's own, and no layer within it has a matrix of weights."""
    if type(module).__module__.startswith(("torch.", "normscope.")) or known(module):
        return False
    inner = (p for child in module.children() for p in child.parameters())
    return all(p.numel() == max(p.shape, default=1) for p in inner)


def _observing(session: Session, seen: dict[type, Normalizing], failed: dict[type, str]) -> Callable[..., Any]:
    """The answer to a layer's call: its output. The first call of each class is observed."""
    generators = session.lent.generators

    def answer(name: str, module: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        place = next((i for i, arg in enumerate(args) if isinstance(arg, Tensor) and arg.is_floating_point()), None)
        if type(module) in seen or type(module) in failed or place is None:
            return forward(*args, **kwargs)
        x, before = args[place].clone(), generators.states()
        output = forward(*args, **kwargs)
        after = generators.states()

        def again(x: Tensor) -> Tensor:
            generators.restore(before)
            return _tensor(forward(*args[:place], x, *args[place + 1 :], **kwargs))

        try:
            seen[type(module)] = normalizing(again, x, _tensor(output))
        except FailedElsewhere:
            raise
        except Exception:
            failed[type(module)] = f"{name or 'the model'} ({type(module).__name__})"
        generators.restore(after)
        return output

    return answer


def _tensor(output: Any) -> Tensor:
    first: Tensor = next(leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor))
    return first


def _not_observed(failed: dict[type, str]) -> str:
    layers = ", ".join(failed.values())
    return (
        f"Whether {layers} normalizes is not known: a call with a scaled input failed. The learning rate to start with "
        "is the smaller one, that of a network without a normalizer."
    )
