"""Sections of what normscope stored: the kind of a file is known by its content, never by its name.

The module that makes the sections of a kind is imported when a file of that kind is read.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from normscope.messages import brief, quoted, raised_at
from normscope.report import result_schemas as schemas
from normscope.report.document import Section
from normscope.report.sections.monitor_runs import Course, monitor_section
from normscope.results.decoding import Misfit, check_file, decode, parsed

Lines = dict[str, dict[float, float]]
# The journal's name in `sweeping.running`, which is not imported where no sweep is read.
JOURNAL = "sweep.sqlite"
_IN_FOLDERS = ("monitor.jsonl", JOURNAL, "results.json")
_SQLITE = b"SQLite format 3\0"
# By kind: the values that the file must hold, and the module and function of `report.sections` that read them.
_KINDS: dict[str, tuple[Any, str, str]] = {
    "prediction": (schemas.StoredPrediction, "predictions_and_measurements", "prediction_section"),
    "measurement": (schemas.StoredMeasurement, "predictions_and_measurements", "measurement_section"),
    "spectrum": (schemas.StoredSpectrum, "predictions_and_measurements", "spectrum_section"),
    "mean_mode": (schemas.StoredMeanMode, "predictions_and_measurements", "mean_mode_section"),
    "bounds": (Any, "bounds", "bounds_section"),
    "training": (schemas.StoredTraining, "training", "training_section"),
    "tuning": (schemas.StoredTuning, "tuning", "tuning_section"),
    "diagnosis": (schemas.StoredDiagnosis, "diagnosis", "diagnosis_section"),
    "comparison": (schemas.StoredComparison, "solve", "solve_section"),
}
# Kinds whose files have a schema above 1, and the keys of schema 1 that have other names since.
_NEWEST = {"demo": 2, "prediction": 2, "measurement": 2, "landscapes": 2}
_RENAMED = {
    "seen": "calibrated_range",
    "start_rate": "first_guess",
    "start_range": "first_guess_range",
    "critical": "critical_rate",
    "critical_by_batch": "critical_rates",
    "looks": "snapshots",
    "seconds_looking": "seconds_measuring",
}
# Errors that a section raises for values that have the right types and do not belong together.
_CONTRADICTIONS = (LookupError, TypeError, AttributeError, StopIteration, ValueError, ArithmeticError, RuntimeError)
_TITLES = {"comparison": "Solve", "mean_mode": "Mean mode"}
_KNOWN = (
    "a Monitor's JSONL, a sweep's journal or phase JSON, a demo's or solve's results.json, a landscape, a saved "
    "result, or a folder of `normscope reproduce`"
)


def sections_of(paths: Sequence[Path], *, live: bool = False) -> list[Section]:
    """The sections of some files and folders: all training runs in one section, every other result in its own.

    Args:
        live: whether a run that has begun and holds no snapshot yet is accepted.
    """
    claims = [_claims(path) for path in paths if _reproduced(path)]
    files = [file for path in paths if not _reproduced(path) for file in files_of(path, live=live)]
    parts = [part for file in files for part in _read(file, _label(file, files), live)]
    courses = _told_apart([part for part in parts if isinstance(part, Course)])
    sections = [part for part in parts if isinstance(part, Section)]
    if courses:
        title = courses[0].label if len(courses) == 1 else f"{len(courses)} training runs"
        # Some columns are read only here, by the charts of all runs together.
        with _readable(Path(", ".join(map(str, files)))):
            sections.insert(0, monitor_section(title, courses))
    return sections + claims


def files_of(path: Path, *, live: bool = False) -> list[Path]:
    """The file itself, or the files of normscope in a folder; for a sweep that is followed, its journal."""
    if not path.exists():
        raise ValueError(f"There is no file or folder {path}. Name what normscope wrote: a run's folder, or a file.")
    if not path.is_dir():
        check_file(path)
        return [path]
    if _reproduced(path):
        return _reproduced(path)
    # The stored diagram of a sweep holds the lines of eta*, which the journal does not hold.
    stored = [] if live and (path / JOURNAL).exists() else sorted(path.glob("phase-*.json"))
    names = [name for name in _IN_FOLDERS if not (stored and name == JOURNAL)]
    files = [path / name for name in names if (path / name).is_file()] + stored
    if not files:
        raise ValueError(f"{path} holds nothing to report: looked for {', '.join(_IN_FOLDERS)} and phase-*.json.")
    return files


def _reproduced(path: Path) -> list[Path]:
    """The files that `normscope reproduce` wrote to a folder."""
    if not path.is_dir() or not any(path.glob("*.json")):
        return []
    from normscope.papers import Store, all_experiments

    files = map(Store(path).path, all_experiments().values())
    return [file for file in files if file.is_file()]


def _claims(folder: Path) -> Section:
    """The section of all statements that read some of the runs stored in the folder."""
    from normscope.papers import Store, all_entries, judge
    from normscope.report.sections.claims import claims_section

    store, files = Store(folder), _reproduced(folder)
    chosen = [entry for entry in all_entries().values() if any(store.path(e) in files for e in entry.needs)]
    with _readable(folder):
        judged = [claim for entry in chosen for claim in judge(entry, store)]
        return claims_section(f"Claims, {folder.resolve().name}", judged, store)


@contextmanager
def _readable(place: Path) -> Iterator[None]:
    """Turn an error about the values of a file into one message with the name of the file.

    `Misfit` comes from checking the file, so the file is at fault. Another error may come from values that contradict
    one another, or from an error in a section: the message names both, and the line.
    """
    try:
        yield
    except Misfit as error:
        raise ValueError(
            f"{place} looks like a result of normscope's and lacks some of it ({_in_one_line(error)}). Write it again "
            "with this version."
        ) from error
    except _CONTRADICTIONS as error:
        if str(place) in str(error):
            raise
        raise ValueError(
            f"{place} looks like a result of normscope's and cannot be drawn ({_in_one_line(error)}). Either it lacks "
            f"some of its values: write it again with this version. Or the drawing has an error ({raised_at(error)}): "
            "report that."
        ) from error


def _in_one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {brief(' '.join(str(error).split()))}"


def _label(file: Path, files: Sequence[Path]) -> str:
    """The shortest name that differs from those of the other files."""
    generic = file.name in _IN_FOLDERS or file.stem == "monitor"
    label = file.resolve().parent.name if generic else file.stem
    others = [other for other in files if other != file and label in (other.stem, other.resolve().parent.name)]
    return str(file) if others and generic else label


def _told_apart(courses: Sequence[Course]) -> list[Course]:
    """The courses with a number after each label that came before."""
    seen: dict[str, int] = {}
    distinct = []
    for course in courses:
        seen[course.label] = seen.get(course.label, 0) + 1
        again = seen[course.label] > 1
        distinct.append(replace(course, label=f"{course.label} ({seen[course.label]})") if again else course)
    return distinct


def _read(file: Path, label: str, live: bool) -> list[Course | Section]:
    check_file(file, math.inf)
    with file.open("rb") as opened:
        first_bytes = opened.read(4096)
    if not first_bytes.strip():
        if live and file.suffix == ".jsonl":
            return [Course(label, {"step": []})]
        raise ValueError(f"{file} is empty. Report it once something has been written.")
    if first_bytes.startswith(_SQLITE):
        return list(_journal(file, label, live))
    if file.suffix == ".jsonl" or first_bytes.lstrip().startswith((b'{"kind": "run"', b'{"kind":"run"')):
        return [_monitor(file, label, live)]
    return _stored(file, label)


def _monitor(file: Path, label: str, live: bool) -> Course:
    from normscope.monitor.sinks.jsonl import MOST_HEAD, stored_run
    from normscope.report.sections.monitor_records import monitor_course

    with file.open("rb") as opened:
        head = opened.readline(MOST_HEAD)
    if not head.rstrip().endswith(b"}") and not head.endswith(b"\n") and head.startswith(b'{"kind"'):
        raise ValueError(f"{file} is half-written: it ends within its first line. The run had hardly begun.")
    run = stored_run(file)
    if not run.records and run.notes and not live:
        raise ValueError(f"{file} is half-written: its only snapshot was cut short. Let the run go on.")
    if not run.records and not live:
        raise ValueError(
            f"{file} holds no snapshot yet: its run has only begun, or ended before one. Follow it with --serve."
        )
    notes = tuple(note.replace(str(file), file.name) for note in run.notes)
    with _readable(file):
        return monitor_course(label, run.records, decode(schemas.StoredHead, run.headers[-1], "its header"), notes)


def _journal(file: Path, label: str, live: bool) -> list[Section]:
    from normscope.report.sections.phase import phase_section
    from normscope.sweeping.diagram import diagram
    from normscope.sweeping.journal import Journal

    sections = []
    with Journal(file, readonly=True) as journal:
        for key, plan in journal.plans().items():
            outcomes = journal.outcomes(plan).values()
            if outcomes or live:
                lines, made, notes = _lines_beside(file, key)
                with _readable(file):
                    section = phase_section(f"Phase diagram, {label}", diagram(plan, outcomes), lines, command=made)
                sections.append(replace(section, notes=(*section.notes, *notes)))
    if not sections:
        raise ValueError(f"{file} holds no finished training yet. Follow it with --serve.")
    return sections


def _lines_beside(journal: Path, plan: str) -> tuple[Lines, str, list[str]]:
    """eta* by theory and by measurement for a plan, the command that computed it, and a note on a damaged file."""
    from normscope.sweeping.diagram import lines_file, stored_command, stored_lines

    place = lines_file(journal.parent, plan)
    try:
        return (stored_lines(place), stored_command(place), []) if place.is_file() else ({}, "", [])
    except ValueError as error:
        return {}, "", [f"{error} The next `normscope sweep` does so."]


def _stored(file: Path, label: str) -> list[Course | Section]:
    try:
        value = parsed(file.read_bytes())
    except UnicodeDecodeError:
        raise ValueError(f"{file} is a foreign file, neither text nor a journal. A report reads {_KNOWN}.") from None
    except json.JSONDecodeError as error:
        # A file that ends before its JSON does was being written; a file with an error before its end is foreign.
        if error.doc.lstrip()[:1] in ("{", "[") and (
            error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated")
        ):
            raise ValueError(f"{file} is half-written: its JSON ends within itself. Write it again.") from None
        raise ValueError(f"{file} is a foreign file: no JSON ({error}). A report reads {_KNOWN}.") from None
    except ValueError as error:
        raise ValueError(f"{file} is a foreign file: {error}. A report reads {_KNOWN}.") from None
    with _readable(file):
        parts = _known(file, label, value)
    if not parts:
        raise ValueError(f"{file} is a foreign file: JSON that normscope did not write. A report reads {_KNOWN}.")
    return parts


def _before_schemas(stored: Any) -> bool:
    """Whether these are values as an early version wrote them: bare lists of runs, solve or bounds without a kind."""
    if isinstance(stored, list):
        first = stored[0].keys() if stored and isinstance(stored[0], dict) else set()
        return {"task", "training"} <= first or {"looks", "windows"} <= first
    return (
        isinstance(stored, dict)
        and "kind" not in stored
        and ({"methods", "promise"} <= stored.keys() or {"schema", "layers"} <= stored.keys())
    )


def _known(file: Path, label: str, content: Any) -> list[Course | Section]:
    if _before_schemas(content):
        raise ValueError(
            f"{file} was written by an earlier normscope, without kind and schema. Write it again with this version."
        )
    if not isinstance(content, dict):
        return []
    if content.get("kind") in ("demo", "landscapes"):
        _check_schema(file, content, _NEWEST.get(content["kind"], 1))
        if content["kind"] == "landscapes":
            from normscope.report.sections.landscape import landscape_courses

            runs = [_renamed(run) for run in decode(list[dict[str, Any]], content.get("runs"), "runs")]
            return list(landscape_courses(decode(schemas.StoredLandscapes, {"runs": runs})["runs"]))
        from normscope.demo import DemoResult
        from normscope.report.sections.demo import TITLE, Demo, demo_section

        stored = decode(Demo, content)
        return [demo_section(TITLE, DemoResult(stored["seed"], tuple(stored["cases"]), stored["watched"]))]
    result_kind = content.get("kind")
    if isinstance(result_kind, str) and result_kind in _KINDS:
        _check_schema(file, content, _NEWEST.get(result_kind, 1))
        content = _renamed(content)
        title = _TITLES.get(result_kind, result_kind.capitalize())
        wanted, module, name = _KINDS[result_kind]
        section = getattr(import_module(f"normscope.report.sections.{module}"), name)
        return [section(title if label == result_kind else f"{title}, {label}", decode(wanted, content))]
    if {"plan", "cells"} <= content.keys():
        from normscope.report.sections.phase import phase_section
        from normscope.sweeping.diagram import PhaseDiagram, stored_command, stored_lines

        stored, lines = PhaseDiagram.load(file), stored_lines(file)
        return [phase_section(f"Phase diagram, {label}", stored, lines, command=stored_command(file))]
    return []


def _renamed(stored: Mapping[str, Any]) -> dict[str, Any]:
    return {_RENAMED.get(name, name): value for name, value in stored.items()}


def _check_schema(file: Path, stored: Mapping[str, Any], newest: int = 1) -> None:
    if stored.get("schema") not in range(1, newest + 1):
        read = "1" if newest == 1 else f"1 to {newest}"
        raise ValueError(f"{file} has schema {quoted(stored.get('schema'))}; this version of normscope reads {read}.")
