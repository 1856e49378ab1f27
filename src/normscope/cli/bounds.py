"""`normscope bounds`: the theorems about BatchNorm on the layers of a network."""

import json
from typing import Annotated, Any

import typer

from normscope.cli.inputs import DATA_HELP, MODEL_HELP, data_of, model_or_setup, taking_the_batch
from normscope.messages.choices import check_choice


def bounds(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)],
    data: Annotated[str | None, typer.Option(help=DATA_HELP)] = None,
    loss: Annotated[
        str, typer.Option(help="Loss, for a model: half_mse, half_sse or cross_entropy.")
    ] = "cross_entropy",
    batch_size: Annotated[int, typer.Option(min=2, help="Batch size in samples, for a model.")] = 64,
    units: Annotated[int, typer.Option(min=1, help="Number of units to check in each layer, spread evenly.")] = 4,
    train: Annotated[
        int, typer.Option(min=0, help="Number of SGD steps to train before the check; adds Lemma 4.5.")
    ] = 0,
    lr: Annotated[float, typer.Option(help="Learning rate of the --train steps.")] = 0.1,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the batches, for a model.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Check Theorems 4.1, 4.2, 4.4, C.1 and Lemma 4.5 of "How Does Batch Normalization Help Optimization?".

    Computes both sides of each statement, as printed and as corrected, for every linear layer or convolution of a
    network that is followed by a BatchNorm. Exit status 1 if a corrected statement does not hold.

    Example: normscope bounds train.py:setup, or normscope bounds net.py:build --data digits --train 100
    """
    import torch

    from normscope.bounds import check_network
    from normscope.data import batches
    from normscope.isolation.loaders import Stream
    from normscope.losses import LOSSES
    from normscope.setup import Setup
    from normscope.training import train as train_model

    check_choice("loss", loss, LOSSES)
    built = model_or_setup(model, data, "cpu")
    if isinstance(built, Setup):
        setup = built
    else:
        pair = data_of(str(data), built, seed)
        if not isinstance(pair, tuple):
            raise ValueError(f"bounds needs all samples at once: {data} must return a pair (x, y).")
        setup = Setup(built, LOSSES[loss], batches(*pair, batch_size=batch_size, seed=seed, steps=train + 1))
    weights = {name: m.weight.detach().clone() for name, m in setup.model.named_modules() if _has_weight(m)}
    if setup.batches is None:
        raise ValueError(
            f"{model} returns no batches, and the theorems need one batch. Return Setup(..., batches=...)."
        )
    stream = Stream(setup.batches)
    batch = stream.head(1)
    with taking_the_batch():
        if train:
            sgd = torch.optim.SGD(setup.model.parameters(), lr=lr)
            train_model(setup.model, setup.loss_fn, stream, sgd, forward=setup.forward, steps=train)
        results = check_network(setup, batches=batch, w0=weights if train else None, units=units)
    if as_json:
        said = {"kind": "bounds", "schema": 1, "layers": {name: layer.plain() for name, layer in results.items()}}
        typer.echo(json.dumps(said, indent=1, allow_nan=False))
    wrong = [name for name, layer in results.items() if not layer.holds]
    if not as_json:
        for name, layer in results.items():
            typer.echo(f"layer {name}: {layer}\n")
        typer.echo(f"NOT every corrected statement holds: {wrong}" if wrong else "Every corrected statement holds.")
    if wrong:
        raise typer.Exit(1)


def _has_weight(module: Any) -> bool:
    from torch import Tensor

    return isinstance(getattr(module, "weight", None), Tensor)
