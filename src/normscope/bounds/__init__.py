"""The theorems of "How Does Batch Normalization Help Optimization?" on a real layer: both sides, slack, verdict.

`check` takes a linear layer, its BatchNorm and the rest of the network; `check_network` finds such pairs in a model.
"""

from normscope.bounds.layer import check
from normscope.bounds.network import check_network, pairs
from normscope.bounds.result import Bounds, Row

__all__ = ["Bounds", "Row", "check", "check_network", "pairs"]
