"""A file of lines: what a kill leaves, what is continued, what is refused, and that it reads back as it was."""

import errno
import json
import math
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import get_type_hints

import pandas as pd
import pytest
import torch
from torch import nn

from normscope.monitor import JSONL, PROBES, Monitor, Record, frame_of, layers_of, read_jsonl, records_of
from normscope.monitor.probes.registry import probes


def _watched(path, *, steps=3, measure="full", **options):
    torch.manual_seed(0)
    # Layers called as the words for numbers that JSON lacks: they must stay names.
    model = nn.Sequential()
    for name, layer in [("inf", nn.Linear(4, 5)), ("nan", nn.BatchNorm1d(5)), ("out", nn.Linear(5, 3))]:
        model.add_module(name, layer)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    options = {"every": 1, "budget": None, "on_error": "raise", "sinks": [JSONL(path)]} | options
    monitor = Monitor(model, loss_fn, measure=measure, **options)
    with monitor:
        for _ in range(steps):
            x, y = torch.randn(8, 4), torch.randint(3, (8,))
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            monitor.step(x, y, optimizer)
            optimizer.step()
    return monitor


def test_a_file_reads_back_as_the_monitor_was(tmp_path):
    monitor = _watched(tmp_path / "new/folder/run.jsonl", measure=list(PROBES))
    records = records_of(tmp_path / "new/folder/run.jsonl")
    pd.testing.assert_frame_equal(frame_of(records), monitor.frame())
    pd.testing.assert_frame_equal(layers_of(records), monitor.layers())
    assert repr(records) == repr(monitor.records)
    assert math.isnan(records[0].results["activations"].mean_changes[0])


def test_the_head_says_what_is_watched(tmp_path):
    monitor = _watched(tmp_path / "run.jsonl", steps=1)
    head, snapshot = read_jsonl(tmp_path / "run.jsonl")
    assert head == {"kind": "run", "schema": 2} | monitor.settings()
    assert snapshot["kind"] == "snapshot"


def test_a_file_of_schema_1_reads_as_its_rewritten_twin(tmp_path):
    """Schema 1 has `look` for the kind of a snapshot's line and for errors of the whole snapshot."""
    new, old = tmp_path / "new.jsonl", tmp_path / "old.jsonl"
    sink = JSONL(new)
    sink.open({})
    sink.write(Record(step=3, seconds=0.1, loss=1.5, results={}, errors={"snapshot": "ValueError: why"}))
    sink.close()
    text = new.read_text().replace('"kind": "snapshot"', '"kind": "look"').replace('"schema": 2', '"schema": 1')
    old.write_text(text.replace('"snapshot": "ValueError', '"look": "ValueError'))
    assert "snapshot" not in old.read_text()
    assert records_of(old) == records_of(new)
    assert read_jsonl(old)[1:] == read_jsonl(new)[1:]
    # A file that an earlier version began is continued with lines of this version.
    sink = JSONL(old)
    sink.open({})
    sink.write(Record(step=4, seconds=0.1, loss=1.0, results={}))
    sink.close()
    assert [record.step for record in records_of(old)] == [3, 4]


