"""The runs of `normscope demo`: loss over steps, with and without BatchNorm."""

from collections.abc import Sequence
from typing import TypedDict

from normscope.demo import DemoRun
from normscope.report.chart import BLUE, DASHED, SOLID, VERMILION, Axis, Chart, Line, Panel
from normscope.report.document import Said, Section, Table

COLUMNS = ("task", "norm", "lr", "steps", "first loss", "last loss", "test loss", "right", "outcome")
_LABELS = {"none": "without BatchNorm", "batch": "with BatchNorm"}
_STYLE = {"none": (VERMILION, DASHED), "batch": (BLUE, SOLID)}
_LOSSES = {"digits": "cross-entropy of the batch", "dln": "half the summed squared error of the batch"}


class Demo(TypedDict):
    """Schema of the file that `normscope demo` writes."""

    runs: list[DemoRun]


def demo_section(title: str, runs: Sequence[DemoRun]) -> Section:
    """One verdict for each task and learning rate, one chart for each task, one table of all runs."""
    pairs = list(dict.fromkeys((run.task, run.lr) for run in runs))
    diverged = {(run.task, run.lr): run.training.diverged_at for run in runs if run.norm == "batch"}
    said = tuple(
        Said(diverged[pair] is None, text, "same data and initial weights; the normalizer alone differs", "this run")
        for pair, text in zip(pairs, findings(runs), strict=True)
    )
    training = runs[0].training
    return Section(
        title,
        said,
        tuple(demo_charts(runs).values()),
        (Table("Every run", COLUMNS, [[_number(cell) for cell in row] for row in table_rows(runs)]),),
        (),
        {"seed": runs[0].seed} | training.settings,
        training.environment,
        f"normscope demo --seed {runs[0].seed}",
        ("demo",),
    )


def demo_charts(runs: Sequence[DemoRun]) -> dict[str, Chart]:
    """Loss over steps by the name of the task; one panel for each learning rate."""
    return {task: _chart([run for run in runs if run.task == task]) for task in dict.fromkeys(r.task for r in runs)}


def _chart(runs: Sequence[DemoRun]) -> Chart:
    task, steps, panels = runs[0].task, max(run.training.steps for run in runs), []
    # A diverged run leaves the frame upwards; without a ceiling it would flatten the other curves.
    ceiling = 10 * max(run.training.losses[0] for run in runs)
    high = ceiling if any(not loss <= ceiling for run in runs for loss in run.training.losses) else None
    for lr in dict.fromkeys(run.lr for run in runs):
        lines = tuple(
            Line(_label(run), range(run.training.steps), run.training.losses, *_STYLE[run.norm])
            for run in runs
            if run.lr == lr
        )
        title = f"learning rate {lr:g}, {steps:,} steps, seed {runs[0].seed}"
        panels.append(Panel(title, Axis("step"), Axis(_LOSSES.get(task, "loss"), log=True, high=high), lines))
    caption = "Loss of each training batch before its step. A curve that leaves the frame diverges."
    return Chart(_network(runs[0]), caption, tuple(panels))


def _label(run: DemoRun) -> str:
    diverged = run.training.diverged_at
    return _LABELS[run.norm] + ("" if diverged is None else f" (diverged at step {diverged})")


def table_rows(runs: Sequence[DemoRun]) -> list[tuple[str, ...]]:
    """One row for each run, in the order of `COLUMNS`."""
    return [_row(run) for run in runs]


def findings(runs: Sequence[DemoRun]) -> list[str]:
    """One sentence for each task and learning rate: the outcome without and with BatchNorm."""
    said = []
    for task, lr in dict.fromkeys((run.task, run.lr) for run in runs):
        pair = {run.norm: run for run in runs if (run.task, run.lr) == (task, lr)}
        plain_run, normed = pair["none"], pair["batch"]
        where = f"{_network(normed)} at learning rate {lr:g}"
        said.append(f"{where}: without BatchNorm {_outcome(plain_run)}; with BatchNorm {_outcome(normed)}.")
    return said


def _outcome(run: DemoRun) -> str:
    training = run.training
    if training.diverged_at is not None:
        return f"it diverged at step {training.diverged_at}"
    right = "" if run.test_accuracy is None else f", {run.test_accuracy:.1%} right"
    fall = f"{training.losses[0]:.3g} to {training.final_loss:.3g}"
    return f"the loss went from {fall} (on test data {run.test_loss:.3g}{right})"


def _network(run: DemoRun) -> str:
    return f"Digits, {run.depth}-layer MLP" if run.task == "digits" else f"{run.depth}-layer deep linear network"


def _row(run: DemoRun) -> tuple[str, ...]:
    training = run.training
    diverged = training.diverged_at is not None
    return (
        run.task,
        run.norm,
        f"{run.lr:g}",
        str(training.steps),
        f"{training.losses[0]:.3g}",
        f"{training.final_loss:.3g}",
        f"{run.test_loss:.3g}",
        "" if run.test_accuracy is None else f"{run.test_accuracy:.1%}",
        "diverged" if diverged else "finished",
    )


def _number(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell
