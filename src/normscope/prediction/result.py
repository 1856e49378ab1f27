"""What `predict` found."""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.prediction.calibrated_range import USABLE
from normscope.reporting import Reportable
from normscope.results import plain
from normscope.saving import save_text
from normscope.stability.first_guess import by_theory, starting_rate, theory_advice
from normscope.stability.verdict import Verdict
from normscope.stability.wording import stability_verdict

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
_MODES = {"mean": "move alike", "data": "move apart"}


@dataclass(frozen=True)
class Prediction(Reportable):
    """lambda_max and eta* of a network that was never run.

    lambda_max: with the correction for finite width; lambda_infinite: without it. eta_star: the learning rate at which
        the local quadratic turns unstable, for `optimizer` and `loss`.
    seen: between which multiples of lambda_max networks like this one were measured, on average over seeds; wider where
        a warning says why. Single networks lie further apart (docs/theory.md). Where it is wider than a factor of 3
        `refusal` says so, and no learning rate to start with is named.
    mode: "mean" where the eigenvector is constant over samples, "data" where it is not; mean_mode, data_mode: the
        largest eigenvalue of either kind.
    layers: one row a layer. sigma_w2, sigma_b2, gamma2: as they stand in the model. qh, qh_xy: second moments of what
        enters, of one sample and of two; q, q_xy: of what leaves; variance: what a normalizer divides by. qt, qt_xy:
        squared gradient of one output by what leaves, summed over units and sites, and its product between two samples,
        for the output summed over the batch. mean, data: what the layer's parameters add to the two modes.
    warnings: where the theory is out of its depth. notes: conventions and approximations that were used.
    """

    lambda_max: float
    eta_star: float
    mode: str
    seen: tuple[float, float]
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

    def frame(self) -> "pd.DataFrame":
        """One row a layer, from the input on."""
        import pandas as pd

        return pd.DataFrame(list(self.layers))

    def verdict(self, lr: float) -> Verdict:
        """What a learning rate of `lr` means here, worded for the loss; nothing where the theory cannot tell.

        And which one to start with, where nothing is measured.
        """
        source = f"mean-field theory at initialization, {self.theory}, statistics {self.stats!r}"
        found = stability_verdict(
            lr, self.eta_star, kind=self.loss_kind, rule=self.rule, source=source, residual=0.0, converged=True
        )
        low, high = (self.eta_star / times for times in reversed(self.seen))
        advice = starting_rate(self.start_rate)
        if self.theory != "corrected" or not low <= lr <= high:
            return replace(found, text=found.text + advice)
        doubt = f"Networks like this one were measured to have theirs between {low:.3g} and {high:.3g}, so that theory "
        return replace(found, good=None, text=f"{found.text} {doubt}does not tell: measure to be sure.{advice}")

    @property
    def refusal(self) -> str:
        """Why the theory names no learning rate for this network, and what does; empty where it names one.

        The numbers stay, for what they say of the layers: between which multiples of lambda_max such networks were
        measured is known, and is too wide.
        """
        low, high = self.seen
        if self.theory != "corrected" or high <= USABLE * low:
            return ""
        return (
            f"No learning rate can be named from theory: networks like this one were measured at {low:.2g} to "
            f"{high:,.3g} times this lambda_max, a range of more than a factor of {USABLE:g}. Measure this one on one "
            "batch instead (ns.measure; normscope measure)."
        )

    @property
    def start_rate(self) -> float:
        """The learning rate to start training with; nan where there is none, and for the theory as printed."""
        return math.nan if self.theory != "corrected" or self.refusal else by_theory(self.eta_star)

    @property
    def advice(self) -> str:
        """`start_rate` in words with what is known of it, or why there is none."""
        if self.theory != "corrected":
            return ""
        return self.refusal or theory_advice(self.eta_star, self.loss_kind)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"kind": "prediction", "schema": SCHEMA} | plain(
            asdict(self) | {"start_rate": self.start_rate, "advice": self.advice, "refusal": self.refusal}
        )

    def to_json(self) -> str:
        return json.dumps(self.plain(), indent=1, allow_nan=False)

    def save(self, path: str | Path) -> None:
        """As plain JSON; numbers that JSON has no word for (inf, nan) as strings."""
        save_text(path, self.to_json() + "\n")

    def _sections(self) -> Sequence[Any]:
        from normscope.report.sections.stability import prediction_section

        return [prediction_section("Prediction", self.plain())]

    def summary(self) -> str:
        """The answer or why there is none, the modes, and every warning and note."""
        other = "data" if self.mode == "mean" else "mean"
        beside = {"mean": self.mean_mode, "data": self.data_mode}[other]
        lines = [
            f"lambda_max = {self.lambda_max:.4g} predicted ({self.lambda_infinite:.4g} at infinite width), "
            f"{self.theory} theory, statistics {self.stats!r}, batch of {self.batch_size}",
            f"eta*       = {self.eta_star:.4g} for {self.optimizer} on {self.loss} ({self.rule})",
        ]
        if self.theory == "corrected":
            low, high = self.seen
            lines += [self.advice] if self.advice and not self.refusal else []
            if not self.refusal:
                lines.append(
                    f"networks like this one had {low:.2g} to {high:.3g} times this lambda_max, measured over seeds"
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
