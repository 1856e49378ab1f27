"""`normscope measure`: the largest stable learning rate of a network of yours, on data of yours."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.choices import check_choice
from normscope.cli.loading import load

if TYPE_CHECKING:
    from torch import Tensor, nn

_SEEDED, _FROM_FILES = ("digits", "gaussian"), ("mnist", "cifar10")


def measure(
    model: Annotated[str, typer.Argument(help="path/to/file.py:name or package.module:name of a function.")],
    data: Annotated[str, typer.Option(help="digits, gaussian, mnist, cifar10, a .npz with x and y, or module:name.")],
    lr: Annotated[float | None, typer.Option(help="Say what this learning rate means here.")] = None,
    loss: Annotated[str, typer.Option(help="half_mse, half_sse or cross_entropy.")] = "cross_entropy",
    momentum: Annotated[float, typer.Option(help="Of gradient descent.")] = 0.0,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Nesterov's momentum.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples of the one batch.")] = 256,
    stats: Annotated[str, typer.Option(help="batch (as trained), frozen or running.")] = "batch",
    matrix: Annotated[str, typer.Option(help="ggn, hessian or fisher.")] = "ggn",
    layers: Annotated[bool, typer.Option("--layers", help="A row for every layer's own block.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    seed: Annotated[int, typer.Option(min=0, help="Of the batch and of the start vector.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Measure the curvature of a network's loss as it is trained, and the learning rate it allows.

    The function gives the model. Data from a function are a pair (x, y), or batches of such pairs, which are averaged.

    Example: normscope measure net.py:build --data digits --lr 0.1 --momentum 0.9
    """
    from rich.console import Console
    from rich.table import Table

    from normscope.curvature import STATISTICS
    from normscope.curvature import measure as measure_curvature
    from normscope.curvature.statistics import over_the_batch
    from normscope.losses import LOSSES

    if lr is not None and not (math.isfinite(lr) and lr > 0):
        raise ValueError(f"--lr is a positive number; got {lr}.")
    check_choice("loss", loss, LOSSES)
    check_choice("stats", stats, STATISTICS)
    built = _model(model, device)
    batch = _batch(data, built, batch_size, seed)
    try:
        found = measure_curvature(
            built,
            LOSSES[loss],
            batch,
            momentum=momentum,
            nesterov=nesterov,
            matrix=matrix,
            stats=stats,
            compare=STATISTICS if over_the_batch(built) else (),
            layers=layers,
            seed=seed,
        )
    except (RuntimeError, IndexError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"The model or the loss does not take this batch: {_said(error)}") from error
    verdict = None if lr is None else found.verdict(lr)
    if as_json:
        said = None if verdict is None else {"lr": lr, "good": verdict.good, "text": verdict.text}
        typer.echo(json.dumps(found.plain() | {"verdict": said}, indent=1, allow_nan=False))
        return
    console = Console()
    console.print(str(found), soft_wrap=True, highlight=False, markup=False)
    if layers:
        rows = found.frame()
        table = Table(*rows.columns)
        for row in rows.itertuples(index=False):
            table.add_row(*(value if isinstance(value, str) else f"{value:.3g}" for value in row))
        console.print(table)
    if verdict is not None:
        console.print(str(verdict), soft_wrap=True, highlight=False, markup=False)


def _model(reference: str, device: str) -> "nn.Module":
    from torch import nn

    built = _called(reference, "build the model")
    if not isinstance(built, nn.Module):
        raise ValueError(f"{reference} must return a torch.nn.Module; got {type(built).__name__}.")
    try:
        return built.to(device)
    except (AssertionError, RuntimeError) as error:
        raise ValueError(f"--device {device} does not work here: {str(error).splitlines()[0]}") from error


def _called(reference: str, purpose: str) -> Any:
    """What the user's function gives; what it raises is one message."""
    function = load(reference)
    if not callable(function):
        raise ValueError(f"{reference} must be a function that can {purpose}; got {type(function).__name__}.")
    try:
        return function()
    except TypeError as error:
        raise ValueError(f"{reference} must {purpose} without arguments: {error}") from error
    except Exception as error:
        raise ValueError(f"{reference} was to {purpose} and raised {_said(error)}.") from error


def _said(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _batch(reference: str, model: "nn.Module", batch_size: int, seed: int) -> Any:
    """One batch of `batch_size` samples in the model's dtype and on its device; or a function's own batches."""
    import numpy as np
    import torch

    from normscope.data import Dataset, batches

    found = _data(reference, seed)
    if isinstance(found, Dataset):
        found = (found.x_train, found.y_train)
    arrays = (torch.Tensor, np.ndarray)
    if not isinstance(found, (tuple, list)) or not any(isinstance(part, arrays) for part in found):
        return found
    if len(found) != 2 or not all(isinstance(part, arrays) for part in found):
        got = ", ".join(type(part).__name__ for part in found)
        raise ValueError(f"{reference} must give a pair of tensors or arrays (x, y), or batches of them; got {got}.")
    like = next(model.parameters(), torch.zeros(()))
    x, y = (_tensor(part, like) for part in found)
    if len(x) != len(y):
        raise ValueError(f"{reference} must give as many targets as samples; got {len(x)} and {len(y)}.")
    return next(iter(batches(x, y, batch_size=batch_size, seed=seed, steps=1)))


def _data(reference: str, seed: int) -> Any:
    from normscope.data import load as load_data

    if reference in _SEEDED:
        return load_data(reference, seed=seed)
    if reference in _FROM_FILES:
        return load_data(reference)
    if reference.endswith(".npz"):
        return _arrays(Path(reference))
    if ":" in reference:
        return _called(reference, "give the data")
    check_choice("data", reference, (*_SEEDED, *_FROM_FILES, "path.npz", "path.py:name"))
    raise ValueError(f"{reference} stands for a file or function of yours; name that one.")


def _arrays(path: Path) -> tuple[Any, Any]:
    import numpy as np

    if not path.is_file():
        raise ValueError(f"There is no file {path}. Name a .npz with arrays x and y.")
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
