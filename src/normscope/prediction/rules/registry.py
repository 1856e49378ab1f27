"""The registry of rules: which rule an operation has as a function, a method, an exported operation or a module.

A rule takes the walk, the operation's name and the operation's own arguments, with a `Field` in the place of every
tensor of the network, and returns the field of the result. An operation without a rule is refused by name.

To add a rule, write a function under `@rule` in the file of its family in this folder, or in a new file there, and a
network with the operation in tests/prediction/test_graphs.py. docs/how-to/add-an-operation.md shows the steps.
"""

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.prediction.kernels.field import Field
from normscope.prediction.walk import Walk

Rule = Callable[..., Any]
# Attributes of the module that are arguments of its rule, by name; or the arguments, made of the module and its input.
Settings = tuple[str, ...] | Callable[[Any, Field], dict[str, Any]]
_Registered = TypeVar("_Registered", bound=Rule)


@dataclass(frozen=True)
class _ModuleRule:
    """A rule for a class of modules. subclasses: whether torch's and normscope's subclasses have it too."""

    rule: Rule
    settings: Settings
    subclasses: bool
    applies: Callable[[Any], bool]


_FUNCTIONS: dict[Any, Rule] = {}
_METHODS: dict[str, Rule] = {}
_EXPORTED: dict[str, Rule] = {}
_MODULES: dict[type, _ModuleRule | None] = {}


def rule(
    *names: str,
    functions: Iterable[Any] = (),
    exported: Iterable[str] = (),
    modules: Iterable[type[nn.Module]] = (),
    settings: Settings = (),
    subclasses: bool = True,
    applies: Callable[[Any], bool] = lambda module: True,
) -> Callable[[_Registered], _Registered]:
    """Register the decorated rule for an operation, in all the ways that a network may call it.

    Args:
        names: the operation's names in torch, torch.nn.functional, operator, torch.Tensor and torch.ops.aten; each is
            looked for in all of them.
        functions: further functions, such as one of a library of your own.
        exported: further names in torch.ops.aten, as torch.export writes them.
        modules: classes of modules that stand for the operation.
        settings: names of the module's attributes that are arguments of the rule, under the same names; or a function
            (module, x) -> dictionary of arguments, which may refuse the module.
        subclasses: whether subclasses that torch or normscope defines have the rule too. Subclasses defined elsewhere
            never have it: their forward may differ, and is read instead.
        applies: whether a module has the rule as it stands; one without is read operation by operation.

    Returns:
        The decorator, which gives the rule back.
    """

    def register(function: _Registered) -> _Registered:
        for name in names:
            _FUNCTIONS.update(
                {getattr(place, name): function for place in (torch, F, operator) if hasattr(place, name)}
            )
            _EXPORTED[name] = function
            if hasattr(Tensor, name):
                _METHODS[name] = function
        _FUNCTIONS.update(dict.fromkeys(functions, function))
        _EXPORTED.update(dict.fromkeys(exported, function))
        _MODULES.update(dict.fromkeys(modules, _ModuleRule(function, settings, subclasses, applies)))
        return function

    return register


def without_rule(*modules: type[nn.Module]) -> None:
    """Register classes of modules that have no rule although a class they derive from has one."""
    _MODULES.update(dict.fromkeys(modules))


def rule_of_function(function: Any) -> Rule | None:
    """The rule of a function that torch.fx recorded, or None."""
    return _FUNCTIONS.get(function)


def rule_of_method(name: str) -> Rule | None:
    """The rule of a method of tensors, or None."""
    return _METHODS.get(name)


def rule_of_exported(name: str) -> Rule | None:
    """The rule of an operation of torch.ops.aten, by its name without the overload, or None."""
    return _EXPORTED.get(name)


def rule_of_module(module: nn.Module) -> Rule | None:
    """The rule of a module as a whole, with the module's settings, or None.

    The rule takes the walk, the module's path and one field.

    Args:
        module: a module of the network.

    Returns:
        The rule, or None where the module is read operation by operation.
    """
    registered = _registered(module)
    if registered is None or not registered.applies(module):
        return None
    settings = registered.settings

    def apply(walk: Walk, name: str, x: Field) -> Any:
        if callable(settings):
            return registered.rule(walk, name, x, **settings(module, x))
        return registered.rule(walk, name, x, **{each: getattr(module, each) for each in settings})

    return apply


def _registered(module: nn.Module) -> _ModuleRule | None:
    """The entry of the module's class, or of the nearest class above it whose subclasses have its rule."""
    module_type = type(module)
    if module_type in _MODULES:
        return _MODULES[module_type]
    if module_type.__module__.split(".")[0] not in ("torch", "normscope"):
        return None
    for above in module_type.__mro__[1:]:
        entry = _MODULES.get(above)
        if above in _MODULES and (entry is None or entry.subclasses):
            return entry
    return None
