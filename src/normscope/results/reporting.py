"""The base of all results: a result can write its report page and figures, and show itself in a notebook.

This file imports `report`, a package above it, inside its methods. It is the one upward import of the house (see
docs/architecture.md): users call `result.report(path)`, and only `report` can draw a page.
"""

import html
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from normscope.report.document import Section


class Reportable:
    """A result with a report page; `_sections` lists its contents. The package `report` is imported on use."""

    def _sections(self) -> Sequence["Section"]:
        raise NotImplementedError

    def report(self, path: str | Path) -> Path:
        """Write one HTML file that needs no network: verdicts, interactive figures, settings. Returns its path."""
        from normscope.report.page_file import write_report

        return write_report(self._sections(), path)

    def figures(self, folder: str | Path) -> list[Path]:
        """Write the page's figures as PDF, PNG and SVG, for papers. Returns their paths."""
        from normscope.report.drawing import write_figures

        return write_figures(self._sections(), Path(folder))

    def _repr_html_(self) -> str:
        """The page in a frame of its own, so that its style and script do not affect the notebook."""
        from normscope.report.page_file import report_page

        inside = html.escape(report_page(self._sections()))
        return (
            f'<iframe srcdoc="{inside}" sandbox="allow-scripts allow-downloads" title="normscope" '
            'style="width:100%;height:640px;border:1px solid #ccc"></iframe>'
        )
