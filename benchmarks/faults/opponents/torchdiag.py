"""torchdiag 0.1.0: its checks of dead neurons, of one step and of gradients, on the first batch and after training.

The checks take one tensor of inputs, so that other batches end in an error.
"""

import contextlib
import io
from typing import Any

import torchdiag

from faults.opponents import Found, merged
from faults.training import mixed, train
from normscope import Setup

GRADIENTS = {"EXPLODE": "gradients-explode", "VANISH": "gradients-vanish", "no_grad": "no-gradient"}


def findings(setup: Setup) -> list[Found]:
    """Check before the training, train, check again."""
    batch = next(iter(setup.batches or ()))
    with contextlib.redirect_stdout(io.StringIO()):
        step = torchdiag.verify_step(setup.model, setup.optimizer, setup.loss_fn, batch[0], batch[-1])
        before = [*_stuck(step), *_checked(setup, batch)]
        train(setup)
        return merged([*before, *_checked(setup, batch)])


def _stuck(step: dict[str, Any]) -> list[Found]:
    """A step that failed, or that changed no parameter."""
    failed = [Found(f"step-{name}", "error", str(text)) for name, text in step.items() if "FAILED" in str(text)]
    if not failed and not step["params_updated"]:
        return [Found("parameters-not-in-optimizer", "error", "no parameters changed")]
    return failed


def _checked(setup: Setup, batch: Any) -> list[Found]:
    found = []
    setup.model.zero_grad()
    with mixed(setup):
        setup.objective(setup.model, batch).backward()
    for name, stats in torchdiag.check_gradients(setup.model).items():
        if stats["status"] in GRADIENTS:
            found.append(Found(GRADIENTS[stats["status"]], "warning", f"{name}: {stats['status']}"))
    for name, report in torchdiag.check_dead_neurons(setup.model, batch[0]).items():
        if report["dead_pct"] > 20:
            severity = "error" if report["dead_pct"] > 50 else "warning"
            found.append(Found("dead-channels", severity, f"{name}: {report['dead_pct']:.0f}% dead"))
    return found
