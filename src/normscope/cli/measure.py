"""`normscope measure`: curvature of the loss and largest stable learning rate of a network, on its data."""

import json
import math
from typing import Annotated

import typer

from normscope.cli.inputs import DATA_HELP, MODEL_HELP, batch_of, model_or_setup, taking_the_batch
from normscope.messages.choices import check_choice


def measure(
    model: Annotated[str, typer.Argument(metavar="SETUP", help=MODEL_HELP)],
    data: Annotated[str | None, typer.Option(help=DATA_HELP)] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate to judge against eta*.")] = None,
    loss: Annotated[
        str, typer.Option(help="Loss, for a model: half_mse, half_sse, mse or cross_entropy.")
    ] = "cross_entropy",
    momentum: Annotated[float, typer.Option(help="SGD momentum, for a setup without an optimizer.")] = 0.0,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Use Nesterov momentum.")] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Batch size in samples, for a model.")] = 256,
    batches: Annotated[
        int | None, typer.Option(min=1, help="Number of batches to read from a loader. Default: 4.")
    ] = None,
    stats: Annotated[str, typer.Option(help="Batch statistics: batch (as trained), frozen or running.")] = "batch",
    matrix: Annotated[str | None, typer.Option(help="Curvature matrix: ggn, hessian or fisher. Default: ggn.")] = None,
    hessian: Annotated[
        bool, typer.Option("--hessian", help="Measure both ends of the Hessian's spectrum too; the costliest part.")
    ] = False,
    layers: Annotated[
        bool, typer.Option("--layers", help="Print lambda_max of the diagonal block of each layer.")
    ] = False,
    device: Annotated[str, typer.Option(help="Device, for a model: cpu or cuda.")] = "cpu",
    max_memory: Annotated[
        float | None, typer.Option(help="Bytes that copies of parameters, buffers and batches may take. Default: any.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the batch and of the start vector.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Measure the curvature of a network's loss as it is trained, and the learning rate it allows.

    The function returns an ns.Setup, a tuple (model, loss_fn, batches, optimizer), or a model, which needs --data.

    Example: normscope measure train.py:setup --lr 0.1, or normscope measure net.py:build --data digits --lr 0.1
    """
    from rich.table import Table

    from normscope.cli.printing import console
    from normscope.curvature import STATISTICS
    from normscope.curvature import measure as measure_curvature
    from normscope.curvature.operators.statistics import over_the_batch
    from normscope.losses import LOSSES, mse
    from normscope.setup import Setup

    if lr is not None and not (math.isfinite(lr) and lr > 0):
        raise ValueError(f"--lr is a positive number; got {lr}.")
    known = LOSSES | {"mse": mse}
    check_choice("loss", loss, known)
    check_choice("stats", stats, STATISTICS)
    built = model_or_setup(model, data, device)
    if not isinstance(built, Setup):
        loaded = batch_of(str(data), built, batch_size, seed)
        if isinstance(loaded, tuple):
            if batches is not None:
                raise ValueError(f"--batches is for a loader, and {data} is one batch. Set its size with --batch-size.")
            loaded = [loaded]
        built = Setup(built, known[loss], loaded)
    with taking_the_batch():
        measurement = measure_curvature(
            built,
            momentum=momentum,
            nesterov=nesterov,
            matrix=matrix,
            stats=stats,
            compare=STATISTICS if over_the_batch(built.model) else (),
            hessian=hessian,
            layers=layers,
            n_batches=batches,
            seed=seed,
            max_memory=max_memory,
        )
    verdict = None if lr is None else measurement.verdict(lr)
    if as_json:
        said = None if verdict is None else {"lr": lr, "good": verdict.good, "text": verdict.text}
        typer.echo(json.dumps(measurement.plain() | {"verdict": said}, indent=1, allow_nan=False))
        return
    terminal = console()
    terminal.print(str(measurement), soft_wrap=True)
    if layers:
        rows = measurement.frame()
        table = Table(*rows.columns)
        for row in rows.itertuples(index=False):
            table.add_row(*(value if isinstance(value, str) else f"{value:.3g}" for value in row))
        terminal.print(table)
    if verdict is not None:
        terminal.print(str(verdict), soft_wrap=True)
