"""References to functions, where the verbs look for them."""

from normscope.loading import load

__all__ = ["load"]
