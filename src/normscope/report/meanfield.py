"""Figure 1 of seed 002: lambda_max and eta* over gamma, dense and convolutional, with and without BatchNorm."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normscope.saving import save_figure

# Okabe and Ito's palette, told apart with any colour vision; the line style says the same once more.
_COLOURS = {"batch": "#D55E00", "none": "#0072B2"}
_LINES = {"printed": ":", "corrected, frozen": "--", "corrected": "-"}


def draw_figure_1(result: Mapping[str, Any], path: str | Path) -> None:
    """Four panels, as the paper's: (a) lambda, (b) eta* of the dense network, (c), (d) of the convolutional one.

    Args:
        result: "gamma" (a list), "momentum", and "networks": name -> curves, each with "norm" ("batch" or "none"),
            "theory" ("printed", "corrected", "corrected, frozen"), "lambda_max" and "eta_star", lists over gamma.
        path: of the picture.
    """
    figure = Figure(figsize=(10, 7.5), layout="constrained")
    panels = figure.subplots(len(result["networks"]), 2, squeeze=False)
    letters = iter("abcdefgh")
    for row, (name, curves) in zip(panels, result["networks"].items(), strict=True):
        for ax, quantity, label in zip(
            row, ("lambda_max", "eta_star"), ("largest eigenvalue", "largest learning rate eta*"),
            strict=True,
        ):  # fmt: skip
            _panel(ax, result["gamma"], curves, quantity)
            ax.set_title(f"({next(letters)}) {name}", loc="left")
            ax.set_ylabel(label)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.suptitle(f"momentum {result['momentum']:g}, 1/2 squared error")
    save_figure(figure, path, dpi=150)


def _panel(ax: Axes, gamma: Sequence[float], curves: Sequence[Mapping[str, Any]], quantity: str) -> None:
    for curve in curves:
        norm = "BatchNorm" if curve["norm"] == "batch" else "no BatchNorm"
        ax.semilogy(
            gamma,
            curve[quantity],
            color=_COLOURS[curve["norm"]],
            linestyle=_LINES[curve["theory"]],
            label=f"{norm}, {curve['theory']}",
        )
    ax.set_xlabel("BatchNorm's gamma")
    ax.grid(alpha=0.3)
