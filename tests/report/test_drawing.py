"""Charts as matplotlib draws them: blank and missing cells, error bars, legends, one palette."""

import re

from normscope.report.chart import (
    BLUE,
    DARK,
    DASHED,
    LIGHT,
    VERMILION,
    Axis,
    Band,
    Chart,
    Heat,
    Line,
    Panel,
    shared_columns,
)
from normscope.report.drawing import draw
from normscope.report.page import page

NAN = float("nan")


def _panel(*lines, bands=(), heat=None, title=""):
    return Panel(title, Axis("x"), Axis("y"), lines, bands, heat)


def _words(legend):
    return [text.get_text() for text in legend.get_texts()]


def test_a_blank_cell_is_grey_and_a_missing_cell_is_empty():
    heat = Heat("loss", [0, 1, 2], [0], [-0.5, 0.5, 1.5, 2.5], [-0.5, 0.5], [[1.0, NAN, None]], blank="exploded")
    chart = Chart("t", "", (_panel(heat=heat),))
    there, coloured = draw(chart).axes[0].collections
    assert there.get_array().mask.tolist() == [[False, False, True]]
    assert coloured.get_array().mask.tolist() == [[False, True, True]]
    assert chart.plain()["panels"][0]["heat"]["values"] == [[1.0, "nan", None]]


def test_rows_of_cells_share_columns_and_every_cell_keeps_its_place():
    columns, covering = shared_columns([[0.1, 1.0, 10.0], [0.1, 0.3, 1.0]])
    assert columns == [0.1, 0.3, 1.0, 10.0]
    assert covering == [[0, 0, 1, 2], [0, 1, 2, None]]


def test_error_bars_go_from_end_to_end():
    line = Line("boundary", [2.0], [1.0], x_low=[1.0], x_high=[3.0])
    (bars,) = draw(Chart("t", "", (_panel(line),))).axes[0].collections
    assert bars.get_segments()[0].tolist() == [[1.0, 1.0], [3.0, 1.0]]


def test_panels_with_the_same_series_have_one_legend_and_the_line_stands_for_its_band():
    line, band = Line("a", [0, 1], [1, 2], dash=DASHED), Band("a", [0, 1], [0, 1], [2, 3])
    figure = draw(Chart("t", "", (_panel(line, bands=(band,)), _panel(line))))
    (legend,) = figure.legends
    assert _words(legend) == ["a"]
    assert legend.get_lines()
    assert all(ax.get_legend() is None for ax in figure.axes)


def test_panels_whose_series_differ_have_a_legend_each():
    a, b = Line("a", [0, 1], [1, 2], BLUE), Line("b", [0, 1], [1, 2], BLUE)
    other = Line("a", [0, 1], [1, 2], VERMILION)
    for panels, words in (((_panel(a), _panel(b)), ["a", "b"]), ((_panel(a), _panel(other)), ["a", "a"])):
        figure = draw(Chart("t", "", panels))
        assert not figure.legends
        assert [_words(ax.get_legend()) for ax in figure.axes] == [[word] for word in words]


def test_the_page_has_the_palette_of_the_charts():
    text = page([], title="t", command="c")
    for palette in (LIGHT, DARK):
        assert " ".join(f"--c{place}: {colour};" for place, colour in enumerate(palette)) in text
    assert not re.search(r"/\* series", text)
