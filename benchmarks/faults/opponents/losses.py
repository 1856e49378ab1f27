"""The opponent that everybody has: train, print the training loss and the evaluation loss, and guess.

The guesses are a fixed rule, in this order; each gives two findings, because the first two count:

| seen | guesses |
|---|---|
| the loss is not finite, or ends above its start | a rate beyond the limit; gradients that explode |
| the loss has not fallen by a tenth | gradients that vanish; dead channels |
| eval loss above twice the training loss and 0.1 above it, with BatchNorm | stale statistics; a batch too small |
| the same without BatchNorm | evaluation data that are shifted |
| a late loss is above three times the late median and half the first loss | a spike ahead; a rate beyond the limit |
"""

import math
import statistics

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from faults.opponents import Found
from faults.training import mixed, train
from normscope import Setup


def findings(setup: Setup) -> list[Found]:
    """Train the setup, look at both losses, and guess."""
    losses = train(setup)
    tenth = max(1, len(losses) // 10)
    first, last = statistics.fmean(losses[:tenth]), statistics.fmean(losses[-tenth:])
    if not math.isfinite(losses[-1]) or last > first:
        return _guessed("rate-beyond-limit", "gradients-explode", text=f"loss {first:.3g} -> {last:.3g}")
    if last > 0.9 * first:
        return _guessed("gradients-vanish", "dead-channels", text=f"loss {first:.3g} -> {last:.3g}")
    evaluated = eval_loss(setup)
    if (evaluated > 2 * last and evaluated > last + 0.1) or not math.isfinite(evaluated):
        text = f"training loss {last:.3g}, evaluation loss {evaluated:.3g}"
        if any(isinstance(module, _BatchNorm) for module in setup.model.modules()):
            return _guessed("stale-running-statistics", "small-batch-noise", text=text)
        return _guessed("shifted-evaluation-data", text=text)
    late = losses[len(losses) // 2 :]
    if max(late) > 0.5 * first and max(late) > 3 * statistics.median(late):
        return _guessed("loss-spike-ahead", "rate-beyond-limit", text=f"a loss of {max(late):.3g}")
    return []


def _guessed(*names: str, text: str) -> list[Found]:
    return [Found(name, "warning", text) for name in names]


@torch.no_grad()
def eval_loss(setup: Setup) -> float:
    """The mean loss of the evaluation batches in eval mode, of the averaged weights where there are any."""
    model: nn.Module = setup.model if setup.averaged_model is None else setup.averaged_model
    model.eval()
    losses = []
    for batch in setup.eval_batches or ():
        with mixed(setup):
            losses.append(float(setup.objective(model, batch)))
    return statistics.fmean(losses)
