"""Fields: tensors of the network, described by kernels in place of numbers.

A kernel holds second moments over the random weights, for each pair of places. `prediction/__init__.py` explains the
words. As formulas:

    kernel              K(x, y) = E[z_i(x) z_i(y)]         z_i: the value of channel i at a place
    tangent kernel      sum over all weights w of (d z_i(x) / d w) (d z_i(y) / d w)
    width               number of channels; kernels are exact for infinitely many
    relative variance   variance over squared mean; of the order 1 / width

Kernels are computed for infinitely many channels. A `FieldPart` holds five corrections for finite widths and finite
dimensions of the inputs: `noise`, `group_noise`, `length`, `overlap_variance` and `scale_variance`. The value 0 means
that there is no correction.
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
    """A set of independent random values from which tensors are computed: a layer's weights, or the inputs.

    Attributes:
        name: the layer's path in the model.
        use: 1 for the first use of the weights, 2 for the second, and so on; 0 for the inputs.
    """

    name: str
    use: int = 1

    def __str__(self) -> str:
        return "the inputs" if not self.use else repr(self.name) + (f" (use {self.use})" if self.use > 1 else "")


INPUTS = Root("", 0)


@dataclass(eq=False)
class ReaderFacts:
    """Facts about a kernel that come from the operations that read the kernel.

    The walk fills these facts in when it reaches such an operation. Parts with the same kernel share one object.

    Attributes:
        kept_by_norm: share of the gradient that the BatchNorm after these values leaves over; None if no BatchNorm
            follows.
        gamma_beta_correlation: `theory.gaussian.gamma_beta_correlation` of the activation after these values; None if
            no activation follows.
        drift: derivative of the output's tangent kernel with respect to this kernel of two samples; None until the way
            back has reached this tensor.
    """

    kept_by_norm: float | None = None
    gamma_beta_correlation: float | None = None
    drift: Tensor | None = None


@dataclass(frozen=True, eq=False)
class FieldPart:
    """A group of channels with the same kernel. A concatenation has several groups.

    Attributes:
        channels: number of channels.
        kernel: second moments, in the form of the field's `Sites`.
        mean: mean over the channels, one number for each place.
        tangent: tangent kernel of two samples, with statistics held: G K, summed over all layers before this tensor.
        noise: variance of the kernel from one pair of samples to the next, caused by finite dimensions and widths. The
            noise is 0 for a batch of which every pair is known.
        kurtosis: excess kurtosis of the values. Values that are normalized over a batch have a negative one.
        own_kurtosis: the part of `kurtosis` that each place has independently of other places. The other part comes
            from dividing all places by one number.
        length: relative variance, from sample to sample, of the squared length.
        marginal: distribution of one place's value, where the value is not Gaussian and the distribution is known.
        fan_in: number of weights that each value sums, for values of a linear map; 0 for other values.
        added_tangent: the part of `tangent` that comes from the linear map's own weights; None for other values.
        overlap_variance: relative variance, from sample to sample, of the product with the component that all samples
            share.
        scale_variance: the values of one place are drawn with some variance; this is the relative variance of that
            variance, over samples and places.
        square_variance: relative variance of one channel's squared deviation from its mean; 2 for Gaussian values.
        group_noise: the part of `noise` that each channel has independently, where each channel sums only one of
            several groups of channels (grouped convolutions).
        readers: facts from the operations that read this kernel.
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
        """The `readers` of a part that is made from this part: shared if the kernel is the same, else new and empty."""
        return self.readers if kernel is self.kernel else ReaderFacts()


@dataclass(frozen=True, eq=False)
class Field:
    """A tensor of the network, described by kernels.

    Attributes:
        sites: which pairs of places and samples the entries of the kernels stand for.
        parts: groups of channels with the same kernel.
        shape: the tensor's shape without the batch dimension.
        gaussian: whether the values are Gaussian over the random weights.
        roots: the nearest layers with weights before this tensor, on every path. Fields without common roots are
            independent.
        before: (activation, field) if the values are this activation of the values of this field; else None.
        pooled: (name, window, field) if the values are maxima over windows of this field; else None.
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
