"""NS210: statistics in low precision."""

from collections.abc import Iterator

import torch
from torch import Tensor

from normscope.diagnosis.finding import Cost, Evidence, layers_in_words
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.look.low_precision import LOW, low_precision_errors
from normscope.diagnosis.registry import Found, rule

# Relative error of the output, in units of the dtype's eps; error of a running mean in deviations.
OUTPUT, BUFFER = 8.0, 0.2


@rule("NS210", "statistics-in-low-precision", needs=("batches",))
def statistics_in_low_precision(look: Look) -> Iterator[Found]:
    """A normalizer computes or keeps its statistics in low precision, and they differ from those in float32.

    A hand-written mean of squares minus the square of the mean loses all digits near a large mean. Running statistics
    in bfloat16 stop where a new batch changes them by less than half of their last digit.

    Why it hurts:
        The output is wrong by far more than the rounding of its dtype, or evaluation uses statistics that stopped on
        their way.

    Threshold:
        An error where the output differs from that of the same layer in float32 by more than 8 units of the dtype's
        eps, relative to the output; torch's own layers stay below 1. For running statistics: where they stop more than
        0.2 deviations before their mean, on average over channels: they stop |mean| * eps / (4 * momentum) away.

    Switch off:
        Never.

    Fails:
        class Norm(nn.Module):
            def __init__(self, width):
                super().__init__()
                self.weight = nn.Parameter(torch.ones(width))

            def forward(self, x):
                mean = x.mean(-1, keepdim=True)
                variance = (x * x).mean(-1, keepdim=True) - mean * mean
                return self.weight * (x - mean) * torch.rsqrt(variance.clamp(min=0) + 1e-5)


        bright = [(a.bfloat16() + 30, b) for a, b in batches]
        setup = training(nn.Sequential(Norm(64), nn.Linear(64, 10)).bfloat16(), batches=bright)

    Passes:
        bright = [(a.bfloat16() + 30, b) for a, b in batches]
        setup = training(nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 10)).bfloat16(), batches=bright)
    """
    errors = low_precision_errors(look)
    wrong = {name: error for name, error in errors.items() if error > OUTPUT}
    if wrong:
        worst = max(wrong.values())
        yield Found(
            "error",
            f"The output of {layers_in_words(list(wrong))} differs from that in float32 by {worst:.0f} units of the "
            "dtype's last digit.",
            Evidence("relative error of the output / eps of the dtype", worst, limit=OUTPUT),
            "normal = layer(x.float()).to(x.dtype)  # statistics in float32",
            list(wrong),
            Cost(),
            "https://github.com/huggingface/transformers/issues/33133",
        )
    stops = {}
    for norm in look.over_batch:
        running = getattr(norm.layer, "running_mean", None)
        calls = [call for call in look.start.trace.inputs.get(norm.name, []) if call.training]
        if isinstance(running, Tensor) and running.dtype in LOW and calls and norm.momentum:
            mean, var = calls[0].mean.double(), calls[0].var.double().clamp(min=1e-12)
            short = mean.abs() * torch.finfo(running.dtype).eps / (4 * norm.momentum) / var.sqrt()
            if float(short.mean()) > BUFFER:
                stops[norm.name] = float(short.mean())
    if stops:
        worst = max(stops.values())
        yield Found(
            "error",
            f"The running statistics of {layers_in_words(list(stops))} are kept in low precision, and stop {worst:.2g} "
            "deviations before they arrive.",
            Evidence("distance at which the running mean stops / deviation", worst, limit=BUFFER),
            "for m in model.modules():\n    if isinstance(m, nn.modules.batchnorm._BatchNorm): m.float()",
            list(stops),
            Cost(),
            "https://github.com/pytorch/pytorch/issues/114704",
        )
