"""Anchors of the errata by their numbers, so that other pages can link to `errata.md#E-THM-3`."""

import re
from typing import Any

_HEADING = re.compile(r"^### (E-[A-Z]+-\d+) ", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    if page.file.src_uri != "evidence/errata.md":
        return markdown
    return _HEADING.sub(r'<a id="\1"></a>\n\n### \1 ', markdown)
