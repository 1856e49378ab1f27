"""The page of some sections as one HTML file."""

from collections.abc import Sequence
from pathlib import Path

from normscope.report.document import Section
from normscope.report.page import page
from normscope.results.invocation import command
from normscope.results.saving import check_folder, save_text

MOST_BYTES = 6_000_000


def report_page(sections: Sequence[Section]) -> str:
    """The page of these sections, with the running command as the command that made it."""
    return page(sections, title=title_of(sections), command=command())


def write_report(sections: Sequence[Section], path: str | Path) -> Path:
    """Writes the page to a file; a missing folder is created. Returns the path."""
    path = Path(path)
    text = page_for(sections, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    save_text(path, text)
    return path


def page_for(sections: Sequence[Section], path: Path) -> str:
    """The page for `path`. Raises ValueError if the path or the size of the page is not allowed; writes nothing."""
    if path.is_dir():
        raise ValueError(f"A report is one file, and {path} is a folder. Name a file in it, such as report.html.")
    check_folder(path.parent, f"The place of {path.name}")
    text = report_page(sections)
    if (size := len(text.encode(errors="backslashreplace"))) > MOST_BYTES:
        raise ValueError(
            f"The page would have {size / 1e6:.1f} MB, and a report stays under {MOST_BYTES / 1e6:g} MB "
            "to open anywhere. Report fewer runs at once."
        )
    return text


def title_of(sections: Sequence[Section]) -> str:
    """The title of the page."""
    return sections[0].title if len(sections) == 1 else f"{len(sections)} results"
