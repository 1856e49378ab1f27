"""Figures of what a Monitor saw: the landscape over training, covariate shift, activations."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from normscope.monitor.probes.activations import Activations
from normscope.monitor.record import Record
from normscope.report.labels import literal

# Okabe and Ito's palette, told apart with any colour vision; the line style says the same once more.
_BLUE, _LIGHT, _ORANGE, _BLACK = "#0072B2", "#CCE3F0", "#D55E00", "#000000"
BETA_LIMIT = "saturates at 2/lr: only values above it are spikes"
MOST_LAYERS, MOST_TIMES = 12, 15


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    """By file name, those for which something was measured."""
    drawn = {
        "landscape.png": _landscape(records),
        "shift.png": _shift(records),
        "activations.png": _activations(records),
    }
    return {name: figure for name, figure in drawn.items() if figure is not None}


def _landscape(records: Sequence[Record]) -> Figure | None:
    """Bands along the gradient over training, and the critical step, as far as they were measured."""
    rows = [record.summary() for record in records]
    panels = [
        (draw, seen)
        for draw, column in (
            (_loss, "loss_min"),
            (_change, "grad_change_min"),
            (_beta, "beta"),
            (_step, "critical_step"),
        )
        if (seen := [row for row in rows if column in row])
    ]
    if not panels:
        return None
    figure = Figure(figsize=(8, 2.6 * len(panels) + 0.4), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, sharex=True)[:, 0]
    for ax, (draw, seen) in zip(axes, panels, strict=True):
        draw(ax, {name: np.array([row.get(name, np.nan) for row in seen], dtype=float) for name in seen[0]})
        ax.grid(alpha=0.3)
        ax.legend(fontsize="small", framealpha=0.9)
    axes[-1].set_xlabel("step")
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _loss(ax: Axes, seen: dict[str, Any]) -> None:
    _band(ax, seen["step"], seen["loss_min"], seen["loss_max"], "smallest to largest along the gradient")
    _line(ax, seen["step"], seen["loss"], "training loss", _BLACK, "-")
    _scale(ax, seen["loss_min"], seen["loss_max"], seen["loss"])
    ax.set_ylabel("loss of the batch")


def _change(ax: Axes, seen: dict[str, Any]) -> None:
    label = "smallest to largest along the gradient"
    _band(ax, seen["step"], seen["grad_change_min"], seen["grad_change_max"], label)
    _line(ax, seen["step"], seen["grad_norm"], "norm of the gradient here", _BLACK, "-")
    _scale(ax, seen["grad_change_min"], seen["grad_change_max"], seen["grad_norm"])
    ax.set_ylabel("change of the gradient, l2")


def _beta(ax: Axes, seen: dict[str, Any]) -> None:
    _line(ax, seen["step"], seen["beta"], "effective beta", _BLUE, "-")
    _line(ax, seen["step"], seen["beta_limit"], BETA_LIMIT, _ORANGE, "--", marker="_")
    _scale(ax, seen["beta"], seen["beta_limit"])
    ax.set_ylabel("effective beta")


def _step(ax: Axes, seen: dict[str, Any]) -> None:
    _line(ax, seen["step"], seen["critical_step"], "the loss is no worse up to", _BLUE, "-")
    ax.axhline(1.0, color=_ORANGE, linestyle="--", label="the coming update")
    _scale(ax, seen["critical_step"], np.ones(1))
    ax.set_ylabel("critical step, in updates")


def _band(ax: Axes, x: Any, low: Any, high: Any, label: str) -> None:
    ax.fill_between(x, low, high, color=_BLUE, alpha=0.3, linewidth=0, label=label)
    for edge in (low, high):
        ax.plot(x, edge, color=_BLUE, linewidth=0.8, **_points(x))


def _line(ax: Axes, x: Any, y: Any, label: str, color: str, style: str, **options: Any) -> None:
    ax.plot(x, y, color=color, linestyle=style, label=label, **_points(x) | options)


def _points(x: Any) -> dict[str, Any]:
    """A look is a point; marks would hide the lines of many."""
    return {"marker": "o", "markersize": 3} if len(x) <= 60 else {}


def _scale(ax: Axes, *values: Any) -> None:
    """Logarithmic where positive values span more than a factor of twenty."""
    finite = np.concatenate([v[np.isfinite(v)] for v in values])
    if finite.size and finite.min() > 0 and finite.max() > 20 * finite.min():
        ax.set_yscale("log")


def _shift(records: Sequence[Record]) -> Figure | None:
    seen = [(record.step, record.results["shift"]) for record in records if "shift" in record.results]
    if not seen:
        return None
    layers = list(dict.fromkeys(layer for _, found in seen for layer in found.layers))
    shifts, cosines = np.full((2, len(layers), len(seen)), np.nan)
    for column, (_, found) in enumerate(seen):
        rows = [layers.index(layer) for layer in found.layers]
        shifts[rows, column], cosines[rows, column] = found.shifts, found.cosines
    figure = Figure(figsize=(11, 1.6 + 0.28 * len(layers)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    positive = shifts[np.isfinite(shifts) & (shifts > 0)]
    limits = LogNorm(positive.min(), positive.max()) if positive.size and np.ptp(positive) else None
    _grid(figure, left, shifts, "cividis", "||G - G'||, l2", norm=limits)
    _grid(figure, right, cosines, "PuOr", "cosine of G and G'", vmin=-1, vmax=1)
    left.set_yticks(range(len(layers)), list(map(literal, layers)), fontsize="small")
    left.set_ylabel("layer, in the order they run")
    for ax in (left, right):
        at = _some(range(len(seen)), 8)
        ax.set_xticks(at, [f"{seen[i][0]:,}" for i in at])
        ax.set_xlabel("step of the look")
    figure.suptitle("Change of each layer's gradient by the update of the layers before it (grey: zero or not defined)")
    return figure


def _grid(figure: Figure, ax: Axes, values: Any, colors: str, label: str, **options: Any) -> None:
    ax.set_facecolor("0.75")
    mesh = ax.imshow(values, cmap=colors, aspect="auto", interpolation="nearest", **options)
    figure.colorbar(mesh, ax=ax, label=label)


def _activations(records: Sequence[Record]) -> Figure | None:
    seen = [(record.step, found) for record in records if (found := record.results.get("activations"))]
    if not seen:
        return None
    layers = list(dict.fromkeys(layer for _, found in seen for layer in found.layers))
    shown, times = _some(layers, MOST_LAYERS), _some(seen, MOST_TIMES)
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    figure = Figure(figsize=(3.2 * columns, 3.0 * rows + 0.6), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for ax, layer in zip(axes, shown, strict=False):
        _ridges(ax, layer, times)
    for ax in axes[len(shown) :]:
        ax.set_visible(False)
    of = f", {len(shown)} of {len(layers)} layers" if len(shown) < len(layers) else ""
    figure.suptitle(f"One unit's activation over training, first look at the top{of}")
    return figure


def _ridges(ax: Axes, layer: str, times: Sequence[tuple[int, Activations]]) -> None:
    """Histograms below each other, from the first look to the last."""
    held = [(step, found, found.layers.index(layer)) for step, found in times if layer in found.layers]
    for place, (_, found, i) in enumerate(held):
        (low, high), counts = found.edges[i], np.array(found.counts[i], dtype=float)
        if not np.isfinite([low, high]).all():
            continue
        x = np.linspace(low, high, len(counts) + 1)
        top = -place + 1.4 * counts / max(counts.max(), 1.0)
        options: dict[str, Any] = {"linewidth": 0.7, "zorder": place + 2}
        ax.fill_between(x, -place, np.append(top, top[-1]), step="post", facecolor=_LIGHT, edgecolor=_BLUE, **options)
    at = _some(range(len(held)), 5)
    ax.set_yticks([-place for place in at], [f"{held[place][0]:,}" for place in at], fontsize="small")
    channel = held[0][1].channels[held[0][2]]
    ax.set_title(literal(f"{layer or 'network'}, channel {channel}"), fontsize="small")
    ax.set_ylabel("step", fontsize="small")


def _some(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many, evenly chosen, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]
