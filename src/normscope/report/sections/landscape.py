"""Stored landscapes: networks trained with and without BatchNorm, measured at intervals."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from normscope.report.document import Said
from normscope.report.sections.monitor_runs import Course


def landscape_courses(runs: Sequence[Mapping[str, Any]]) -> list[Course]:
    """One course for each run, with a verdict on its first and last window."""
    return [_course(run) for run in runs]


def _course(run: Mapping[str, Any]) -> Course:
    norm = {"none": "no normalizer", "batch": "BatchNorm"}.get(run["norm"], run["norm"])
    label = f"{run['network']}, {norm}, seed {run['seed']}"
    rows = sorted(run["layers"], key=lambda row: [int(n) for n in re.findall(r"\d+", row["layer"])])
    layers = {row["layer"]: {name: _numbers(row[name]) for name in ("shift", "shift_cosine")} for row in rows}
    columns = {name: _numbers(values) for name, values in run["snapshots"].items()}
    lengths = {len(values) for values in columns.values()}
    if len(lengths) != 1 or any(len(column) not in lengths for own in layers.values() for column in own.values()):
        raise ValueError(f"the columns of {label} have unequal lengths")
    settings = run["settings"] | {"seconds": run["seconds"], "seconds measuring": run["seconds_measuring"]}
    return Course(
        label,
        columns,
        layers,
        verdicts=tuple(_said(run)),
        settings=settings,
        environment=run["environment"],
    )


def _said(run: Mapping[str, Any]) -> list[Said]:
    """One verdict on the first and the last window, as they are stored."""
    if run["diverged_at"] is not None:
        return [Said(False, f"training diverged at step {run['diverged_at']}.")]
    first, last = run["windows"][0], run["windows"][-1]
    share = float(last["spikes"])
    text = (
        f"the loss ended at {float(run['final_loss']):.3g}. Steps {first['first']} to {first['last']}: along the "
        f"gradient the loss spans {float(first['band_mean']):.3g} on average, beta is "
        f"{float(first['beta_median']):.3g} (median); steps {last['first']} to {last['last']}: "
        f"{float(last['band_mean']):.3g} and {float(last['beta_median']):.3g}, "
        f"above 2/lr at {share:.0%} of the snapshots."
    )
    return [Said(None, text, "beta = max_c ||g(here) - g(c)|| / ||step||", "landscape along the gradient")]


def _numbers(values: Sequence[Any]) -> list[float]:
    return [math.nan if value is None else float(value) for value in values]
