"""Protection of everything that is the user's while copies are looked at: models, generators, the optimizer's steps."""

import functools
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
from torch import nn

from normscope.diagnosis.look.passes import device_of
from normscope.isolation.lending import Lent, untouched
from normscope.setup import Setup
from normscope.training import seeded_on

_FUNCTIONS = ("loss_fn", "forward", "training_step", "metric")


class UsersOwn(ValueError):
    """A function of the setup works with the user's own model or optimizer, and not with what it is handed."""


@contextmanager
def protected(setup: Setup, seed: int = 0) -> Iterator[Lent]:
    """While this context lasts, the user's model and the modules that its functions hold work on lent copies.

    A step of the user's optimizer raises `UsersOwn`. Random generators start from `seed`; `untouched` puts them back.
    """

    def refuse(*_: Any) -> None:
        raise UsersOwn("training_step steps the optimizer it was written beside, and not the one it is handed.")

    with ExitStack() as stack:
        lent = stack.enter_context(untouched(setup.model))
        own = {id(module) for module in setup.model.modules()}
        for module in _held(setup):
            if id(module) not in own:
                stack.enter_context(untouched(module))
        if setup.optimizer is not None:
            stack.callback(setup.optimizer.register_step_pre_hook(refuse).remove)
        stack.enter_context(seeded_on(seed, device_of(setup.model)))
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        yield lent


def check_copies_only(lent: Lent) -> None:
    """Raise `UsersOwn` if a gradient reached the user's model."""
    if any(leaf.grad is not None for leaf in lent.leaves):
        raise UsersOwn("The loss is computed with the model it was written beside, and not with the one it is handed.")


def _held(setup: Setup) -> list[nn.Module]:
    """Modules in the closures, defaults and arguments of the setup's functions, and the loss and averaged model."""
    found: dict[int, nn.Module] = {}
    for name in _FUNCTIONS:
        for value in _inside(getattr(setup, name)):
            for each in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(each, nn.Module):
                    found[id(each)] = each
    if isinstance(setup.averaged_model, nn.Module):
        found[id(setup.averaged_model)] = setup.averaged_model
    inner = {id(part) for module in found.values() for part in module.modules() if part is not module}
    return [module for module in found.values() if id(module) not in inner]


def _inside(function: Any) -> Iterator[Any]:
    if isinstance(function, functools.partial):
        yield from (*function.args, *function.keywords.values())
        function = function.func
    yield function
    yield getattr(function, "__self__", None)
    yield from getattr(function, "__defaults__", None) or ()
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue  # an empty cell
