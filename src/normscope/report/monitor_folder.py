"""The files that `normscope monitor` writes: a summary, the table of snapshots and the figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from normscope.monitor.record import Record, frame_of, latest_verdicts
from normscope.report.chart import Chart
from normscope.report.drawing import draw
from normscope.report.sections.layers import activation_chart, shift_chart
from normscope.report.sections.monitor_records import monitor_course
from normscope.report.sections.monitor_runs import landscape_chart
from normscope.results.saving import save_figure, save_text


def write_monitor(
    records: Sequence[Record], notes: Sequence[str], outcome: str, settings: dict[str, Any], folder: Path
) -> list[Path]:
    """Writes summary.md, snapshots.csv and the figures; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    table = frame_of(records)
    written = [folder / "summary.md", folder / "snapshots.csv"]
    save_text(written[1], table.to_csv(index=False))
    drawn = monitor_charts(records, settings)
    for name, chart in drawn.items():
        written.append(folder / name)
        save_figure(draw(chart), written[-1], dpi=150)
    errors = dict.fromkeys(f"{name}: {text}" for record in records for name, text in record.errors.items())
    parts = [
        "# Results of the Monitor",
        outcome,
        "## Verdicts",
        _list([str(verdict) for verdict in latest_verdicts(records)]) or "Nothing was measured.",
        *(["## Not measured", _list(errors)] if errors else []),
        *(["## Notes", _list(notes)] if notes else []),
        "## Numbers",
        _numbers(table),
        *[f"![{name}]({name})" for name in drawn],
        "The verdicts are those of the last snapshot; all snapshots are in snapshots.csv and monitor.jsonl. "
        f"{_made(settings)}",
    ]
    save_text(written[0], "\n\n".join(parts) + "\n")
    return written


def monitor_charts(records: Sequence[Record], settings: dict[str, Any]) -> dict[str, Chart]:
    """Charts by the name of their file; only what was measured has one."""
    label = f"training of {settings['model']}"
    course = monitor_course(label, records, settings)
    charts = {
        "landscape.png": landscape_chart(label, course),
        "shift.png": shift_chart(label, course.columns["step"], course.layers),
        "activations.png": activation_chart(label, course.histograms),
    }
    return {name: chart for name, chart in charts.items() if chart is not None}


def _list(items: Any) -> str:
    return "\n".join(f"- {item}" for item in items)


def _numbers(table: pd.DataFrame) -> str:
    """A Markdown table: for each column its value at the first and last snapshot that has it, and its range."""
    lines = ["| | first | last | smallest | largest |", "| --- | --- | --- | --- | --- |"]
    for name in table.columns:
        values = table[name].dropna()
        if len(values):
            shown = (values.iloc[0], values.iloc[-1], values.min(), values.max())
            lines.append(f"| {name} | " + " | ".join(f"{value:.4g}" for value in shown) + " |")
    return "\n".join(lines)


def _made(settings: dict[str, Any]) -> str:
    made = ", ".join(f"{key} {value}" for key, value in settings["environment"].items())
    return f"Model {settings['model']}, loss {settings['loss']}; {made}."
