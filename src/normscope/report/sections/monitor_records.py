"""The course of a training run from the records of its Monitor."""

import math
from collections.abc import Sequence
from typing import Any

from normscope.monitor.probes.activations import Activations
from normscope.monitor.record import Record, latest_verdicts
from normscope.report.document import Said
from normscope.report.sections.monitor_runs import Course


def monitor_course(label: str, records: Sequence[Record], head: dict[str, Any], notes: Sequence[str] = ()) -> Course:
    """The records as columns; `head` holds the values of `Monitor.settings()`."""
    rows = [record.summary() for record in records]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [float(row.get(name, math.nan)) for row in rows] for name in names} or {"step": []}
    by_layer = [record.by_layer() for record in records]
    layers: dict[str, dict[str, list[float]]] = {}
    for place, rows_by_layer in enumerate(by_layer):
        for layer, numbers in rows_by_layer.items():
            for name, value in numbers.items():
                column = layers.setdefault(layer, {}).setdefault(name, [math.nan] * len(records))
                column[place] = float(value)
    histograms: dict[str, list[tuple[float, float, float, Sequence[float]]]] = {}
    for record in records:
        seen = record.results.get("activations")
        if isinstance(seen, Activations):
            for layer, channel, (low, high), counts in zip(
                seen.layers, seen.channels, seen.edges, seen.counts, strict=True
            ):
                unit = f"{layer or 'network'}, channel {channel}"
                histograms.setdefault(unit, []).append((record.step, low, high, counts))
    failed = dict.fromkeys(f"{name}: {text}" for record in records for name, text in record.errors.items())
    settings = {name: value for name, value in head.items() if name not in ("kind", "schema", "environment", "command")}
    said = [Said(v.good, v.text, v.formula, v.source) for v in latest_verdicts(records)]
    if records and not any(record.results for record in records):
        said.append(Said(False, f"Nothing was measured: {'; '.join(failed) or 'the snapshots are empty'}"))
    if len(records) == 1:
        text = "Only one snapshot was taken, so there is no course over training."
        said.append(Said(None, f"{text} A longer run or a larger budget gives more."))
    return Course(
        label,
        columns,
        layers,
        histograms,
        tuple(said),
        (
            *(f"Not measured: {text}" for text in failed),
            *dict.fromkeys((*notes, *(n for r in records for n in r.notes))),
        ),
        settings,
        head.get("environment", {}),
        head.get("command", ""),
    )
