r"""What each of several batches counts: the same, or its share in the loss of all data.

Where L(all) = sum_b w_b L_b with constants w_b, the slopes by the outputs f_b of part b are proportional,

    dL/df_b = w_b dL_b/df_b         at any outputs; w_b = <dL/df_b, dL_b/df_b> / ||dL_b/df_b||^2

and so w_b is read off the loss, whatever it divides by: samples, class weights, targets that are not ignored. Taken at
two mixtures of the outputs, which keep to the loss's domain: at the outputs themselves all slopes may be zero. Where
they are not proportional, or the ratio changes with the outputs, the loss is no such sum, and that is refused.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from normscope.choices import check_choice
from normscope.curvature.operators.network_products import Network
from normscope.curvature.operators.statistics import over_the_batch

OVER = ("batches", "data")
_SHARES_OF_NEIGHBOUR = (0.3, 0.45)
_TOLERANCE = 1e-3


def check_parts(model: nn.Module, over: str, stats: str, parts: int) -> bool:
    """Whether parts are put together to the loss of all data; refused where layers take statistics over each."""
    check_choice("over", over, OVER)
    if over == "batches" or parts == 1:
        return False
    layers = over_the_batch(model, stats)
    if layers:
        raise ValueError(
            f"With stats={stats!r} the layers {', '.join(list(layers)[:3])}{', ...' if len(layers) > 3 else ''} take "
            "their statistics over the batch, so the loss of all data is not the sum of its parts: each part's "
            "curvature is that of another loss. Hand in the whole as one batch, take the mean over batches "
            "(over='batches')" + (", or ask for stats='running'." if stats != "running" else ".")
        )
    return True


def refuse_mixing(network: Network) -> None:
    """The same for a forward without such a layer whose outputs depend on other samples all the same."""
    if network.mixes(whole=True):
        raise ValueError(
            "The output of one sample depends on others of its batch (a normalizer inside the forward, perhaps), so "
            "the loss of all data is not the sum of its parts. Hand in the whole as one batch, or take the mean over "
            "batches (over='batches')."
        )


def shares(networks: Sequence[Network]) -> list[float]:
    """w_b of each."""
    with torch.no_grad():
        outputs = [tree_flatten(network.output()) for network in networks]
    form = outputs[0][1]
    sizes = [[len(leaf) for leaf in leaves] for leaves, _ in outputs]
    targets = [network.loss.targets for network in networks]
    joined = tree_map(_joined, *targets)
    found = []
    for share in _SHARES_OF_NEIGHBOUR:
        whole = [_mixed(torch.cat(parts), share) for parts in zip(*(leaves for leaves, _ in outputs), strict=True)]
        cut = zip(*(leaf.split([n[i] for n in sizes]) for i, leaf in enumerate(whole)), strict=True)
        slopes = _slopes(networks[0], whole, form, joined)
        of_parts = zip(*(slope.split([n[i] for n in sizes]) for i, slope in enumerate(slopes)), strict=True)
        found.append(
            [
                _ratio(_vector(of_part), _vector(_slopes(network, leaves, form, y)))
                for network, leaves, of_part, y in zip(networks, cut, of_parts, targets, strict=True)
            ]
        )
    if not all(math.isclose(a, b, rel_tol=_TOLERANCE) for a, b in zip(*found, strict=True)):
        raise ValueError(_NO_SUM)
    return found[0]


_NO_SUM = (
    "The loss is neither a mean nor a sum over samples, nor another sum of its parts' losses with constant weights, so "
    "batches cannot be put together. Hand in the whole as one batch, or take the mean over batches (over='batches')."
)


def _joined(*parts: Any) -> Any:
    return torch.cat(parts) if isinstance(parts[0], Tensor) and parts[0].ndim else parts[0]


def _mixed(outputs: Tensor, share: float) -> Tensor:
    """Each row with a share of its neighbour's; of a convex domain they stay inside."""
    return outputs.lerp(outputs.roll(1, 0), share) if outputs.is_floating_point() else outputs


def _slopes(network: Network, leaves: Sequence[Tensor], form: Any, targets: Any) -> list[Tensor]:
    moved = [leaf.detach().clone().requires_grad_(leaf.is_floating_point()) for leaf in leaves]
    loss = network.loss(tree_unflatten(moved, form), targets)
    wanted = [leaf for leaf in moved if leaf.requires_grad]
    found = iter(torch.autograd.grad(loss, wanted, allow_unused=True))
    slopes = [next(found) if leaf.requires_grad else None for leaf in moved]
    return [torch.zeros_like(leaf) if s is None else s for s, leaf in zip(slopes, moved, strict=True)]


def _vector(slopes: Sequence[Tensor]) -> Tensor:
    return torch.cat([slope.reshape(-1).double() for slope in slopes])


def _ratio(whole: Tensor, part: Tensor) -> float:
    square = part @ part
    if not square > 0:
        raise ValueError(
            "A part's loss does not change with its outputs, so its share in the loss of all data cannot be read off "
            "it. Hand in the whole as one batch, or larger parts."
        )
    weight = whole @ part / square
    if not (whole - weight * part).norm() <= _TOLERANCE * whole.norm():
        raise ValueError(_NO_SUM)
    return float(weight)
