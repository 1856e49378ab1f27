"""The files that `normscope demo` writes: a summary, two figures and the numbers."""

import json
from dataclasses import asdict
from pathlib import Path

from normscope.demo import DemoResult
from normscope.report.drawing import draw
from normscope.report.sections.demo import TITLE, demo_charts, findings, table
from normscope.results import plain
from normscope.results.saving import save_figure, save_text

SCHEMA = 2


def write_demo(found: DemoResult, folder: Path) -> list[Path]:
    """Writes summary.md, learning-rates.png, watched.png and results.json; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "summary.md"]
    save_text(written[0], _summary(found))
    for name, chart in demo_charts(found).items():
        written.append(folder / f"{name}.png")
        save_figure(draw(chart), written[-1], dpi=150)
    written.append(folder / "results.json")
    result = {"kind": "demo", "schema": SCHEMA} | asdict(found)
    save_text(written[-1], json.dumps(plain(result), allow_nan=False) + "\n")
    return written


def _summary(found: DemoResult) -> str:
    columns, rows = table(found)
    lines = [columns, tuple("---" for _ in columns), *rows]
    shown = "\n".join("| " + " | ".join(row) + " |" for row in lines)
    said = "\n".join(f"- {one.text}" for one in findings(found))
    env = found.cases[0].runs[0].training.environment
    made = f"Seed {found.seed}; " + ", ".join(f"{key} {value}" for key, value in env.items())
    return (
        f"# {TITLE}\n\n{said}\n\n{shown}\n\n![Accuracy over the learning rate](learning-rates.png)\n\n"
        "![The watched run](watched.png)\n\n"
        "`predicted` and `measured` are eta*. The columns after them hold the share of test images right after "
        "training at that multiple of the measured eta*; a run fails when it diverges or has less than half right. All "
        "networks share data, batches and initial weights.\n\n"
        f"{made}. Another seed: `normscope demo --seed 1`.\n"
    )
