r"""Internal covariate shift: how much a layer's gradient changes because the layers before it were updated.

    G_i  = grad_{W_i} L(W_1, ..., W_k)          G'_i = grad_{W_i} L(W'_1, ..., W'_{i-1}, W_i, ..., W_k)
    shift_i = ||G_i - G'_i||                     cosine_i = <G_i, G'_i> / (||G_i|| ||G'_i||)

on the same batch. W' are the parameters after the optimizer's coming step (or after the paper's plain gradient step).
W_i is the weight of layer i; all parameters that run before layer i are updated: weights, biases, gamma and beta.

Layers are numbered in the order they run. Parameters held by a container itself, or by modules inside a container that
are never called, count as running when the container begins. If other code uses a weight before the weight's own
module is called, no module call shows that use, and the weight counts from its module on.

To compute G'_i, only the units from layer i on are run: the outputs of the updated units before it are stored
(`Replay`). If nothing runs before a layer, G' equals G, and no pass is made.

Source: Santurkar et al. 2018 (arXiv 1805.11604), Definition 2.1; Section A.2.1 and Figure 6.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.isolation.module_calls import units
from normscope.messages.choices import check_choice
from normscope.monitor.snapshot import UPDATES, Snapshot, real
from normscope.stability.verdict import Verdict


@dataclass(frozen=True)
class CovariateShift:
    """The covariate shift of each layer; the tuples have one entry a layer, in the order the layers run.

    Attributes:
        update: "optimizer" or "gradient": the update of earlier layers that was tried.
        layers: names of the layers.
        shifts: ||G - G'||, in the unit of the gradient.
        cosines: cosine between G and G', from -1 to 1; nan if one of them is zero.
        grad_norms: ||G||, in the unit of the gradient.
        rerun: names of layers that were computed again, since a layer called more than once is not stored.
    """

    update: str
    layers: tuple[str, ...]
    shifts: tuple[float, ...]
    cosines: tuple[float, ...]
    grad_norms: tuple[float, ...]
    rerun: tuple[str, ...]

    def summary(self) -> dict[str, float]:
        """Largest shift, smallest and mean cosine over the layers."""
        cosines = self._defined()
        return {
            "shift_max": max(self.shifts) if all(map(math.isfinite, self.shifts)) else math.nan,
            "shift_cosine_min": min(cosines, default=math.nan),
            "shift_cosine_mean": sum(cosines) / len(cosines) if cosines else math.nan,
        }

    def _defined(self) -> list[float]:
        """The cosines of layers whose gradient is nonzero before and after the update."""
        return [c for c in self.cosines if math.isfinite(c)]

    def by_layer(self) -> dict[str, dict[str, float]]:
        """Shift, cosine and gradient norm of each layer."""
        rows = zip(self.layers, self.shifts, self.cosines, self.grad_norms, strict=True)
        return {
            layer: {"shift": shift, "shift_cosine": cosine, "layer_grad_norm": size}
            for layer, shift, cosine, size in rows
        }

    def verdicts(self, loss_kind: str) -> list[Verdict]:
        """One verdict: whether the update of earlier layers reverses the gradient of a later one."""
        cosines = self._defined()
        turned = [layer for layer, c in zip(self.layers, self.cosines, strict=True) if c < 0]
        if turned:
            named = ", ".join(turned[:3]) + (" ..." if len(turned) > 3 else "")
            text = f"The update of earlier layers reverses the gradient of {len(turned)} of {len(self.layers)} layers "
            text += f"({named})."
        else:
            text = "The update of earlier layers reverses the gradient of no layer; the smallest cosine is "
            text += f"{min(cosines, default=math.nan):.2f}."
        text += " BatchNorm does not lower this number in general; it matters only if accuracy falls, too."
        formula = "cos(G_i, G'_i) < 0"
        good = True if cosines and not turned else None
        return [Verdict("covariate shift", good, text, formula, "Santurkar et al. 2018, Definition 2.1")]


class ShiftProbe:
    """Measures `CovariateShift`; costs about one pass a layer, from that layer on.

    Args:
        update: "optimizer" for the optimizer's coming update, "gradient" for the paper's plain gradient step.
        layers: names of layers; by default all layers with a weight matrix or a convolution kernel.
    """

    name = "shift"
    forward_only = False
    traces = True

    def __init__(self, update: str = "optimizer", layers: Sequence[str] | None = None) -> None:
        check_choice("update", update, UPDATES)
        self.update = update
        self.layers = None if layers is None else tuple(layers)

    def measure(self, snapshot: Snapshot) -> CovariateShift:
        """The covariate shift of every chosen layer.

        Raises:
            ValueError: the network has no such layer, or the optimizer's update is asked for without an optimizer.
        """
        before, after = snapshot.gradient, snapshot.after(self.update)
        chosen = self._chosen(snapshot)
        starts = _first_uses(snapshot)
        replay = snapshot.replay()
        grads: list[Tensor] = []
        snapshot.at.move_to(snapshot.theta)
        moved = [False] * len(starts)
        for name, index in chosen.items():
            layer_start = snapshot.trace.starts[name]
            now = [i for i, first in enumerate(starts) if first < layer_start and not moved[i]]
            snapshot.at.place({i: after[i] for i in now})
            for i in now:
                moved[i] = True
            if not any(moved):
                grads.append(before[index])
                continue
            # Part of the gradient of a shared weight comes from the first layer that uses the weight.
            grads += snapshot.at.gradient([index], replay.before(min(layer_start, starts[index])))[1]
        rows = [_compare(before[index], grad) for index, grad in zip(chosen.values(), grads, strict=True)]
        shifts, cosines, sizes = zip(*torch.stack(rows).tolist(), strict=True)
        rerun = tuple(sorted(snapshot.trace.repeated, key=snapshot.trace.starts.__getitem__))
        return CovariateShift(self.update, tuple(chosen), shifts, cosines, sizes, rerun)

    def _chosen(self, snapshot: Snapshot) -> dict[str, int]:
        """The chosen layers in the order they run, each with the index of its weight among the leaves."""
        index = {id(leaf): i for i, leaf in enumerate(snapshot.at.lent.leaves)}
        weight_of: dict[str, int] = {}
        _ = snapshot.loss
        for name, module in units(snapshot.at.task.model).items():
            weights = [p for p in module.parameters() if id(p) in index and p.ndim > 1]
            if weights and name in snapshot.trace.starts:
                # Weight normalization has two such parameters: the matrix of directions, and a column of lengths.
                weight_of[name] = index[id(max(weights, key=lambda p: p.numel() > max(p.shape)))]
        for name in self.layers or ():
            check_choice("layer", name, weight_of)
        if not weight_of:
            raise ValueError(
                "The network has no layer with a trainable weight matrix or kernel, so it has no covariate shift. "
                "Leave 'shift' out of measure=."
            )
        order = sorted(self.layers or weight_of, key=snapshot.trace.starts.__getitem__)
        return {name: weight_of[name] for name in order}


def _first_uses(snapshot: Snapshot) -> list[int]:
    """The number of the first module call that uses each leaf."""
    index = {id(leaf): i for i, leaf in enumerate(snapshot.at.lent.leaves)}
    starts = snapshot.trace.starts
    uses = [len(starts)] * len(index)
    for name, module in snapshot.at.task.model.named_modules(remove_duplicate=False):
        called = name
        while called and called not in starts:
            called = called.rpartition(".")[0]
        for parameter in module.parameters(recurse=False):
            if id(parameter) in index and called in starts:
                i = index[id(parameter)]
                uses[i] = min(uses[i], starts[called])
    return uses


def _compare(before: Tensor, after: Tensor) -> Tensor:
    """||a - b||, the cosine between a and b, and ||a||, in float64."""
    a, b = (real(tensor).flatten().double() for tensor in (before, after))
    difference, size = a - b, a.dot(a).sqrt()
    return torch.stack([difference.dot(difference).sqrt(), a.dot(b) / (size * b.dot(b).sqrt()), size])
