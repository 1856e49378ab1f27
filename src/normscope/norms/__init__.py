"""Normalization layers as pure functions and thin modules, for inputs of shape (N, C, *space)."""

from normscope.norms.batch import BatchNorm1d, BatchNorm2d, BatchNorm3d, batch_norm
from normscope.norms.fold import Folded, fold_norms
from normscope.norms.kinds import NORM_NAMES, InstanceNorm, RMSNorm, make_norm
from normscope.norms.lp import LpNorm1d, LpNorm2d, LpNorm3d, lp_norm
from normscope.norms.noisy import (
    CovariateNoise,
    NoisyBatchNorm1d,
    NoisyBatchNorm2d,
    NoisyBatchNorm3d,
    covariate_noise,
)
from normscope.norms.population import use_population_statistics
from normscope.norms.swap import Swap, Swaps, swap_norms

__all__ = [
    "NORM_NAMES",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "CovariateNoise",
    "Folded",
    "InstanceNorm",
    "LpNorm1d",
    "LpNorm2d",
    "LpNorm3d",
    "NoisyBatchNorm1d",
    "NoisyBatchNorm2d",
    "NoisyBatchNorm3d",
    "RMSNorm",
    "Swap",
    "Swaps",
    "batch_norm",
    "covariate_noise",
    "fold_norms",
    "lp_norm",
    "make_norm",
    "swap_norms",
    "use_population_statistics",
]
