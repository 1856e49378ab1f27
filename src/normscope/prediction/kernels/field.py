"""Kernels of a tensor's channels: second moments over the random weights, for each pair of places and samples.

`prediction/__init__.py` explains the words. Here they are as formulas:

    kernel              K(x, y) = E[z_i(x) z_i(y)]         z_i: the value of channel i at a place
    tangent kernel      sum over all weights w of (d z_i(x) / d w) (d z_i(y) / d w)
    width               number of channels; kernels are exact for infinitely many
    relative variance   variance over squared mean; of the order 1 / width

Kernels are those of infinitely many channels. `noise`, `group_noise`, `length`, `overlap_variance` and `scale_variance`
of a `FieldPart` are corrections for finite widths and finite dimensions of the inputs; 0 means none.
"""

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

    Attributes:
        name: the layer's path in the model.
        use: 1 for the first use of the weights, 2 for the second, and so on.
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

    Attributes:
        kept_by_norm: share that a BatchNorm leaves of gradients that go through the weights before it; None without
            one.
        gamma_beta_correlation: the function of that name in `theory.gaussian`, of the activation that reads the values;
            None without one.
        drift: derivative of the output's tangent kernel with respect to this kernel of two samples, found on the way
            back.
    """

    kept_by_norm: float | None = None
    gamma_beta_correlation: float | None = None
    drift: Tensor | None = None


@dataclass(frozen=True, eq=False)
class FieldPart:
    """Channels that share a kernel; a concatenation has several parts.

    Attributes:
        channels: number of channels.
        kernel: second moments, in the form of the field's `Sites`.
        mean: over channels, for each place.
        tangent: tangent kernel of two samples by all weights before, with statistics held; the sum of G K over layers.
        noise: variance of the kernel of two samples from pair to pair, from finite dimensions and widths. It is 0 for a
            batch of which every pair is known.
        kurtosis: excess kurtosis of the values. It is negative for values that are normalized by a batch.
        own_kurtosis: the part of `kurtosis` that each place has by itself. The rest comes from dividing two places by
            one number.
        length: relative variance of the squared length, from sample to sample.
        marginal: distribution of one place's value, where the value is not Gaussian and the distribution is known.
        fan_in: for the values of a linear map, how many weights each of them sums.
        added_tangent: for the values of a linear map, what its own weights add to `tangent`.
        overlap_variance: relative variance, from sample to sample, of the product with what all samples share.
        scale_variance: relative variance, over samples and places, of the variance that a place's values are drawn
            with.
        square_variance: relative variance of one channel's squared deviation from its mean; 2 for Gaussian values.
        group_noise: the part of `noise` that one channel alone has, where it sums one of several groups of channels.
        readers: facts that the operations that read this kernel fill in.
    """

    channels: int
    kernel: Tensor
    mean: Tensor
    tangent: Tensor
    noise: float = 0.0
    kurtosis: float = 0.0
    own_kurtosis: float = 0.0
    length: float = 0.0
    marginal: Marginal | None = None
    fan_in: float = 0.0
    added_tangent: Tensor | None = None
    overlap_variance: float = 0.0
    scale_variance: float = 0.0
    square_variance: float = 2.0
    group_noise: float = 0.0
    readers: ReaderFacts = field(default_factory=ReaderFacts)

    def readers_of(self, kernel: Tensor) -> ReaderFacts:
        """The facts for a part made of this one: shared where the kernel is this one, new where it is another."""
        return self.readers if kernel is self.kernel else ReaderFacts()


@dataclass(frozen=True, eq=False)
class Field:
    """A tensor of the network, described by kernels.

    Attributes:
        sites: pairs of places and samples that the kernels are given for.
        parts: groups of channels that share a kernel.
        shape: the tensor's shape without the batch dimension.
        gaussian: whether the values are Gaussian over the random weights.
        roots: layers whose weights the tensor is a function of with no other weights in between. Fields without common
            roots are independent.
        before: (activation, field) where the values are this activation of that field's values.
        pooled: (name, window, field) where the values are maxima of that field's values.
    """

    sites: Sites
    parts: tuple[FieldPart, ...]
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
