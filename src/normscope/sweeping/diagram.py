"""The result of a sweep: every outcome, the boundary, and its distance from theory and measurement."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.invocation import command
from normscope.reporting import Reportable
from normscope.results import plain, write_json
from normscope.sweeping.boundary import Distance, Edge, distance, edges
from normscope.sweeping.outcome import Outcome
from normscope.sweeping.plan import Cell, Plan

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
        Path(path).write_text(f'{head[:-2]},\n "cells": [\n{rows}\n ]\n}}\n')

    def _sections(self, lines: Mapping[str, Mapping[float, float]] | None = None) -> Sequence[Any]:
        from normscope.report.sections.phase import phase_section

        return [phase_section("Phase diagram", self, lines or {})]

    def report(self, path: str | Path, *, lines: Mapping[str, Mapping[float, float]] | None = None) -> Path:
        """Writes one HTML file that needs no network, with `lines` given as name -> (value -> eta*)."""
        from normscope.report.writing import write_report

        return write_report(self._sections(lines), path)

    @classmethod
    def load(cls, path: str | Path) -> "PhaseDiagram":
        """From what `save` wrote; numbers there have six digits."""
        stored = json.loads(Path(path).read_text())
        if stored.get("schema") != SCHEMA:
            raise ValueError(
                f"{path} holds schema {stored.get('schema')}; this normscope reads {SCHEMA}. Make it anew."
            )
        made = stored["made"][0]
        return cls(Plan.from_dict(stored["plan"]), tuple(_outcome(cell, made) for cell in stored["cells"]))


def stored_lines(path: str | Path) -> dict[str, dict[float, float]]:
    """The lines that `PhaseDiagram.save` or `save_lines` was given."""
    lines = json.loads(Path(path).read_text())["lines"]
    return {name: {float(value): float(eta) for value, eta in line} for name, line in lines.items()}


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
    return str(json.loads(Path(path).read_text()).get("command", ""))


def diagram(plan: Plan, outcomes: Iterable[Outcome]) -> PhaseDiagram:
    return PhaseDiagram(plan, tuple(sorted(outcomes, key=lambda found: found.cell)))


def _short(number: float) -> float:
    return float(f"{number:.6g}") if math.isfinite(number) else number


def _outcome(cell: dict[str, Any], made: dict[str, Any]) -> Outcome:
    curves = {
        name: tuple(float(x) for x in cell[name])
        for name in ("train_loss", "train_accuracy", "test_loss", "test_accuracy")
    }
    return Outcome(
        cell=Cell(cell["lr"], cell["value"], cell["seed"]),
        initial_loss=float(cell["initial_loss"]),
        diverged_at=cell["diverged_at"],
        rose_at=cell["rose_at"],
        **curves,
        mode=made["mode"],
        note=made["note"],
        environment=made["environment"],
    )
