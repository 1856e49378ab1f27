"""Replace a layer of a model under all its names, and find containers where it cannot be replaced."""

from torch import nn


def replace(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Register `new` instead of `old`, under every name that `old` has."""
    for name in [name for name, layer in model.named_modules(remove_duplicate=False) if layer is old]:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, new)


def also_held_by(model: nn.Module, layer: nn.Module) -> str:
    """The attribute that holds `layer` in a plain list, tuple or dict, where `replace` cannot reach it; or ""."""
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute in ("_modules", "_parameters", "_buffers"):
                continue
            items = value.values() if isinstance(value, dict) else value
            if isinstance(value, (list, tuple, dict)) and any(item is layer for item in items):
                return f"{name}.{attribute}".lstrip(".")
    return ""
