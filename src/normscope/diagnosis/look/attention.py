"""The weights of attention, read from calls of torch's functions while a model runs."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


class AttentionReader(TorchFunctionMode):
    """Reads the weights of attention from calls of scaled_dot_product_attention and of softmax.

    Args:
        largest: list to which the mean of the largest weight of each call is added.
        reads: whether to read now.
    """

    def __init__(self, largest: list[float], reads: Callable[[], bool]) -> None:
        super().__init__()
        self._largest, self._reads = largest, reads

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if self._reads():
            if func is F.scaled_dot_product_attention:
                self._add(_weights(args, kwargs))
            elif getattr(func, "__name__", "") == "softmax" and isinstance(out, Tensor) and out.ndim > 2:
                square = out.shape[-1] == out.shape[-2] and out.shape[-1] > 1
                self._add(out if square else None)
        return out

    def _add(self, weights: Tensor | None) -> None:
        if weights is None or not weights.numel():
            return
        most = weights.detach().float().amax(-1)
        # The first position of causal attention has one key to look at.
        self._largest.append(float(most[..., most.shape[-1] // 2 :].mean()))


@torch.no_grad()
def _weights(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """The weights that scaled_dot_product_attention uses, without its mask: of a causal one the lower triangle."""
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    named = {**dict(zip(names, args, strict=False)), **kwargs}
    query, key = named["query"].detach().float(), named["key"].detach().float()
    if query.shape[-2] < 3 or named.get("attn_mask") is not None or query.shape[:-2] != key.shape[:-2]:
        return None
    scale = named.get("scale") or query.shape[-1] ** -0.5
    logits = query @ key.transpose(-1, -2) * scale
    if named.get("is_causal"):
        allowed = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).tril()
        logits = logits.masked_fill(~allowed, -torch.inf)
    return logits.softmax(-1)
