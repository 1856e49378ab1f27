"""`normscope measure`: the largest stable learning rate of a network of yours, on data of yours."""

import json
import math
from itertools import islice
from typing import Annotated, Any

import typer

from normscope.choices import check_choice
from normscope.cli.inputs import batch_of, model_of, what_was_said


def measure(
    model: Annotated[str, typer.Argument(help="path/to/file.py:name or package.module:name of a function.")],
    data: Annotated[str, typer.Option(help="digits, gaussian, mnist, cifar10, a .npz with x and y, or module:name.")],
    lr: Annotated[float | None, typer.Option(help="Say what this learning rate means here.")] = None,
    loss: Annotated[str, typer.Option(help="half_mse, half_sse, mse or cross_entropy.")] = "cross_entropy",
    momentum: Annotated[float, typer.Option(help="Of gradient descent.")] = 0.0,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Nesterov's momentum.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Samples of the one batch.")] = 256,
    batches: Annotated[int | None, typer.Option(min=1, help="Of a loader, at most so many; all if not given.")] = None,
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
    from normscope.losses import LOSSES, mse

    if lr is not None and not (math.isfinite(lr) and lr > 0):
        raise ValueError(f"--lr is a positive number; got {lr}.")
    known = LOSSES | {"mse": mse}
    check_choice("loss", loss, known)
    check_choice("stats", stats, STATISTICS)
    built = model_of(model, device)
    batch = batch_of(data, built, batch_size, seed)
    if isinstance(batch, tuple):
        if batches is not None:
            raise ValueError(f"--batches counts those of a loader; {data} is one batch. Its size is --batch-size.")
    else:
        batch = batch if batches is None else list(islice(batch, batches))
        many = batches is None and _count(batch) != "1"
        faster = "; --batches 1 is faster" if many else ""
        typer.echo(f"Measuring over {_count(batch)} of the batches of {data}{faster}.", err=True)
    try:
        found = measure_curvature(
            built,
            known[loss],
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
        raise ValueError(f"The model or the loss does not take this batch: {what_was_said(error)}") from error
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


def _count(batches: Any) -> str:
    """A loader of a data set without a length has a __len__ that raises."""
    try:
        return str(len(batches))
    except TypeError:
        return "all"
