"""Pictures of the README and the explanations, drawn from stored results.

python docs/pictures.py            writes docs/images/phase-mnist-mlp.png and docs/images/eta-star.png
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from normscope.sweeping import PhaseDiagram
from normscope.sweeping.diagram import stored_lines

ROOT = Path(__file__).parent.parent
PHASES = ROOT / "results" / "phase-mnist-mlp.json"


def phase_picture() -> Figure:
    """The test loss of every stored network, white where one diverged, and eta* as predicted before training."""
    diagram = PhaseDiagram.load(PHASES)
    rates = sorted({one.cell.lr for one in diagram.outcomes})
    values = sorted({one.cell.value for one in diagram.outcomes})
    losses = np.full((len(values), len(rates)), np.nan)
    for i, value in enumerate(values):
        for j, lr in enumerate(rates):
            seeds = [one for one in diagram.outcomes if (one.cell.lr, one.cell.value) == (lr, value)]
            if all(one.diverged_at is None for one in seeds):
                losses[i, j] = np.mean([one.test_loss for one in seeds])
    predicted = stored_lines(PHASES)["predicted"]
    figure = Figure(figsize=(8.4, 4.6), layout="constrained")
    axes = figure.subplots()
    cells = axes.pcolormesh(rates, values, losses, norm=LogNorm(), cmap="viridis_r", shading="nearest")
    gammas = sorted(predicted)
    axes.plot([predicted[gamma] for gamma in gammas], gammas, color="#d1495b", linewidth=3)
    axes.set(xscale="log", yscale="log", xlim=(rates[0] / 1.2, rates[-1] * 1.2))
    axes.set_xlabel("learning rate")
    axes.set_ylabel("initial gamma of BatchNorm")
    middle = gammas[len(gammas) * 2 // 3]
    axes.annotate(
        "the stability limit eta*,\ncomputed before training",
        (predicted[middle], middle),
        (predicted[middle] * 2.2, middle * 1.5),
        color="#a4243b",
        fontsize=12,
        va="center",
        arrowprops={"arrowstyle": "->", "color": "#a4243b"},
    )
    axes.text(rates[2], values[2], "training survives", color="white", fontsize=14, weight="bold")
    axes.text(rates[-1], values[-8], "training diverges", ha="right", fontsize=14, weight="bold", color="#444444")
    axes.set_title(f"{len(diagram.outcomes):,} trained networks, and the limit predicted for them", fontsize=13)
    figure.colorbar(cells, label="test loss after training")
    return figure


def eta_star_picture() -> Figure:
    """Gradient descent on a parabola at 0.9 and 1.1 times eta* = 2 / lambda."""
    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    w = np.linspace(-2.6, 2.6, 200)
    for axes, share in zip(figure.subplots(1, 2, sharey=True), (0.9, 1.1), strict=True):
        axes.plot(w, w**2 / 2, color="#999999")
        # lambda = 1, so one step multiplies w by 1 - share * 2.
        points = np.array([(1 - 2 * share) ** step for step in range(6)])
        axes.plot(points, points**2 / 2, "o-", color="#1b6ca8" if share < 1 else "#d1495b", linewidth=1)
        for step, point in enumerate(points[:3]):
            axes.annotate(str(step), (point, point**2 / 2), (0, 7), textcoords="offset points", ha="center")
        axes.set_title(f"learning rate = {share} eta*: each step {'shrinks' if share < 1 else 'grows'}")
        axes.set_xlabel("distance from the minimum along the top eigenvector")
    figure.axes[0].set_ylabel("loss")
    return figure


PICTURES = {"phase-mnist-mlp": phase_picture, "eta-star": eta_star_picture}


def main(folder: Path) -> None:
    """Writes every picture into `folder`."""
    for name, draw in PICTURES.items():
        draw().savefig(folder / f"{name}.png", dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "images")
