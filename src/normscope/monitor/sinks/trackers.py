"""Sinks for experiment trackers: TensorBoard and Weights & Biases."""

from pathlib import Path
from typing import Any

from normscope.importing.extras import need
from normscope.monitor.record import Record

PREFIX = "normscope"


class TensorBoard:
    """Scalars, scalars by layer and histograms as TensorBoard events; needs the extra `tensorboard`.

    Args:
        folder: the folder of the event files (TensorBoard's `--logdir`).
    """

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
    """Scalars in a Weights & Biases run; needs the extra `wandb`.

    The scalars have an axis of their own, normscope/step, and do not move the run's step counter: they are sent with
    your next `log` call. Of several snapshots between two of your calls, the last one is kept.

    Args:
        run: the Weights & Biases run; the active one by default.

    Raises:
        ValueError: no run was handed in and none is active.
    """

    def __init__(self, run: Any = None) -> None:
        self._run = run or need("wandb", "wandb").run
        if self._run is None:
            raise ValueError("There is no active Weights & Biases run. Call wandb.init() first, or hand in a run.")

    def open(self, settings: dict[str, Any]) -> None:
        self._run.config.update({PREFIX: settings}, allow_val_change=True)
        self._run.define_metric(f"{PREFIX}/*", step_metric=f"{PREFIX}/step")

    def write(self, record: Record) -> None:
        self._run.log(_scalars(record) | {f"{PREFIX}/step": record.step}, commit=False)

    def close(self) -> None:
        pass


def _scalars(record: Record) -> dict[str, float]:
    scalars = {f"{PREFIX}/{name}": value for name, value in record.summary().items() if name != "step"}
    for layer, row in record.by_layer().items():
        scalars |= {f"{PREFIX}/{layer}/{name}": value for name, value in row.items()}
    return scalars
