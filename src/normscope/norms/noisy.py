r"""Noisy BatchNorm, and the noise alone: an artificial covariate shift after every normalizer.

At each step, for every unit j and then every sample i (in a convolution every (b, h, w)):

    mu_j ~ U(-n_mu, n_mu)            sig_j ~ U(1, n_sigma)
    m_ij ~ U(mu_j - r_mu, mu_j + r_mu)     s_ij ~ N(sig_j, r_sigma^2)      a_ij <- s_ij a_ij + m_ij

with n_mu = 0.5, n_sigma = 1.25, r_mu = r_sigma = 0.1. r_sigma is read as a standard deviation; the source does not say.
a is the layer's output after gamma and beta. The noise is a constant to the gradient, and off in eval mode.
Source: Santurkar et al. 2018, Algorithm 1 (line 1 calls the constants n_m, n_v, r_m, r_v).

The draws are a hash of (seed, step, element); seed and step are kept in the buffer `noise_state`. No `torch.Generator`
is used. So a run from a checkpoint, a compiled step, a replayed step and each member of a stacked ensemble all get
exactly the noise they would have got alone, and no global generator moves.
"""

import math
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor, nn

from normscope.norms.batch import BatchNorm1d, BatchNorm2d, BatchNorm3d, BatchNormLayer, BatchNormNd, transformed
from normscope.norms.channels import check_input, per_channel, traced, wide

N_MU, N_SIGMA, R_MU, R_SIGMA = 0.5, 1.25, 0.1, 0.1
_WORD = 0xFFFFFFFF


def covariate_noise(
    a: Tensor,
    state: Tensor,
    *,
    n_mu: float = N_MU,
    n_sigma: float = N_SIGMA,
    r_mu: float = R_MU,
    r_sigma: float = R_SIGMA,
) -> Tensor:
    r"""a_ij <- s_ij a_ij + m_ij with the draws of step `state[1]` from seed `state[0]`.

    Args:
        a: (N, C, *space).
        state: two int64 words, (seed, step); the same pair gives the same noise on every call.
        n_mu: size of the jumps of a unit's mean from step to step (0.5 in the source).
        n_sigma: size of the jumps of a unit's scale from step to step (1.25 in the source).
        r_mu: size of the differences of means between samples within a step (0.1 in the source).
        r_sigma: size of the differences of scales between samples within a step (0.1 in the source).

    Returns:
        The noisy activations, of the shape of `a`.

    Example:
        >>> state = torch.tensor([7, 0])
        >>> torch.equal(covariate_noise(torch.ones(4, 2), state), covariate_noise(torch.ones(4, 2), state))
        True
    """
    check_input(a, "covariate_noise", None, (2, 3, 4, 5), batch_stats=False)
    if (
        a.is_cuda
        and a.dtype != torch.float64
        and _has_triton()
        and not (torch.compiler.is_compiling() or transformed())
    ):
        from normscope.norms.noise_kernel import FusedNoise

        noisy: Tensor = FusedNoise.apply(a, state, (n_mu, n_sigma, r_mu, r_sigma), True)
        return noisy
    base, *streams = _keys(state)
    dtype = wide(a).dtype
    index = torch.arange(a.numel(), dtype=torch.int32, device=a.device)
    unit, sample = _mix(index[: a.shape[1]] ^ base), _mix(index.view(a.shape) ^ base)
    unit_mu, unit_sigma = (_uniform(unit ^ key, dtype) for key in streams[:2])
    u, radius, angle = (_uniform(sample ^ key, dtype) for key in streams[2:])
    normal = (-2 * radius.log()).sqrt() * torch.cos(2 * math.pi * angle)
    m = per_channel(n_mu * (2 * unit_mu - 1), a) + r_mu * (2 * u - 1)
    s = per_channel(1 + (n_sigma - 1) * unit_sigma, a) + r_sigma * normal
    return (wide(a) * s + m).to(a.dtype)


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


def _mix(h: Tensor) -> Tensor:
    """A bijection of 32-bit words in which every input bit moves every output bit (xorshift-multiply).

    Computed in int32, where products wrap; the masks turn the arithmetic shift into a logical one.
    """
    h = (h ^ (h >> 16 & 0xFFFF)) * 0x7FEB352D
    h = (h ^ (h >> 15 & 0x1FFFF)) * (0x846CA68B - 2**32)
    return h ^ (h >> 16 & 0xFFFF)


