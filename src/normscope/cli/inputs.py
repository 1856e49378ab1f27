"""Models, setups and data that the arguments of a verb name."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from normscope.importing.named_functions import called, place_of
from normscope.messages.choices import check_choice
from normscope.messages.out_of_memory import out_of_memory

if TYPE_CHECKING:
    from torch import Tensor, nn

    from normscope.setup import Setup

MODEL_HELP = "Function that returns a setup or a model: path/to/file.py:name or package.module:name."
SETUP_HELP = "Function that returns a setup: path/to/file.py:name or package.module:name."
DATA_HELP = "Data set, for a model: digits, gaussian, mnist, cifar10, a .npz with x and y, or a function module:name."
_SEEDED, _FROM_FILES = ("digits", "gaussian"), ("mnist", "cifar10")


def setup_of(reference: str) -> "Setup":
    """The `ns.Setup` that the user's function returns."""
    from normscope.setup import as_setup

    return as_setup(called(reference, "set up a training"), reference)


def model_or_setup(reference: str, data: str | None, device: str) -> "nn.Module | Setup":
    """The model or the setup that the user's function returns. A model needs --data, a setup has batches of its own."""
    from torch import nn

    from normscope.setup import as_setup

    returned = called(reference, "build the model or set up a training")
    if isinstance(returned, nn.Module):
        if data is None:
            raise ValueError(
                f"{reference} gives a model alone, so --data is needed: digits, gaussian, mnist, cifar10, a .npz or a "
                "function. Or return an ns.Setup(model, loss_fn, batches) from it."
            )
        return _moved(returned, device)
    setup = as_setup(returned, reference)
    if data is not None:
        raise ValueError(f"{reference} gives a setup with batches of its own; leave out --data.")
    return setup


def model_to_predict(reference: str) -> "nn.Module | Setup":
    """The model or the setup that the user's function returns, of which `predict` needs no data."""
    from torch import nn

    from normscope.setup import as_setup

    returned = called(reference, "build the model or set up a training")
    return returned if isinstance(returned, nn.Module) else as_setup(returned, reference)


def _moved(model: "nn.Module", device: str) -> "nn.Module":
    try:
        return model.to(device)
    except (AssertionError, RuntimeError) as error:
        raise ValueError(f"--device {device} does not work here: {str(error).splitlines()[0]}") from error


def what_was_said(error: Exception) -> str:
    """The type of an error and the first line of its message."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


@contextmanager
def taking_the_batch() -> Iterator[None]:
    """A context for a measurement: what torch raises about model, loss and batch becomes one ValueError.

    Errors of normscope's own classes pass through, since their messages name the cause.
    """
    try:
        yield
    except (RuntimeError, IndexError, TypeError, KeyError, AttributeError, MemoryError) as error:
        if type(error).__module__.startswith("normscope."):
            raise
        if out_of_memory(error):
            raise ValueError(f"Out of memory; use a smaller batch. {what_was_said(error)}") from error
        raise ValueError(
            f"The model or the loss does not take this batch: {what_was_said(error)}{place_of(error)}"
        ) from error


def batch_of(reference: str, model: "nn.Module", batch_size: int, seed: int) -> Any:
    """One batch of `batch_size` samples in the dtype and on the device of the model, or a function's own batches."""
    from normscope.data import batches

    samples = data_of(reference, model, seed)
    if not (isinstance(samples, tuple) and len(samples) == 2 and hasattr(samples[0], "shape")):
        return samples
    return next(iter(batches(*samples, batch_size=batch_size, seed=seed, steps=1)))


def data_of(reference: str, model: "nn.Module", seed: int) -> Any:
    """All samples as a pair of tensors in the dtype and on the device of the model, or a function's own batches."""
    import numpy as np
    import torch

    from normscope.data import Dataset

    samples = _data(reference, seed)
    if isinstance(samples, Dataset):
        samples = (samples.x_train, samples.y_train)
    if isinstance(samples, torch.utils.data.Dataset) and not isinstance(samples, torch.utils.data.IterableDataset):
        raise ValueError(
            f"{reference} must give a pair of tensors (x, y) or batches of them; got {type(samples).__name__}, which "
            "gives single samples. Return DataLoader(dataset, batch_size=128) from it."
        )
    arrays = (torch.Tensor, np.ndarray)
    if not isinstance(samples, (tuple, list)) or not any(isinstance(part, arrays) for part in samples):
        return samples
    if len(samples) != 2 or not all(isinstance(part, arrays) for part in samples):
        got = ", ".join(type(part).__name__ for part in samples)
        raise ValueError(f"{reference} must give a pair of tensors or arrays (x, y), or batches of them; got {got}.")
    like = next(model.parameters(), torch.zeros(()))
    x, y = (_tensor(part, like) for part in samples)
    if len(x) != len(y):
        raise ValueError(f"{reference} must give as many targets as samples; got {len(x)} and {len(y)}.")
    return x, y


def _data(reference: str, seed: int) -> Any:
    from normscope.data import load as load_data
    from normscope.data.arrays import read_xy

    if reference in _SEEDED:
        return load_data(reference, seed=seed)
    if reference in _FROM_FILES:
        return load_data(reference)
    if reference.endswith(".npz"):
        return read_xy(reference)
    if ":" in reference:
        return called(reference, "give the data")
    check_choice("data", reference, (*_SEEDED, *_FROM_FILES, "path.npz", "path.py:name"))
    raise ValueError(f"{reference} is a placeholder. Give the path of a .npz file, or a function as path.py:name.")


def _tensor(values: Any, like: "Tensor") -> "Tensor":
    """The values as a tensor: floating numbers in the model's dtype, labels as int64."""
    import torch

    tensor = torch.as_tensor(values)
    return tensor.to(like) if tensor.is_floating_point() else tensor.to(like.device, torch.int64)
