"""The result of `predict`."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.prediction.calibrated_range import USABLE
from normscope.results import plain
from normscope.results.reporting import Reportable
from normscope.results.saving import save_text
from normscope.stability.first_guess_rates import rate_from_theory
from normscope.stability.first_guess_words import advice_from_theory, first_guess_sentence
from normscope.stability.verdict import Verdict
from normscope.stability.wording import stability_verdict

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 2
_MEASURE = "Measure this network on one batch instead (ns.measure; normscope measure)."
_MODES = {"mean": "move alike", "data": "move apart"}


@dataclass(frozen=True)
class Prediction(Reportable):
    """lambda_max and eta* of a network, predicted before any training.

    Attributes:
        lambda_max: the largest eigenvalue, with the correction for finite width; one over a learning rate.
        eta_star: the stability limit for `optimizer` and `loss`, a learning rate: above it, steps on the local
            quadratic grow.
        mode: the mode of lambda_max: "mean" where the eigenvector is constant over samples, "data" where it is not.
        calibrated_range: between which multiples of lambda_max similar networks were measured, on average over seeds;
            no unit. A warning says why where it is wider than usual. Single networks lie further apart. Where it spans
            more than a factor of 3, `refusal` says so and no learning rate is named.
        lambda_infinite: the largest eigenvalue without the correction for finite width.
        mean_mode: the largest eigenvalue of the directions in which all samples move alike.
        data_mode: the largest eigenvalue of the directions in which samples move apart.
        rule: the formula of eta_star.
        optimizer: the optimizer that eta_star is for, in words.
        loss: the name of the loss.
        loss_kind: "squared" or "cross_entropy".
        stats: how batch statistics were read, "batch" or "frozen".
        theory: "corrected", or "paper" for the formulas as printed.
        batch_size: the number of samples in a batch.
        outputs: the number of outputs of the network.
        input_shape: the shape of one sample.
        layers: one row for each layer. `frame()` gives the rows as a table, whose columns are explained under Columns.
        warnings: reasons why the theory may be wrong here.
        notes: conventions and approximations that were used.
        outside: the reason why the network is outside the theory's reach, "" where it is not. Outside no learning rate
            is named.
        settings: arguments that the numbers depend on.
        environment: versions and device.
    """

    lambda_max: float
    eta_star: float
    mode: str
    calibrated_range: tuple[float, float]
    lambda_infinite: float
    mean_mode: float
    data_mode: float
    rule: str
    optimizer: str
    loss: str
    loss_kind: str
    stats: str
    theory: str
    batch_size: int
    outputs: int
    input_shape: tuple[int, ...]
    layers: tuple[dict[str, float | str], ...]
    warnings: tuple[str, ...]
    notes: tuple[str, ...]
    settings: dict[str, Any]
    environment: dict[str, str | int]
    outside: str = ""

    def frame(self) -> "pd.DataFrame":
        """The rows of `layers` as a table, from the input to the output."""
        import pandas as pd

        return pd.DataFrame(list(self.layers))

    def verdict(self, lr: float) -> Verdict:
        """Judge the learning rate `lr`, in words that fit the loss, and name the rate to start with.

        Where `lr` lies inside the uncertainty of eta*, the verdict's `good` is None.

        Args:
            lr: the learning rate to judge.

        Returns:
            A `Verdict`; print it, or read its `good`.
        """
        source = f"mean-field theory at initialization, {self.theory}, statistics {self.stats!r}"
        answer = stability_verdict(
            lr, self.eta_star, loss_kind=self.loss_kind, rule=self.rule, source=source, residual=0.0, converged=True
        )
        low, high = (self.eta_star / times for times in reversed(self.calibrated_range))
        advice = first_guess_sentence(self.first_guess)
        if self.theory != "corrected" or not low <= lr <= high:
            return replace(answer, text=answer.text + advice)
        doubt = f"Networks like this one were measured to have theirs between {low:.3g} and {high:.3g}, so that theory "
        return replace(answer, good=None, text=f"{answer.text} {doubt}does not tell: measure to be sure.{advice}")

    @property
    def refusal(self) -> str:
        """The reason why no learning rate is named for this network, and what to do; empty where one is named.

        The other numbers stay, for what they tell about the layers.
        """
        low, high = self.calibrated_range
        if self.theory == "corrected" and self.outside:
            return f"No learning rate is named from theory: {self.outside}. {_MEASURE}"
        if self.theory != "corrected" or high <= USABLE * low:
            return ""
        return (
            f"No learning rate can be named from theory: networks like this one were measured at {low:.2g} to "
            f"{high:,.3g} times this lambda_max, a range of more than a factor of {USABLE:g}. {_MEASURE}"
        )

    @property
    def first_guess(self) -> float:
        """The learning rate to start training with; nan where none is named, and for the theory as printed."""
        return math.nan if self.theory != "corrected" or self.refusal else rate_from_theory(self.eta_star)

    @property
    def advice(self) -> str:
        """`first_guess` in words with its doubt, or the reason why none is named."""
        if self.theory != "corrected":
            return ""
        return self.refusal or advice_from_theory(self.eta_star, self.loss_kind)

    def plain(self) -> dict[str, Any]:
        """The prediction as plain data, for JSON."""
        return {"kind": "prediction", "schema": SCHEMA} | plain(
            asdict(self) | {"first_guess": self.first_guess, "advice": self.advice, "refusal": self.refusal}
        )

    def to_json(self) -> str:
        """The prediction as JSON text."""
        return json.dumps(self.plain(), indent=1, allow_nan=False)

    def save(self, path: str | Path) -> None:
        """Save the prediction as plain JSON; inf and nan, which JSON does not have, as strings."""
        save_text(path, self.to_json() + "\n")

    def _sections(self) -> Sequence[Any]:
        from normscope.report.sections.predictions_and_measurements import prediction_section

        return [prediction_section("Prediction", self.plain())]

    def summary(self) -> str:
        """The answer, or the reason why no rate is named; the modes; every warning and note."""
        other = "data" if self.mode == "mean" else "mean"
        beside = {"mean": self.mean_mode, "data": self.data_mode}[other]
        lines = [
            f"lambda_max = {self.lambda_max:.4g} predicted ({self.lambda_infinite:.4g} at infinite width), "
            f"{self.theory} theory, statistics {self.stats!r}, batch of {self.batch_size}",
            f"eta*       = {self.eta_star:.4g} for {self.optimizer} on {self.loss} ({self.rule})",
        ]
        if self.theory == "corrected":
            low, high = self.calibrated_range
            lines += [self.advice] if self.advice and not self.refusal else []
            if not self.refusal:
                lines.append(
                    f"Measured on similar networks: {low:.2g} to {high:.3g} times this lambda_max (means over seeds)"
                )
        if math.isfinite(beside):
            lines.append(
                f"{self.mode} mode: a direction in which samples {_MODES[self.mode]}; the largest in which they "
                f"{_MODES[other]} ({other} mode) has {beside:.4g}"
            )
        lines += [f"! {warning}" for warning in self.warnings] + [f"- {note}" for note in self.notes]
        return "\n".join([self.refusal, *lines] if self.refusal else lines)

    def __str__(self) -> str:
        return self.summary()
