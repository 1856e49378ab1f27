"""Where records go while the run goes on: TensorBoard, Weights & Biases; a file of lines is `jsonl.JSONL`."""

from pathlib import Path
from typing import Any, Protocol

from normscope.extras import need
from normscope.monitor.record import Record

PREFIX = "normscope"


class Sink(Protocol):
    """Takes every record as soon as it is made; opened with the Monitor's settings, in the first process alone."""

    def open(self, settings: dict[str, Any]) -> None: ...

    def write(self, record: Record) -> None: ...

    def close(self) -> None: ...


class TensorBoard:
    """Scalars, scalars by layer and histograms as TensorBoard events; needs `pip install normscope[tensorboard]`."""

    def __init__(self, folder: str | Path) -> None:
        need("tensorboard", "tensorboard")
        self._folder = folder

    def open(self, settings: dict[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self._folder))
        table = "\n".join(f"    {name}: {value}" for name, value in settings.items())
        self._writer.add_text(f"{PREFIX}/settings", table)

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
    """Scalars into a Weights & Biases run, the one in force unless given; needs `pip install normscope[wandb]`.

    They have their own axis, normscope/step, and do not move the run's step counter: they join your next `log` call, so
    of several looks between two of your calls the last one is kept.
    """

    def __init__(self, run: Any = None) -> None:
        self._run = run or need("wandb", "wandb").run
        if self._run is None:
            raise ValueError("There is no Weights & Biases run to write to. Call wandb.init() first, or hand one in.")

    def open(self, settings: dict[str, Any]) -> None:
        self._run.config.update({PREFIX: settings}, allow_val_change=True)
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
