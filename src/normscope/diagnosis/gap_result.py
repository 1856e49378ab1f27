"""The result of `train_eval_gap`: evaluations, the parts of the gap between them, and the gain of each fix."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.results import plain, write_json

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
COLUMNS = ["part", "before", "after", "loss", "loss_stderr", "metric", "metric_stderr"]


@dataclass(frozen=True)
class Amount:
    """A change of loss and metric, each with its standard error over batches; the metric is nan without one."""

    loss: float
    loss_stderr: float
    metric: float = math.nan
    metric_stderr: float = math.nan


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of the network.

    name: short name. text: the modes and statistics it was made with. data: "training" or "evaluation". value: mean
    loss and metric over samples. batches, samples: how many it was made on.
    """

    name: str
    text: str
    data: str
    value: Amount
    batches: int
    samples: int


@dataclass(frozen=True)
class GapPart:
    """One part of the gap: evaluation `after` minus evaluation `before`. A positive loss is a cost in eval mode."""

    name: str
    text: str
    before: str
    after: str
    change: Amount


@dataclass(frozen=True)
class Fix:
    """One fix and its predicted gain.

    gain: fall of the loss and rise of the metric in eval mode; None where the sign alone is predicted. sign: 1 for a
    better evaluation, -1 for a worse one, 0 for none that could be told from noise. used: the data that the prediction
    was made from. code: the change to make.
    """

    name: str
    text: str
    gain: Amount | None
    sign: int
    used: str
    code: str


@dataclass(frozen=True)
class TrainEvalGap:
    """The gap between train mode and eval mode, split into parts that add up to it.

    gap: the last evaluation minus the first. evaluations, parts: in the order of the split. fixes: by gain in loss,
    the largest first; those without a number at the end. notes: what the numbers do not cover.
    """

    gap: Amount
    evaluations: tuple[Evaluation, ...]
    parts: tuple[GapPart, ...]
    fixes: tuple[Fix, ...]
    notes: tuple[str, ...]
    settings: dict[str, Any]
    environment: dict[str, str | int]

    def part(self, name: str) -> GapPart:
        """The part called `name`."""
        return next(part for part in self.parts if part.name == name)

    def fix(self, name: str) -> Fix | None:
        """The fix called `name`; None if it does not apply."""
        return next((fix for fix in self.fixes if fix.name == name), None)

    def frame(self) -> "pd.DataFrame":
        """A table with one row for each part, in order; its columns are those of `COLUMNS`."""
        import pandas as pd

        rows = [[part.name, part.before, part.after, *asdict(part.change).values()] for part in self.parts]
        return pd.DataFrame(rows, columns=COLUMNS)

    def plain(self) -> dict[str, Any]:
        """The result as plain JSON."""
        content: dict[str, Any] = plain(asdict(self))
        return {"kind": "train_eval_gap", "schema": SCHEMA} | content

    def save(self, path: str | Path) -> None:
        """Write the result as plain JSON, with nan and infinities as strings."""
        write_json(path, self.plain())

    def __str__(self) -> str:
        first, last = self.evaluations[0], self.evaluations[-1]
        lines = [f"Loss {first.value.loss:.4g} in train mode, {last.value.loss:.4g} in eval mode: {_shown(self.gap)}."]
        lines += [f"  {_shown(part.change)}  {part.text}" for part in self.parts]
        lines += [f"Fix: {fix.text}. {_gain(fix)}." for fix in self.fixes]
        return "\n".join(lines + [f"- {note}" for note in self.notes])


def _shown(change: Amount) -> str:
    metric = "" if math.isnan(change.metric) else f", metric {change.metric:+.3g}"
    return f"loss {change.loss:+.3g} (standard error {change.loss_stderr:.1g}){metric}"


def _gain(fix: Fix) -> str:
    if fix.gain is None:
        words = {1: "a better evaluation", -1: "a worse evaluation", 0: "no change that could be told from noise"}
        return f"Predicted: {words[fix.sign]}"
    metric = "" if math.isnan(fix.gain.metric) else f", metric {fix.gain.metric:+.3g}"
    return f"Predicted: loss {-fix.gain.loss:+.3g} (standard error {fix.gain.loss_stderr:.1g}){metric}"
