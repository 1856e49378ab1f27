"""Kernels of a tensor's channels: second moments over the random weights, for each pair of places and samples."""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from normscope.theory.gaussian import Activation
from normscope.theory.marginals import Marginal
from normscope.theory.site_pairs import Sites
from normscope.theory.taps import Window


@dataclass(frozen=True)
class Root:
    """A set of independent values that tensors are functions of: one use of a layer's weights, or the inputs (use 0).

    name: the layer's path in the model. use: 1 for the first use of the weights, 2 for the second, and so on.
    """

    name: str
    use: int = 1

    def __str__(self) -> str:
        return "the inputs" if not self.use else repr(self.name) + (f" (use {self.use})" if self.use > 1 else "")


INPUTS = Root("", 0)


@dataclass(eq=False)
class ReaderFacts:
    """Facts about a kernel that only the operations that read it know; they are filled in later in the walk.

    Parts that hold the same kernel share one object.

    kept_by_norm: share that a BatchNorm leaves of gradients that go through the weights before it; None without one.
    lean: `theory.gaussian.lean` of the activation that reads the values; None without one.
    drift: derivative of the output's tangent kernel by this kernel of two samples, found on the way back.
    """

    kept_by_norm: float | None = None
    lean: float | None = None
    drift: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Part:
    """Channels that share a kernel; a concatenation has several parts.

    channels: how many. kernel: second moments, in the form of the field's `Sites`. mean: over channels, for each place.
    tangent: kernel of two samples' gradients by all weights before (statistics held), the sum of G K over layers; zero
        for a batch of which every pair is known.
    noise: variance of the kernel of two samples from pair to pair, from finite dimensions and widths. few: noise of
        one channel alone, where a channel sums one of several groups of the channels before.
    kurtosis: excess kurtosis, below zero for values normalized by a batch. paired: the part of it that does not come
        from dividing two places by one number.
    length: relative variance, from sample to sample, of the squared length. tilt: the same of the product with what all
        samples share.
    marginal: distribution of one place's value, where the value is not Gaussian and the distribution is known.
    fan_in, fresh: for a linear map's values, how many weights each sums, and what those weights add to `tangent`.
    uneven: relative variance, over samples and places, of the variance that a place's values are drawn with. single:
        relative variance of one channel's squared deviation.
    readers: facts that the operations that read this kernel fill in.
    """

    channels: int
    kernel: Tensor
    mean: Tensor
    tangent: Tensor
    noise: float = 0.0
    kurtosis: float = 0.0
    paired: float = 0.0
    length: float = 0.0
    marginal: Marginal | None = None
    fan_in: float = 0.0
    fresh: Tensor | None = None
    tilt: float = 0.0
    uneven: float = 0.0
    single: float = 2.0
    few: float = 0.0
    readers: ReaderFacts = field(default_factory=ReaderFacts)

    def readers_of(self, kernel: Tensor) -> ReaderFacts:
        """The facts for a part made of this one: shared where the kernel is this one, new where it is another."""
        return self.readers if kernel is self.kernel else ReaderFacts()


@dataclass(frozen=True, eq=False)
class Field:
    """A tensor of the network, described by kernels.

    sites: pairs of places and samples that the kernels are given for. parts: groups of channels that share a kernel.
    shape: the tensor's shape without the batch dimension. gaussian: whether the values are Gaussian over the random
    weights. roots: layers whose weights the tensor is a function of with no other weights in between; fields without
    common roots are independent. before: (activation, field) where the values are this activation of that field's
    values. pooled: (name, window, field) where the values are maxima of that field's values.
    """

    sites: Sites
    parts: tuple[Part, ...]
    shape: tuple[int, ...]
    gaussian: bool
    roots: frozenset[Root]
    before: "tuple[Activation, Field] | None" = None
    pooled: "tuple[str, Window, Field] | None" = None

    @cached_property
    def channels(self) -> int:
        """Number of channels of all parts together."""
        return sum(part.channels for part in self.parts)

    @property
    def flat(self) -> bool:
        """Whether the shape is (N, features)."""
        return len(self.shape) == 1

    @property
    def flattened_image(self) -> bool:
        """Whether channels and sites of an image lie in one axis."""
        return self.flat and self.sites.count > 1

    def size(self) -> tuple[int, ...]:
        """The tensor's shape with the batch dimension."""
        return (self.sites.batch, *self.shape)

    def said(self) -> str:
        """The shape in words, for messages."""
        return f"(N, {', '.join(map(str, self.shape))})" if self.shape else "(N,)"

    def mixture(self) -> tuple[Tensor, Tensor]:
        """The kernel and the tangent kernel averaged over all channels."""
        if len(self.parts) == 1:
            return self.parts[0].kernel, self.parts[0].tangent
        shares = [p.channels / self.channels for p in self.parts]
        kernel, tangent = (
            sum((k * share for k, share in zip(of, shares, strict=True)), torch.zeros((), dtype=torch.float64))
            for of in ([p.kernel for p in self.parts], [p.tangent for p in self.parts])
        )
        return kernel, tangent
