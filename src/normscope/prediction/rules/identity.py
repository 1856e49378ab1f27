"""The rules of operations that leave a tensor as it is."""

from typing import Any

from torch import nn

from normscope.norms.noisy import CovariateNoise
from normscope.prediction.rules.registry import rule
from normscope.prediction.walk import Walk


@rule("contiguous", "clone", "float", "double", "identity", exported=["alias", "to"])
def unchanged(walk: Walk, name: str, x: Any, *_: Any, **__: Any) -> Any:
    """The same field; kernels are in double precision whatever the network's own is."""
    return x


rule(modules=[nn.Identity])(unchanged)
rule(modules=[CovariateNoise], applies=lambda module: not module.training)(unchanged)
