"""The demo's stored runs: loss over steps, with and without BatchNorm."""

from collections.abc import Sequence

from normscope.demo import DemoRun
from normscope.report.chart import BLUE, DASHED, SOLID, VERMILION, Axis, Chart, Line, Panel
from normscope.report.demo import COLUMNS, LABELS, findings, network_of, table_rows
from normscope.report.document import Said, Section, Table

_STYLE = {"none": (VERMILION, DASHED), "batch": (BLUE, SOLID)}


def demo_section(title: str, runs: Sequence[DemoRun]) -> Section:
    pairs = list(dict.fromkeys((run.task, run.lr) for run in runs))
    diverged = {(run.task, run.lr): run.training.diverged_at for run in runs if run.norm == "batch"}
    said = tuple(
        Said(diverged[pair] is None, text, "same data and initial weights; the normalizer alone differs", "this run")
        for pair, text in zip(pairs, findings(runs), strict=True)
    )
    charts = tuple(_chart(runs, task, [lr for one, lr in pairs if one == task]) for task in dict(pairs))
    training = runs[0].training
    return Section(
        title,
        said,
        charts,
        (Table("Every run", COLUMNS, [[_number(cell) for cell in row] for row in table_rows(runs)]),),
        (),
        {"seed": runs[0].seed} | training.settings,
        training.environment,
        f"normscope demo --seed {runs[0].seed}",
        ("demo",),
    )


def _chart(runs: Sequence[DemoRun], task: str, rates: Sequence[float]) -> Chart:
    panels = []
    for lr in rates:
        lines = tuple(
            Line(LABELS[run.norm], range(run.training.steps), run.training.losses, *_STYLE[run.norm])
            for run in runs
            if (run.task, run.lr) == (task, lr)
        )
        # A diverged run leaves the frame upwards; without a ceiling it would flatten the other curves.
        ceiling = 10 * max(line.y[0] for line in lines)
        panels.append(
            Panel(f"learning rate {lr:g}", Axis("step"), Axis("loss of the batch", log=True, high=ceiling), lines)
        )
    network = network_of(next(run for run in runs if run.task == task))
    caption = "Loss of each training batch before its step. A curve that leaves the frame diverges."
    return Chart(network, caption, tuple(panels))


def _number(cell: str) -> float | str:
    try:
        return float(cell)
    except ValueError:
        return cell