def test_infinities_and_nan_come_back_as_numbers(tmp_path):
    sink = JSONL(tmp_path / "run.jsonl")
    sink.open({"limit": math.inf})
    sink.write(Record(step=0, seconds=0.1, loss=math.nan, results={}))
    sink.write(Record(step=1, seconds=0.1, loss=-math.inf, results={}))
    sink.close()
    for line in (tmp_path / "run.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    first, second = records_of(tmp_path / "run.jsonl")
    assert math.isnan(first.loss)
    assert second.loss == -math.inf


@dataclass(frozen=True)
class _Own:
    number: float

    def summary(self):
        return {}

    by_layer = summary

    def verdicts(self, kind):
        return []


class _OwnProbe:
    name, forward_only = "own", True

    def measure(self, probe):
        return _Own(3.0)


def test_results_of_a_users_probe_are_in_the_file_and_in_its_records(tmp_path):
    _watched(tmp_path / "run.jsonl", steps=1, measure=["critical", _OwnProbe()])
    assert read_jsonl(tmp_path / "run.jsonl")[1]["results"]["own"] == {"number": 3.0}
    (record,) = records_of(tmp_path / "run.jsonl")
    assert list(record.results) == ["critical", "own"]
    assert record.results["own"] == {"number": 3.0}
    assert record.summary()["own.number"] == 3.0
    assert record.plain()["results"] == read_jsonl(tmp_path / "run.jsonl")[1]["results"]


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_measures_the_result_class_of_its_registration(name):
    (probe,) = probes([name])
    assert probe.name == name
    assert get_type_hints(type(probe).measure)["return"] is PROBES[name].result_class()


def test_a_killed_run_keeps_every_finished_look(tmp_path):
    """kill -9 in the middle of training, as soon as three snapshots are said to be finished."""
    code = """if True:
        import torch
        from torch import nn
        from normscope import Monitor
        from normscope.monitor import JSONL
        model, loss_fn = nn.Linear(4, 3), nn.CrossEntropyLoss()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        monitor = Monitor(model, loss_fn, every=1, budget=None, sinks=[JSONL("run.jsonl")])
        while True:
            x, y = torch.randn(8, 4), torch.randint(3, (8,))
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            print(repr(monitor.step(x, y, optimizer).loss), flush=True)
            optimizer.step()
    """
    process = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = [float(process.stdout.readline()) for _ in range(3)]
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    lines = (tmp_path / "run.jsonl").read_bytes()
    (tmp_path / "run.jsonl").write_bytes(lines[: lines.rindex(b"\n") + 1])
    records = records_of(tmp_path / "run.jsonl")
    assert [record.loss for record in records[:3]] == said
    assert [record.step for record in records] == list(range(len(records)))


def test_a_torn_last_line_is_left_out_and_said(tmp_path):
    path = tmp_path / "run.jsonl"
    _watched(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.warns(UserWarning, match="line 4 was cut short"):
        assert [record.step for record in records_of(path)] == [0, 1]


def test_an_existing_file_is_continued_also_a_torn_one(tmp_path):
    path = tmp_path / "run.jsonl"
    _watched(path, steps=2)
    _watched(path, steps=2, first_step=2)
    assert [row["kind"] for row in read_jsonl(path)] == ["run", "snapshot", "snapshot"] * 2
    assert [record.step for record in records_of(path)] == [0, 1, 2, 3]
    path.write_bytes(path.read_bytes()[:-20])
    _watched(path, steps=1, first_step=3)
    with pytest.warns(UserWarning, match="line 6 was cut short"):
        rows = read_jsonl(path)
    assert [row["kind"] for row in rows] == ["run", "snapshot", "snapshot", "run", "snapshot", "run", "snapshot"]
    assert [row["step"] for row in rows if row["kind"] == "snapshot"] == [0, 1, 2, 3]


@pytest.mark.parametrize("held", [b"step,loss\n0,1.5\n", b"\x89PNG\r\n\x1a\n\x00", b'{"kind": "snapshot"}\n', b"[1]\n"])
def test_a_foreign_file_is_one_message_and_not_written_to(tmp_path, held):
    path = tmp_path / "foreign"
    path.write_bytes(held)
    for use in (read_jsonl, records_of, _watched):
        with pytest.raises(ValueError, match="foreign is not a file of a Monitor's JSONL sink: it does not begin"):
            use(path)
    assert path.read_bytes() == held


def test_an_empty_file_and_a_later_schema_are_said_to_be_that(tmp_path):
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(ValueError, match="it is empty"):
        records_of(tmp_path / "empty")
    (tmp_path / "later").write_text('{"kind": "run", "schema": 3}\n')
    with pytest.raises(ValueError, match="has schema 3"):
        records_of(tmp_path / "later")


class _FullDisk:
    """Takes half a line, then nothing until `room`."""

    def __init__(self, file):
        self.file, self.room, self.started = file, False, False

    def write(self, line):
        if self.room:
            return self.file.write(line)
        if self.started:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.started = True
        return self.file.write(line[: len(line) // 2])

    def close(self):
        self.file.close()


def test_a_full_disk_costs_the_looks_it_had_no_room_for_and_nothing_else(tmp_path):
    path = tmp_path / "run.jsonl"
    sink = JSONL(path)
    sink.open({})
    sink.write(Record(step=0, seconds=0.1, loss=1.0, results={}))
    disk = sink._file = _FullDisk(sink._file)
    for step in (1, 2):
        with pytest.raises(OSError, match="No space left"):
            sink.write(Record(step=step, seconds=0.1, loss=1.0, results={}))
    disk.room = True
    sink.write(Record(step=3, seconds=0.1, loss=1.0, results={}))
    sink.close()
    with pytest.warns(UserWarning, match="cut short"):
        assert [record.step for record in records_of(path)] == [0, 3]


def test_a_sink_that_fails_is_said_once_and_the_run_goes_on(tmp_path):
    class Broken:
        def open(self, settings):
            pass

        def write(self, record):
            raise OSError(errno.ENOSPC, "No space left on device")

        def close(self):
            pass

    with pytest.warns(UserWarning, match="Broken did not store .* at step 0, and the run goes on") as said:
        monitor = _watched(tmp_path / "run.jsonl", on_error="warn", sinks=[Broken(), JSONL(tmp_path / "run.jsonl")])
    assert len(said) == 1
    assert len(monitor.records) == len(records_of(tmp_path / "run.jsonl")) == 3
    with pytest.raises(OSError, match="No space left"):
        _watched(tmp_path / "other.jsonl", sinks=[Broken()])


def test_a_closed_file_does_not_stop_the_run(tmp_path):
    sink = JSONL(tmp_path / "run.jsonl")
    monitor = Monitor(nn.Linear(2, 1), nn.MSELoss(), measure=["critical"], sinks=[sink])
    monitor.close()
    x, y = torch.ones(3, 2), torch.ones(3, 1)
    optimizer = torch.optim.SGD(monitor._task.model.parameters(), lr=0.1)
    nn.MSELoss()(monitor._task.model(x), y).backward()
    with pytest.warns(UserWarning, match="JSONL did not store the record at step 0"):
        assert monitor.step(x, y, optimizer) is not None
