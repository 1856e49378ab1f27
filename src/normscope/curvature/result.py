"""The result of `measure`: lambda_max, eta* and the numbers that follow from them, each with its residual or spread."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from normscope.curvature.eigensolvers.lanczos import Memory
from normscope.reporting import Reportable
from normscope.results import plain, write_json
from normscope.stability.first_guess import beyond, first_guess_sentence
from normscope.stability.verdict import Verdict
from normscope.stability.wording import stability_verdict

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 2
_NAMES = {"ggn": "generalized Gauss-Newton matrix", "hessian": "Hessian", "fisher": "Fisher matrix"}


@dataclass(frozen=True)
class Measurement(Reportable):
    """lambda_max of `matrix` with its relative residual, and the numbers that follow from it.

    eta_star: the learning rate at which the local quadratic turns unstable, by `rule`, for this `optimizer` and the
        loss `loss_name`, whose value is `loss`. stderr: of lambda_max where the matrix is sampled, else 0.
    hessian_max, hessian_min: the ends of the Hessian's spectrum, nan where not asked for. hessian_residual: the larger
        of their two relative residuals.
    by_statistics, statistics_residuals: lambda_max in each statistics mode asked for, and its residual.
    by_layer, layer_residuals: lambda_max of each layer's own block, and its residual.
    notes: conventions that were used, and searches that did not converge.
    memory: Ritz pairs that measure(start=...) starts from, up to 12 vectors of the parameters' size. To free them, use
        dataclasses.replace(result, memory=None).
    preconditioned: whether the numbers are those of P^-1/2 (A + weight decay) P^-1/2, P the optimizer's diagonal.
    critical_rate: the critical rate, at which the loss along the coming update is back at its value here.
    critical_rates, lambda_by_batch: critical rate and lambda_max of each batch in turn, over="first". The first
        lambda_max is the searched one, the others are lower bounds. One entry where the batches were put together.
    first_guess, first_guess_range, advice: the learning rate to start training with, its range over the batches, and
        both in words. nan or empty for losses and optimizers that were not tried.

    The critical rate, and all that follows from it, is nan unless stats="batch" and the products are in the model's own
    precision, and where the search failed; a note then gives the reason.
    """

    lambda_max: float
    residual: float
    converged: bool
    stderr: float
    eta_star: float
    factor: float
    rule: str
    optimizer: str
    loss: float
    loss_kind: str
    loss_name: str
    matrix: str
    stats: str
    products: int
    hessian_max: float
    hessian_min: float
    hessian_residual: float
    by_statistics: dict[str, float]
    statistics_residuals: dict[str, float]
    by_layer: dict[str, float]
    layer_residuals: dict[str, float]
    notes: tuple[str, ...]
    settings: dict[str, Any]
    environment: dict[str, str | int]
    preconditioned: bool = False
    critical_rate: float = math.nan
    critical_rates: tuple[float, ...] = ()
    lambda_by_batch: tuple[float, ...] = ()
    first_guess: float = math.nan
    first_guess_range: tuple[float, float] = (math.nan, math.nan)
    advice: str = ""
    memory: Memory | None = field(repr=False, compare=False, default=None)

    @property
    def vector(self) -> Tensor:
        """The top eigenvector, over the measured parameters in their order; empty where the memory was freed.

        For a preconditioned matrix it is u, whose direction in the parameters is P^-1/2 u.
        """
        # A copy: saving a row of the memory would save all the others with it.
        return torch.zeros(0) if self.memory is None else self.memory.vectors[0].clone()

    def verdict(self, lr: float) -> Verdict:
        """A sentence on what a learning rate of `lr` means for this loss, and on the rate to start with.

        Args:
            lr: the learning rate to judge.

        Returns:
            A `Verdict`; print it, or read its `good`.
        """
        stability = stability_verdict(
            lr,
            self.eta_star,
            loss_kind=self.loss_kind,
            rule=self.rule,
            source=f"curvature of this batch, {self.matrix}, {self.stats}",
            residual=self.residual,
            converged=self.converged,
            ends=(self.hessian_min, self.hessian_max),
        )
        advice = first_guess_sentence(*self.first_guess_range) + beyond(self.first_guess, self.eta_star, self.loss_kind)
        return replace(stability, text=stability.text + advice)

    def frame(self) -> "pd.DataFrame":
        """A table with one row for each layer: lambda_max of its own block, its residual, and eta* if it alone trained.

        Empty unless layers=True was asked for.
        """
        import pandas as pd

        rows = [
            {
                "layer": name,
                "lambda_max": value,
                "share": value / self.lambda_max if self.lambda_max else float("nan"),
                "eta_star": self.factor / value if value > 0 else float("inf"),
                "residual": self.layer_residuals[name],
            }
            for name, value in self.by_layer.items()
        ]
        return pd.DataFrame(rows, columns=["layer", "lambda_max", "share", "eta_star", "residual"])

    def plain(self) -> dict[str, Any]:
        """The result as a plain dictionary for JSON: everything but the vectors."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "memory"}
        return {"kind": "measurement", "schema": SCHEMA} | plain(values)

    def save(self, path: str | Path) -> None:
        """Write the result as plain JSON, with inf and nan as strings."""
        write_json(path, self.plain())

    def _sections(self) -> Sequence[Any]:
        from normscope.report.sections.predictions_and_measurements import measurement_section

        return [measurement_section("Measurement", self.plain())]

    def __str__(self) -> str:
        doubt = f"relative residual {self.residual:.1e} after {self.products} products"
        doubt += "" if self.converged else ", NOT CONVERGED"
        doubt += f", standard error {self.stderr:.2g}" if self.stderr else ""
        name = _NAMES[self.matrix] + (", preconditioned by the optimizer" if self.preconditioned else "")
        lines = [
            f"lambda_max = {self.lambda_max:.4g} of the {name}, statistics {self.stats!r} ({doubt})",
            f"eta*       = {self.eta_star:.4g} for {self.optimizer} on {self.loss_name} ({self.rule})",
        ]
        lines += [self.advice] if self.advice else []
        if not math.isnan(self.hessian_max):
            word = "Hessian, preconditioned," if self.preconditioned else "Hessian   "
            lines.append(f"{word} from {self.hessian_min:.4g} to {self.hessian_max:.4g}")
        if len(self.by_statistics) > 1:
            pairs = ", ".join(f"{name} {value:.4g}" for name, value in self.by_statistics.items())
            lines.append(f"lambda_max by statistics: {pairs}")
        if self.by_layer:
            name = max(self.by_layer, key=self.by_layer.__getitem__)
            lines.append(f"largest layer: {name} with {self.by_layer[name]:.4g} of its own")
        return "\n".join(lines + [f"- {note}" for note in self.notes])
