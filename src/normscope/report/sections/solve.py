"""Results of `normscope solve`: methods side by side, and GDNP against its bound."""

from collections.abc import Mapping
from typing import Any

from normscope.report.chart import (
    BLUE,
    DASH_DOT,
    DASHED,
    DOTTED,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    SOLID,
    VERMILION,
    Axis,
    Chart,
    Line,
    Panel,
)  # fmt: skip
from normscope.report.document import Said, Section, Table

_STYLE = {
    "gdnp": (BLUE, SOLID), "gd": (VERMILION, DASHED), "agd": (GREEN, DASH_DOT), "bngd": (PURPLE, DOTTED),
    "lbfgs": (ORANGE, SOLID),
}  # fmt: skip


def solve_section(title: str, stored: Mapping[str, Any]) -> Section:
    """The section of the results.json that `normscope solve` writes."""
    methods, target = stored["methods"], float(stored["target"])
    there = {name: run["to_target"] for name, run in methods.items() if run["to_target"] is not None}
    said = []
    if there:
        first = min(there, key=there.__getitem__)
        text = f"{first} comes within {target:g} of the best loss first, after {there[first]} iterations."
        said.append(Said(None, text, "F - best", "this table"))
    said += [
        Said(False, f"{name} never comes within {target:g} of the best loss.") for name in methods if name not in there
    ]
    # Below the rounding of the loss a gap is noise, and zero has no place on a logarithmic axis.
    floor = 1e-16 * max(abs(float(stored["best"])), 1e-300)
    promise, panels = stored["promise"], [_gaps(methods, target, floor)]
    if promise is not None:
        # Near the end both are rounding of the loss.
        noise = 1e-12 * max(abs(float(stored["best"])), promise["measured"][0])
        pairs = zip(promise["measured"], promise["bound"], strict=True)
        holds = all(gap <= bound * (1 + 1e-6) + noise for gap, bound in pairs)
        text = f"GDNP stays {'below' if holds else 'NOT below'} the bound of its theorem at every iterate."
        said.append(Said(holds, text, promise["of"], "linear convergence of GDNP"))
        lines = tuple(
            Line(name, range(len(promise[key])), [max(value, floor) for value in promise[key]], colour, dash)
            for name, key, colour, dash in (("gdnp", "measured", BLUE, SOLID), ("bound", "bound", INK, DASHED))
        )
        panels.append(Panel(promise["of"], Axis("iteration"), Axis("", log=True), lines))
    caption = (
        "Left, the loss above the best that any method found; right, the quantity that the theorem bounds, and its "
        "bound. Gaps smaller than the rounding of the loss are drawn at it."
    )
    rows = [
        [name, run["iterations"], run["to_target"], run["gap"][-1], run["seconds"], run["reason"]]
        for name, run in methods.items()
    ]
    columns = ("method", "iterations", f"to gap {target:g}", "final gap", "seconds", "ended by")
    return Section(
        title,
        tuple(said),
        (Chart(f"Convergence, {stored['title']}", caption, tuple(panels), same_y=False),),
        (Table("Methods", columns, rows),),
        tuple(stored["notes"]),
        {"best": stored["best"], "target": target},
        stored.get("environment", {}),
        stored.get("command", ""),
        ("solve",),
    )


def _gaps(methods: Mapping[str, Any], target: float, floor: float) -> Panel:
    longest = max(len(run["gap"]) for run in methods.values())
    lines = [
        Line(name, range(len(run["gap"])), [max(gap, floor) for gap in run["gap"]], *_STYLE.get(name, (INK, DOTTED)))
        for name, run in methods.items()
    ]
    lines.append(Line("target", [0, longest - 1], [target, target], INK, DOTTED))
    return Panel("loss above the best", Axis("iteration"), Axis("gap", log=True), tuple(lines))
