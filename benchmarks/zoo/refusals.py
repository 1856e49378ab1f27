"""The classes of exceptions of a verb.

refused: a ValueError, TypeError or NotImplementedError that normscope itself raised, and whose message names a next
step.
silent: such an exception whose message names none.
crash: every other one, of torch, of the model or of Python.
"""

import re
import traceback
from pathlib import Path
from typing import Any

# Words with which a message of normscope names a next step.
_WAYS = re.compile(
    r"\b(measure|instead|hand in|pass|call|use|remove|replace|fold|predict|wrap|build|set|take|make|run|choose|convert"
    r"|leave out|give|put|cast|freeze|divide|lower|raise)\b",
    re.IGNORECASE,
)


def outcome_of(error: BaseException) -> dict[str, Any]:
    """An exception as JSON: kind, type, message, and the innermost frame."""
    frames = traceback.extract_tb(error.__traceback__)
    innermost = Path(frames[-1].filename).parts if frames else ()
    message = str(error)
    kind = "crash"
    if isinstance(error, (ValueError, TypeError, NotImplementedError)) and "normscope" in innermost:
        kind = "refused" if _WAYS.search(message) else "silent"
    ours = [f for f in frames if "normscope" in Path(f.filename).parts]
    return {
        "outcome": kind,
        "type": type(error).__name__,
        "message": message[:1500],
        "where": _place(frames[-1]) if frames else "",
        "ours": _place(ours[-1]) if ours else "",
    }


def _place(frame: traceback.FrameSummary) -> str:
    """The last three parts of the file's path, and the line."""
    return f"{'/'.join(Path(frame.filename).parts[-3:])}:{frame.lineno}"
