"""Wrappers that fit a normalizer to another layer's inputs: channels last, a scale of another form, an activation."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from normscope.norms.channels import per_channel
from normscope.norms.kinds import Identity


class Wrapper(nn.Module):
    """A normalizer `norm` for (N, C, *space), with an adaptation to the layer it replaces."""

    norm: nn.Module

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm


class Placed(Wrapper):
    """A wrapper with the weight and bias of its normalizer, for forwards that read a layer's dtype from its weight."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.norm, name) if name in ("weight", "bias") else super().__getattr__(name)


class LastDim(Placed):
    """A normalizer for inputs (..., C) with channels last; every position counts as a sample."""

    eps = Identity.eps

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x.reshape(-1, x.shape[-1]))
        return y.view(x.shape)


class EachPosition(Placed):
    """A normalizer for inputs (N, C, *space) in which every position counts as a sample, as in ConvNeXt's LayerNorm."""

    def forward(self, x: Tensor) -> Tensor:
        last = x.movedim(1, -1)
        y: Tensor = self.norm(last.reshape(-1, last.shape[-1]))
        return y.view(last.shape).movedim(-1, 1)


class OwnScale(Wrapper):
    """A normalizer without affine part, followed by y (offset + weight) + bias.

    weight and bias have C values in any shape, or one value: Gemma's weight acts as 1 + weight, others have the shape
    (C, 1, 1). The parameters stay the same objects under their own names, so optimizers and checkpoints keep working.
    The noise of "noisy" is applied after the scale.
    """

    def __init__(
        self,
        norm: nn.Module,
        weight: tuple[str, nn.Parameter] | None,
        bias: tuple[str, nn.Parameter] | None,
        offset: float,
    ) -> None:
        super().__init__(norm)
        self.offset = offset
        self.names = tuple(None if entry is None else entry[0] for entry in (weight, bias))
        for name, parameter in filter(None, (weight, bias)):
            self.register_parameter(name, parameter)
        self.noise = getattr(norm, "noise", None) or nn.Identity()
        if not isinstance(self.noise, nn.Identity):
            norm.noise = nn.Identity()

    @property
    def named_affine(self) -> list[tuple[str, nn.Parameter] | None]:
        """The parameters that act as weight and as bias, with their names."""
        return [None if name is None else (name, self.get_parameter(name)) for name in self.names]

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = (None if name is None else getattr(self, name) for name in self.names)
        y = self.norm(x)
        if weight is not None:
            y = y * per_channel(self.offset + weight.flatten(), x)
        if bias is not None:
            y = y + per_channel(bias.flatten(), x)
        noisy: Tensor = self.noise(y.to(x.dtype))
        return noisy

    def extra_repr(self) -> str:
        return f"offset={self.offset:g}" if self.offset else ""


class Followed(Placed):
    """A normalizer, then the children of the layer it replaces, such as dropout and activation of BatchNormAct2d.

    The children may work in place, so `norm` must return a new tensor.
    """

    def __init__(self, norm: nn.Module, after: Mapping[str, nn.Module]) -> None:
        super().__init__(norm)
        self.after = tuple(after)
        for name, child in after.items():
            self.add_module(name, child)

    @property
    def children_after(self) -> dict[str, nn.Module]:
        """The children by name, in the order they are applied."""
        return {name: self.get_submodule(name) for name in self.after}

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm(x)
        for child in self.children_after.values():
            y = child(y)
        return y


def core(layer: nn.Module) -> nn.Module:
    """The normalizer inside its wrappers."""
    while isinstance(layer, Wrapper):
        layer = layer.norm
    return layer
