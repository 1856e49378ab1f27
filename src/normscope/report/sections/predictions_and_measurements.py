"""Results of `predict` and `measure`, and whole spectra: the learning rate, its limit, the layer that sets it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from normscope.loss_kinds import DIVERGES, SURVIVES, UNCERTAIN, beyond_limit, outlook
from normscope.report.chart import BLUE, DASHED, GREEN, INK, VERMILION, Axis, Chart, Line, Panel, spans_decades
from normscope.report.document import Said, Section, Table

_PARAMETERS = (
    ("Order parameters along depth", ("q", "q_xy", "qh", "qh_xy"), "second moment"),
    ("Gradient along depth", ("qt", "qt_xy"), "squared gradient of an output"),
    ("What each layer adds to the curvature", ("mean", "data"), "eigenvalue"),
)
_CAPTIONS = {
    "q": "Second moments of what enters (qh) and leaves (q) each layer, of one sample and between two (xy).",
    "qt": "Squared gradient of one output with respect to what leaves the layer; a slope is growth backwards.",
    "mean": "The parameters' part in the mean mode (constant over samples) and the data mode. The largest limits eta*.",
}
_DASHES = ((BLUE, ""), (VERMILION, DASHED), (GREEN, ""), (INK, DASHED))


def prediction_section(title: str, stored: Mapping[str, Any]) -> Section:
    """The section of `Prediction.plain()`."""
    eta, mode = float(stored["eta_star"]), stored["mode"]
    text = _limit(stored)
    if stored["warnings"]:
        text += f" This network is at the edge of the theory's reach or beyond it, as said below{_reach(stored)}."
    said = [Said(None, text, stored["rule"], f"mean-field theory, {stored['theory']}"), *_start(stored)]
    adding = [row for row in stored["layers"] if _number(row.get(mode)) > 0]
    if adding and math.isfinite(eta):
        top = max(adding, key=lambda row: _number(row[mode]))
        said.append(
            Said(
                None,
                f"The {mode} mode limits it; layer {top['layer']} adds most, {_number(top[mode]):.3g}.",
                "",
                "theory",
            )
        )
    said += [Said(False, warning) for warning in stored["warnings"]]
    charts = [_along(stored["layers"], *group) for group in _PARAMETERS]
    columns = list(dict.fromkeys(name for row in stored["layers"] for name in row))
    rows = [[_cell(row.get(name)) for name in columns] for row in stored["layers"]]
    return Section(
        title,
        tuple(said),
        tuple(chart for chart in charts if chart is not None),
        (Table("Layers", columns, rows),) if rows else (),
        tuple(stored["notes"]),
        _settings(stored, ("loss", "optimizer", "stats", "theory", "batch_size", "input_shape", "mode")),
        stored["environment"],
        uses=("predict",),
    )


def measurement_section(title: str, stored: Mapping[str, Any]) -> Section:
    """The section of `Measurement.plain()`."""
    doubt = f"relative residual {_number(stored['residual']):.1e}"
    source = f"{stored['matrix']}, statistics {stored['stats']!r}, {doubt}"
    said = [Said(None if stored["converged"] else False, _limit(stored), stored["rule"], source)]
    said += _start(stored)
    blocks = {name: _number(value) for name, value in stored["by_layer"].items()}
    if blocks:
        name = max(blocks, key=blocks.__getitem__)
        said.append(
            Said(None, f"Layer {name} limits it most: {blocks[name]:.3g} of its own.", "its diagonal block", "")
        )
    ways = {name: _number(value) for name, value in stored["by_statistics"].items()}
    if len(ways) > 1:
        pairs = ", ".join(f"{value:.3g} {name}" for name, value in ways.items())
        said.append(Said(None, f"lambda_max by how BatchNorm's statistics are read: {pairs}.", "", "this batch"))
    charts = [_points("Curvature by layer", "layer", "lambda_max of its own block", blocks)]
    charts.append(_points("Curvature by statistics", "statistics", "lambda_max", ways))
    rows = [[name, value, _number(stored["layer_residuals"][name])] for name, value in blocks.items()]
    names = ("loss_name", "loss", "optimizer", "matrix", "stats", "products")
    return Section(
        title,
        tuple(said),
        tuple(chart for chart in charts if chart is not None),
        (Table("Layers", ("layer", "lambda_max", "residual"), rows),) if rows else (),
        tuple(stored["notes"]),
        _settings(stored, names),
        stored["environment"],
        uses=("measure",),
    )


def spectrum_section(title: str, stored: Mapping[str, Any]) -> Section:
    """The section of `Spectrum.plain()`."""
    held = stored["density"]
    ends = [f(node for nodes in held["nodes"] for node in nodes) for f in (min, max)]
    width = max((ends[1] - ends[0]) / 100, 1e-12)
    at = np.linspace(ends[0] - 3 * width, ends[1] + 3 * width, 400)
    # Each node as a Gaussian, as in `Density.curve`.
    bells = (
        np.exp(-0.5 * ((at[:, None] - np.array(nodes)) / width) ** 2) @ np.array(weights)
        for nodes, weights in zip(held["nodes"], held["weights"], strict=True)
    )
    curve = np.mean(list(bells), axis=0) / (width * math.sqrt(2 * math.pi))
    # Below a millionth of the peak, the tail of a Gaussian is no property of the spectrum.
    floor = 1e-6 * float(curve.max())
    shown = [value if value > floor else math.nan for value in curve.tolist()]
    panel = Panel("", Axis("eigenvalue"), Axis("density", log=True), (Line("density", at.tolist(), shown, BLUE),))
    caption = (
        f"Eigenvalues of the {stored['matrix']} as a density, each node of the quadrature widened by {width:.2g}; "
        f"{len(held['nodes'])} random starts."
    )
    error = _number(stored["trace_error"])
    text = f"Eigenvalues lie between {ends[0]:.3g} and {ends[1]:.3g}; they sum to {_number(stored['trace']):.4g}"
    text += f" +- {error:.2g}." if math.isfinite(error) else "."
    said = Said(None, text, "stochastic Lanczos quadrature", f"{stored['matrix']}, statistics {stored['stats']!r}")
    settings = {"matrix": stored["matrix"], "stats": stored["stats"]} | stored["settings"]
    return Section(
        title, (said,), (Chart("Spectral density", caption, (panel,), wide=True),), settings=settings,
        environment=stored["environment"], uses=("spectrum",),
    )  # fmt: skip


def mean_mode_section(title: str, stored: Mapping[str, Any]) -> Section:
    """The section of `MeanMode.plain()`."""
    top, share = _number(stored["lambda_max"]), _number(stored["share"])
    said = Said(
        None if stored["converged"] else False,
        f"{share:.0%} of the top eigenvector is constant over samples: lambda_max {top:.4g} "
        f"{'is' if share > 0.5 else 'is not'} that of the mean mode.",
        "share of its squared length",
        f"Fisher matrix seen from the outputs, relative residual {_number(stored['residual']):.1e}",
    )
    bounds = {
        "U, without the diagonal": _number(stored["u_statistic"]),
        "V <= lambda_max": _number(stored["v_statistic"]),
        "lambda_max": top,
        "trace >= lambda_max": _number(stored["upper"]),
    }
    chart = _points("Bounds around the largest eigenvalue", "quantity", "value", bounds)
    return Section(
        title, (said,), (chart,) if chart else (), settings=stored["settings"], environment=stored["environment"],
        uses=("measure",),
    )  # fmt: skip


def _reach(stored: Mapping[str, Any]) -> str:
    """The range in which eta* was measured for similar networks; an earlier file holds no such range."""
    eta, seen = _number(stored["eta_star"]), stored.get("calibrated_range")
    if seen is None or math.isinf(eta):
        return ": measure to be sure"
    low, high = (eta / _number(times) for times in reversed(seen))
    return f". Networks like it were measured to have their eta* between {low:.2g} and {high:.2g}: measure to be sure"


def _limit(stored: Mapping[str, Any]) -> str:
    eta, loss = _number(stored["eta_star"]), stored.get("loss_name", stored["loss"])
    if math.isinf(eta):
        return "The largest eigenvalue is not positive: the local quadratic sets no learning rate a limit."
    kind = stored["loss_kind"]
    opening = {
        DIVERGES: "Use a learning rate below",
        SURVIVES: "Look for a learning rate around",
        UNCERTAIN: "The local quadratic turns unstable at",
    }[beyond_limit(kind)]
    text = f"{opening} eta* = {eta:.3g} with {stored['optimizer']} on {loss}: "
    text += f"lambda_max is {_number(stored['lambda_max']):.4g}. "
    return (
        text + outlook(kind, diverges="", uncertain="Whether training survives beyond it depends on the loss.")
    ).rstrip()


def _start(stored: Mapping[str, Any]) -> list[Said]:
    """The learning rate to start with; an earlier file holds none."""
    advice = stored.get("advice")
    return [Said(None, advice, "", "normscope reproduce advice-held-out")] if advice else []


def _along(layers: Sequence[Mapping[str, Any]], title: str, names: Sequence[str], label: str) -> Chart | None:
    # A normalizer has no order parameters of its own: the line continues at the next layer.
    layers = [row for row in layers if any(math.isfinite(_number(row.get(name))) for name in names)]
    x, ticks = range(len(layers)), tuple(str(row.get("layer", i)) for i, row in enumerate(layers))
    drawn = [
        Line(name, x, [_number(row.get(name)) for row in layers], colour, dash)
        for name, (colour, dash) in zip(names, _DASHES, strict=False)
    ]
    lines = tuple(line for line in drawn if any(map(math.isfinite, line.y)))
    if not lines or len(layers) < 2:
        return None
    log = spans_decades(*(line.y for line in lines))
    panel = Panel("", Axis("layer, from the input on", ticks=ticks), Axis(label, log=log), lines)
    return Chart(title, _CAPTIONS[names[0]], (panel,))


def _points(title: str, across: str, up: str, values: Mapping[str, float]) -> Chart | None:
    if len(values) < 2:
        return None
    line = Line(up, range(len(values)), list(values.values()), BLUE, marks=True, joined=False)
    axis = Axis(up, log=spans_decades(line.y))
    return Chart(title, "", (Panel("", Axis(across, ticks=tuple(values)), axis, (line,)),))


def _settings(stored: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: stored[name] for name in names} | stored["settings"]


def _number(value: Any) -> float:
    return math.nan if value is None or (isinstance(value, str) and value not in ("inf", "-inf")) else float(value)


def _cell(value: Any) -> Any:
    return None if value in (None, "nan") else value
