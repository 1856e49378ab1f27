"""NS208: channels that are constant or nearly constant."""

from collections.abc import Iterator

import torch

from normscope.diagnosis.finding import Evidence, layers_in_words
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.registry import Found, rule

# Variance of a channel over that of the layer's largest channels, the share of such channels, and deviations in
# evaluation.
QUIET, MANY, AWAY = 1e-3, 0.2, 60.0


@rule("NS208", "constant-channels", needs=("batches",))
def constant_channels(look: Look) -> Iterator[Found]:
    """A channel is constant or nearly constant, and the normalizer amplifies what is left of it.

    BatchNorm divides each channel by its own deviation, and by sqrt(eps) at least. The noise of a channel that hardly
    varies gets the size of a signal.

    Why it hurts:
        The layers behind learn from noise. A constant that moves a little in evaluation becomes an input of many
        deviations.

    Threshold:
        A channel is quiet if its variance is below 0.001 times that of the largest 5 % of the layer's channels and
        above rounding. A warning where at least 20 % of the channels are quiet and get the size of a signal, or where
        the values of a quiet channel in evaluation are more than 60 deviations away. In the development half of
        NormFaults the faults have 42 % and 87 %, clean trainings none; of the pixels of its digits 9 % are quiet,
        and 22 deviations away in evaluation.

    Switch off:
        The quiet channels hold signal.

    Fails:
        noise = torch.randn(1280, 64) * 1e-2
        quiet = [(torch.cat([a, 1 + noise[64 * n : 64 * n + 64]], 1), b) for n, (a, b) in enumerate(batches)]
        model = nn.Sequential(nn.BatchNorm1d(128), nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model, batches=quiet)

    Passes:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model)
    """
    trace = look.start.trace
    for norm in look.over_batch:
        calls = [call for call in trace.inputs.get(norm.name, []) if call.training]
        if not calls:
            continue
        means = torch.stack([call.mean.double() for call in calls])
        var = torch.stack([call.var.double() for call in calls]).mean(0) + means.var(0, correction=0)
        eps, dtype = norm.eps(trace.dtypes[norm.name]), trace.dtypes[norm.name]
        size = torch.stack([call.largest.double() for call in calls]).amax(0)
        top = float(var.topk(max(1, len(var) // 20)).values.mean())
        quiet = (var < QUIET * top) & (var > (size * torch.finfo(dtype).eps).square())
        away = _away(look, norm.name, means.mean(0), var, eps)
        # The output of the layer on a quiet channel has the size of a signal, unless eps holds it down.
        signal = quiet & (var > eps / 10)
        share, drifting = float(signal.double().mean()), quiet & (away > AWAY)
        if share >= MANY or bool(drifting.any()):
            loud = signal if share >= MANY else drifting
            gain = float(((var[loud].median() + eps) / top) ** -0.5)
            yield Found(
                "warning",
                f"{float(loud.double().mean()):.0%} of the channels of {layers_in_words([norm.name])} hardly vary, and "
                f"the normalizer multiplies them by {gain:.0f} times as much as the others.",
                Evidence("share of channels that hardly vary", share, limit=MANY)
                if share >= MANY
                else Evidence("deviations of evaluation from training", float(away[loud].max()), limit=AWAY),
                f"x = x[:, variance > threshold]  # leave them out; or model.{norm.name}.eps = {top / 10:.0e}",
                [norm.name],
                source="https://github.com/pytorch/pytorch/issues/35466",
            )
            return


def _away(look: Look, name: str, center: torch.Tensor, var: torch.Tensor, eps: float) -> torch.Tensor:
    """By how many deviations of training the values of a channel in evaluation are away."""
    calls = look.trace_at_evaluation.inputs.get(name, [])
    if not calls:
        return torch.zeros_like(var)
    away = torch.stack([(call.mean.double() - center).abs() + call.var.double().sqrt() for call in calls]).amax(0)
    return away / (var + eps).sqrt()
