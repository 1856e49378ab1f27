"""`normscope bounds`: the theorems about BatchNorm on the layers of a network of yours."""

import json
from typing import Annotated

import typer

from normscope.choices import check_choice
from normscope.cli.inputs import data_of, model_of


def bounds(
    model: Annotated[str, typer.Argument(help="path/to/file.py:name or package.module:name of a function.")],
    data: Annotated[str, typer.Option(help="digits, gaussian, mnist, cifar10, a .npz with x and y, or module:name.")],
    loss: Annotated[str, typer.Option(help="half_mse, half_sse or cross_entropy.")] = "cross_entropy",
    batch_size: Annotated[int, typer.Option(min=2, help="Samples of the one batch.")] = 64,
    units: Annotated[int, typer.Option(min=1, help="Units of each layer to look at, spread evenly.")] = 4,
    train: Annotated[int, typer.Option(min=0, help="Steps of plain SGD before the look; adds Lemma 4.5.")] = 0,
    lr: Annotated[float, typer.Option(help="Of these steps.")] = 0.1,
    seed: Annotated[int, typer.Option(min=0, help="Of the batches.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Put numbers on Theorems 4.1, 4.2, 4.4, C.1 and Lemma 4.5 of "How Does Batch Normalization Help Optimization?".

    Both sides, as printed and as corrected, for every linear layer or convolution that hands its output to a BatchNorm.

    Exit status 1 where a corrected statement does not hold.

    Example: normscope bounds net.py:build --data digits --train 100
    """
    import torch

    from normscope.bounds import check_network
    from normscope.data import batches
    from normscope.losses import LOSSES
    from normscope.training import train as train_model

    check_choice("loss", loss, LOSSES)
    built = model_of(model, "cpu")
    pair = data_of(data, built, seed)
    if not isinstance(pair, tuple):
        raise ValueError(f"bounds takes all samples at once: {data} must give a pair (x, y).")
    weights = {name: m.weight.detach().clone() for name, m in built.named_modules() if hasattr(m, "weight")}
    batch = next(iter(batches(*pair, batch_size=batch_size, seed=seed, steps=1)))
    try:
        if train:
            steps = batches(*pair, batch_size=batch_size, seed=seed, steps=train)
            train_model(built, LOSSES[loss], steps, torch.optim.SGD(built.parameters(), lr=lr))
        found = check_network(built, LOSSES[loss], batch, w0=weights if train else None, units=units)
    except (RuntimeError, IndexError, TypeError) as error:
        raise ValueError(f"The model or the loss does not take this batch: {error}") from error
    if as_json:
        said = {"kind": "bounds", "schema": 1, "layers": {name: layer.plain() for name, layer in found.items()}}
        typer.echo(json.dumps(said, indent=1, allow_nan=False))
    wrong = [name for name, layer in found.items() if not layer.holds]
    if not as_json:
        for name, layer in found.items():
            typer.echo(f"layer {name}: {layer}\n")
        typer.echo(f"NOT every corrected statement holds: {wrong}" if wrong else "Every corrected statement holds.")
    if wrong:
        raise typer.Exit(1)
