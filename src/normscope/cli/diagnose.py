"""`normscope diagnose`: what is wrong with the normalization in a training."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.choices import check_choice
from normscope.cli.inputs import model_to_predict, setup_of, taking_the_batch, what_was_said
from normscope.cli.printing import console

if TYPE_CHECKING:
    from normscope.setup import Setup


def diagnose(
    setup: Annotated[
        str,
        typer.Argument(
            metavar="SETUP", help="Function that returns a setup, or with --checkpoint a model: path/to/file.py:name."
        ),
    ],
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="File of a state dict: judge the configuration and the stored statistics alone."),
    ] = None,
    rules: Annotated[
        str | None, typer.Option(help="Ids or names of the rules to judge by, separated by commas. Default: all.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Planned training steps. Default: the steps of the setup.")] = None,
    fail_on: Annotated[
        str | None, typer.Option(help="Exit with status 1 if a finding is at least this: error, warning or note.")
    ] = None,
    sarif: Annotated[Path | None, typer.Option(help="SARIF file to write the findings to.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSON file to write the result to.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Find what is wrong with the normalization in a training.

    The function returns an ns.Setup, a dict of its fields, or a tuple (model, loss_fn, batches, optimizer).

    Example: normscope diagnose train.py:setup
    """
    from normscope.diagnosis import diagnose as diagnose_setup
    from normscope.diagnosis.finding import SEVERITIES

    if fail_on is not None:
        check_choice("--fail-on", fail_on, SEVERITIES)
    for name, path in (("--sarif", sarif), ("--out", out)):
        if path is not None and (path.is_dir() or not path.parent.is_dir()):
            raise ValueError(f"{name} names a file in an existing folder; got {path}.")
    wanted = None if rules is None else [name.strip() for name in rules.split(",") if name.strip()]
    with taking_the_batch():
        if checkpoint is None:
            found = diagnose_setup(setup_of(setup), rules=wanted, steps=steps)
        else:
            given: Any = model_to_predict(setup)
            found = diagnose_setup(_model_of(given), _state_dict(checkpoint), rules=wanted, steps=steps)
    if sarif is not None:
        found.sarif(sarif, setup.rpartition(":")[0])
    if out is not None:
        found.save(out)
    if as_json:
        typer.echo(json.dumps(found.plain(), indent=1, allow_nan=False))
    else:
        console().print(str(found), soft_wrap=True)
    if fail_on is not None and found.at_least(fail_on):
        raise typer.Exit(1)


def _model_of(given: Any) -> "Setup":
    """The setup without data, for a judgement of configuration and stored statistics alone."""
    from dataclasses import replace

    from torch import nn

    from normscope.setup import Setup

    setup = Setup(given) if isinstance(given, nn.Module) else given
    return replace(setup, loss_fn=None, batches=None, eval_batches=None)


def _state_dict(path: Path) -> Any:
    """The state dict in a file."""
    import torch

    if not path.is_file():
        raise ValueError(f"--checkpoint names a file of a state dict; there is no file {path}.")
    try:
        held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ValueError(
            f"{path} could not be read as a state dict: {what_was_said(error)}. Save one with "
            "torch.save(model.state_dict(), path)."
        ) from error
    if not isinstance(held, dict):
        raise ValueError(f"{path} holds a {type(held).__name__}, and not a state dict.")
    return held
