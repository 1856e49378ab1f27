"""Normalization layers as pure functions and thin modules, for inputs of shape (N, C, *space).

kinds                   all normalizers by name; the list of places that a new one needs
batch, lp, noisy        BatchNorm, l_p normalization, BatchNorm with noise
batch_norm_gradient     backward and double backward of BatchNorm, in closed form
noise_kernel            the noise as one CUDA kernel
held_statistics         holds batch statistics constant
process_sums            sums over the processes of `torch.distributed`
channels                input checks and arithmetic for each channel
population              population statistics
swap                    replaces all normalizers of a model; `replacement` builds the new layer
fold                    folds BatchNorm into the linear map before it
find_norms              finds all normalizers of a model
recognition             recognizes a foreign normalizer; `probing` runs it, `formula_fit` fits a formula, `twins` builds
                        the equal layer, `wrappers` fits it to the inputs
layer_places            replaces a layer under all its names
call_order              the order in which a model calls its layers
attention               whether a model has attention
"""

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
