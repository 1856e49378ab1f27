"""NS103: eps is not small against the variance."""

from collections.abc import Iterator

import torch

from normscope.diagnosis.finding import Evidence, layers_in_words
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.registry import Found, rule

# Outputs have at most 45 % of the size they should have.
LARGE = 4.0


@rule("NS103", "eps-against-variance", needs=("batches",))
def eps_against_variance(look: Look) -> Iterator[Found]:
    """A normalizer's eps is not small against the variance to which it is added, or is lost in the dtype.

    The output has the size sqrt(variance / (variance + eps)) instead of 1. `nn.RMSNorm` without eps takes
    `torch.finfo(dtype).eps`, which is 0.0078 in bfloat16 and 1.2e-7 in float32.

    Why it hurts:
        The layer normalizes less the smaller its input is, so the network depends on the scale of its weights again. A
        checkpoint gives another function in another dtype.

    Threshold:
        A warning where eps is more than 4 times the median variance that the layer sees, so that outputs have at most
        45 % of their size. In the development half of NormFaults, clean trainings have at most 0.012, faults 970 and
        more; heads of detectors have 1.3 and train. A note where eps is zero in the dtype of the input.

    Switch off:
        The eps belongs to a checkpoint that was trained with it.

    Fails:
        small = [(0.001 * a, b) for a, b in batches]
        model = nn.Sequential(nn.Linear(64, 32, bias=False), nn.LayerNorm(32, eps=1e-2), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model, batches=small)

    Passes:
        setup = training(nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32, eps=1e-5), nn.ReLU(), nn.Linear(32, 10)))
    """
    trace = look.start.trace
    ratios: dict[str, float] = {}
    lost = []
    for norm in look.normalizers:
        seen = trace.variances.get(norm.name)
        dtype = trace.dtypes.get(norm.name, torch.float32)
        if seen is None or not seen.numel() or not dtype.is_floating_point:
            continue
        eps, live = norm.eps(dtype), seen[seen > 0]
        if eps and not float(torch.tensor(eps, dtype=dtype)):
            lost.append(norm.name)
        if live.numel():
            ratios[norm.name] = eps / float(live.median())
    large = {name: ratio for name, ratio in ratios.items() if ratio > LARGE}
    if large:
        worst = max(large.values())
        layer = max(large, key=large.__getitem__)
        norm = next(norm for norm in look.normalizers if norm.name == layer)
        eps = norm.eps(trace.dtypes[layer])
        yield Found(
            "warning",
            f"The eps of {layers_in_words(list(large))} is {worst:.2g} times the variance of its input, so its output "
            f"has {(1 + worst) ** -0.5:.0%} of the size it should have.",
            Evidence("eps / median variance", worst, limit=LARGE),
            f"model.{layer}.eps = {max(eps / worst / 1000, 1e-12):.0e}",
            list(large),
            source="https://github.com/pytorch/pytorch/issues/189581",
        )
    if lost:
        yield Found(
            "note",
            f"The eps of {layers_in_words(lost)} is zero in the dtype of its input, so a constant input divides by 0.",
            Evidence("eps in the dtype", 0.0),
            "x.float() before the layer, or a larger eps",
            lost,
        )
