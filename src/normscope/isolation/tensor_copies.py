"""Copies of single tensors: made without values, and filled together before each pass."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from normscope.isolation.refusals import NotLent


def as_parameter(parameter: nn.Parameter, copy: Tensor) -> nn.Parameter:
    """`copy` as a parameter, with the attributes that some libraries set on parameters."""
    lent = nn.Parameter(copy, requires_grad=parameter.requires_grad)
    vars(lent).update(vars(parameter))
    return lent


class TensorCopies:
    """Copies of tensors that are filled together, by one kernel for each dtype and device.

    dtype: the dtype of copies of floating-point tensors; None keeps each tensor's own.
    """

    def __init__(self, dtype: torch.dtype | None) -> None:
        self._dtype = dtype
        self._groups: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}

    def casts(self, source: Tensor) -> bool:
        return self._dtype is not None and source.is_floating_point() and source.dtype != self._dtype

    def size_of(self, source: Tensor) -> int:
        """Bytes of a copy of `source`."""
        return source.numel() * (self._dtype if self._dtype and self.casts(source) else source.dtype).itemsize

    def of(self, source: Tensor, name: str) -> Tensor:
        """A copy of `source`, without its values until `refresh`."""
        dtype = self._dtype if self.casts(source) else source.dtype
        strided = source.layout == torch.strided
        try:
            copy = torch.empty_like(source, dtype=dtype) if strided else source.detach().clone()
        except Exception as error:
            raise NotLent(
                f"{name} is a {type(source).__name__} that cannot be copied ({error}), so a measurement could not put "
                "it back. Take it out of the model, or make its class copyable."
            ) from error
        copies, sources = self._groups.setdefault((source.dtype, source.device), ([], []))
        # `.data` has no version counter: filling the copy again must not invalidate a graph that saved it.
        copies.append(copy.data)
        sources.append(source)
        return copy

    @torch.no_grad()
    def refresh(self) -> None:
        for copies, sources in self._groups.values():
            torch._foreach_copy_(copies, sources)


class Attached:
    """Tensors with the memory that they have now; `put_back` undoes `tensor.data = other`.

    Such an assignment writes into no memory, so no copy of values and no version counter shows it.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        held = {id(tensor): tensor for tensor in tensors}.values()
        self._held = [(tensor, tensor.data, address) for tensor in held if (address := start_of(tensor))]

    def put_back(self) -> None:
        for tensor, data, address in self._held:
            if tensor.data_ptr() != address or tensor.shape != data.shape:
                tensor.data = data


def start_of(tensor: Tensor) -> int:
    """The address of the first value; 0 for a tensor of a class without memory of its own, or without values."""
    try:
        return tensor.data_ptr()
    except (NotImplementedError, RuntimeError):
        return 0
