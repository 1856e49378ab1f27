"""Convert results to plain JSON, and write them."""

import json
import math
from pathlib import Path
from typing import Any

from normscope.results.saving import save_text


def plain(value: Any) -> Any:
    """`value` for JSON: nan and infinities become strings, tuples and ranges become lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [plain(item) for item in value]
    return value


def write_json(path: str | Path, content: dict[str, Any]) -> None:
    """Write `content`, which must be plain, as a JSON file."""
    save_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
