"""Figure 1 of Wei et al. 2019: the stored numbers and the picture made of them."""

import json
from pathlib import Path

import pytest

from normscope.report.drawing import draw
from normscope.report.sections.mean_field_figure_1 import figure_1_chart
from normscope.theory import printed

ROOT = Path(__file__).parents[2]
RESULT = json.loads((ROOT / "results/figure-1.json").read_text())
PAPERS = {
    "fully connected": lambda gamma: printed.dense((784, 1000, 1000, 1000, 10), gamma=gamma),
    "convolutional": lambda gamma: printed.convolutional((3, 30, 60, 90), (1024, 225, 49, 9), (9, 9, 9), gamma=gamma),
}


def _curve(network, norm, theory):
    (found,) = (c for c in RESULT["networks"][network] if (c["norm"], c["theory"]) == (norm, theory))
    return found


@pytest.mark.parametrize("network", PAPERS)
def test_printed_curves_are_those_of_the_formulas(network):
    for norm in ("batch", "none"):
        expected = [PAPERS[network](gamma if norm == "batch" else None) for gamma in RESULT["gamma"]]
        curve = _curve(network, norm, "printed")
        assert curve["lambda_max"] == pytest.approx([paper.lambda_max for paper in expected], rel=1e-12)
        assert curve["eta_star"] == pytest.approx([paper.eta_star(0.9) for paper in expected], rel=1e-12)


def test_corrected_curves_of_the_dense_network():
    """361.5 gamma^2 frozen and N gamma^2 / (2 pi) = 159.2 gamma^2 as trained, weights alone; within 5 %."""
    for theory, value in (("corrected, frozen", 361.5), ("corrected", 159.2)):
        curve = _curve("fully connected", "batch", theory)
        assert curve["lambda_max"] == pytest.approx([value * gamma**2 for gamma in RESULT["gamma"]], rel=0.05)


def test_four_panels():
    chart = figure_1_chart(RESULT)
    panels = draw(chart).axes
    assert [panel.get_title()[:3] for panel in panels] == ["(a)", "(b)", "(c)", "(d)"]
    assert all(panel.get_xlabel() and panel.get_ylabel() and len(panel.lines) == 5 for panel in panels)
    assert len({(line.colour, line.dash) for line in chart.panels[0].lines}) == 5


def test_the_picture_is_written(tmp_path):
    draw(figure_1_chart(RESULT)).savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 10_000
