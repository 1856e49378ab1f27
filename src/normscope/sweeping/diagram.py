"""The result of a sweep: every outcome, the boundary, and its distance from theory and measurement."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from normscope.decoding import Misfit, decode, read_json
from normscope.invocation import command
from normscope.messages import brief
from normscope.reporting import Reportable
from normscope.results import plain, write_json
from normscope.saving import save_text
from normscope.sweeping.boundary import Distance, Edge, distance, edges
from normscope.sweeping.outcome import Outcome, read_outcome
from normscope.sweeping.plan import Plan

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1


@dataclass(frozen=True)
class PhaseDiagram(Reportable):
    """What a plan's trainings did; `outcomes` by rising learning rate, value and seed."""

    plan: Plan
    outcomes: tuple[Outcome, ...]

    def frame(self) -> "pd.DataFrame":
        """One row a cell: lr, the axis, seed, initial_loss, diverged_at, rose_at, and the last epoch's numbers."""
        import pandas as pd

        rows = [
            {
                "lr": found.cell.lr,
                self.plan.axis: found.cell.value,
                "seed": found.cell.seed,
                "initial_loss": found.initial_loss,
                "diverged_at": found.diverged_at,
                "rose_at": found.rose_at,
                "train_loss": found.train_loss[-1],
                "train_accuracy": found.train_accuracy[-1],
                "test_loss": found.test_loss[-1],
                "test_accuracy": found.test_accuracy[-1],
                "mode": found.mode,
            }
            for found in self.outcomes
        ]
        return pd.DataFrame(rows).astype({"diverged_at": "Int64", "rose_at": "Int64"})

    def boundary(self) -> list[Edge]:
        """Where training stops to converge, at every value of the axis."""
        return edges(self.outcomes)

    def agreement(self, lines: Mapping[str, Mapping[float, float]]) -> dict[str, Distance]:
        """Distances, in decades, of the boundary from lines given as name -> (value -> eta*)."""
        found = self.boundary()
        return {name: distance(name, found, line) for name, line in lines.items()}

    def save(self, path: str | Path, *, lines: Mapping[str, Mapping[float, float]] | None = None) -> None:
        """Compact JSON from which the figure can be drawn again: per cell lr, value, seed, divergence and curves."""
        cells = [
            {
                "lr": found.cell.lr,
                "value": found.cell.value,
                "seed": found.cell.seed,
                "initial_loss": _short(found.initial_loss),
                "diverged_at": found.diverged_at,
                "rose_at": found.rose_at,
                "train_loss": [_short(x) for x in found.train_loss],
                "train_accuracy": [_short(x) for x in found.train_accuracy],
                "test_loss": [_short(x) for x in found.test_loss],
                "test_accuracy": [_short(x) for x in found.test_accuracy],
            }
            for found in self.outcomes
        ]
        modes = sorted({(found.mode, found.note, json.dumps(found.environment)) for found in self.outcomes})
        result = {
            "schema": SCHEMA,
            "plan": asdict(self.plan),
            "hash": self.plan.hash,
            "made": [{"mode": m, "note": n, "environment": json.loads(e)} for m, n, e in modes],
            "boundary": [asdict(edge) for edge in self.boundary()],
            "lines": {name: list(line.items()) for name, line in (lines or {}).items()},
            "agreement": [asdict(found) for found in self.agreement(lines or {}).values()],
            "command": command(),
        }
        head = json.dumps(plain(result), indent=1, allow_nan=False)
        rows = ",\n".join(json.dumps(plain(cell), separators=(",", ":"), allow_nan=False) for cell in cells)
        save_text(path, f'{head[:-2]},\n "cells": [\n{rows}\n ]\n}}\n')

    def _sections(self, lines: Mapping[str, Mapping[float, float]] | None = None) -> Sequence[Any]:
        from normscope.report.sections.phase import phase_section

        return [phase_section("Phase diagram", self, lines or {})]

    def report(self, path: str | Path, *, lines: Mapping[str, Mapping[float, float]] | None = None) -> Path:
        """Writes one HTML file that needs no network, with `lines` given as name -> (value -> eta*)."""
        from normscope.report.page_file import write_report

        return write_report(self._sections(lines), path)

    @classmethod
    def load(cls, path: str | Path) -> "PhaseDiagram":
        """From what `save` wrote; numbers there have six digits. The model and data that it names are not imported."""
        try:
            found = decode(StoredDiagram, read_json(path))
            if found["schema"] != SCHEMA:
                raise Misfit(f"it holds schema {found['schema']}; this normscope reads {SCHEMA}")
            plan = Plan.as_it_ran(found["plan"], found["hash"])
            made = found["made"][0] if found["made"] else {}
            cells = [read_outcome(plan, cell | made, f"cells[{i}]") for i, cell in enumerate(found["cells"])]
        except ValueError as error:
            said = brief(" ".join(str(error).split()))
            raise ValueError(f"{path} is no phase diagram of normscope's: {said}. Make it anew.") from error
        return cls(plan, tuple(cells))


class StoredDiagram(TypedDict):
    """What `PhaseDiagram.save` writes, as far as it is read."""

    schema: int
    plan: dict[str, Any]
    hash: str
    made: list[dict[str, Any]]
    cells: list[dict[str, Any]]


class StoredLines(TypedDict):
    """Lines with the command that made them, in a phase JSON or alone."""

    lines: dict[str, list[tuple[float, float]]]
    command: NotRequired[str]


def stored_lines(path: str | Path) -> dict[str, dict[float, float]]:
    """The lines that `PhaseDiagram.save` or `save_lines` was given."""
    return {name: dict(line) for name, line in _lines(path)["lines"].items()}


def _lines(path: str | Path) -> StoredLines:
    try:
        found: StoredLines = decode(StoredLines, read_json(path))
    except ValueError as error:
        raise ValueError(f"{path} holds no lines that can be read: {brief(str(error))}. Make it anew.") from error
    return found


def lines_file(folder: str | Path, plan: str) -> Path:
    """Where the lines of the plan with this hash lie while its sweep goes on."""
    return Path(folder) / f"lines-{plan[:8]}.json"


def save_lines(lines: Mapping[str, Mapping[float, float]], path: str | Path) -> None:
    """`lines` alone, for `stored_lines`; a folder that is missing is made."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    held = {name: list(line.items()) for name, line in lines.items()}
    write_json(path, plain({"kind": "lines", "schema": SCHEMA, "lines": held, "command": command()}))


def stored_command(path: str | Path) -> str:
    """What made a file of `PhaseDiagram.save` or `save_lines`, as it was typed; empty where the file does not say."""
    return _lines(path).get("command", "")


def diagram(plan: Plan, outcomes: Iterable[Outcome]) -> PhaseDiagram:
    return PhaseDiagram(plan, tuple(sorted(outcomes, key=lambda found: found.cell)))


def _short(number: float) -> float:
    return float(f"{number:.6g}") if math.isfinite(number) else number
