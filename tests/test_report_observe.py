"""Figures and summary of a Monitor's records: each shows what was measured, and nothing is drawn of nothing."""

import math
from dataclasses import replace

import pandas as pd
import pytest
import torch
from torch import nn

from normscope.monitor import Monitor, Record
from normscope.report.monitor import write_monitor
from normscope.report.observe import BETA_LIMIT, figures


def _watched(measure, *, steps=5):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = Monitor(model, loss_fn, every=2, measure=measure, budget=None, on_error="raise")
    for _ in range(steps):
        x, y = torch.randn(8, 4), torch.randint(3, (8,))
        optimizer.zero_grad()
        loss_fn(model(x), y).backward()
        monitor.step(x, y, optimizer)
        optimizer.step()
    return monitor


@pytest.fixture(scope="module")
def full():
    return _watched("full")


def test_the_bands_and_the_limit_are_the_records(full):
    figure = figures(full.records)["landscape.png"]
    loss, change, beta, step = figure.axes
    looks = full.frame().dropna(subset="beta")
    shown = {line.get_label(): line.get_ydata() for ax in figure.axes for line in ax.lines}
    assert list(shown["training loss"]) == list(looks["loss"])
    assert list(shown["effective beta"]) == list(looks["beta"])
    assert list(shown[BETA_LIMIT]) == [20.0] * len(looks)
    assert BETA_LIMIT == "saturates at 2/lr: only values above it are spikes"
    assert next(line for line in beta.lines if line.get_label() == BETA_LIMIT).get_linestyle() == "--"
    assert list(shown["the loss is no worse up to"]) == list(looks["critical_step"])
    for ax, low, high in ((loss, "loss_min", "loss_max"), (change, "grad_change_min", "grad_change_max")):
        edges = [list(line.get_ydata()) for line in ax.lines]
        assert list(looks[low]) in edges
        assert list(looks[high]) in edges
    assert list(step.lines[0].get_xdata()) == [0, 2, 4]


def test_shift_and_activations_are_the_records(full):
    drawn = figures(full.records)
    assert sorted(drawn) == ["activations.png", "landscape.png", "shift.png"]
    layers = full.layers().dropna(subset="shift")
    shifts, cosines = (ax.images[0].get_array() for ax in drawn["shift.png"].axes[:2])
    for row, layer in enumerate(("0", "2")):
        seen = layers.query(f"layer == '{layer}'")
        assert shifts[row].tolist() == list(seen["shift"])
        assert cosines[row].tolist() == pytest.approx(list(seen["shift_cosine"]), nan_ok=True)
    titles = [ax.get_title() for ax in drawn["activations.png"].axes]
    channels = full.records[0].results["activations"].channels
    assert titles[:3] == [f"{layer}, channel {channel}" for layer, channel in zip("012", channels, strict=True)]


def test_only_what_was_measured_is_drawn():
    light = figures(_watched("light", steps=1).records)
    assert list(light) == ["landscape.png"]
    assert len(light["landscape.png"].axes) == 1
    assert figures([]) == {}


def test_numbers_that_are_not_finite_are_drawn_around(full, tmp_path):
    broken = []
    for record in full.records:
        results = dict(record.results)
        if "landscape" in results:
            results["landscape"] = replace(results["landscape"], losses=(math.inf,) * 4, changes=(math.nan,) * 4)
        seen = results["activations"]
        results["activations"] = replace(seen, edges=((math.nan, math.nan),) * len(seen.layers))
        broken.append(replace(record, loss=math.nan, results=results))
    for name, figure in figures(broken).items():
        figure.savefig(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 5000


def test_the_summary_says_verdicts_first_and_every_number(full, tmp_path):
    records = [*full.records, Record(6, 0.1, math.nan, {}, errors={"shift": "ValueError: no layer"})]
    written = write_monitor(records, ["a note"], "5 steps.", full.settings(), tmp_path / "new/folder")
    assert [path.name for path in written] == [
        "summary.md",
        "looks.csv",
        "landscape.png",
        "shift.png",
        "activations.png",
    ]
    assert all(path.stat().st_size for path in written)
    text = written[0].read_text()
    places = [
        text.index(part) for part in ("5 steps.", str(full.verdicts[0]), "ValueError: no layer", "a note", "| beta |")
    ]
    assert places == sorted(places)
    for verdict in full.verdicts:
        assert f"- {verdict}" in text
    kept = pd.read_csv(written[1])
    pd.testing.assert_frame_equal(kept.head(len(full.records)), full.frame(), check_dtype=False)


def test_a_run_without_a_look_has_a_summary_too(tmp_path):
    summary, table = write_monitor([], [], "0 steps; interrupted.", _watched("light", steps=0).settings(), tmp_path)
    assert "Nothing was measured." in summary.read_text()
    assert table.exists()
