"""Max pooling."""

from normscope.prediction.field import Field
from normscope.prediction.walk import Walk
from normscope.theory.windows import Window


def max_pool(walk: Walk, name: str, x: Field, window: Window) -> Field:
    raise ValueError("is max pooling, which has no map here")
