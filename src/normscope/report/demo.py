"""The demo's folder: two pictures, one table, the numbers."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normscope.demo import DemoRun
from normscope.results import plain
from normscope.saving import save_figure, save_text

SCHEMA = 1
# Okabe and Ito's palette, told apart with any colour vision; the line style says the same once more.
_STYLE = {"none": {"color": "#D55E00", "linestyle": "--"}, "batch": {"color": "#0072B2", "linestyle": "-"}}
LABELS = {"none": "without BatchNorm", "batch": "with BatchNorm"}
COLUMNS = ("task", "norm", "lr", "steps", "first loss", "last loss", "test loss", "right", "outcome")


def write_demo(runs: Sequence[DemoRun], folder: Path) -> list[Path]:
    """Writes digits.png, dln.png, summary.md and results.json; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / name for name in ("summary.md", "digits.png", "dln.png", "results.json")]
    save_text(written[0], _summary(runs))
    save_figure(_digits_figure(runs), written[1], dpi=150)
    save_figure(_dln_figure(runs), written[2], dpi=150)
    result = {"kind": "demo", "schema": SCHEMA, "runs": [asdict(run) for run in runs]}
    save_text(written[3], json.dumps(plain(result), allow_nan=False) + "\n")
    return written


def table_rows(runs: Sequence[DemoRun]) -> list[tuple[str, ...]]:
    """One row a run, in the order of `COLUMNS`."""
    return [_row(run) for run in runs]


def findings(runs: Sequence[DemoRun]) -> list[str]:
    """What the numbers say, one sentence a comparison."""
    said = []
    for task, lr in dict.fromkeys((run.task, run.lr) for run in runs):
        pair = {run.norm: run for run in runs if (run.task, run.lr) == (task, lr)}
        plain_run, normed = pair["none"], pair["batch"]
        where = f"{network_of(normed)} at learning rate {lr:g}"
        said.append(f"{where}: without BatchNorm {_outcome(plain_run)}; with BatchNorm {_outcome(normed)}.")
    return said


def _outcome(run: DemoRun) -> str:
    training = run.training
    if training.diverged_at is not None:
        return f"it diverged at step {training.diverged_at}"
    right = "" if run.test_accuracy is None else f", {run.test_accuracy:.1%} right"
    fall = f"{training.losses[0]:.3g} to {training.final_loss:.3g}"
    return f"the loss went from {fall} (on test data {run.test_loss:.3g}{right})"


def network_of(run: DemoRun) -> str:
    return f"Digits, {run.depth}-layer MLP" if run.task == "digits" else f"{run.depth}-layer deep linear network"


def _row(run: DemoRun) -> tuple[str, ...]:
    training = run.training
    diverged = training.diverged_at is not None
    return (
        run.task,
        run.norm,
        f"{run.lr:g}",
        str(training.steps),
        f"{training.losses[0]:.3g}",
        f"{training.final_loss:.3g}",
        f"{run.test_loss:.3g}",
        "" if run.test_accuracy is None else f"{run.test_accuracy:.1%}",
        "diverged" if diverged else "finished",
    )


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


def _digits_figure(runs: Sequence[DemoRun]) -> Figure:
    digits = [run for run in runs if run.task == "digits"]
    rates = sorted({run.lr for run in digits})
    figure = Figure(figsize=(5 * len(rates), 4), layout="constrained")
    axes = figure.subplots(1, len(rates), squeeze=False, sharey=True)[0]
    for ax, lr in zip(axes, rates, strict=True):
        for run in digits:
            if run.lr == lr:
                _loss_curve(ax, run)
        ax.set_title(f"learning rate {lr:g}")
    axes[0].set_ylabel("cross-entropy of the batch")
    # A diverged run leaves the frame upwards; without a ceiling it would flatten the other curves.
    axes[0].set_ylim(top=1e3)
    figure.suptitle(
        f"{network_of(digits[0])}, SGD, {max(run.training.steps for run in digits)} steps, seed {digits[0].seed}"
    )
    return figure


def _dln_figure(runs: Sequence[DemoRun]) -> Figure:
    linear = [run for run in runs if run.task == "dln"]
    figure = Figure(figsize=(6, 4), layout="constrained")
    ax = figure.subplots()
    for run in linear:
        _loss_curve(ax, run)
    ax.set_ylabel("1/2 summed squared error")
    steps = max(run.training.steps for run in linear)
    ax.set_title(f"{network_of(linear[0])}, {steps:,} steps at {linear[0].lr:g}, seed {linear[0].seed}")
    return figure


def _loss_curve(ax: Axes, run: DemoRun) -> None:
    training = run.training
    label = LABELS[run.norm]
    if training.diverged_at is not None:
        label += f" (diverged at step {training.diverged_at})"
    ax.semilogy(range(training.steps), training.losses, label=label, **_STYLE[run.norm])
    ax.set_xlabel("step")
    ax.grid(alpha=0.3)
    ax.legend()
