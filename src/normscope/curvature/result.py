"""The result of `measure`: lambda_max, eta* and the numbers that follow from them, each with its residual or spread."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from normscope.curvature.eigensolvers.lanczos import Memory
from normscope.curvature.operators.matrices import MATRICES
from normscope.results import plain, write_json
from normscope.results.reporting import Reportable
from normscope.stability.first_guess_words import also_beyond, beyond, far_below, first_guess_sentence
from normscope.stability.verdict import Verdict
from normscope.stability.wording import stability_verdict

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 2


@dataclass(frozen=True)
class Measurement(Reportable):
    """The result of `measure`: lambda_max with its relative residual, eta*, and the numbers that follow from them.

    The critical rate and the first guess are nan in three cases, and a note gives the reason: stats is not "batch", the
    products are not in the model's own precision, or the search for the critical rate failed.

    Attributes:
        eta_star: the stability limit, a learning rate: above it, steps on the local quadratic grow.
        lambda_max: the largest eigenvalue of `matrix`, one over a learning rate.
        residual: the relative residual |A v - lambda v| / |lambda| of lambda_max; no unit.
        converged: whether the residual has reached the solver's tolerance.
        rule: the formula of eta_star.
        optimizer: the optimizer that eta_star is for, with its settings.
        first_guess: the learning rate to begin a search with; nan for losses and optimizers that were not tried.
        first_guess_range: the lowest and the highest first guess over the batches, learning rates.
        advice: first_guess and its range in words, "" where there is none.
        critical_rate: the learning rate at which the loss along the coming update is back at its value here.
        critical_rates: the critical rate of each batch in turn, with over="first"; one where batches were put together.
        lambda_by_batch: lambda_max of each batch in turn: searched on the first, lower bounds on the others.
        by_layer: lambda_max of each layer's own block, by the layer's name; empty unless layers=True.
        layer_residuals: the relative residual of each of them.
        by_statistics: lambda_max in each statistics mode asked for, by the mode's name. "frozen" beside another mode is
            nan, with a note, where statistics over the batch come from no known normalizer and cannot be held.
        statistics_residuals: the relative residual of each of them.
        hessian_max: the largest eigenvalue of the Hessian, nan where not asked for.
        hessian_min: the smallest eigenvalue of the Hessian, nan where not asked for.
        hessian_residual: the larger of their two relative residuals.
        notes: conventions that were used, and searches that did not converge.
        loss: the value of the loss on the batch.
        loss_kind: the kind of the loss: "squared", "cross_entropy" or "other".
        loss_name: the name of the loss.
        matrix: "ggn" (generalized Gauss-Newton), "hessian" or "fisher".
        stats: how batch statistics were read, "batch", "frozen" or "running".
        factor: eta_star times lambda_max; no unit.
        preconditioned: whether the eigenvalues are of P^-1/2 (A + weight decay) P^-1/2, P the optimizer's diagonal.
        products: the number of products v -> A v that the search made.
        stderr: the standard error of lambda_max where the matrix is sampled, else 0.
        settings: arguments that the numbers depend on.
        environment: versions and device.
        memory: Ritz pairs that measure(start=...) starts from, up to 12 vectors of the parameters' size.
            dataclasses.replace(result, memory=None) drops the vectors and frees their memory.
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
        warned = beyond(self.first_guess, self.eta_star, self.loss_kind)
        if lr >= self.eta_star and not warned:
            warned = also_beyond(self.first_guess_range, self.eta_star, self.critical_rate)
        advice = first_guess_sentence(*self.first_guess_range) + warned
        advice += far_below(lr, self.first_guess_range[0])
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
        name = MATRICES[self.matrix].words + (", preconditioned by the optimizer" if self.preconditioned else "")
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
