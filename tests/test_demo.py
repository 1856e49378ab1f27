"""The demo shows something true: its numbers come from its runs, and change with the seed."""

import json

import pytest

from normscope.demo import DIGITS_STEPS, DLN_STEPS, run_demo, total_steps
from normscope.report.demo_folder import write_demo
from normscope.report.sections.demo import COLUMNS, findings, table_rows


@pytest.fixture(scope="module")
def short_runs():
    return {seed: run_demo(seed=seed, digits_steps=60, dln_steps=40) for seed in (0, 1)}


def test_another_seed_changes_every_loss(short_runs):
    for a, b in zip(short_runs[0], short_runs[1], strict=True):
        assert (a.task, a.norm, a.lr) == (b.task, b.norm, b.lr)
        assert a.training.losses[0] != b.training.losses[0]
        assert a.training.final_loss != b.training.final_loss
        assert a.test_loss != b.test_loss


def test_the_same_seed_gives_the_same_numbers(short_runs):
    again = run_demo(seed=0, digits_steps=60, dln_steps=40)
    for a, b in zip(short_runs[0], again, strict=True):
        assert (a.training.losses, a.test_loss) == (b.training.losses, b.test_loss)


def test_only_the_normalized_network_survives_the_large_rate(short_runs):
    for runs in short_runs.values():
        large = {run.norm: run.training for run in runs if run.lr == 3.0}
        assert large["none"].diverged_at is not None
        assert large["batch"].diverged_at is None
        assert large["batch"].final_loss < large["batch"].losses[0]


def test_what_is_written_is_what_was_measured(short_runs, tmp_path):
    runs = short_runs[1]
    summary, digits, dln, numbers = write_demo(runs, tmp_path / "new" / "folder")
    stored = json.loads(numbers.read_text())
    assert (stored["kind"], stored["schema"]) == ("demo", 1)
    for run, kept in zip(runs, stored["runs"], strict=True):
        assert kept["training"]["losses"] == list(run.training.losses)
        assert kept["seed"] == 1
    text = summary.read_text()
    for row in table_rows(runs):
        assert len(row) == len(COLUMNS)
        assert "| " + " | ".join(row) + " |" in text
    for sentence in findings(runs):
        assert sentence in text
    assert digits.read_bytes()[:4] == dln.read_bytes()[:4] == b"\x89PNG"


def test_the_progress_bar_knows_its_end():
    counted = []
    run_demo(seed=0, digits_steps=2, dln_steps=3, on_step=counted.append)
    assert len(counted) == total_steps(2, 3)
    assert total_steps() == 4 * DIGITS_STEPS + 2 * DLN_STEPS
