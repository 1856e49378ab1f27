"""The phase diagram: which trainings survive over learning rate and axis, with the lines of theory and measurement."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from normscope.report.chart import (
    BLUE,
    DASH_DOT,
    DASHED,
    DOTTED,
    GREEN,
    INK,
    PURPLE,
    SOLID,
    VERMILION,
    Axis,
    Chart,
    Heat,
    Line,
    Panel,
    borders,
    shared_columns,
)
from normscope.report.document import Said, Section, Table
from normscope.sweeping import Edge, Outcome, PhaseDiagram
from normscope.sweeping.boundary import Distance

# Colour and dash of eta*, and dash of half of eta*. Lines that agree lie on each other, and each must be visible.
_STYLES = (
    (VERMILION, SOLID, DOTTED),
    (BLUE, DASHED, "1.5 8.5"),
    (GREEN, DASH_DOT, DOTTED),
    (PURPLE, DASHED, "1.5 8.5"),
)


def phase_section(
    title: str, diagram: PhaseDiagram, lines: Mapping[str, Mapping[float, float]], *, command: str = ""
) -> Section:
    """Boundary and best rates as sentences, the diagram with every cell's numbers, the boundary as a table.

    Args:
        lines: eta* by the name of the line and the value of the axis, as `PhaseDiagram.save` takes them.
    """
    plan, edges = diagram.plan, diagram.boundary()
    # A bisected boundary adds cells to the grid's.
    missing = len(set(plan.cells()) - {outcome.cell for outcome in diagram.outcomes})
    modes = dict.fromkeys(
        f"Trained {outcome.mode}{f': {outcome.note}' if outcome.note else ''}." for outcome in diagram.outcomes
    )
    return Section(
        title,
        (*_unfinished(missing, len(plan.cells())), *_verdicts(diagram, edges, lines, bool(missing))),
        (_chart(diagram, edges, lines),) if diagram.outcomes else (),
        (_table(diagram, edges, lines),) if diagram.outcomes else (),
        tuple(modes),
        {key: value for key, value in asdict(plan).items() if value not in ("", {}, ())} | {"plan's hash": plan.hash},
        diagram.outcomes[0].environment if diagram.outcomes else {},
        command,
        ("sweep",),
    )


def _unfinished(missing: int, planned: int) -> list[Said]:
    if not missing:
        return []
    text = f"{planned - missing} of {planned} trainings are done, so all below may still change. "
    return [Said(False, f"{text}The same `normscope sweep` goes on from there.", "", "this sweep")]


def _verdicts(
    diagram: PhaseDiagram, edges: Sequence[Edge], lines: Mapping[str, Mapping[float, float]], unfinished: bool
) -> list[Said]:
    axis, said = diagram.plan.axis, []
    tested = [edge for edge in edges if math.isfinite(edge.best)]
    if tested:
        said.append(_advice(diagram, min(tested, key=lambda edge: edge.best_test_loss)))
    bounded = [edge for edge in edges if math.isfinite(edge.eta)]
    if bounded:
        low, high = (f(bounded, key=lambda edge: edge.eta) for f in (min, max))
        text = (
            f"Learning rates survive up to {low.survives:.3g} at {axis} {low.value:.3g} and up to {high.survives:.3g} "
            f"at {axis} {high.value:.3g}: {axis} moves the limit by {math.log10(high.eta / low.eta):.2f} decades."
        )
        said.append(Said(None, text, "every seed survives without a gap", "this sweep"))
    elif diagram.outcomes and not unfinished:
        survived = {outcome.survived for outcome in diagram.outcomes}
        more = "larger or smaller" if len(survived) > 1 else "larger" if True in survived else "smaller"
        said.append(Said(None, f"The boundary lies outside the grid: add {more} learning rates."))
    for distance in diagram.agreement(lines).values():
        if unfinished and not distance.n:
            continue
        good = abs(distance.median) <= 0.3 if distance.n else None
        said.append(Said(good, _foretold(distance), "boundary / eta*", f"eta* {distance.name}"))
    return said


def _advice(diagram: PhaseDiagram, best: Edge) -> Said:
    """The best learning rate; at an end of the rates that were tried it is not known yet."""
    axis = diagram.plan.axis
    rates = {outcome.cell.lr for outcome in diagram.outcomes if outcome.cell.value == best.value}
    formula, source = "mean over seeds that all survived", "this sweep"
    ends = {"largest": max(rates), "smallest": min(rates)}
    end = next((name for name, rate in ends.items() if rate == best.best), "")
    if end:
        text = (
            f"Which learning rate is best is not seen yet: the least test loss, {best.best_test_loss:.3g} at {axis} "
            f"{best.value:.3g}, is at {best.best:.3g}, the {end} that was tried. Add {end.replace('st', 'r')} ones."
        )
        return Said(None, text, formula, source)
    text = (
        f"Use a learning rate of {best.best:.3g} at {axis} {best.value:.3g}: the least test loss of this sweep, "
        f"{best.best_test_loss:.3g}."
    )
    text += "" if math.isnan(best.diverges) else f" Training first diverges there at {best.diverges:.3g}."
    return Said(True, text, formula, source)


def _foretold(edge: Distance) -> str:
    """One sentence on the distance of eta* from the boundary, as factors."""
    if not edge.n:
        return f"The limit as {edge.name} cannot be compared: the boundary lies outside the grid."
    return (
        f"Training survives up to {10**edge.median:.2g} times the limit as {edge.name} before training (eta*), the "
        f"median over {edge.n} values; at worst {10**edge.worst:.2g} times."
    )


def _chart(diagram: PhaseDiagram, edges: Sequence[Edge], lines: Mapping[str, Mapping[float, float]]) -> Chart:
    cells = _cells(diagram)
    values = sorted({value for _, value in cells})
    # A refined boundary has learning rates of its own at every value.
    rates_at = [sorted(rate for rate, at in cells if at == value) for value in values]
    rates, covering = shared_columns(rates_at)
    nothing = (None, "not trained yet")
    grid = [
        [nothing if place is None else cells[own[place], value] for place in places]
        for value, own, places in zip(values, rates_at, covering, strict=True)
    ]
    heat = Heat(
        "test loss, mean over seeds",
        rates,
        values,
        borders(rates),
        borders(values),
        [[loss for loss, _ in row] for row in grid],
        "log",
        "a run exploded",
        [[text for _, text in row] for row in grid],
    )
    up = min(values) > 0 and len(values) > 1
    panel = Panel(
        _title(diagram),
        Axis("learning rate", log=True),
        Axis(diagram.plan.axis, log=up),
        _lines(edges, lines),
        (),
        heat,
    )
    caption = (
        "Test loss over the grid, the mean over seeds; hatched where at least one seed exploded, empty where none is "
        "trained yet. Lines: where training stops to survive, with bars from the largest rate that survives to the "
        "smallest that diverges; the largest stable rate by theory and by measurement, and half of it."
    )
    return Chart("Phase diagram", caption, (panel,), wide=True)


def _cells(diagram: PhaseDiagram) -> dict[tuple[float, float], tuple[float | None, str]]:
    """Mean test loss over the seeds (nan where one exploded) and the words of each cell, by (learning rate, value)."""
    gathered: dict[tuple[float, float], list[Outcome]] = {}
    for outcome in diagram.outcomes:
        gathered.setdefault((outcome.cell.lr, outcome.cell.value), []).append(outcome)
    return {
        cell: (
            float(np.mean([outcome.test_loss[-1] for outcome in seeds])),
            "\n".join(f"seed {outcome.cell.seed}: {_words(outcome)}" for outcome in seeds),
        )
        for cell, seeds in gathered.items()
    }


def _words(outcome: Outcome) -> str:
    if outcome.diverged_at is not None:
        return f"diverged at step {outcome.diverged_at}, loss at start {outcome.initial_loss:.4g}"
    risen = "" if outcome.rose_at is None else f", above its start at step {outcome.rose_at}"
    return f"test loss {outcome.test_loss[-1]:.4g}, accuracy {outcome.test_accuracy[-1]:.2%}{risen}"


def _title(diagram: PhaseDiagram) -> str:
    plan = diagram.plan
    model, data = plan.model.rpartition(":")[2], plan.data.rpartition(":")[2]
    momentum = "" if plan.axis == "momentum" else f", momentum {plan.momentum:g}"
    return f"{model} on {data}, {plan.loss}{momentum}, {plan.epochs} epoch{'s' if plan.epochs > 1 else ''}"


def _lines(edges: Sequence[Edge], lines: Mapping[str, Mapping[float, float]]) -> tuple[Line, ...]:
    seen = [edge for edge in edges if math.isfinite(edge.eta)]
    risen = [edge for edge in edges if math.isfinite(edge.rises)]
    drawn = [
        Line(
            "boundary: all seeds survive",
            [e.eta for e in seen],
            [e.value for e in seen],
            INK,
            marks=True,
            x_low=[e.survives for e in seen],
            x_high=[e.diverges for e in seen],
        ),
        Line("first rise above the start", [e.rises for e in risen], [e.value for e in risen], INK, DOTTED),
    ]
    for (name, line), (colour, dash, half) in zip(lines.items(), _STYLES, strict=False):
        values = sorted(line)
        drawn.append(Line(f"eta*, {name}", [line[v] for v in values], values, colour, dash))
        drawn.append(Line(f"eta*/2, {name}", [line[v] / 2 for v in values], values, colour, half))
    return tuple(line for line in drawn if line.x)


def _table(diagram: PhaseDiagram, edges: Sequence[Edge], lines: Mapping[str, Mapping[float, float]]) -> Table:
    agreement = diagram.agreement(lines)
    rows = [
        [
            edge.value,
            *(_or_none(v) for v in (edge.survives, edge.diverges, edge.resolution, edge.rises, edge.best)),
            _or_none(edge.best_test_loss),
            *(_or_none(agreement[name].by_value.get(edge.value, math.nan)) for name in lines),
        ]
        for edge in edges
    ]
    distances = [f"decades from eta*, {name}" for name in lines]
    columns = (
        diagram.plan.axis,
        "survives",
        "first diverging",
        "+- decades",
        "first rise",
        "best rate",
        "its test loss",
    )
    return Table("The boundary", (*columns, *distances), rows)


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
