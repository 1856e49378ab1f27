"""The journal: what it refuses, untouched; what it keeps; who may read."""

import math
import os
import shutil
import sqlite3

import pytest
import sweep_plans

import normscope as ns
from normscope.sweeping import Journal, JournalError, Outcome
from normscope.sweeping import journal as journal_module

NAN = math.nan


def outcomes(plan, count=3):
    return [
        Outcome(
            cell, 1.5, 3 if i else None, None, (1.0, NAN), (0.5, NAN), (1.0, math.inf), (0.1, NAN), "stacked", "", {}
        )
        for i, cell in enumerate(plan.cells()[:count])
    ]


def test_rows_come_back_as_they_went_in(tmp_path):
    plan, rows = sweep_plans.plan(), outcomes(sweep_plans.plan())
    with Journal(tmp_path / "j.sqlite") as journal:
        journal.begin(plan, [row.cell for row in rows])
        journal.add(plan, rows)
    assert [path.name for path in tmp_path.iterdir()] == ["j.sqlite"]
    with Journal(tmp_path / "j.sqlite", readonly=True) as journal:
        assert repr(sorted(journal.outcomes(plan).values(), key=repr)) == repr(sorted(rows, key=repr))
        assert journal.outcomes(sweep_plans.plan(epochs=3)) == {}


def test_an_initial_loss_that_is_no_number_comes_back(tmp_path):
    plan = sweep_plans.plan()
    row = outcomes(plan, 1)[0]
    row = Outcome(**{**vars(row), "initial_loss": NAN})
    with Journal(tmp_path / "j.sqlite") as journal:
        journal.begin(plan, [row.cell])
        journal.add(plan, [row])
        assert math.isnan(journal.outcomes(plan)[row.cell].initial_loss)


def test_a_group_lands_whole_or_not_at_all(tmp_path):
    plan, rows = sweep_plans.plan(), outcomes(sweep_plans.plan())
    with Journal(tmp_path / "j.sqlite") as journal:
        journal.begin(plan, [row.cell for row in rows])
        journal.add(plan, rows[2:])
        with pytest.raises(JournalError, match="UNIQUE"):
            journal.add(plan, rows)
        assert list(journal.outcomes(plan)) == [rows[2].cell]


def test_a_reader_looks_on_while_a_sweep_writes(tmp_path):
    plan, rows = sweep_plans.plan(), outcomes(sweep_plans.plan())
    with Journal(tmp_path / "j.sqlite") as writer:
        writer.begin(plan, [row.cell for row in rows])
        with Journal(tmp_path / "j.sqlite", readonly=True) as reader:
            writer.add(plan, rows[:1])
            assert len(reader.outcomes(plan)) == 1
            with writer._transaction() as db:
                db.execute("delete from rows")
                assert len(reader.outcomes(plan)) == 1
            assert len(reader.outcomes(plan)) == 0


def _garbage(path):
    path.write_bytes(os.urandom(5000))


def _truncated(path):
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def _other_version(path):
    with sqlite3.connect(path) as db:
        db.execute("pragma user_version = 99")
    db.close()


def _other_program(path):
    with sqlite3.connect(path) as db:
        db.execute("pragma application_id = 7")
    db.close()


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (_garbage, "not a readable journal"),
        (_truncated, "not a readable journal|damaged"),
        (_other_version, "version 99"),
        (_other_program, "another program"),
    ],
)
def test_a_journal_that_is_none_is_refused_and_untouched(tmp_path, harm, words):
    plan, path = sweep_plans.plan(), tmp_path / "sweep.sqlite"
    with Journal(path) as journal:
        journal.begin(plan, plan.cells())
        journal.add(plan, outcomes(plan, 24))
    harm(path)
    before = path.read_bytes()
    with pytest.raises(JournalError, match=words) as found:
        ns.sweep(plan, tmp_path, device="cpu", quiet=True)
    assert "left untouched" in str(found.value)
    assert path.read_bytes() == before
    assert [other.name for other in tmp_path.iterdir()] == ["sweep.sqlite"]


def test_an_empty_file_becomes_a_journal(tmp_path):
    (tmp_path / "j.sqlite").touch()
    with Journal(tmp_path / "j.sqlite") as journal:
        assert journal.plans() == {}


def test_there_is_nothing_to_read(tmp_path):
    with pytest.raises(JournalError, match="Run the sweep"):
        Journal(tmp_path / "j.sqlite", readonly=True)


