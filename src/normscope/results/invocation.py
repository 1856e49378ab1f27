"""The running command, as it would be typed."""

import shlex
import sys
from pathlib import Path


def command() -> str:
    """The running command: `normscope verb ...`, `python script.py ...`, or `python` without a script (a notebook)."""
    first, *rest = sys.argv or [""]
    place = Path(first)
    name = place.parent.name if place.name == "__main__.py" else place.name
    if name == "normscope":
        return shlex.join(["normscope", *rest])
    return shlex.join(["python", name, *rest]) if name.endswith(".py") else "python"
