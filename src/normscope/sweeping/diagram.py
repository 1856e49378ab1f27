"""The result of a sweep: every outcome, the boundary, and its distance from theory and measurement."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from normscope.messages import brief
from normscope.results import plain, write_json
from normscope.results.decoding import Misfit, decode, read_json
from normscope.results.invocation import command
from normscope.results.reporting import Reportable
from normscope.results.saving import save_text
from normscope.sweeping.boundary import Distance, Edge, distance, edges
from normscope.sweeping.outcome import Outcome, read_outcome
from normscope.sweeping.plan import Plan

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1


@dataclass(frozen=True)
class PhaseDiagram(Reportable):
    """The outcomes of a plan's trainings, sorted by learning rate, value and seed.

    Attributes:
        plan: the plan that was run.
        outcomes: one outcome for each cell.
    """

    plan: Plan
    outcomes: tuple[Outcome, ...]

    def frame(self) -> "pd.DataFrame":
        """A table with one row a cell: lr, the axis, seed, initial_loss, diverged_at, rose_at, last epoch's numbers."""
        import pandas as pd

        rows = [
            {
                "lr": outcome.cell.lr,
                self.plan.axis: outcome.cell.value,
                "seed": outcome.cell.seed,
                "initial_loss": outcome.initial_loss,
                "diverged_at": outcome.diverged_at,
                "rose_at": outcome.rose_at,
                "train_loss": outcome.train_loss[-1],
                "train_accuracy": outcome.train_accuracy[-1],
                "test_loss": outcome.test_loss[-1],
                "test_accuracy": outcome.test_accuracy[-1],
                "mode": outcome.mode,
            }
            for outcome in self.outcomes
        ]
        return pd.DataFrame(rows).astype({"diverged_at": "Int64", "rose_at": "Int64"})

    def boundary(self) -> list[Edge]:
        """The boundary between training that survives and training that diverges, at every value of the axis.

        Returns:
            One `Edge` for each value of the axis.
        """
        return edges(self.outcomes)

    def agreement(self, lines: Mapping[str, Mapping[float, float]]) -> dict[str, Distance]:
        """The distances, in decades, of the boundary from lines given as name -> (value -> eta*).

        Args:
            lines: name -> (value of the axis -> eta*), as `measured_line` gives.

        Returns:
            A `Distance` by the name of the line.
        """
        boundary = self.boundary()
        return {name: distance(name, boundary, line) for name, line in lines.items()}

    def save(self, path: str | Path, *, lines: Mapping[str, Mapping[float, float]] | None = None) -> None:
        """Write compact JSON from which the figure can be drawn again; numbers have six digits.

        Each cell has its learning rate, value, seed, step of divergence and curves. `lines` are stored with them.
        """
        cells = [
            {
                "lr": outcome.cell.lr,
                "value": outcome.cell.value,
                "seed": outcome.cell.seed,
                "initial_loss": _short(outcome.initial_loss),
                "diverged_at": outcome.diverged_at,
                "rose_at": outcome.rose_at,
                "train_loss": [_short(x) for x in outcome.train_loss],
                "train_accuracy": [_short(x) for x in outcome.train_accuracy],
                "test_loss": [_short(x) for x in outcome.test_loss],
                "test_accuracy": [_short(x) for x in outcome.test_accuracy],
            }
            for outcome in self.outcomes
        ]
        modes = sorted({(outcome.mode, outcome.note, json.dumps(outcome.environment)) for outcome in self.outcomes})
        result = {
            "schema": SCHEMA,
            "plan": asdict(self.plan),
            "hash": self.plan.hash,
            "made": [{"mode": m, "note": n, "environment": json.loads(e)} for m, n, e in modes],
            "boundary": [asdict(edge) for edge in self.boundary()],
            "lines": {name: list(line.items()) for name, line in (lines or {}).items()},
            "agreement": [asdict(apart) for apart in self.agreement(lines or {}).values()],
            "command": command(),
        }
        head = json.dumps(plain(result), indent=1, allow_nan=False)
        rows = ",\n".join(json.dumps(plain(cell), separators=(",", ":"), allow_nan=False) for cell in cells)
        save_text(path, f'{head[:-2]},\n "cells": [\n{rows}\n ]\n}}\n')

    def _sections(self, lines: Mapping[str, Mapping[float, float]] | None = None) -> Sequence[Any]:
        from normscope.report.sections.phase import phase_section

        return [phase_section("Phase diagram", self, lines or {})]

    def report(self, path: str | Path, *, lines: Mapping[str, Mapping[float, float]] | None = None) -> Path:
        """Write one HTML file that needs no network, with `lines` given as name -> (value -> eta*)."""
        from normscope.report.page_file import write_report

        return write_report(self._sections(lines), path)

    @classmethod
    def load(cls, path: str | Path) -> "PhaseDiagram":
        """Read the file that `save` wrote; the model and the data it names are not imported.

        Args:
            path: the file.

        Returns:
            The diagram.

        Raises:
            ValueError: the file is not a phase diagram of this version.
        """
        try:
            stored = decode(StoredDiagram, read_json(path))
            if stored["schema"] != SCHEMA:
                raise Misfit(f"it holds schema {stored['schema']}; this normscope reads {SCHEMA}")
            plan = Plan.as_it_ran(stored["plan"], stored["hash"])
            made = stored["made"][0] if stored["made"] else {}
            cells = [read_outcome(plan, cell | made, f"cells[{i}]") for i, cell in enumerate(stored["cells"])]
        except ValueError as error:
            reason = brief(" ".join(str(error).split()))
            raise ValueError(
                f"{path} is not a phase diagram of normscope: {reason}. Run the sweep again to write a new file."
            ) from error
        return cls(plan, tuple(cells))


