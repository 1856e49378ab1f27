"""neural-observatory 0.5.1: the whole training watched by an `Observatory` with its default settings."""

import logging

from neural_observatory import Observatory

from faults.opponents import Found, merged
from faults.training import stepwise
from normscope import Setup

# A part of a warning's text: problem. A warning that stands for no problem keeps its analyzer's name.
PROBLEMS = {
    "NaN": "rate-beyond-limit",
    "Inf": "rate-beyond-limit",
    "Vanishing gradients": "gradients-vanish",
    "Gradient norm collapsed": "gradients-vanish",
    "Exploding gradients": "gradients-explode",
    "norm spike(s)": "loss-spike-ahead",
    "neurons": "dead-channels",
    "High parameter drift": "rate-beyond-limit",
    "Large step-to-step parameter change": "rate-beyond-limit",
    "Low attention entropy": "attention-logits-grow",
}
SEVERITIES = {"warning": "warning", "critical": "error"}


def findings(setup: Setup) -> list[Found]:
    """Train under the observatory, and take its warnings, the most severe first."""
    logging.getLogger("neural_observatory").setLevel(logging.CRITICAL)
    observatory = Observatory(setup.model)
    observatory.watch()
    observatory.step(step=0)
    for step, _ in enumerate(stepwise(setup), 1):
        observatory.step(step=step)
    observatory.stop()
    results = sorted(observatory.report().warnings(), key=lambda result: -result.severity)
    return merged(
        Found(_problem(text, result.analyzer_name), SEVERITIES[result.status.value], f"{result.layer_name}: {text}")
        for result in results
        for text in result.warnings
    )


def _problem(text: str, analyzer: str) -> str:
    named = [problem for part, problem in PROBLEMS.items() if part in text]
    return named[0] if named else analyzer
