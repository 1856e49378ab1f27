"""torch-audit 0.3.0: the whole training under `autopatch`, looked at in every tenth step.

Its default looks at every thousandth step, that is at the first one of these trainings alone. Its rules on speed are
left out: they are no faults of a training.
"""

from torch_audit import autopatch

from faults.opponents import Found, merged
from faults.training import train
from normscope import Setup

# Rule: problem. A rule that stands for no problem keeps its id.
PROBLEMS = {
    "TA100": "rate-beyond-limit",  # NaN or infinite values
    "TA102": "gradients-explode",
    "TA103": "dead-channels",  # units without a gradient
    "TA105": "dead-channels",  # activations of zero
    "TA302": "constant-channels",  # flat data
    "TA304": "small-batch-noise",  # a tiny batch with BatchNorm
    "TA400": "bias-before-normalizer",
    "TA402": "weight-decay-on-scales",
    "TA405": "dead-channels",  # filters of zero
    "TA501": "stale-running-statistics",  # a layer with state that is used twice in a step
}
# Advice on speed: tensor cores, memory layout, mixed precision.
SPEED = {"TA200", "TA201", "TA203"}
SEVERITIES = {"INFO": "note", "WARN": "warning", "ERROR": "error", "FATAL": "error"}


def findings(setup: Setup) -> list[Found]:
    """Train under the auditor, and take the findings it keeps."""
    auditor = autopatch(
        setup.model,
        optimizer=setup.optimizer,
        every_n_steps=10,
        reporters=[],
        fail_level="FATAL",
        ignore_rules=SPEED,
    )
    try:
        train(setup)
    finally:
        result = auditor.finish()
        auditor.unpatch()
    return merged(
        Found(PROBLEMS.get(finding.rule_id, finding.rule_id), SEVERITIES[finding.severity.value], finding.message)
        for finding in result.findings
    )
