"""Links that leave the documentation: the file they name comes along with the site, and the link leads there.

Pages link to stored results, scripts and tests as a reader of the repository finds them (`../results/x.json`). On the
site these are copies below `files/`; a link to a folder is left as its text.
"""

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[2]
_LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)#\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    for page in list(files.documentation_pages()):
        for _, link in _LINK.findall(page.content_string):
            place = _outside(page.src_uri, link)
            uri = f"files/{place}"
            if place and (ROOT / place).is_file() and files.get_file_from_path(uri) is None:
                source = str(ROOT / place)
                files.append(File.generated(config, uri, abs_src_path=source, inclusion=InclusionLevel.NOT_IN_NAV))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    def leads(match: re.Match[str]) -> str:
        text, link = match.groups()
        place = _outside(page.file.src_uri, link)
        if not place or not (ROOT / place).exists():
            return match.group(0)
        if (ROOT / place).is_dir():
            return text
        return f"[{text}]({posixpath.relpath(f'files/{place}', posixpath.dirname(page.file.src_uri) or '.')})"

    return _LINK.sub(leads, markdown)


def _outside(page: str, link: str) -> str:
    """The place below the repository's root, or "" where the link stays within the documentation."""
    place = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link))
    return "" if place.split(os.sep)[0] in ("docs", "..") else place
