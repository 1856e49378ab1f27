"""Statistics of stored curves, and the lines that show them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.papers.entry import Curve, Picture, Runs
from normscope.papers.experiment import Curves

Array = NDArray[np.float64]
LABELS = {"none": "without BatchNorm", "batch": "with BatchNorm"}


def at_snapshots(curves: Curves, name: str, first: int = 0, last: float = np.inf) -> Array:
    """A curve's values at the snapshots of steps `first` to `last`."""
    steps, values = np.array(curves["step"]), np.array(curves[name], dtype=float)
    return values[(steps >= first) & (steps <= last)]


def band(curves: Curves, first: int = 0, last: float = np.inf) -> Array:
    """Largest minus smallest loss along the gradient, for each snapshot."""
    return at_snapshots(curves, "loss_max", first, last) - at_snapshots(curves, "loss_min", first, last)


def pooled(by_seed: dict[int, Curves], name: str, first: int = 0, last: float = np.inf) -> Array:
    """A curve's values of all seeds together."""
    return np.concatenate([at_snapshots(curves, name, first, last) for curves in by_seed.values()])


def pooled_band(by_seed: dict[int, Curves], first: int = 0, last: float = np.inf) -> Array:
    return np.concatenate([band(curves, first, last) for curves in by_seed.values()])


def top(values: Iterable[float]) -> float:
    """The largest value; nan counts as infinite, beyond every bound."""
    return float(np.nan_to_num(np.array(list(values), dtype=float), nan=np.inf, posinf=np.inf, neginf=-np.inf).max())


def last_share(values: Sequence[float], share: float = 0.1) -> float:
    """Mean over the last part of a curve."""
    return float(np.mean(values[-max(1, round(share * len(values))) :]))


def spread(label: str, x: Sequence[float], rows: Sequence[Sequence[float]]) -> Curve:
    """A line of the median over seeds, with the smallest and the largest value."""
    values = np.array(rows, dtype=float)
    return Curve(label, list(x), list(np.median(values, 0)), list(values.min(0)), list(values.max(0)))


def snapshot_lines(runs: Runs, cells: Sequence[str], name: str) -> list[Curve]:
    """A curve of each cell over the snapshots, with its spread over seeds."""
    lines = []
    for cell in cells:
        curves = list(runs.of(cell).values())
        if curves:
            n = min(len(run[name]) for run in curves)
            lines.append(spread(LABELS.get(cell, cell), curves[0]["step"][:n], [run[name][:n] for run in curves]))
    return lines


def band_lines(runs: Runs, cells: Sequence[str], low: str, high: str) -> list[Curve]:
    """The band from `low` to `high` around its geometric middle, of the first seed."""
    lines = []
    for cell in cells:
        by_seed = runs.of(cell)
        if by_seed:
            run = by_seed[min(by_seed)]
            middle = np.sqrt(np.abs(np.array(run[low], dtype=float) * np.array(run[high], dtype=float)))
            lines.append(Curve(LABELS.get(cell, cell), run["step"], list(middle), run[low], run[high]))
    return lines


def each(values: Sequence[Any], form: str = ".3g") -> str:
    """The numbers of the seeds, joined for a sentence."""
    return ", ".join(format(value, form) for value in values)


def of_each(by_seed: dict[int, Curves], statistic: Callable[[Curves], float]) -> Array:
    """One number for each seed."""
    return np.array([statistic(by_seed[seed]) for seed in sorted(by_seed)])


def mean_sd(values: Array, form: str = ".1%") -> str:
    """Mean and standard deviation over seeds, in words."""
    sd = float(values.std(ddof=1)) if len(values) > 1 else float("nan")
    return f"{format(float(values.mean()), form)} (sd {format(sd, form)}, n = {len(values)})"


def gradient_change_panel(runs: Runs, cells: Sequence[str]) -> Picture:
    return Picture(
        "Largest change of the gradient", "step", "l2 distance", snapshot_lines(runs, cells, "change_max"), log_y=True
    )


def beta_panel(runs: Runs, cells: Sequence[str], lr: float, *, log_y: bool = False) -> Picture:
    lines = snapshot_lines(runs, cells, "beta")
    return Picture("Effective beta", "step", "1 / learning rate", lines, log_y=log_y, level=(2 / lr, "2/lr"))


def histogram_panels(runs: Runs, cells: Sequence[str], layers: Sequence[int]) -> list[Picture]:
    """Densities of one unit over training, a panel for each cell and layer, of the first seed."""
    panels = []
    for cell in cells:
        by_seed = {seed: curves for seed, curves in runs.of(cell).items() if "histograms" in curves}
        for layer in layers if by_seed else ():
            lines = []
            for histogram in by_seed[min(by_seed)]["histograms"][str(layer)]:
                low, high = histogram["edges"]
                counts = np.array(histogram["counts"], dtype=float)
                width = max((high - low) / len(counts), 1e-12)
                centres = low + width * (np.arange(len(counts)) + 0.5)
                lines.append(Curve(f"step {histogram['step']:,}", list(centres), list(counts / (counts.sum() * width))))
            panels.append(Picture(f"{cell}, layer {layer}, seed {min(by_seed)}", "activation", "density", lines))
    return panels