def _keys(state: Tensor) -> Tensor:
    """Six words for this step: one that all draws share, and one for each of the five streams."""
    words = torch.stack([state & _WORD, state >> 32 & _WORD]).flatten()
    h = torch.arange(6, device=state.device, dtype=torch.int32)
    for word in ((words ^ 2**31) - 2**31).to(torch.int32):
        h = _mix(h ^ word)
    return h


def _uniform(word: Tensor, dtype: torch.dtype) -> Tensor:
    """U(0, 1), open at both ends: midpoints of 2^23 cells, which float32 still holds exactly."""
    return ((_mix(word) >> 9 & 0x7FFFFF).to(dtype) + 0.5) * 2.0**-23


def _recomputing() -> bool:
    """Whether this forward runs inside a backward pass: activation checkpointing repeats the step it saved."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


class CovariateNoise(nn.Module):
    """The noise of Algorithm 1 without a normalizer, for any (N, C, *space): the control experiment.

    The source reports that a network without BatchNorm does not train at all with this noise (Santurkar et al. 2018,
    Section 2.1). Under activation checkpointing the repeated forward gets the noise of the first one, if it calls the
    layer once.

    Args:
        num_features: C, the number of channels.
        n_mu: size of the jumps of a unit's mean from step to step.
        n_sigma: size of the jumps of a unit's scale from step to step.
        r_mu: size of the differences of means between samples within a step.
        r_sigma: size of the differences of scales between samples within a step.
        seed: seed of the noise; None draws one from torch's generator at construction.
        device: device of the buffer `noise_state`.
    """

    noise_state: Tensor

    def __init__(
        self,
        num_features: int,
        *,
        n_mu: float = N_MU,
        n_sigma: float = N_SIGMA,
        r_mu: float = R_MU,
        r_sigma: float = R_SIGMA,
        seed: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.num_features = num_features
        self.constants = {"n_mu": n_mu, "n_sigma": n_sigma, "r_mu": r_mu, "r_sigma": r_sigma}
        self.seed = int(torch.randint(2**62, (), device="cpu")) if seed is None else seed
        self.register_buffer("noise_state", torch.empty(2, dtype=torch.int64, device=device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Go back to step 0 of the layer's seed."""
        self.noise_state.copy_(torch.tensor([self.seed, 0]))

    def forward(self, input: Tensor) -> Tensor:
        node = traced(self, input)
        if node is not None:
            return node  # type: ignore[return-value]
        check_input(input, "CovariateNoise", self.num_features, (2, 3, 4, 5), batch_stats=False)
        if not self.training or input.numel() == 0:
            # A new tensor, as in training: the next layer may write into it.
            return input.clone()
        if _recomputing():
            last = self.noise_state - torch.tensor([0, 1], device=input.device)
            return covariate_noise(input, last, **self.constants)
        noisy = covariate_noise(input, self.noise_state, **self.constants)
        self.noise_state[1].add_(1)
        return noisy

    def extra_repr(self) -> str:
        return ", ".join([str(self.num_features), *(f"{k}={v}" for k, v in self.constants.items())])


class _NoisyLayer(BatchNormLayer):
    """BatchNorm, then `CovariateNoise` as the child `noise`; `seed` is the seed of the noise."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        bias: bool = True,
        sync: bool = False,
        n_mu: float = N_MU,
        n_sigma: float = N_SIGMA,
        r_mu: float = R_MU,
        r_sigma: float = R_SIGMA,
        seed: int | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias, sync=sync)
        self.noise = CovariateNoise(
            num_features, n_mu=n_mu, n_sigma=n_sigma, r_mu=r_mu, r_sigma=r_sigma, seed=seed, device=device
        )

    def forward(self, input: Tensor) -> Tensor:
        node = traced(self, input)
        if node is not None:
            return node  # type: ignore[return-value]
        y: Tensor = super().forward(input)
        return self.noise(y) if self.noise.training else y


class NoisyBatchNorm1d(_NoisyLayer, BatchNorm1d):
    """Noisy BatchNorm of (N, C) or (N, C, L): `BatchNorm1d`, then the noise of Algorithm 1 in training."""


class NoisyBatchNorm2d(_NoisyLayer, BatchNorm2d):
    """Noisy BatchNorm of (N, C, H, W); see `NoisyBatchNorm1d`."""


class NoisyBatchNorm3d(_NoisyLayer, BatchNorm3d):
    """Noisy BatchNorm of (N, C, D, H, W); see `NoisyBatchNorm1d`."""


class NoisyBatchNormNd(_NoisyLayer, BatchNormNd):
    """Noisy BatchNorm of (N, C, *space) with up to three dimensions of space; see `NoisyBatchNorm1d`."""
