"""The demo shows something true: its numbers come from its runs, and change with the seed."""

import json
from dataclasses import replace

import pytest
import torch

from normscope import losses, measure
from normscope.data import batches, digits
from normscope.demo import CASES, MOMENTUM, SHARES, STEPS, network, run_demo, total_steps
from normscope.report.demo_folder import write_demo
from normscope.report.sections.demo import findings, learned, table


@pytest.fixture(scope="module")
def found():
    return {seed: run_demo(seed=seed, steps=20) for seed in (0, 1)}


def test_another_seed_changes_every_number(found):
    for a, b in zip(found[0].cases, found[1].cases, strict=True):
        assert (a.norm, a.loss) == (b.norm, b.loss)
        assert (a.predicted, a.measured, a.first_guess) != (b.predicted, b.measured, b.first_guess)
        for one, other in zip(a.runs, b.runs, strict=True):
            assert one.training.losses[0] != other.training.losses[0]


def test_the_same_seed_gives_the_same_numbers(found):
    again = run_demo(seed=0, steps=20)
    for a, b in zip(found[0].cases, again.cases, strict=True):
        assert (a.predicted, a.measured) == (b.predicted, b.measured)
        assert [run.training.losses for run in a.runs] == [run.training.losses for run in b.runs]
    assert found[0].watched == again.watched


def test_eta_star_is_that_of_measure(found):
    images = digits(seed=1)
    four = list(batches(images.x_train, images.y_train, batch_size=128, seed=1, steps=4))
    case = found[1].cases[0]
    measured = measure(network("batch", 1), losses.half_mse, four, momentum=MOMENTUM)
    assert case.measured == measured.eta_star
    assert [run.lr for run in case.runs] == [share * measured.eta_star for share in SHARES]


def test_squared_error_ends_at_eta_star_and_cross_entropy_does_not(found):
    for result in found.values():
        squared, plain, entropy = result.cases
        assert 0.8 < squared.predicted / squared.measured < 1.25
        for case in (squared, plain):
            kept = {run.share: learned(run) for run in case.runs}
            assert kept[0.5]
            assert not kept[4.0]
        assert learned(entropy.runs[-2])


def test_the_watched_run_is_compared_with_one_that_is_not(found, monkeypatch):
    assert all(result.watched.unchanged for result in found.values())
    assert found[0].watched.steps == (0, 10)

    class Nosy:
        """A Monitor that changes the run."""

        def __init__(self, model, *rest, **options):
            from normscope.monitor import Monitor

            self.model, self.inner = model, Monitor(model, *rest, **options)

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def step(self, *given, **options):
            self.inner.step(*given, **options)
            with torch.no_grad():
                next(self.model.parameters()).mul_(1.001)

    monkeypatch.setattr("normscope.demo.Monitor", Nosy)
    assert not run_demo(seed=0, steps=3).watched.unchanged


def test_findings_follow_the_numbers(found):
    result = found[0]
    first, edge, *_ = findings(result)
    assert f"eta* = {result.cases[0].predicted:.2g}" in first.text
    assert first.good
    assert edge.good
    shifted = replace(result.cases[0], predicted=2 * result.cases[0].measured)
    assert not findings(replace(result, cases=(shifted, *result.cases[1:])))[0].good
    # Every run as the one at four times eta*: nothing was learned, at no rate.
    lost = replace(result.cases[0], runs=tuple(replace(run, test_accuracy=0.1) for run in result.cases[0].runs))
    assert not findings(replace(result, cases=(lost, *result.cases[1:])))[1].good
    changed = findings(replace(result, watched=replace(result.watched, unchanged=False)))
    assert any(one.good is False and "differs" in one.text for one in changed)


def test_what_is_written_is_what_was_found(found, tmp_path):
    result = found[1]
    summary, rates, watched, numbers = write_demo(result, tmp_path / "new" / "folder")
    stored = json.loads(numbers.read_text())
    assert (stored["kind"], stored["schema"], stored["seed"]) == ("demo", 2, 1)
    for case, kept in zip(result.cases, stored["cases"], strict=True):
        assert kept["measured"] == case.measured
        assert kept["runs"][0]["training"]["losses"] == list(case.runs[0].training.losses)
    text = summary.read_text()
    columns, rows = table(result)
    for row in rows:
        assert len(row) == len(columns)
        assert "| " + " | ".join(row) + " |" in text
    for sentence in findings(result):
        assert sentence.text in text
    assert rates.read_bytes()[:4] == watched.read_bytes()[:4] == b"\x89PNG"


def test_the_progress_bar_knows_its_end():
    counted = []
    run_demo(seed=0, steps=2, on_step=counted.append)
    assert len(counted) == total_steps(2)
    assert total_steps() == (len(CASES) * len(SHARES) + 2) * STEPS
