"""The files that `normscope demo` writes: a summary, two figures and the numbers."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from normscope.demo import DemoRun
from normscope.report.drawing import draw
from normscope.report.sections.demo import COLUMNS, demo_charts, findings, table_rows
from normscope.results import plain
from normscope.saving import save_figure, save_text

SCHEMA = 1


def write_demo(runs: Sequence[DemoRun], folder: Path) -> list[Path]:
    """Writes summary.md, digits.png, dln.png and results.json; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / name for name in ("summary.md", "digits.png", "dln.png", "results.json")]
    save_text(written[0], _summary(runs))
    charts = demo_charts(runs)
    save_figure(draw(charts["digits"]), written[1], dpi=150)
    save_figure(draw(charts["dln"]), written[2], dpi=150)
    result = {"kind": "demo", "schema": SCHEMA, "runs": [asdict(run) for run in runs]}
    save_text(written[3], json.dumps(plain(result), allow_nan=False) + "\n")
    return written


def _summary(runs: Sequence[DemoRun]) -> str:
    rows = [COLUMNS, tuple("---" for _ in COLUMNS), *table_rows(runs)]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    said = "\n".join(f"- {sentence}" for sentence in findings(runs))
    env = runs[0].training.environment
    made = f"Seed {runs[0].seed}; " + ", ".join(f"{key} {value}" for key, value in env.items())
    return (
        f"# What BatchNorm changed\n\n{said}\n\n{table}\n\n![digits](digits.png)\n\n![deep linear network](dln.png)\n\n"
        "Networks of one task and learning rate share data and initial weights and differ in the normalizer alone. "
        "First and last loss are those of the training batch before a step, test loss and share right those of data "
        "the network has not seen; a run diverges when its loss is not finite or a million times its first. "
        "The digits use cross-entropy, the deep linear network half the summed squared error.\n\n"
        f"{made}. Another seed: `normscope demo --seed 1`.\n"
    )
