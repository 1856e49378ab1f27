"""NS104: weight decay on scales and shifts of normalizers."""

import math
from collections.abc import Iterator
from typing import Any

from normscope.diagnosis.finding import Evidence, layers_in_words
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.registry import Found, rule

# exp(-0.3): the scales lose a quarter of their size by decay alone.
STRONG = 0.3


@rule("NS104", "weight-decay-on-scales", needs=("optimizer",))
def weight_decay_on_scales(look: Look) -> Iterator[Found]:
    """Weight decay pulls the scales and shifts of normalizers to zero.

    Decay is meant for weights whose size a normalizer takes out again. A scale's size is not taken out: without a
    gradient it shrinks to exp(-rate * decay * steps / (1 - momentum)) of its first value.

    Why it hurts:
        Scales near zero shrink the signal, and the gradient that would let them grow again shrinks with them.

    Threshold:
        A warning where rate * decay * steps / (1 - momentum) is above 0.3; below, or without a planned number of
        steps, it is a note. NormFaults calls a training clean below 0.1 and a fault above 1; 0.3 is the middle.

    Switch off:
        The decay is meant to act on the scales, to make the network narrower for example.

    Fails:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model, torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=1.0), steps=500)

    Passes:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        vectors = [p for p in model.parameters() if p.ndim == 1]
        matrices = [p for p in model.parameters() if p.ndim > 1]
        groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        setup = training(model, torch.optim.AdamW(groups, lr=0.01, weight_decay=1.0), steps=500)
    """
    strengths: dict[str, float] = {}
    for norm in look.normalizers:
        for name, parameter in norm.parameters.items():
            group = look.group_of(name)
            if group is not None and parameter.requires_grad and float(group.get("weight_decay") or 0.0) > 0:
                strengths[norm.name] = max(strengths.get(norm.name, 0.0), _strength(group, look))
    if not strengths:
        return
    worst = max(strengths.values())
    names = list(strengths)
    shrunk = f" By decay alone they end at {math.exp(-worst):.0%} of their size." if worst > 0.01 else ""
    yield Found(
        "warning" if worst > STRONG else "note",
        f"Weight decay acts on the scales and shifts of {layers_in_words(names)}.{shrunk}",
        Evidence("rate * decay * steps / (1 - momentum)", worst if look.steps else float("nan"), limit=STRONG),
        "norms = {id(p) for m in model.modules() if 'Norm' in type(m).__name__ for p in m.parameters()}\n"
        "groups = [{'params': [p for p in model.parameters() if id(p) not in norms]},\n"
        "          {'params': [p for p in model.parameters() if id(p) in norms], 'weight_decay': 0.0}]",
        names,
        source="https://github.com/huggingface/transformers/issues/19454",
    )


def _strength(group: dict[str, Any], look: Look) -> float:
    """The exponent of the decay over the planned steps, at the present rate times the mean factor of the schedule."""
    momentum = float(group.get("momentum") or 0.0)
    rate = float(group["lr"]) if "initial_lr" not in group else float(group["initial_lr"]) * look.mean_factor
    return rate * float(group["weight_decay"]) * (look.steps or 0) / (1 - min(momentum, 0.999))
