"""The results of `normscope demo`: eta* predicted and measured, beside what training did."""

from typing import TypedDict

from normscope.demo import DemoCase, DemoResult, DemoRun, WatchedRun
from normscope.loss_kinds import MEANINGS, SQUARED
from normscope.report.chart import BLUE, DASHED, DOTTED, GREEN, GREY, SOLID, VERMILION, Axis, Chart, Line, Panel
from normscope.report.document import Said, Section, Table

TITLE = "What the demo found"
# Below this share of the test images the network has not learned; guessing gives a tenth.
_LEARNED = 0.5
# Predicted and measured eta* within this factor count as agreement.
_AGREE = 1.25
_STYLES = ((BLUE, SOLID), (VERMILION, DASHED), (GREEN, DOTTED))


class Demo(TypedDict):
    """Schema of the file that `normscope demo` writes."""

    seed: int
    cases: list[DemoCase]
    watched: WatchedRun


def demo_section(title: str, found: DemoResult) -> Section:
    """The findings first, then one chart for the learning rates and one for the watched run."""
    rows = [
        [
            case.norm,
            MEANINGS[case.loss].words,
            run.share,
            run.lr,
            run.training.final_loss,
            run.test_accuracy,
            outcome(run),
        ]
        for case in found.cases
        for run in case.runs
    ]
    columns = ("norm", "loss", "lr / eta*", "lr", "last loss", "right", "outcome")
    training = found.cases[0].runs[0].training
    return Section(
        title,
        findings(found),
        tuple(demo_charts(found).values()),
        (Table("Every training", columns, rows),),
        ("All networks share data, batches and initial weights. Learning rates are multiples of the measured eta*.",),
        {"seed": found.seed} | training.settings,
        training.environment,
        f"normscope demo --seed {found.seed}",
        ("demo",),
    )


def findings(found: DemoResult) -> tuple[Said, ...]:
    """The sentences of the first screen: what was predicted, and what happened."""
    first, plain, entropy = found.cases
    apart = max(first.predicted, first.measured) / min(first.predicted, first.measured)
    said = [
        Said(
            apart < _AGREE,
            f"Predicted before training: eta* = {first.predicted:.2g}. Measured on data: {first.measured:.2g}. eta* is "
            "the learning rate where training should turn unstable.",
            "2 (1 + mu) / lambda_max, by theory and on four batches",
        ),
        _edge(first),
        _guess(found),
        Said(
            None,
            f"Without its BatchNorm layers the same network has eta* = {plain.measured:.2g}, "
            f"{plain.measured / first.measured:.2g} times as much. {_edge(plain).text}",
            "the same weights",
        ),
        Said(None, _edge(entropy).text + " With this loss eta* warns; it does not forbid.", "the other loss"),
        Said(
            found.watched.unchanged,
            f"The Monitor took {len(found.watched.steps)} snapshots, and the watched run "
            f"{'equals' if found.watched.unchanged else 'differs from'} the unwatched one"
            f"{', bit for bit' if found.watched.unchanged else ''}.",
            "parameters and buffers at the end",
        ),
    ]
    warned = (f"The Monitor's last snapshot warned: {text}" for text in found.watched.warnings)
    return (*said, *(Said(None, text, "", "the watched run") for text in warned))


def _edge(case: DemoCase) -> Said:
    """The largest rate at which the network learned, and the next one."""
    largest = _largest(case)
    beyond = [run for run in case.runs if run.share > largest]
    name = f"{'with' if case.norm == 'batch' else 'without'} BatchNorm"
    loss = MEANINGS[case.loss].words.capitalize()
    text = f"{loss}: training {name} learned up to {largest:g} times eta*"
    text += f"; at {beyond[0].share:g} times eta* {_ended(beyond[0])}." if beyond else ", the largest rate tried."
    # With squared error, eta* lies between the last rate that learns and the first that does not, to a factor of two.
    agrees = bool(beyond) and largest <= 2 and beyond[0].share >= 1
    return Said(agrees if case.loss == SQUARED else None, text, "learned: more than half of the test images right")


def _guess(found: DemoResult) -> Said:
    best = max(found.cases[0].runs, key=lambda run: run.test_accuracy)
    right = found.watched.test_accuracy
    return Said(
        right >= best.test_accuracy - 0.02,
        f"The first guess of measure, {found.watched.lr:.2g}, gave {right:.0%} of the test images right. The best of "
        f"{len(found.cases[0].runs)} rates gave {best.test_accuracy:.0%}.",
        "squared error with BatchNorm",
    )


def _largest(case: DemoCase) -> float:
    """The largest share of eta* up to which every training learned."""
    largest = 0.0
    for run in case.runs:
        if not learned(run):
            break
        largest = run.share
    return largest


def learned(run: DemoRun) -> bool:
    """Whether the network ended with more than half of the test images right."""
    return run.training.diverged_at is None and run.test_accuracy > _LEARNED


def outcome(run: DemoRun) -> str:
    """One cell of the table: the share of test images that are right, or the end of the training."""
    if run.training.diverged_at is not None:
        return f"diverged at step {run.training.diverged_at}"
    return f"{run.test_accuracy:.0%} right" + ("" if learned(run) else ", did not learn")


def _ended(run: DemoRun) -> str:
    diverged = run.training.diverged_at
    return "it did not learn" if diverged is None else f"it diverged at step {diverged}"


def case_name(case: DemoCase) -> str:
    """The network and its loss in words."""
    return f"{'BatchNorm' if case.norm == 'batch' else 'no norm'}, {MEANINGS[case.loss].words}"


def table(found: DemoResult) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Column names and rows of the summary: eta*, then the outcome at each multiple of the measured eta*."""
    names = [f"{run.share:g}x" for run in found.cases[0].runs]
    rows = [
        (case_name(case), f"{case.predicted:.2g}", f"{case.measured:.2g}", *map(_cell, case.runs))
        for case in found.cases
    ]
    return ("network, loss", "predicted", "measured", *names), rows


def _cell(run: DemoRun) -> str:
    return f"{run.test_accuracy:.0%}" if learned(run) else "fails"


def demo_charts(found: DemoResult) -> dict[str, Chart]:
    """Accuracy over the learning rate in units of eta*, and the watched run, by the names of their files."""
    lines = tuple(
        Line(
            case_name(case),
            [run.share for run in case.runs],
            [run.test_accuracy for run in case.runs],
            colour,
            dash,
            texts=[outcome(run) for run in case.runs],
            marks=True,
        )
        for case, (colour, dash) in zip(found.cases, _STYLES, strict=True)
    )
    edge = Line("eta*", [1.0, 1.0], [0.0, 1.0], GREY, DASHED)
    right = Axis("test images right", low=0, high=1)
    rates = Panel("", Axis("learning rate / measured eta*", log=True), right, (*lines, edge))
    seen = found.watched
    critical = Line("critical rate", seen.steps, seen.critical_rates, BLUE, marks=True)
    used = Line("learning rate used", seen.steps, [seen.lr] * len(seen.steps), VERMILION, DASHED)
    watched = Panel("", Axis("step"), Axis("learning rate", log=True), (critical, used))
    return {
        "learning-rates": Chart(
            "Where training ends, in units of eta*",
            "Share of test images right after training, over the learning rate as a multiple of the measured eta*. The "
            "dashed line at 1 is eta*.",
            (rates,),
            wide=True,
        ),
        "watched": Chart(
            "The watched run",
            "The learning rate at which the loss along the coming update would be back at its present value. While it "
            "stays above the rate in use, the update lowers the loss of its batch.",
            (watched,),
            wide=True,
        ),
    }
