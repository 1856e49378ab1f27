"""`normscope monitor`: train the setup of a user's function and measure on the way."""

import json
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from normscope.cli.inputs import SETUP_HELP, setup_of, what_was_said

_TRAINING = ("forward", "scheduler", "accumulate", "clip", "scaler", "averaged_model", "training_step", "autocast")
_PACKAGE = Path(__file__).parents[1]


def monitor(
    setup: Annotated[str, typer.Argument(metavar="SETUP", help=SETUP_HELP)],
    steps: Annotated[
        int | None, typer.Option(min=1, help="Most training steps. Default: the steps of the setup.")
    ] = None,
    every: Annotated[
        str, typer.Option(help="Training steps between snapshots, 'log' for log-spaced steps, or a list: 0,10,50.")
    ] = "10",
    measure: Annotated[str, typer.Option(help="Set of probes: light, standard or full.")] = "standard",
    budget: Annotated[
        str, typer.Option(help="Largest share of the training's cost for snapshots, such as 0.05; 'none' for no limit.")
    ] = "0.05",
    out: Annotated[Path, typer.Option(help="New output folder for records, figures and summary.")] = Path(
        "normscope-monitor"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print outcome and verdicts as JSON.")] = False,
) -> None:
    """Train your setup, measure at intervals without changing the run, and print diagnoses.

    The function returns an ns.Setup, a dict of its fields, or a tuple (model, loss_fn, batches, optimizer).

    Example: normscope monitor train.py:setup --steps 200 --measure full --budget none
    """
    from rich.console import Console
    from rich.progress import Progress

    from normscope.monitor import JSONL, Monitor
    from normscope.report.monitor_folder import write_monitor
    from normscope.training import train

    if out.exists() and not out.is_dir():
        raise ValueError(f"--out names a folder, and {out} is a file. Choose another.")
    lines = out / "monitor.jsonl"
    if lines.exists():
        raise ValueError(f"{out} holds a run already. Choose another --out.")
    options: dict[str, Any] = {"every": _steps(every), "measure": measure, "budget": _share(budget)}
    described = setup_of(setup)
    model, loss_fn, optimizer, batches = described.model, described.loss_fn, described.optimizer, described.batches
    if optimizer is None or batches is None:
        missing = "optimizer" if optimizer is None else "batches"
        raise ValueError(f"{setup} returns no {missing}, and training needs it. Return Setup(..., {missing}=...).")
    steps = steps or described.steps
    training = {name: getattr(described, name) for name in _TRAINING}
    done, diverged_at, interrupted = 0, None, False
    try:
        with (
            Monitor(described, sinks=[JSONL(lines)], **options) as monitor,
            Progress(console=Console(stderr=True), transient=True) as progress,
        ):
            task = progress.add_task("training", total=steps or _length(batches))

            def on_step(step: int) -> None:
                nonlocal done
                done = step + 1
                progress.update(task, completed=done, description=f"training, {len(monitor.records)} snapshots")

            try:
                trained = train(
                    model, loss_fn, batches, optimizer, steps=steps, on_step=on_step, monitor=monitor, **training
                )
                diverged_at = trained.diverged_at
                if not trained.losses:
                    raise ValueError(f"The batches of {setup} are empty, so nothing was trained.")
            except KeyboardInterrupt:
                interrupted = True
    except Exception as error:
        if not done:
            _forget(lines)
        if "more than 1 value per channel" in str(error):
            raise ValueError(
                f"{setup} gives a batch of one sample at step {done}, and BatchNorm's statistics need two or more. Use "
                "larger batches, and drop_last=True in a DataLoader."
            ) from error
        if _by_batch(error):
            before = f"the {done} steps" if done != 1 else "the step"
            kept = f" What was measured in {before} before is in {out}." if done else ""
            raise ValueError(f"{setup} failed at step {done}: {what_was_said(error)}{_place(error)}.{kept}") from error
        raise
    outcome = f"{done} step{'s' * (done != 1)}, {len(monitor.records)} snapshot{'s' * (len(monitor.records) != 1)}"
    if diverged_at is not None:
        outcome += f"; the run diverged at step {diverged_at}"
    outcome += "; interrupted." if interrupted else "."
    written = write_monitor(monitor.records, monitor.notes, outcome, monitor.settings(), out)
    written = [lines, *written]
    if as_json:
        said = [asdict(verdict) for verdict in monitor.verdicts]
        document = {"schema": 1, "outcome": outcome, "verdicts": said, "notes": monitor.notes}
        typer.echo(json.dumps(document | {"written": list(map(str, written))}, indent=1))
    else:
        console = Console()
        for sentence in (outcome, *map(str, monitor.verdicts), *monitor.notes):
            console.print(f"- {sentence}", soft_wrap=True, highlight=False, markup=False)
        console.print("Written: " + ", ".join(map(str, written)), soft_wrap=True, highlight=False, markup=False)
    if interrupted:
        typer.echo(f"normscope: interrupted after {done} steps; what was measured before is in {out}.", err=True)
        raise typer.Exit(1)
    if not any(record.results for record in monitor.records):
        typer.echo(f"normscope: nothing was measured; {out / 'summary.md'} says why.", err=True)
        raise typer.Exit(1)


def _by_batch(error: Exception) -> bool:
    """Whether torch raised the error because model, loss and batch do not fit; normscope's own errors say so."""
    if isinstance(error, ValueError):
        return _PACKAGE not in Path(traceback.extract_tb(error.__traceback__)[-1].filename).parents
    own = type(error).__module__.startswith("normscope.")
    return not own and isinstance(error, (RuntimeError, IndexError, TypeError))


def _place(error: Exception) -> str:
    """File and line of the error in the user's own code: not in normscope, an installed library or Python."""
    packages = Path(typer.__file__).parents[1], _PACKAGE, Path(traceback.__file__).parent
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(folder in Path(frame.filename).parents for folder in packages)]
    inside = [frame for frame in own if frame.lineno and frame.filename.endswith(".py") and frame.name != "<module>"]
    return f" ({Path(inside[-1].filename).name}, line {inside[-1].lineno})" if inside else ""


def _forget(lines: Path) -> None:
    """Removes a file without a snapshot and its empty folder, so that the next try may use the same folder."""
    lines.unlink(missing_ok=True)
    if lines.parent.is_dir() and not any(lines.parent.iterdir()):
        lines.parent.rmdir()


def _steps(every: str) -> int | str | list[int]:
    numbers = every.split(",")
    if every == "log" or not all(number.strip().isdecimal() for number in numbers):
        return every
    return int(every) if len(numbers) == 1 else [int(number) for number in numbers]


def _share(budget: str) -> float | None:
    try:
        return None if budget == "none" else float(budget)
    except ValueError:
        raise ValueError(f"budget is a share of the training's cost such as 0.05, or 'none'; got {budget!r}.") from None


def _length(batches: Any) -> int | None:
    return len(batches) if hasattr(batches, "__len__") else None
