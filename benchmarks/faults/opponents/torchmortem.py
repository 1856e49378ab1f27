"""torchmortem 0.1.1: the whole training inside `Autopsy`, as its page shows."""

from torchmortem import Autopsy

from faults.opponents import Found, merged
from faults.training import stepwise
from normscope import Setup

# Start of a finding's title: problem. A title that stands for no problem is kept.
PROBLEMS = {
    "Vanishing gradients": "gradients-vanish",
    "Gradient stalling": "gradients-vanish",
    "Exploding gradients": "gradients-explode",
    "Dead units": "dead-channels",
    "Update ratio too high": "rate-beyond-limit",
    "High gradient noise": "small-batch-noise",
    "Weight norm explosion": "rate-beyond-limit",
    "Training divergence": "rate-beyond-limit",
    "Catapult phase": "rate-beyond-limit",
    "Edge of stability": "rate-beyond-limit",
}
SEVERITIES = {"INFO": "note", "WARNING": "warning", "CRITICAL": "error"}


def findings(setup: Setup) -> list[Found]:
    """Train with the autopsy attached, and take the findings of its report in its order."""
    with Autopsy(setup.model, optimizer=setup.optimizer) as autopsy:
        for loss in stepwise(setup):
            autopsy.step(loss=loss)
    report = autopsy.get_report()
    return merged(
        Found(_problem(each.title), SEVERITIES[each.severity.name], each.title, "; ".join(each.remediation))
        for each in report.findings
    )


def _problem(title: str) -> str:
    named = [problem for start, problem in PROBLEMS.items() if title.startswith(start)]
    return named[0] if named else title.split(" in ")[0]
