"""Results as plain JSON."""

import math
from typing import Any


def plain(value: Any) -> Any:
    """Numbers that JSON has no word for become strings; tuples become lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