class StoredDiagram(TypedDict):
    """The parts of a file of `PhaseDiagram.save` that are read."""

    schema: int
    plan: dict[str, Any]
    hash: str
    made: list[dict[str, Any]]
    cells: list[dict[str, Any]]


class StoredLines(TypedDict):
    """Lines with the command that made them, in a phase JSON or in a file of their own."""

    lines: dict[str, list[tuple[float, float]]]
    command: NotRequired[str]


def stored_lines(path: str | Path) -> dict[str, dict[float, float]]:
    """The lines in a file of `PhaseDiagram.save` or `save_lines`, as name -> (value -> eta*).

    Args:
        path: the file.

    Returns:
        name -> (value of the axis -> eta*).
    """
    return {name: dict(line) for name, line in _lines(path)["lines"].items()}


def _lines(path: str | Path) -> StoredLines:
    try:
        stored: StoredLines = decode(StoredLines, read_json(path))
    except ValueError as error:
        raise ValueError(
            f"{path} holds no lines that can be read: {brief(str(error))}. Write the file again."
        ) from error
    return stored


def lines_file(folder: str | Path, plan: str) -> Path:
    """The path of the file that holds the lines of the plan with this hash while its sweep runs."""
    return Path(folder) / f"lines-{plan[:8]}.json"


def save_lines(lines: Mapping[str, Mapping[float, float]], path: str | Path) -> None:
    """Write `lines` to a file of their own, for `stored_lines`; a missing folder is made."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    pairs = {name: list(line.items()) for name, line in lines.items()}
    write_json(path, plain({"kind": "lines", "schema": SCHEMA, "lines": pairs, "command": command()}))


def stored_command(path: str | Path) -> str:
    """The command that made a file of `PhaseDiagram.save` or `save_lines`; "" if the file does not hold it."""
    return _lines(path).get("command", "")


def diagram(plan: Plan, outcomes: Iterable[Outcome]) -> PhaseDiagram:
    """The phase diagram of a plan, with sorted outcomes."""
    return PhaseDiagram(plan, tuple(sorted(outcomes, key=lambda outcome: outcome.cell)))


def _short(number: float) -> float:
    return float(f"{number:.6g}") if math.isfinite(number) else number
