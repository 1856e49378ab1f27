r"""Internal covariate shift: how much a layer's gradient changes because the layers before it were updated.

    G_i  = grad_{W_i} L(W_1, ..., W_k)          G'_i = grad_{W_i} L(W'_1, ..., W'_{i-1}, W_i, ..., W_k)
    shift_i = ||G_i - G'_i||                     cosine_i = <G_i, G'_i> / (||G_i|| ||G'_i||)

on the same batch, with W' the parameters after the step that the optimizer is about to make (or after the paper's plain
gradient step). W_i is the layer's weight; what runs before it is updated whole, biases, gamma and beta included. Layers
are taken in the order they run; parameters that a container holds count as running where the container begins, and so
do those of modules in it that are never called. A weight that other code uses before its own module is called, which no
module call shows, counts from that module on.
Source: arXiv 1805.11604, Definition 2.1; seed 000, Section A.2.1 (Figure 6).

Only the units from layer i on are run for G'_i: the results of the updated ones before it are remembered (`Replay`).
Where nothing runs before a layer, G' is G, and no pass is made.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.choices import check_choice
from normscope.isolation.module_calls import units
from normscope.monitor.snapshot import UPDATES, Snapshot, real
from normscope.stability.verdict import Verdict


@dataclass(frozen=True)
class CovariateShift:
    """One entry for each layer. rerun: layers that could not be answered from memory, being called more than once."""

    update: str
    layers: tuple[str, ...]
    shifts: tuple[float, ...]
    cosines: tuple[float, ...]
    grad_norms: tuple[float, ...]
    rerun: tuple[str, ...]

    def summary(self) -> dict[str, float]:
        cosines = self._defined()
        return {
            "shift_max": max(self.shifts) if all(map(math.isfinite, self.shifts)) else math.nan,
            "shift_cosine_min": min(cosines, default=math.nan),
            "shift_cosine_mean": sum(cosines) / len(cosines) if cosines else math.nan,
        }

    def _defined(self) -> list[float]:
        """Cosines of the layers that have a gradient before and after."""
        return [c for c in self.cosines if math.isfinite(c)]

    def by_layer(self) -> dict[str, dict[str, float]]:
        rows = zip(self.layers, self.shifts, self.cosines, self.grad_norms, strict=True)
        return {
            layer: {"shift": shift, "shift_cosine": cosine, "layer_grad_norm": size}
            for layer, shift, cosine, size in rows
        }

    def verdicts(self, kind: str) -> list[Verdict]:
        cosines = self._defined()
        turned = [layer for layer, c in zip(self.layers, self.cosines, strict=True) if c < 0]
        if turned:
            named = ", ".join(turned[:3]) + (" ..." if len(turned) > 3 else "")
            text = f"The gradient of {len(turned)} of {len(self.layers)} layers is turned round by the update of those "
            text += f"before them ({named})."
        else:
            text = "No layer's gradient is turned round by the update of those before it; the smallest cosine is "
            text += f"{min(cosines, default=math.nan):.2f}."
        text += " BatchNorm does not lower this number in general; it matters with a falling accuracy only."
        formula = "cos(G_i, G'_i) < 0"
        good = True if cosines and not turned else None
        return [Verdict("covariate shift", good, text, formula, "Santurkar et al. 2018, Definition 2.1")]


class ShiftProbe:
    """Measures `CovariateShift` of `layers` (names; all that have a weight matrix or a kernel by default)."""

    name = "shift"
    result = CovariateShift
    forward_only = False
    traces = True

    def __init__(self, update: str = "optimizer", layers: Sequence[str] | None = None) -> None:
        check_choice("update", update, UPDATES)
        self.update = update
        self.layers = None if layers is None else tuple(layers)

    def measure(self, snapshot: Snapshot) -> CovariateShift:
        before, after = snapshot.gradient, snapshot.after(self.update)
        chosen = self._chosen(snapshot)
        starts = _first_uses(snapshot)
        replay = snapshot.replay()
        grads: list[Tensor] = []
        snapshot.at.move_to(snapshot.theta)
        moved = [False] * len(starts)
        for name, index in chosen.items():
            start = snapshot.trace.starts[name]
            now = [i for i, first in enumerate(starts) if first < start and not moved[i]]
            snapshot.at.place({i: after[i] for i in now})
            for i in now:
                moved[i] = True
            if not any(moved):
                grads.append(before[index])
                continue
            # A weight that is shared with a layer before this one has part of its gradient there.
            grads += snapshot.at.gradient([index], replay.before(min(start, starts[index])))[1]
        rows = [_compare(before[index], there) for index, there in zip(chosen.values(), grads, strict=True)]
        shifts, cosines, sizes = zip(*torch.stack(rows).tolist(), strict=True)
        rerun = tuple(sorted(snapshot.trace.repeated, key=snapshot.trace.starts.__getitem__))
        return CovariateShift(self.update, tuple(chosen), shifts, cosines, sizes, rerun)

    def _chosen(self, snapshot: Snapshot) -> dict[str, int]:
        """Layers in the order they run, with the number of the leaf that is their weight."""
        index = {id(leaf): i for i, leaf in enumerate(snapshot.at.lent.leaves)}
        found: dict[str, int] = {}
        _ = snapshot.loss
        for name, module in units(snapshot.at.task.model).items():
            weights = [p for p in module.parameters() if id(p) in index and p.ndim > 1]
            if weights and name in snapshot.trace.starts:
                # Weight normalization's lengths are a column beside the matrix of directions.
                found[name] = index[id(max(weights, key=lambda p: p.numel() > max(p.shape)))]
        for name in self.layers or ():
            check_choice("layer", name, found)
        if not found:
            raise ValueError(
                "The network has no layer with a trainable weight matrix or kernel to look at: covariate shift is that "
                "of layers. Leave 'shift' out of measure=."
            )
        order = sorted(self.layers or found, key=snapshot.trace.starts.__getitem__)
        return {name: found[name] for name in order}


def _first_uses(snapshot: Snapshot) -> list[int]:
    """For each leaf, the number of the first call that it takes part in."""
    index = {id(leaf): i for i, leaf in enumerate(snapshot.at.lent.leaves)}
    starts = snapshot.trace.starts
    uses = [len(starts)] * len(index)
    for name, module in snapshot.at.task.model.named_modules(remove_duplicate=False):
        around = name
        while around and around not in starts:
            around = around.rpartition(".")[0]
        for parameter in module.parameters(recurse=False):
            if id(parameter) in index and around in starts:
                i = index[id(parameter)]
                uses[i] = min(uses[i], starts[around])
    return uses


def _compare(before: Tensor, after: Tensor) -> Tensor:
    """||a - b||, their cosine, ||a||, in float64."""
    a, b = (real(tensor).flatten().double() for tensor in (before, after))
    apart, size = a - b, a.dot(a).sqrt()
    return torch.stack([apart.dot(apart).sqrt(), a.dot(b) / (size * b.dot(b).sqrt()), size])
