"""Pages of the site from files in the root of the repository, with their links led from there to the site."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
PAGES = {
    "developers/contributing.md": "CONTRIBUTING.md",
    "developers/changelog.md": "CHANGELOG.md",
    "developers/licence.md": "LICENSE",
}


def on_files(files: Files, config: Any) -> Files:
    for uri, name in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        if not name.endswith(".md"):
            text = f"# Licence\n\n```text\n{text}\n```\n"
        text = re.sub(r"\]\(docs/", "](../", text)
        text = re.sub(r"\]\((?!\w+:|\.\./|#)", "](../../", text)
        files.append(File.generated(config, uri, content=text))
    return files
