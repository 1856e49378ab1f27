"""Where records go while the run goes on: a file of lines, TensorBoard, Weights & Biases."""

import json
import warnings
from pathlib import Path
from typing import Any, Protocol

from normscope.observe.record import Record

PREFIX = "normscope"


class Sink(Protocol):
    """Takes every record as soon as it is made."""

    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


class JSONL:
    """One JSON object a line: first what is watched, then each look. A killed run keeps every finished look.

    An existing file is continued. Read it back with `read_jsonl`.
    """

    def __init__(self, path: str | Path, header: dict[str, Any] | None = None) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        torn = self.path.exists() and not self.path.read_bytes().endswith(b"\n")
        self._file = self.path.open("a", encoding="utf-8")
        if torn and self.path.stat().st_size:
            self._file.write("\n")
        self._line({"kind": "run", "schema": 1} | (header or {}))

    def write(self, record: Record) -> None:
        self._line({"kind": "look"} | record.plain())

    def close(self) -> None:
        self._file.close()

    def _line(self, value: dict[str, Any]) -> None:
        self._file.write(json.dumps(value, allow_nan=False) + "\n")
        self._file.flush()


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a `JSONL` file; one that a kill cut short is left out, and said."""
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), 1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            warnings.warn(f"{path}: line {number} was cut short and is left out.", stacklevel=2)
            continue
        if not isinstance(row, dict) or row.get("kind") not in ("run", "look"):
            raise ValueError(f"{path} is not a file of a Monitor's JSONL sink: line {number} is of no known kind.")
        rows.append(row)
    return rows


class TensorBoard:
    """Scalars, scalars by layer and histograms as TensorBoard events; needs `pip install normscope[tensorboard]`."""

    def __init__(self, folder: str | Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(folder))

    def write(self, record: Record) -> None:
        for name, value in _scalars(record).items():
            self._writer.add_scalar(name, value, record.step)
        for name, (low, high), counts in record.histograms():
            width = (high - low) / len(counts)
            limits = [low + width * (i + 1) for i in range(len(counts))]
            centers = [limit - width / 2 for limit in limits]
            self._writer.add_histogram_raw(
                f"{PREFIX}/{name}/activation",
                min=low,
                max=high,
                num=sum(counts),
                sum=sum(c * x for c, x in zip(counts, centers, strict=True)),
                sum_squares=sum(c * x * x for c, x in zip(counts, centers, strict=True)),
                bucket_limits=limits,
                bucket_counts=list(counts),
                global_step=record.step,
            )
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandB:
    """Scalars into a Weights & Biases run, the one in force unless given; they join your next `log` call.

    They have their own axis, normscope/step, and do not move the run's step counter.
    """

    def __init__(self, run: Any = None) -> None:
        import wandb

        self._run: Any = run or wandb.run
        if self._run is None:
            raise ValueError("There is no Weights & Biases run to write to. Call wandb.init() first, or hand one in.")
        self._run.define_metric(f"{PREFIX}/*", step_metric=f"{PREFIX}/step")

    def write(self, record: Record) -> None:
        self._run.log(_scalars(record) | {f"{PREFIX}/step": record.step}, commit=False)

    def close(self) -> None:
        pass


def _scalars(record: Record) -> dict[str, float]:
    found = {f"{PREFIX}/{name}": value for name, value in record.summary().items() if name != "step"}
    for layer, row in record.by_layer().items():
        found |= {f"{PREFIX}/{layer}/{name}": value for name, value in row.items()}
    return found
