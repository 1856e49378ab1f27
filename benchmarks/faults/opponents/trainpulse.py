"""trainpulse 0.4.0: a monitor that is told the loss, the gradient's norm and the rate of each step.

Times of steps are not handed in: here they tell of the machine and not of the training.
"""

import torch
from trainpulse import Monitor

from faults.opponents import Found, merged
from faults.training import stepwise
from normscope import Setup

# Detector: problem; a detector that stands for no problem keeps its name.
PROBLEMS = {"nan_detector": "rate-beyond-limit", "loss_spike": "loss-spike-ahead"}
SEVERITIES = {"info": "note", "warning": "warning", "critical": "error"}


def findings(setup: Setup) -> list[Found]:
    """Train, log every step, and take the alerts."""
    monitor = Monitor()
    assert setup.optimizer is not None
    for step, loss in enumerate(stepwise(setup)):
        grads = [p.grad for p in setup.model.parameters() if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(grad.float()) for grad in grads]))
        monitor.log("loss", step, loss)
        monitor.log("grad_norm", step, float(norm))
        monitor.log("learning_rate", step, float(setup.optimizer.param_groups[0]["lr"]))
    return merged(
        Found(_problem(alert.detector, alert.message), SEVERITIES[alert.severity.value], alert.message)
        for alert in monitor.report().alerts
    )


def _problem(detector: str, message: str) -> str:
    if detector == "gradient":
        return "gradients-explode" if message.startswith("Gradient explosion") else "gradients-vanish"
    return PROBLEMS.get(detector, detector)
