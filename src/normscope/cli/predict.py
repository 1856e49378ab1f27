"""`normscope predict`: largest stable learning rate of a network from mean-field theory, before training."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from normscope.cli.importing import at_once
from normscope.cli.inputs import MODEL_HELP, model_to_predict
from normscope.cli.printing import console
from normscope.importing.named_functions import place_of
from normscope.messages import first_line
from normscope.results import plain


def predict(
    model: Annotated[str, typer.Argument(help=MODEL_HELP)],
    input: Annotated[str, typer.Option(help="Shape of one input sample: 784, or 3,32,32 (or 3x32x32).")],
    lr: Annotated[float | None, typer.Option(help="Learning rate to judge against eta*.")] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="Loss: half_mse, half_sse, mse or cross_entropy. Default: the setup's; of a model alone cross_entropy."
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Batch size in samples.")] = 128,
    momentum: Annotated[float | None, typer.Option(help="SGD momentum. Default: the setup's, or 0.")] = None,
    nesterov: Annotated[bool, typer.Option("--nesterov", help="Use Nesterov momentum.")] = False,
    stats: Annotated[str, typer.Option(help="Batch statistics: batch (as trained) or frozen.")] = "batch",
    theory: Annotated[str, typer.Option(help="Theory: corrected, or paper for the formulas as printed.")] = "corrected",
    layers: Annotated[bool, typer.Option("--layers", help="Print the order parameters of each layer.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Predict the curvature of a network's loss at initialization, and the learning rate it allows.

    The function returns the model with its initial weights, or an ns.Setup; the theory takes the weights' variances.

    Example: normscope predict net.py:build --input 3,32,32 --loss half_mse --momentum 0.9
    """
    with at_once():
        from normscope.prediction import predict as predict_network

    try:
        shape = tuple(int(part) for part in input.replace("x", ",").split(","))
    except ValueError:
        raise ValueError(f"--input must be the shape of one sample, such as 784 or 3,32,32; got {input!r}.") from None
    built = model_to_predict(model)
    options = {"momentum": momentum, "nesterov": nesterov or None, "stats": stats, "theory": theory}
    try:
        prediction = predict_network(built, shape, loss, batch_size, **options)  # type: ignore[arg-type]
    except (RuntimeError, TypeError, LookupError, AttributeError) as error:
        if type(error).__module__.startswith("normscope."):
            raise
        raise ValueError(f"{model} cannot be predicted: {first_line(error)}{place_of(error)}.") from error
    if as_json:
        verdict = {} if lr is None else {"verdict": asdict(prediction.verdict(lr))}
        typer.echo(json.dumps(prediction.plain() | plain(verdict), indent=1, allow_nan=False))
        return
    terminal = console()
    terminal.print(str(prediction), soft_wrap=True)
    if layers:
        table = prediction.frame().to_string(index=False, na_rep="", float_format=lambda value: f"{value:.3g}")
        terminal.print(table, soft_wrap=True)
    if lr is not None:
        terminal.print(str(prediction.verdict(lr)), soft_wrap=True)
