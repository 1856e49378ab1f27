"""Figures and summary of a Monitor's records: each shows what was measured, and nothing is drawn of nothing."""

import math
from dataclasses import replace

import pandas as pd
import pytest
import torch
from torch import nn

from normscope.monitor import Monitor, Record
from normscope.report.chart import DASHED
from normscope.report.drawing import draw
from normscope.report.monitor_folder import monitor_charts, write_monitor
from normscope.report.sections.monitor_runs import BETA_LIMIT


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
    chart = monitor_charts(full.records, full.settings())["landscape.png"]
    loss, change, beta, step = chart.panels
    snapshots = full.frame().dropna(subset="beta")
    shown = {line.name: line for panel in chart.panels for line in panel.lines}
    assert list(shown["loss of the batch"].y) == list(snapshots["loss"])
    assert list(shown["effective beta"].y) == list(snapshots["beta"])
    assert list(shown[f"2/lr ({BETA_LIMIT})"].y) == [20.0] * len(snapshots)
    assert BETA_LIMIT == "saturates at 2/lr: only values above it are spikes"
    assert next(line for line in beta.lines if BETA_LIMIT in line.name).dash == DASHED
    assert list(shown["the loss is no worse up to"].y) == list(snapshots["critical_step"])
    for panel, low, high in ((loss, "loss_min", "loss_max"), (change, "grad_change_min", "grad_change_max")):
        (band,) = panel.bands
        assert list(band.low) == list(snapshots[low])
        assert list(band.high) == list(snapshots[high])
    assert list(step.lines[0].x) == [0, 2, 4]
    for ax, panel in zip(draw(chart).axes, chart.panels, strict=True):
        assert [list(line.get_ydata()) for line in ax.lines] == [list(line.y) for line in panel.lines]
        assert len(ax.collections) == len(panel.bands)


def test_shift_and_activations_are_the_records(full):
    charts = monitor_charts(full.records, full.settings())
    assert sorted(charts) == ["activations.png", "landscape.png", "shift.png"]
    layers = full.layers().dropna(subset="shift")
    shifts, cosines = (panel.heat.values for panel in charts["shift.png"].panels)
    for row, layer in enumerate(("0", "2")):
        seen = layers.query(f"layer == '{layer}'")
        assert shifts[row] == list(seen["shift"])
        assert cosines[row] == pytest.approx(list(seen["shift_cosine"]), nan_ok=True)
    titles = [panel.title for panel in charts["activations.png"].panels]
    channels = full.records[0].results["activations"].channels
    assert titles[:3] == [f"{layer}, channel {channel}" for layer, channel in zip("012", channels, strict=True)]


def test_only_what_was_measured_is_drawn():
    monitor = _watched("light", steps=1)
    light = monitor_charts(monitor.records, monitor.settings())
    assert list(light) == ["landscape.png"]
    assert len(light["landscape.png"].panels) == 1
    assert monitor_charts([], monitor.settings()) == {}


def test_numbers_that_are_not_finite_are_drawn_around(full, tmp_path):
    broken = []
    for record in full.records:
        results = dict(record.results)
        if "landscape" in results:
            results["landscape"] = replace(results["landscape"], losses=(math.inf,) * 4, changes=(math.nan,) * 4)
        seen = results["activations"]
        results["activations"] = replace(seen, edges=((math.nan, math.nan),) * len(seen.layers))
        broken.append(replace(record, loss=math.nan, results=results))
    for name, chart in monitor_charts(broken, full.settings()).items():
        draw(chart).savefig(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 5000


def test_the_summary_says_verdicts_first_and_every_number(full, tmp_path):
    records = [*full.records, Record(6, 0.1, math.nan, {}, errors={"shift": "ValueError: no layer"})]
    written = write_monitor(records, ["a note"], "5 steps.", full.settings(), tmp_path / "new/folder")
    assert [path.name for path in written] == [
        "summary.md",
        "snapshots.csv",
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


def test_a_run_without_a_snapshot_has_a_summary_too(tmp_path):
    summary, table = write_monitor([], [], "0 steps; interrupted.", _watched("light", steps=0).settings(), tmp_path)
    assert "Nothing was measured." in summary.read_text()
    assert table.exists()
