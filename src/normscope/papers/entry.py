"""A figure or claim of a source: its statements in our words, the rules, and the verdicts from stored curves.

To add a claim, add a `Statement` to the figure's file in `papers/entries/`. To add a figure, add a file there with an
`ENTRY`; `registry.py` finds the file. If its numbers need a new training, add an `Experiment` in `papers/experiments/`.
If its source has no page yet, add a `Paper` to `PAPERS` in `papers/paper_pages.py`.

An entry holds the statements of one place in a source. A statement is judged by parts. Each part compares a number
computed from curves with a bound that was fixed before the runs:

    reproduced            every part holds                    reproduced in part   some do
    not reproduced        no part holds
    the statement is wrong    a part of an exact statement fails: the numbers are a counterexample
    not yet run           fewer than `n` seeds of some cell it needs

The paper's scale is judged where enough of its seeds are stored; else the small scale, which the result names.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from normscope.messages import first_line, raised_at
from normscope.papers.experiment import Curves, Experiment
from normscope.papers.store import Store, StoreError

REPRODUCED, IN_PART, NOT = "reproduced", "reproduced in part", "not reproduced"
WRONG, OPEN = "the statement is wrong", "not yet run"
VERDICTS = (REPRODUCED, IN_PART, NOT, WRONG, OPEN)
# The count of statements that are OPEN with some seeds.
TOO_FEW = "run with too few seeds"
Needs = Mapping[Experiment, Sequence[str]]


@dataclass(frozen=True)
class Part:
    """One comparison: the measured number in a sentence, and whether the rule is met."""

    words: str
    holds: bool


@dataclass(frozen=True)
class Curve:
    """A curve, or points, with its spread where there is one."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    points: bool = False


@dataclass(frozen=True)
class HeatMap:
    """Coloured cells below a panel's lines, a row for each y; a row has its own places x. A nan stays white."""

    label: str
    x: Sequence[Sequence[float]]
    y: Sequence[float]
    z: Sequence[Sequence[float]]


@dataclass(frozen=True)
class Picture:
    """One pair of axes. level: a height to mark, with its name. heat: cells below the lines, coloured by decades."""

    title: str
    x: str
    y: str
    lines: Sequence[Curve]
    log_x: bool = False
    log_y: bool = False
    level: tuple[float, str] | None = None
    heat: HeatMap | None = None


@dataclass(frozen=True)
class Runs:
    """Curves of the stored cells, by seed, at one scale."""

    scale: str
    curves: Mapping[tuple[str, str], Mapping[int, Curves]]

    def of(self, cell: str, experiment: str | None = None) -> dict[int, Curves]:
        """The curves by seed; empty where nothing is stored. `experiment` may be None where only one has that cell."""
        named = [k for k in self.curves if k[1] == cell and experiment in (None, k[0])]
        return dict(self.curves[named[0]]) if named else {}

    def has(self, cells: Sequence[str]) -> bool:
        """Whether each of these cells has a run."""
        return all(self.of(cell) for cell in cells)

    def having(self, names: Sequence[str]) -> "Runs":
        """The runs that have all these curves."""
        kept = {
            cell: {seed: curves for seed, curves in by_seed.items() if curves.keys() >= set(names)}
            for cell, by_seed in self.curves.items()
        }
        return Runs(self.scale, kept)

    def only(self, cells: Sequence[tuple[str, str]]) -> "Runs":
        """These cells, with the seeds that all of them have, so that every seed counts the same."""
        seeds = set.intersection(*(set(self.curves.get(cell, {})) for cell in cells))
        kept = {cell: {seed: self.curves[cell][seed] for seed in sorted(seeds)} for cell in cells if seeds}
        return Runs(self.scale, kept)

    def pairs(self, cell: str, other: str) -> list[tuple[Curves, Curves]]:
        """Curves of two cells, seed by seed, where both have them."""
        a, b = self.of(cell), self.of(other)
        return [(a[seed], b[seed]) for seed in sorted(a.keys() & b.keys())]


@dataclass(frozen=True, eq=False)
class Statement:
    """One sentence that can be true or false.

    Attributes:
        key: its name within the entry.
        words: the source's statement in our words.
        rule: when it counts as reproduced.
        judge: the rule as code.
        n: seeds needed of each cell.
        exact: whether it is a mathematical statement, where one counterexample decides.
        cells: the cells it needs, if not all of the entry's; as "experiment/cell" where two experiments have a cell of
            that name.
        curves: the curves that a run must have to count.
        scales: where the rule applies.
        means: our reading of the numbers where they differ from the statement.
    """

    key: str
    words: str
    rule: str
    judge: Callable[[Runs], Sequence[Part]]
    n: int = 3
    exact: bool = False
    cells: Sequence[str] | None = None
    curves: Sequence[str] = ()
    scales: Sequence[str] = ("paper", "small")
    means: str = ""

    def uses(self, experiment: Experiment, cell: str) -> bool:
        return self.cells is None or cell in self.cells or f"{experiment.name}/{cell}" in self.cells


