"""`normscope.diagnose`, as a user calls it: with the setup, and nothing else."""

import normscope
from faults.opponents import Found
from normscope import Setup


def findings(setup: Setup) -> list[Found]:
    """The findings in the order in which the diagnosis gives them."""
    diagnosis = normscope.diagnose(setup)
    return [
        Found(finding.name, finding.severity, finding.text, finding.fix, getattr(finding, "apply", None))
        for finding in diagnosis.findings
    ]
