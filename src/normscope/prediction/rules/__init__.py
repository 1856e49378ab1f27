"""Rules of operations: one file for each family, registered by decorator. Importing the package registers them all."""

from normscope.prediction.rules import (
    activations,
    batch_norm,
    constants,
    convolution,
    dropout,
    identity,
    joining,
    linear,
    max_pooling,
    pooling,
    reshaping,
    sample_norms,
)
from normscope.prediction.rules.elementwise_map import activation
from normscope.prediction.rules.registry import rule, rule_of_module

__all__ = [
    "activation",
    "activations",
    "batch_norm",
    "constants",
    "convolution",
    "dropout",
    "identity",
    "joining",
    "linear",
    "max_pooling",
    "pooling",
    "reshaping",
    "rule",
    "rule_of_module",
    "sample_norms",
]
