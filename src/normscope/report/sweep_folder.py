"""The files that `normscope sweep` writes: numbers, figure and page of a phase diagram."""

from collections.abc import Mapping
from pathlib import Path

from normscope.report.drawing import draw
from normscope.report.page_file import write_report
from normscope.report.sections.phase import phase_section
from normscope.results.invocation import command
from normscope.results.saving import save_figure
from normscope.sweeping import PhaseDiagram


def write_phase(diagram: PhaseDiagram, lines: Mapping[str, Mapping[float, float]], folder: Path) -> list[Path]:
    """Writes phase-HASH.json, .png and .html, named by the plan's hash; returns their paths.

    Args:
        lines: eta* by the name of the line and the value of the axis.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / f"phase-{diagram.plan.hash[:8]}"
    written = [stem.with_suffix(ending) for ending in (".json", ".png", ".html")]
    diagram.save(written[0], lines=lines)
    section = phase_section("Phase diagram", diagram, lines, command=command())
    (chart,) = section.charts
    save_figure(draw(chart), written[1], dpi=150)
    write_report([section], written[2])
    return written
