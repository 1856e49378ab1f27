r"""Normalizers at work: whether eval mode will see the network that was trained, dead scales, gradients along depth.

    mean gap        median_j |running_mean_j - mu_j| / sigma_j        of this batch, for layers with running statistics
    variance ratio  median_j running_var_j / var_j                    (l_p layers: of their norms, squared)
    dead            share of gamma_j with |gamma_j| <= 1e-3 max |gamma|
    growth          (||dL/dh_1|| / ||dL/dh_k||)^(1/(k-1))             h_i: output of the i-th weight layer

growth > 1 means that gradients grow towards the input. A BatchNorm ReLU network at initialization has
sqrt(pi/(pi-1)) = 1.21 a layer (seed 003, "Gradient explosion"; the norm, its square grows by 1.467).
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.monitor.snapshot import Snapshot, norm, real
from normscope.norms._inputs import stat_dims
from normscope.norms.kinds import NORM_LAYERS
from normscope.norms.lp import _LpLayer, lp_statistics
from normscope.stability.verdict import Verdict

DEAD = 1e-3
# A channel or two of a wide layer are no finding.
DEAD_SHARE = 0.01
MEAN_GAP, VARIANCE_RATIO = 1.0, 4.0
EXPLODED = 1e3
_SOURCE = 'the encyclopedia article "Batch normalization"'


@dataclass(frozen=True)
class NormHealth:
    """One entry of gaps, ratios (nan without running statistics) and dead shares (nan without gamma) a normalizer.

    grad_norms: ||dL/dh|| at each weight layer of `depth`, in the order they run. settled: batches that running
    statistics have taken in, times momentum; the least of all normalizers, nan where none counts them.
    """

    layers: tuple[str, ...]
    mean_gaps: tuple[float, ...]
    variance_ratios: tuple[float, ...]
    dead: tuple[float, ...]
    depth: tuple[str, ...]
    grad_norms: tuple[float, ...]
    settled: float = math.nan

    @property
    def growth(self) -> float:
        if len(self.grad_norms) < 2 or not self.grad_norms[-1]:
            return math.nan
        return (self.grad_norms[0] / self.grad_norms[-1]) ** (1 / (len(self.grad_norms) - 1))

    def summary(self) -> dict[str, float]:
        return {
            "mean_gap_max": _largest(self.mean_gaps),
            "variance_ratio_max": _largest(self.variance_ratios),
            "dead_gamma_max": _largest(self.dead),
            "grad_growth": self.growth,
        }

    def by_layer(self) -> dict[str, dict[str, float]]:
        rows: dict[str, dict[str, float]] = {}
        for layer, gap, ratio, dead in zip(self.layers, self.mean_gaps, self.variance_ratios, self.dead, strict=True):
            rows[layer] = {"mean_gap": gap, "variance_ratio": ratio, "dead_gamma": dead}
        for layer, size in zip(self.depth, self.grad_norms, strict=True):
            rows.setdefault(layer, {})["output_grad_norm"] = size
        return rows

    def verdicts(self, kind: str) -> list[Verdict]:
        return [*self._statistics(), *self._dead(), *self._depth()]

    def _statistics(self) -> list[Verdict]:
        if not any(map(math.isfinite, self.mean_gaps)):
            return []
        off = [
            layer
            for layer, gap, ratio in zip(self.layers, self.mean_gaps, self.variance_ratios, strict=True)
            if gap > MEAN_GAP or ratio > VARIANCE_RATIO or ratio < 1 / VARIANCE_RATIO
        ]
        if off and self.settled < 1:
            text = (
                "Too early to compare eval mode with the network that is trained: running statistics have seen few "
                "batches. Look again after some 1/momentum steps."
            )
            return [Verdict("statistics", None, text, "batches seen < 1/momentum", _SOURCE + ", inference")]
        others = f" and {len(off) - 1} more" if len(off) > 1 else ""
        text = (
            f"Running statistics of {off[0]}{others} are far from this batch's: eval mode is another network than the "
            "one trained. It takes some 1/momentum steps, or `use_population_statistics`."
            if off
            else "Running statistics are close to this batch's: eval mode sees the network that is trained."
        )
        formula = f"median |running mean - mu|/sigma <= {MEAN_GAP:g}, variance ratio within {VARIANCE_RATIO:g}"
        return [Verdict("statistics", not off, text, formula, _SOURCE + ", inference")]

    def _dead(self) -> list[Verdict]:
        shares = {layer: share for layer, share in zip(self.layers, self.dead, strict=True) if math.isfinite(share)}
        if not shares:
            return []
        layer = max(shares, key=shares.__getitem__)
        dead = shares[layer] >= DEAD_SHARE
        if dead:
            text = f"{shares[layer]:.0%} of the scales of {layer} are dead: those channels carry nothing on."
        elif shares[layer]:
            text = f"Less than {DEAD_SHARE:.0%} of the scales of any normalizer are dead."
        else:
            text = "No scale of a normalizer is dead."
        return [Verdict("gamma", not dead, text, f"|gamma| <= {DEAD:g} max |gamma|", _SOURCE + ", gamma")]

    def _depth(self) -> list[Verdict]:
        if not math.isfinite(self.growth):
            return []
        total = self.grad_norms[0] / self.grad_norms[-1]
        state = "explode" if total > EXPLODED else "vanish" if total < 1 / EXPLODED else ""
        text = (
            f"Gradients {state} towards the input: {total:.2g} times over {len(self.depth)} layers."
            if state
            else f"Gradients keep their size along depth: {self.growth:.2f} times a layer towards the input."
        )
        formula = f"||dL/dh_1|| / ||dL/dh_k|| within {EXPLODED:g}; BatchNorm with ReLU at the start: 1.21 a layer"
        return [Verdict("depth", not state, text, formula, _SOURCE + ", gradient explosion")]


def _largest(values: tuple[float, ...]) -> float:
    return max((v for v in values if math.isfinite(v)), default=math.nan)


class HealthProbe:
    """Measures `NormHealth`; looks into the pass at theta and costs none of its own."""

    name = "health"
    result = NormHealth
    forward_only = False

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self._moments: dict[str, Moments] = {}
        self._grads: dict[str, Tensor] = {}
        self._depth: list[str] = []

    def watch(self, name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if isinstance(module, NORM_LAYERS):
            with torch.no_grad(), torch.autocast(args[0].device.type, enabled=False):
                self._moments.setdefault(name, _moments(module, args[0].detach()))
        elif any(p.ndim > 1 for p in module.parameters()):
            tensor = output[0] if isinstance(output, tuple) else output
            if isinstance(tensor, Tensor) and tensor.requires_grad and name not in self._depth:
                self._depth.append(name)
                tensor.register_hook(lambda grad: self._grads.__setitem__(name, norm(real(grad.detach()))))

    @torch.no_grad()
    def measure(self, snapshot: Snapshot) -> NormHealth:
        _ = snapshot.loss
        # The watched pass moved the running statistics it saw; those of the user are looked at.
        snapshot.at.lent.reset()
        snapshot.at.move_to(snapshot.theta)
        modules = {name: snapshot.at.task.model.get_submodule(name) for name in self._moments}
        norms = [_row(modules[name], moments) for name, moments in self._moments.items()]
        depth = [name for name in self._depth if name in self._grads]
        rows = snapshot.at.mean_over_processes(torch.stack(norms)).tolist() if norms else []
        grads = [self._grads[name] for name in depth]
        sizes = snapshot.at.mean_over_processes(torch.stack(grads)).tolist() if grads else []
        gaps, ratios, dead = zip(*rows, strict=True) if rows else ((), (), ())
        settled = min(map(_settled, modules.values()), default=math.nan)
        return NormHealth(tuple(self._moments), gaps, ratios, dead, tuple(depth), tuple(sizes), settled)


Moments = tuple[Tensor, Tensor, Tensor] | None


def _moments(module: nn.Module, x: Tensor) -> Moments:
    """Mean, variance and what the layer divides by, squared, of this batch; None without running statistics."""
    running = getattr(module, "running_mean", None)
    if running is None or not x.numel():
        return None
    x = x.to(running.dtype)
    variance, mean = torch.var_mean(x, dim=stat_dims(x), correction=0)
    if isinstance(module, _LpLayer):
        return mean, variance, lp_statistics(x, module.p, module.centered, False)[1].square()
    return mean, variance, variance


def _settled(module: nn.Module) -> float:
    """Batches taken in, times momentum; inf for a layer that counts none, keeps their plain mean, or takes none in."""
    seen, momentum = getattr(module, "num_batches_tracked", None), getattr(module, "momentum", None)
    return float(seen) * float(momentum) if seen is not None and momentum and module.training else math.inf


def _row(module: nn.Module, moments: Moments) -> Tensor:
    """Mean gap, variance ratio, dead share; nan for what the layer does not have.

    On the host: a handful of small vectors, of which a GPU would load sorting kernels to take medians.
    """
    gap = ratio = dead = torch.tensor(math.nan, dtype=torch.float64)
    gamma = getattr(module, "weight", None)
    if gamma is not None:
        size = gamma.abs().double().cpu()
        dead = (size <= DEAD * size.max()).double().mean()
    if moments is not None:
        buffers = dict(module.named_buffers())
        spread = module.running_norm.square() if isinstance(module, _LpLayer) else buffers["running_var"]
        mean, variance, divisor, running_mean, running = torch.stack(
            [m.double() for m in (*moments, buffers["running_mean"], spread)]
        ).cpu()
        # A channel that is constant and was so always has 0/0, and is no reason to be silent on the others.
        gap = ((running_mean - mean).abs() / variance.sqrt()).nanquantile(0.5)
        ratio = (running / divisor).nanquantile(0.5)
    return torch.stack([gap, ratio, dead])
