"""The phase diagram: test loss over learning rate and axis, white where a run exploded, with the lines of each rung."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from normscope.report.labels import literal
from normscope.sweeping import Distance, Outcome, PhaseDiagram

# Okabe and Ito's palette; the line style says the same once more.
_STYLES = (("#D55E00", "-"), ("#0072B2", "--"), ("#009E73", "-."), ("#CC79A7", ":"))
_AXIS_NAMES = {"gamma": "γ", "sigma_w": "σ_w"}


def phase_figure(found: PhaseDiagram, lines: Mapping[str, Mapping[float, float]] | None = None) -> Figure:
    """Test loss averaged over seeds; white where at least one run exploded; lines as name -> (value -> eta*)."""
    cells = cells_of(found)
    values = sorted({value for _, value in cells})
    # A refined boundary has rates of its own at every value.
    rates_at = {value: sorted(lr for lr, at in cells if at == value) for value in values}
    losses = [loss for _, loss, _ in cells.values() if math.isfinite(loss)]
    norm = LogNorm(min(losses, default=0.1), max([*losses, 1.001 * min(losses, default=0.1)]))
    colours = colormaps["viridis"]
    figure = Figure(figsize=(8, 5.5), layout="constrained")
    ax = figure.subplots()
    ax.set_facecolor("#dddddd")
    along = borders(values)
    for (rate, value), (_, loss, _) in cells.items():
        across, i, j = borders(rates_at[value]), rates_at[value].index(rate), values.index(value)
        place, size = (across[i], along[j]), (across[i + 1] - across[i], along[j + 1] - along[j])
        colour = colours(norm(loss)) if math.isfinite(loss) else "white"
        patch = Rectangle(place, *size, facecolor=colour, edgecolor="none")
        ax.add_patch(patch)
    _draw_lines(ax, found, lines or {})
    ends = [(edges[0], edges[-1]) for edges in map(borders, rates_at.values())]
    ax.set(xscale="log", xlim=(min(e[0] for e in ends), max(e[1] for e in ends)), ylim=(along[0], along[-1]))
    if min(values) > 0 and len(values) > 1:
        ax.set_yscale("log")
    axis = _AXIS_NAMES.get(found.plan.axis, found.plan.axis)
    ax.set(xlabel="learning rate η", ylabel=literal(axis), title=literal(title_of(found)))
    figure.colorbar(ScalarMappable(norm, colours), ax=ax, label="test loss, mean over seeds (white: a run exploded)")
    ax.legend(loc="upper right", fontsize="small")
    return figure


def _draw_lines(ax: Any, found: PhaseDiagram, lines: Mapping[str, Mapping[float, float]]) -> None:
    draw = ax.plot
    edges = found.boundary()
    seen = [edge for edge in edges if math.isfinite(edge.eta)]
    draw([e.eta for e in seen], [e.value for e in seen], "k.-", linewidth=1, label="boundary, all seeds survive")
    ax.hlines([e.value for e in seen], [e.survives for e in seen], [e.diverges for e in seen], "k", linewidth=0.6)
    risen = [edge for edge in edges if math.isfinite(edge.rises)]
    draw([e.rises for e in risen], [e.value for e in risen], "k:", linewidth=1, label="first rise above the start")
    for (name, line), (colour, style) in zip(lines.items(), _STYLES, strict=False):
        values = sorted(line)
        draw([line[v] for v in values], values, color=colour, linestyle=style, label=literal(f"η*, {name}"))
        draw([line[v] / 2 for v in values], values, color=colour, linestyle=style, linewidth=0.6, label="half of it")


def cells_of(found: PhaseDiagram) -> dict[tuple[float, float], tuple[list[Outcome], float, str]]:
    """By (lr, value): the seeds' outcomes, their mean test loss (nan where one exploded), and the words of the cell."""
    gathered: dict[tuple[float, float], list[Outcome]] = {}
    for one in found.outcomes:
        gathered.setdefault((one.cell.lr, one.cell.value), []).append(one)
    cells = {}
    for (rate, value), seeds in gathered.items():
        loss = float(np.mean([one.test_loss[-1] for one in seeds]))
        words = [f"lr {rate:.4g}, {found.plan.axis} {value:.4g}"]
        words += [f"seed {one.cell.seed}: {_words(one)}" for one in seeds]
        cells[rate, value] = (seeds, loss, "\n".join(words))
    return cells


def _words(one: Outcome) -> str:
    if one.diverged_at is not None:
        return f"diverged at step {one.diverged_at}, loss at start {one.initial_loss:.4g}"
    risen = "" if one.rose_at is None else f", above its start at step {one.rose_at}"
    return f"test loss {one.test_loss[-1]:.4g}, accuracy {one.test_accuracy[-1]:.2%}{risen}"


def borders(numbers: Sequence[float]) -> list[float]:
    """Half way between neighbours, in decades where all are positive."""
    if len(numbers) == 1:
        return [numbers[0] * 0.8, numbers[0] * 1.25] if numbers[0] > 0 else [numbers[0] - 0.5, numbers[0] + 0.5]
    logs = min(numbers) > 0
    x = np.log10(numbers) if logs else np.asarray(numbers)
    middle = (x[1:] + x[:-1]) / 2
    borders = np.concatenate([[2 * x[0] - middle[0]], middle, [2 * x[-1] - middle[-1]]])
    return list(map(float, 10**borders if logs else borders))


def title_of(found: PhaseDiagram) -> str:
    plan = found.plan
    model, data = plan.model.rpartition(":")[2], plan.data.rpartition(":")[2]
    momentum = "" if plan.axis == "momentum" else f", momentum {plan.momentum:g}"
    return f"{model} on {data}, {plan.loss}{momentum}, {plan.epochs} epoch{'s' if plan.epochs > 1 else ''}"


def words(one: Distance) -> str:
    """A rung's distance, in one sentence."""
    if not one.n:
        return f"{one.name}: the boundary lies outside the grid."
    return (
        f"{one.name}: training survives to {one.median:+.2f} decades from eta* (median over {one.n} values), "
        f"at worst {one.worst:+.2f}."
    )


def boundary_columns(lines: Mapping[str, object]) -> list[str]:
    return ["value", "survives", "diverges", "log10", "+-", "rises", "best", *lines]


def boundary_rows(found: PhaseDiagram, lines: Mapping[str, Mapping[float, float]]) -> list[list[str]]:
    """One row a value of the axis; lines as log10(boundary / eta*)."""
    agreement = found.agreement(lines)

    def number(x: float, form: str = ".3g") -> str:
        return f"{x:{form}}" if math.isfinite(x) else "-"

    return [
        [
            f"{e.value:.3g}",
            number(e.survives),
            number(e.diverges),
            number(math.log10(e.diverges) if e.diverges > 0 else math.nan, ".2f"),
            number(e.resolution, ".3f"),
            number(e.rises),
            number(e.best),
            *(number(agreement[name].by_value.get(e.value, math.nan), "+.2f") for name in lines),
        ]
        for e in found.boundary()
    ]
