"""Charts by layer: covariate shift, the gradient along depth, activations over training."""

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

from normscope.report.chart import BLUE, INK, VERMILION, Axis, Band, Chart, Heat, Line, Panel, spans_decades, unit_edges

MOST_LAYERS, MOST_TIMES, MOST_COLUMNS = 12, 15, 240
T = TypeVar("T")
Layers = Mapping[str, Mapping[str, Sequence[float]]]


def shift_chart(label: str, steps: Sequence[float], layers: Layers) -> Chart | None:
    """Covariate shift: the change of each layer's gradient by the update of the layers before it, at each snapshot."""
    seen = {name: row for name, row in layers.items() if _any(row.get("shift", ()))}
    if not seen:
        return None
    shown = [i for i in range(len(steps)) if any(_known(row["shift"], i) for row in seen.values())]
    shown = some(shown, MOST_COLUMNS)
    names = tuple(name or "network" for name in seen)
    across = Axis("step of the snapshot", ticks=tuple(f"{steps[i]:g}" for i in shown))
    along = Axis("layer, in the order they run", ticks=names)

    def heat(column: str, name: str, scale: str) -> Heat:
        values = [
            [row[column][i] if _known(row.get(column, ()), i) else math.nan for i in shown] for row in seen.values()
        ]
        x, y = range(len(shown)), range(len(seen))
        return Heat(name, x, y, unit_edges(len(x)), unit_edges(len(y)), values, scale, "zero or not defined")

    panels = [Panel("||G - G'||, l2", across, along, heat=heat("shift", "||G - G'||", "log"))]
    if any(_any(row.get("shift_cosine", ())) for row in seen.values()):
        panels.append(Panel("cosine of G and G'", across, along, heat=heat("shift_cosine", "cosine", "cosine")))
    caption = (
        "Change of each layer's gradient by the update of the layers before it (the internal covariate shift of "
        "Definition 2.1). A cosine near one: the layer still moves where it meant to."
    )
    return Chart(f"Covariate shift by layer, {label}", caption, tuple(panels), same_y=False)


def depth_chart(label: str, steps: Sequence[float], layers: Layers) -> Chart | None:
    """Norm of the gradient with respect to each layer's output along depth, at the first, middle and last snapshot."""
    seen = {name: row["output_grad_norm"] for name, row in layers.items() if _any(row.get("output_grad_norm", ()))}
    shown = some([i for i in range(len(steps)) if any(_known(row, i) for row in seen.values())], 3)
    if len(seen) < 2 or not shown:
        return None
    x = range(len(seen))
    lines = tuple(
        Line(f"step {steps[i]:g}", x, [row[i] if _known(row, i) else math.nan for row in seen.values()], colour)
        for i, colour in zip(shown, (BLUE, VERMILION, INK), strict=False)
    )
    log = spans_decades(*(line.y for line in lines))
    axis = Axis("layer, in the order they run", ticks=tuple(name or "network" for name in seen))
    panel = Panel("", axis, Axis("gradient with respect to the output, l2", log=log), lines)
    caption = "A slope over the layers is growth along depth: gradients that explode or vanish on their way back."
    return Chart(f"Gradient along depth, {label}", caption, (panel,))


def activation_chart(
    label: str, histograms: Mapping[str, Sequence[tuple[float, float, float, Sequence[float]]]]
) -> Chart | None:
    """Ridgelines: the histogram of one unit of a layer at each snapshot, the first at the top."""
    panels: list[Panel] = []
    names = [name for name, rows in histograms.items() if rows]
    for name in some(names, MOST_LAYERS):
        rows = some([row for row in histograms[name] if math.isfinite(row[1]) and math.isfinite(row[2])], MOST_TIMES)
        bands = []
        for place, (step, low, high, counts) in enumerate(rows):
            width, floor = (high - low) / len(counts), float(len(rows) - 1 - place)
            tall = max(max(counts), 1.0)
            x = [low + (i + 0.5) * width for i in range(len(counts))]
            texts = [f"step {step:g}: {count:g} of {sum(counts):g}" for count in counts]
            top = [floor + 1.4 * count / tall for count in counts]
            bands.append(Band(f"step {step:g}", x, [floor] * len(x), top, BLUE, texts))
        if bands:
            steps = tuple(f"{step:g}" for step, *_ in reversed(rows))
            panels.append(Panel(name or "network", Axis("activation"), Axis("step", ticks=steps), (), tuple(bands)))
    caption = "The values of one unit over the batch; a ridge that wanders or widens is a distribution that drifts."
    of = f", {MOST_LAYERS} of {len(names)} layers" if len(names) > MOST_LAYERS else ""
    return Chart(f"Activations over training, {label}{of}", caption, tuple(panels), same_y=False) if panels else None


def some(items: Sequence[T], most: int) -> list[T]:
    """At most `most` items, evenly chosen, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def _any(values: Sequence[float]) -> bool:
    return any(math.isfinite(v) for v in values)


def _known(values: Sequence[float], i: int) -> bool:
    return i < len(values) and math.isfinite(values[i])