@dataclass(frozen=True, eq=False)
class Entry:
    """Statements of one figure, theorem or paragraph, with one picture.

    Attributes:
        origin: where the settings are from.
        panels: the picture's numbers, which the report draws.
        table: rows of words, the header first; empty for no table.
    """

    name: str
    title: str
    source: str
    origin: str
    needs: Needs
    statements: Sequence[Statement]
    panels: Callable[[Runs], Sequence[Picture]]
    table: Callable[[Runs], Sequence[Sequence[str]]] = lambda runs: ()

    def cells(self, statement: Statement | None = None) -> list[tuple[Experiment, str]]:
        every = [(experiment, cell) for experiment, cells in self.needs.items() for cell in cells]
        return [pair for pair in every if statement is None or statement.uses(*pair)]


@dataclass(frozen=True)
class JudgedStatement:
    """A statement with its verdict. n: seeds that every needed cell has. scale: the scale that was judged."""

    entry: Entry
    statement: Statement
    verdict: str
    n: int
    scale: str
    parts: tuple[Part, ...] = field(default=())

    @property
    def name(self) -> str:
        return f"{self.entry.name}/{self.statement.key}"

    @property
    def in_words(self) -> str:
        """The verdict, or the number of seeds where it has some and too few."""
        if self.verdict != OPEN or not self.n:
            return self.verdict
        return f"run with {self.n} seed{'s' * (self.n != 1)} of {self.statement.n} needed"

    @property
    def came_out(self) -> str:
        return "; ".join(part.words for part in self.parts)

    def plain(self) -> dict[str, Any]:
        """The claim as plain values for JSON."""
        return {
            "name": self.name,
            "source": self.entry.source,
            "statement": self.statement.words,
            "rule": self.statement.rule,
            "verdict": self.verdict,
            "n": self.n,
            "needed": self.statement.n,
            "scale": self.scale,
            "parts": [{"words": part.words, "holds": bool(part.holds)} for part in self.parts],
        }


@contextmanager
def fitting_curves(entry: Entry) -> Iterator[None]:
    """Raise one StoreError where an entry's rules or pictures cannot be computed from the stored curves."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, StopIteration) as error:
        if isinstance(error, StoreError):
            raise
        files = ", ".join(f"{experiment.name}.json" for experiment in entry.needs)
        raise StoreError(
            f"{entry.name} cannot be computed from the curves stored in {files} ({first_line(error)}). Either the "
            f"curves are damaged: move the files away and run `normscope reproduce {entry.name}` again. Or the entry "
            f"has an error ({raised_at(error)}): report that."
        ) from error


def stored(entry: Entry, store: Store, scale: str) -> Runs:
    """The stored runs of an entry's cells.

    Args:
        entry: an entry of `all_entries()`.
        store: the stored runs.
        scale: "paper" or "small".

    Returns:
        The curves by cell and seed; empty where nothing is stored.
    """
    return Runs(
        scale,
        {
            (experiment.name, cell): {run.seed: run.curves for run in store.runs(experiment, cell, scale)}
            for experiment, cell in entry.cells()
        },
    )


def judge(entry: Entry, store: Store) -> list[JudgedStatement]:
    """The verdicts of an entry, computed from the runs stored now.

    Args:
        entry: an entry of `all_entries()`.
        store: the stored runs.

    Returns:
        One `JudgedStatement` for each statement of the entry.
    """
    at = {scale: stored(entry, store, scale) for scale in ("paper", "small")}
    return [_judge(entry, statement, at) for statement in entry.statements]


def _judge(entry: Entry, statement: Statement, at: Mapping[str, Runs]) -> JudgedStatement:
    counts = {}
    for scale, runs in at.items():
        runs = runs.having(statement.curves)
        runs = runs.only([(experiment.name, cell) for experiment, cell in entry.cells(statement)])
        counts[scale] = min(map(len, runs.curves.values()), default=0)
        if counts[scale] >= statement.n and scale in statement.scales:
            with fitting_curves(entry):
                parts = tuple(statement.judge(runs))
            return JudgedStatement(entry, statement, _verdict(parts, statement.exact), counts[scale], scale, parts)
    most = max((scale for scale in at if scale in statement.scales), key=lambda scale: counts[scale])
    return JudgedStatement(entry, statement, OPEN, counts[most], most)


def _verdict(parts: Sequence[Part], exact: bool) -> str:
    parts_hold = [part.holds for part in parts]
    if all(parts_hold):
        return REPRODUCED
    if exact:
        return WRONG
    return IN_PART if any(parts_hold) else NOT
