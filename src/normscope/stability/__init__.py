"""Stability of training: limits of optimizers, the critical rate, the first guess of a rate, and words for them."""

from normscope.stability.optimizer_limits import Limit, momentum_limit, optimizer_limit
from normscope.stability.verdict import Verdict

__all__ = ["Limit", "Verdict", "momentum_limit", "optimizer_limit"]
