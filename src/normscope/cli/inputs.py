"""Models and data that a verb's arguments name."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.choices import check_choice
from normscope.loading import load

if TYPE_CHECKING:
    from torch import Tensor, nn

_SEEDED, _FROM_FILES = ("digits", "gaussian"), ("mnist", "cifar10")


def model_of(reference: str, device: str) -> "nn.Module":
    from torch import nn

    try:
        built = load(reference)()
    except TypeError as error:
        raise ValueError(f"{reference} must build the model without arguments: {error}") from error
    except RuntimeError as error:
        raise ValueError(f"{reference} could not build the model: {error}") from error
    if not isinstance(built, nn.Module):
        raise ValueError(f"{reference} must return a torch.nn.Module; got {type(built).__name__}.")
    try:
        return built.to(device)
    except (AssertionError, RuntimeError) as error:
        raise ValueError(f"--device {device} does not work here: {str(error).splitlines()[0]}") from error


def batch_of(reference: str, model: "nn.Module", batch_size: int, seed: int) -> Any:
    """One batch of `batch_size` samples in the model's dtype and on its device; or a function's own batches."""
    from normscope.data import batches

    found = data_of(reference, model, seed)
    if not isinstance(found, tuple):
        return found
    return next(iter(batches(*found, batch_size=batch_size, seed=seed, steps=1)))


def data_of(reference: str, model: "nn.Module", seed: int) -> Any:
    """All samples, a pair of tensors in the model's dtype and on its device; or what a function gives instead."""
    import torch

    from normscope.data import Dataset

    found = _data(reference, seed)
    if isinstance(found, Dataset):
        found = (found.x_train, found.y_train)
    if not isinstance(found, tuple):
        return found
    if len(found) != 2:
        raise ValueError(f"{reference} must give a pair (x, y), or batches; got a tuple of {len(found)}.")
    like = next(model.parameters(), torch.zeros(()))
    x, y = (_tensor(part, like) for part in found)
    return x, y


def _data(reference: str, seed: int) -> Any:
    from normscope.data import load as load_data

    if reference in _SEEDED:
        return load_data(reference, seed=seed)
    if reference in _FROM_FILES:
        return load_data(reference)
    if reference.endswith(".npz"):
        return _arrays(Path(reference))
    if ":" in reference:
        return load(reference)()
    check_choice("data", reference, (*_SEEDED, *_FROM_FILES, "path.npz", "path.py:name"))
    raise ValueError(f"{reference} stands for a file or function of yours; name that one.")


def _arrays(path: Path) -> tuple[Any, Any]:
    import numpy as np

    with np.load(path) as arrays:
        missing = [name for name in ("x", "y") if name not in arrays]
        if missing:
            raise ValueError(f"{path} must hold arrays x and y; it has {', '.join(arrays.files) or 'none'}.")
        return arrays["x"], arrays["y"]


def _tensor(values: Any, like: "Tensor") -> "Tensor":
    """Floating numbers in the model's dtype, labels as int64."""
    import torch

    tensor = torch.as_tensor(values)
    return tensor.to(like) if tensor.is_floating_point() else tensor.to(like.device, torch.int64)
