"""The float32 precision of products: all digits of float32, or rounded to TF32 on a GPU where a search asks for it.

Products rounded to TF32 or bfloat16 are right to two or three digits alone. A user may have switched such rounding on,
and it is then switched off while products are made. A search on a GPU may ask for TF32 (`rounded`).

The flags are torch's own, so this is a patch as those in `patching.py` are. It stays, since users set the flags. The
extra care in restoring one goes when a setting can be read apart from its parent's; how settings follow their parents
is the subject of issue pytorch 179445.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

import torch

_rounded: ContextVar[bool] = ContextVar("_rounded", default=False)
_KINDS = ("matmul", "conv", "rnn")
_FAMILIES = {"cuda": "cuda", "cpu": "mkldnn"}
# The setter of torch.backends.mkldnn writes the setting of all backends; these bindings name the one that they write.
_bindings: Any = torch._C
_get, _set = _bindings._get_fp32_precision_getter, _bindings._set_fp32_precision_setter


@contextmanager
def rounded() -> Iterator[None]:
    """Inside, products on a GPU are rounded to TF32."""
    token = _rounded.set(True)
    try:
        yield
    finally:
        _rounded.reset(token)


def is_rounded() -> bool:
    """Whether products are rounded to TF32 here."""
    return _rounded.get()


def set_precision(device: str, stack: ExitStack) -> None:
    """Set the float32 precision of the device's kernels; leaving `stack` puts the user's setting back."""
    if device not in _FAMILIES:
        return
    family, digits = _FAMILIES[device], "tf32" if device == "cuda" and is_rounded() else "ieee"
    # The family is set first. A kind that follows its family then reads as set, and is not written: a convolution
    # that nobody has set uses TF32 on a GPU, and no value of its own setting brings that default back.
    stack.callback(_set, family, "all", _own_setting((family, "all"), ("generic", "all"), _get("generic", "all")))
    _set(family, "all", digits)
    for kind in _KINDS:
        setting = _get(family, kind)
        if setting != digits:
            stack.callback(_set, family, kind, setting)
            _set(family, kind, digits)


def _own_setting(setting: tuple[str, str], parent: tuple[str, str], parents: str) -> str:
    """The value of `setting` itself: "none" where it only reads as `parent`, whose own value is `parents`.

    Set to the value that it reads as, a flag would no longer follow its parent. So the parent is changed for a moment,
    to see whether the flag follows.
    """
    value: str = _get(*setting)
    try:
        values_read = set()
        for other in ("ieee", "tf32"):
            _set(*parent, other)
            values_read.add(_get(*setting))
    finally:
        _set(*parent, parents)
    return value if len(values_read) == 1 else "none"
