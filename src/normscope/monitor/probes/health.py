r"""Health of the normalizers: running statistics against the batch's, dead scales, gradients along depth.

    mean gap        median_j |running_mean_j - mu_j| / sigma_j        of this batch, for layers with running statistics
    variance ratio  median_j running_var_j / var_j                    (l_p layers: of their norms, squared)
    dead            share of gamma_j with |gamma_j| <= 1e-3 max |gamma|
    growth          (||dL/dh_1|| / ||dL/dh_k||)^(1/(k-1))             h_i: output of the i-th weight layer

growth > 1 means that gradients grow towards the input. In a BatchNorm ReLU network at initialization the gradient's
norm grows by sqrt(pi/(pi-1)) = 1.21 a layer, and its square by 1.467 (the encyclopedia article "Batch normalization",
section "Gradient explosion").
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.monitor.snapshot import Snapshot, norm, real
from normscope.norms.channels import stat_dims
from normscope.norms.kinds import NORM_LAYERS
from normscope.norms.lp import LpNormLayer, lp_statistics
from normscope.norms.recognition import known, named_like_a_norm, recognize
from normscope.stability.verdict import Verdict

DEAD = 1e-3
# Share of dead scales from which a verdict reports them: one or two dead channels of a wide layer are normal.
DEAD_SHARE = 0.01
MEAN_GAP, VARIANCE_RATIO = 1.0, 4.0
EXPLODED = 1e3
# Gradients keep their size if they change by at most this factor from one layer to the next.
KEPT = 2.0
_SOURCE = 'the encyclopedia article "Batch normalization"'


@dataclass(frozen=True)
class NormHealth:
    """State of each normalizer, and gradient norms along depth.

    Attributes:
        layers: names of the normalizers; the next three fields have one entry for each.
        mean_gaps: median distance of the running means from the batch's, in standard deviations; nan without running
            statistics.
        variance_ratios: median ratio of the running variance to the batch's; nan without running statistics.
        dead: share of the scales (gamma) that are zero beside the largest, from 0 to 1; nan without gamma.
        depth: names of the weight layers in the order they run.
        grad_norms: ||dL/dh|| at the output h of each weight layer.
        settled: batches that the running statistics have averaged over, times momentum; the smallest number of all
            normalizers, nan if none counts its batches.
        unjudged: names of layers whose running statistics are not compared, because they derive from torch's or
            normscope's and compute something else; without them no verdict calls the statistics close.
    """

    layers: tuple[str, ...]
    mean_gaps: tuple[float, ...]
    variance_ratios: tuple[float, ...]
    dead: tuple[float, ...]
    depth: tuple[str, ...]
    grad_norms: tuple[float, ...]
    settled: float = math.nan
    unjudged: tuple[str, ...] = ()

    @property
    def growth(self) -> float:
        """Factor by which the gradient norm grows towards the input, a layer; nan with fewer than two layers."""
        if len(self.grad_norms) < 2 or not self.grad_norms[-1]:
            return math.nan
        return (self.grad_norms[0] / self.grad_norms[-1]) ** (1 / (len(self.grad_norms) - 1))

    def summary(self) -> dict[str, float]:
        """Largest mean gap, variance ratio and dead share of all normalizers; growth of the gradient a layer."""
        return {
            "mean_gap_max": _largest(self.mean_gaps),
            "variance_ratio_max": _largest(self.variance_ratios),
            "dead_gamma_max": _largest(self.dead),
            "grad_growth": self.growth,
        }

    def by_layer(self) -> dict[str, dict[str, float]]:
        """Gap, ratio and dead share of each normalizer; gradient norm of each weight layer."""
        rows: dict[str, dict[str, float]] = {}
        for layer, gap, ratio, dead in zip(self.layers, self.mean_gaps, self.variance_ratios, self.dead, strict=True):
            rows[layer] = {"mean_gap": gap, "variance_ratio": ratio, "dead_gamma": dead}
        for layer, size in zip(self.depth, self.grad_norms, strict=True):
            rows.setdefault(layer, {})["output_grad_norm"] = size
        return rows

    def verdicts(self, loss_kind: str) -> list[Verdict]:
        """Verdicts on running statistics, dead scales and gradients along depth, as far as each applies."""
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
                "Too early to compare eval mode with the trained network: the running statistics average over too few "
                "batches. Measure again after about 1/momentum steps."
            )
            return [Verdict("statistics", None, text, "batches seen < 1/momentum", _SOURCE + ", inference")]
        if not off and self.unjudged:
            return []
        others = f" and {len(off) - 1} more" if len(off) > 1 else ""
        text = (
            f"Running statistics of {off[0]}{others} are far from this batch's: eval mode computes another function "
            "than train mode. Train about 1/momentum more steps, or call `use_population_statistics`."
            if off
            else "Running statistics lie within one deviation and a factor of 4 of this batch's (medians)."
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
            text = f"{shares[layer]:.0%} of the scales of {layer} are dead: those channels pass no signal on."
        elif shares[layer]:
            text = f"Less than {DEAD_SHARE:.0%} of the scales of any normalizer are dead."
        else:
            text = "No scale (gamma) of a normalizer is dead."
        return [Verdict("gamma", not dead, text, f"|gamma| <= {DEAD:g} max |gamma|", _SOURCE + ", gamma")]

    def _depth(self) -> list[Verdict]:
        if not math.isfinite(self.growth):
            return []
        total = self.grad_norms[0] / self.grad_norms[-1]
        state = "explode" if total > EXPLODED else "vanish" if total < 1 / EXPLODED else ""
        change = f"by a factor of {total:.2g} over {len(self.depth)} layers"
        if total == 0:
            text = f"No gradient reaches the first of {len(self.depth)} layers: it does not learn."
        elif state:
            text = f"Gradients {state} towards the input: {change}."
        elif 1 / KEPT <= self.growth <= KEPT:
            text = f"Gradients keep their size along depth: a factor of {self.growth:.2f} a layer towards the input."
        else:
            word = "grow" if total > 1 else "shrink"
            text = f"Gradients {word} towards the input: {change}, which is within bounds."
        formula = f"||dL/dh_1|| / ||dL/dh_k|| within {EXPLODED:g}; BatchNorm with ReLU at the start: 1.21 a layer"
        return [Verdict("depth", not state, text, formula, _SOURCE + ", gradient explosion")]


def _largest(values: tuple[float, ...]) -> float:
    return max((v for v in values if math.isfinite(v)), default=math.nan)


class HealthProbe:
    """Measures `NormHealth` in the pass at theta; costs no pass of its own."""

    name = "health"
    forward_only = False

    def __init__(self) -> None:
        self._like_their_base: dict[type, bool] = {}
        self.begin()

    def begin(self) -> None:
        """Forget the moments and gradients of the snapshot before."""
        self._moments: dict[str, Moments] = {}
        self._grads: dict[str, Tensor] = {}
        self._depth: list[str] = []
        self._unread: dict[str, str] = {}
        self._unjudged: dict[str, str] = {}

    @property
    def notes(self) -> list[str]:
        """A note on layers that look like normalizers and are not read, or on a model without any."""
        how = "A class of your own is read where it derives from torch's: class MyNorm(nn.LayerNorm)."
        if self._unjudged:
            first, kind = next(iter(self._unjudged.items()))
            others = f" and {len(self._unjudged) - 1} more" if len(self._unjudged) > 1 else ""
            return [
                f"The running statistics of {first} ({kind}){others} are not compared with the batch's: the class has "
                "a forward of its own, so what eval mode computes does not follow from them."
            ]
        if self._unread:
            first, kind = next(iter(self._unread.items()))
            others = f" and {len(self._unread) - 1} more" if len(self._unread) > 1 else ""
            return [
                f"The health of {first} ({kind}){others} is not measured: the class is no normalizer that is known "
                f"here, and its numbers are nan. {how}"
            ]
        if not self._moments:
            return [f"No normalizer was found, so mean gap, variance ratio and dead scales are nan. {how}"]
        return []

    def watch(self, name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """Take the moments of a normalizer's input, or hook the gradient at a weight layer's output."""
        if isinstance(module, NORM_LAYERS):
            with torch.no_grad(), torch.autocast(args[0].device.type, enabled=False):
                self._moments.setdefault(name, _moments(module, args[0].detach()))
        elif any(p.ndim > 1 for p in module.parameters()):
            tensor = output[0] if isinstance(output, tuple) else output
            if isinstance(tensor, Tensor) and tensor.requires_grad and name not in self._depth:
                self._depth.append(name)
                tensor.register_hook(lambda grad: self._grads.__setitem__(name, norm(real(grad.detach()))))
        elif named_like_a_norm(module):
            self._unread[name] = type(module).__name__

    @torch.no_grad()
    def measure(self, snapshot: Snapshot) -> NormHealth:
        """The health of all normalizers that the pass at theta called."""
        _ = snapshot.loss
        # The watched pass updated the running statistics; put the user's values back to compare with them.
        snapshot.at.lent.reset()
        snapshot.at.move_to(snapshot.theta)
        modules = {name: snapshot.at.task.model.get_submodule(name) for name in self._moments}
        for name, module in modules.items():
            if self._moments[name] is not None and not self._computes_as_its_base(module):
                self._moments[name], self._unjudged[name] = None, type(module).__name__
        norms = [_row(modules[name], moments) for name, moments in self._moments.items()]
        depth = [name for name in self._depth if name in self._grads]
        rows = snapshot.at.mean_over_processes(torch.stack(norms)).tolist() if norms else []
        grads = [self._grads[name] for name in depth]
        sizes = snapshot.at.mean_over_processes(torch.stack(grads)).tolist() if grads else []
        gaps, ratios, dead = zip(*rows, strict=True) if rows else ((), (), ())
        settled = min(map(_settled, modules.values()), default=math.nan)
        return NormHealth(
            tuple(self._moments), gaps, ratios, dead, tuple(depth), tuple(sizes), settled, tuple(self._unjudged)
        )

    def _computes_as_its_base(self, module: nn.Module) -> bool:
        """Whether a layer computes what the class of torch or normscope does that it is or derives from."""
        if known(module):
            return True
        if type(module) not in self._like_their_base:
            recognized = recognize(module)
            self._like_their_base[type(module)] = recognized is not None and recognized.twin is not None
        return self._like_their_base[type(module)]


Moments = tuple[Tensor, Tensor, Tensor] | None


def _moments(module: nn.Module, x: Tensor) -> Moments:
    """Mean, variance and squared divisor of this batch; None for a layer without running statistics."""
    running = getattr(module, "running_mean", None)
    if running is None or not x.numel():
        return None
    x = x.to(running.dtype)
    variance, mean = torch.var_mean(x, dim=stat_dims(x), correction=0)
    if isinstance(module, LpNormLayer):
        return mean, variance, lp_statistics(x, module.p, module.centered, False)[1].square()
    return mean, variance, variance


def _settled(module: nn.Module) -> float:
    """Batches in the running statistics, times momentum.

    inf for a layer that counts no batches, keeps their plain mean, or does not update its statistics (eval mode).
    """
    batches, momentum = getattr(module, "num_batches_tracked", None), getattr(module, "momentum", None)
    return float(batches) * float(momentum) if batches is not None and momentum and module.training else math.inf


def _row(module: nn.Module, moments: Moments) -> Tensor:
    """Mean gap, variance ratio and dead share of a normalizer; nan for each that the layer does not have.

    Computed on the host: the vectors are small, and a GPU would load sorting kernels to take their medians.
    """
    gap = ratio = dead = torch.tensor(math.nan, dtype=torch.float64)
    gamma = getattr(module, "weight", None)
    if gamma is not None:
        size = gamma.abs().double().cpu()
        dead = (size <= DEAD * size.max()).double().mean()
    if moments is not None:
        buffers = dict(module.named_buffers())
        spread = module.running_norm.square() if isinstance(module, LpNormLayer) else buffers["running_var"]
        mean, variance, divisor, running_mean, running = torch.stack(
            [m.double() for m in (*moments, buffers["running_mean"], spread)]
        ).cpu()
        # A channel that was always constant gives 0/0 = nan; `nanquantile` takes the median of the others.
        gap = ((running_mean - mean).abs() / variance.sqrt()).nanquantile(0.5)
        ratio = (running / divisor).nanquantile(0.5)
    return torch.stack([gap, ratio, dead])
