"""The theorems of Santurkar et al. 2018 on a real layer: both sides, slack, verdict.

`check` takes a linear layer, its BatchNorm and the rest of the network; `check_network` finds such pairs in a model.
"""

from normscope.bounds.layer import check
from normscope.bounds.network import check_network, pairs
from normscope.bounds.result import Bounds, StatementRow

__all__ = ["Bounds", "StatementRow", "check", "check_network", "pairs"]
