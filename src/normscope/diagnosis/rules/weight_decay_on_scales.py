"""NS104: weight decay on scales and shifts of normalizers."""

import math
from collections.abc import Iterator
from typing import Any

from normscope.diagnosis.finding import Evidence, layers_in_words
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.look.passes import NotLooked
from normscope.diagnosis.registry import Found, rule

# exp(-0.3): the scales lose a quarter of their size by decay alone.
STRONG = 0.3
# Change of the scales by decay over their change by gradients, from which decay wins.
WINS = 1.0


@rule("NS104", "weight-decay-on-scales", needs=("optimizer",))
def weight_decay_on_scales(look: Look) -> Iterator[Found]:
    """Weight decay pulls the scales of normalizers to zero faster than the gradients move them.

    Decay is meant for weights whose size a normalizer takes out again. The size of a scale is not taken out: without
    a gradient the scale shrinks to exp(-rate * decay * steps / (1 - momentum)) of its first value. In usual recipes,
    such as SGD with a decay of 0.0005, gradients are far stronger than the decay and hold the scales up; that is a
    note.

    Why it hurts:
        Scales near zero shrink the signal, and the gradient that would let them grow again shrinks with them.

    Threshold:
        A warning where both hold. Decay alone would take more than a quarter off the scales over the planned steps:
        rate * decay * steps / (1 - momentum) is above 0.3. And in the short training of a copy, decay moves the scales
        further than the gradients do: the ratio of the two changes is above 1. The fault of NormFaults has 3.7. Usual
        recipes have 0.03 to 0.15: SGD at decays of 0.0001 and 0.0005, AdamW at 0.05.

    Switch off:
        The decay is meant to act on the scales, to make the network narrower for example.

    Fails:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model, torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1), steps=500)

    Passes:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        vectors = [p for p in model.parameters() if p.ndim == 1]
        matrices = [p for p in model.parameters() if p.ndim > 1]
        groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        setup = training(model, torch.optim.SGD(groups, lr=0.1, weight_decay=0.1), steps=500)
    """
    strengths: dict[str, float] = {}
    for norm in look.normalizers:
        for name, parameter in norm.parameters.items():
            group = look.group_of(name)
            if group is not None and parameter.requires_grad and float(group.get("weight_decay") or 0.0) > 0:
                strengths[norm.name] = max(strengths.get(norm.name, 0.0), _strength(group, look))
    if not strengths:
        return
    worst, names = max(strengths.values()), list(strengths)
    ratio = _decay_beside_gradients(look, names)
    wins = worst > STRONG and ratio > WINS
    yield Found(
        "warning" if wins else "note",
        _text(names, ratio, worst, look),
        Evidence("change of the scales by decay / by gradients", ratio, limit=WINS),
        "norms = {id(p) for m in model.modules() if 'Norm' in type(m).__name__ for p in m.parameters()}\n"
        "groups = [{'params': [p for p in model.parameters() if id(p) not in norms]},\n"
        "          {'params': [p for p in model.parameters() if id(p) in norms], 'weight_decay': 0.0}]",
        names,
        source="https://github.com/huggingface/transformers/issues/19454",
    )


def _text(names: list[str], ratio: float, strength: float, look: Look) -> str:
    said = f"Weight decay acts on the scales and shifts of {layers_in_words(names)}"
    if math.isnan(ratio):
        return f"{said}; nothing was trained, so it is not known whether gradients hold the scales up."
    if ratio <= WINS:
        return f"{said}, as in many usual recipes. In this look the gradients moved the scales more than the decay did."
    if look.steps is None:
        return f"{said} and moves the scales more than the gradients do. The number of steps is not known."
    constant = ", at a constant rate since the setup has no scheduler" if look.setup.scheduler is None else ""
    return (
        f"{said} and moves the scales more than the gradients do. By decay alone, {math.exp(-strength):.0%} of their "
        f"size would be left after {look.steps} steps{constant}."
    )


def _strength(group: dict[str, Any], look: Look) -> float:
    """The exponent of the decay over the planned steps, at the present rate times the mean factor of the schedule."""
    momentum = float(group.get("momentum") or 0.0)
    rate = float(group["lr"]) if "initial_lr" not in group else float(group["initial_lr"]) * look.mean_factor
    return rate * float(group["weight_decay"]) * (look.steps or 0) / (1 - min(momentum, 0.999))


def _decay_beside_gradients(look: Look, names: list[str]) -> float:
    """The norm of the scales' change by decay over that of their change by gradients; nan if nothing was trained."""
    try:
        trained = look.trained
    except NotLooked:
        return math.nan
    now = dict(trained.copy.model.named_parameters(remove_duplicate=False))
    by_decay = by_gradients = 0.0
    for norm in look.normalizers:
        for name, parameter in norm.parameters.items() if norm.name in names else ():
            group, first = look.group_of(name), parameter.detach()
            if group is None or name not in now or parameter is not norm.weight:
                continue
            decayed = first * (math.exp(-_exponent(group, trained.steps)) - 1)
            rest = now[name].detach() - first - decayed
            by_decay += float(decayed.float().square().sum())
            by_gradients += float(rest.float().square().sum())
    if not by_decay:
        return math.nan
    return math.sqrt(by_decay / by_gradients) if by_gradients else math.inf


def _exponent(group: dict[str, Any], steps: int) -> float:
    r"""The exponent of the decay over a few steps at the present rate.

    rate * decay * sum_k (1 - momentum^k) / (1 - momentum)      the momentum builds up over the steps k = 1, 2, ...
    """
    momentum = min(float(group.get("momentum") or 0.0), 0.999)
    built = sum((1 - momentum**k) / (1 - momentum) for k in range(1, steps + 1))
    return float(group["lr"]) * float(group["weight_decay"] or 0.0) * built
