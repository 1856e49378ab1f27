"""Words of messages: the severity of a verdict; values and errors of other code, brief and on one line."""

import traceback
from pathlib import Path
from typing import Any

MOST = 200


def severity(good: bool | None) -> str:
    """The severity of a verdict: `ok`, `warning`, or `note` where the number alone does not decide.

    Example:
        >>> severity(True), severity(False), severity(None)
        ('ok', 'warning', 'note')
    """
    return "note" if good is None else "ok" if good else "warning"


def brief(value: Any, most: int = MOST) -> str:
    """`value` as text; the middle of a long text is left out.

    Example:
        >>> brief("x" * 1000, most=20)
        'xxxxxxxx ... xxxxxxx'
    """
    text = value if isinstance(value, str) else _shown(value)
    if len(text) <= most:
        return text
    head = (most - 4) // 2
    return f"{text[:head]} ... {text[len(text) - (most - head - 5) :]}"


def _shown(value: Any) -> str:
    """The `repr` of a value that may be large, or whose `repr` may fail."""
    if isinstance(value, (bytes, bytearray, list, tuple, dict, set, frozenset, range)) and len(value) > MOST:
        return f"a {type(value).__name__} of {len(value)}"
    try:
        return repr(value)
    except Exception:
        return f"a {type(value).__name__}"


def duration(seconds: float) -> str:
    """A time in words, in milliseconds where tenths of a second would be too coarse.

    Example:
        >>> duration(0.0342), duration(0.5), duration(12.34), duration(0.0)
        ('34 ms', '0.5 s', '12.3 s', '0 ms')
    """
    return f"{1000 * seconds:.2g} ms" if seconds < 0.0995 else f"{seconds:.1f} s"


def quoted(value: Any) -> str:
    """The `repr` of a value; the middle of a long text is left out."""
    return brief(brief(value, 10 * MOST) if not isinstance(value, str) else repr(value[: 10 * MOST]))


def first_line(error: BaseException) -> str:
    """The class of an error and the first line of its message."""
    try:
        lines = str(error).splitlines()
    except Exception:
        lines = []
    return brief(f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__)


def raised_at(error: BaseException) -> str:
    """The file and line that raised an exception, as "bounds.py, line 33"; "" for an exception that was not raised.

    Example:
        >>> raised_at(ValueError("never raised"))
        ''
    """
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