def test_a_second_sweep_is_refused_before_it_trains_what_the_first_is_at(tmp_path, monkeypatch):
    plan, other = sweep_plans.plan(learning_rates=(0.01,)), sweep_plans.plan(learning_rates=(0.02,))
    found = ns.sweep(plan, tmp_path, device="cpu", quiet=True)
    monkeypatch.setattr(journal_module.Journal, "begin", lambda *_: pytest.fail("trained"))
    with Journal(tmp_path / "sweep.sqlite"):
        with pytest.raises(JournalError, match="Another sweep writes"):
            ns.sweep(other, tmp_path, device="cpu", quiet=True)
        # What is done can be had all the same.
        assert sweep_plans.same(ns.sweep(plan, tmp_path, device="cpu", quiet=True), found)
    with Journal(tmp_path / "sweep.sqlite"):
        pass


def test_a_journal_cut_off_while_it_was_made_is_made_again(tmp_path):
    (tmp_path / ".j.sqlite.new").write_bytes(b"half")
    with Journal(tmp_path / "j.sqlite") as journal:
        assert journal.plans() == {}
    assert [path.name for path in tmp_path.iterdir()] == ["j.sqlite"]


def test_a_finished_journal_can_be_read_where_nothing_can_be_written(tmp_path, monkeypatch):
    plan, rows = sweep_plans.plan(), outcomes(sweep_plans.plan())
    with Journal(tmp_path / "j.sqlite") as journal:
        journal.begin(plan, [row.cell for row in rows])
        journal.add(plan, rows)
    before = (tmp_path / "j.sqlite").read_bytes()
    monkeypatch.setattr(journal_module.os, "access", lambda *_: False)
    with Journal(tmp_path / "j.sqlite", readonly=True) as journal:
        assert len(journal.outcomes(plan)) == 3
        assert [path.name for path in tmp_path.iterdir()] == ["j.sqlite"]
    assert (tmp_path / "j.sqlite").read_bytes() == before


@pytest.mark.parametrize(
    ("said", "step"),
    [
        ("database or disk is full", "free some disk space"),
        ("disk I/O error", "free some disk space"),
        ("unable to open database file", "make its folder writable"),
        ("attempt to write a readonly database", "make its folder writable"),
        ("database is locked", "wait until it ends"),
    ],
)
def test_what_sqlite_says_comes_with_the_next_step(tmp_path, said, step):
    with Journal(tmp_path / "j.sqlite") as journal:
        with pytest.raises(JournalError, match=step) as found, journal._explained():
            raise sqlite3.OperationalError(said)
        assert said in str(found.value)


def test_a_full_disk_stops_the_sweep_with_what_is_done_kept(tmp_path, monkeypatch):
    plan = sweep_plans.plan()
    whole = ns.sweep(plan, tmp_path / "whole", device="cpu", quiet=True, group=4)
    add, landed = Journal.add, []

    def limited(self, plan, rows):
        if len(landed) == 2:
            (pages,) = self._db.execute("pragma page_count").fetchone()
            self._db.execute(f"pragma max_page_count = {pages}")
            rows = [Outcome(**{**vars(row), "note": "x" * 10000}) for row in rows]
        add(self, plan, rows)
        landed.append(rows)

    monkeypatch.setattr(Journal, "add", limited)
    with pytest.raises(JournalError, match="free some disk space and run the same command again"):
        ns.sweep(plan, tmp_path / "full", device="cpu", quiet=True, group=4)
    monkeypatch.setattr(Journal, "add", add)
    with Journal(tmp_path / "full" / "sweep.sqlite", readonly=True) as journal:
        assert len(journal.outcomes(plan)) == 8
    assert sweep_plans.same(ns.sweep(plan, tmp_path / "full", device="cpu", quiet=True, group=4), whole)


def test_a_copy_of_a_finished_journal_is_whole(tmp_path):
    plan = sweep_plans.plan(learning_rates=(0.01,))
    found = ns.sweep(plan, tmp_path / "one", device="cpu", quiet=True)
    (tmp_path / "two").mkdir()
    shutil.copy(tmp_path / "one" / "sweep.sqlite", tmp_path / "two" / "sweep.sqlite")
    assert sweep_plans.same(ns.sweep(plan, tmp_path / "two", device="cpu", quiet=True), found)
