"""NS102: BatchNorm's momentum is too small to settle within the planned steps."""

from collections.abc import Iterator

from normscope.diagnosis.finding import Cost, Evidence, layers_in_words
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.registry import Found, rule

# Share of the first statistics that is left after the planned batches.
LEFT = 0.3


@rule("NS102", "momentum-too-small")
def momentum_too_small(look: Look) -> Iterator[Found]:
    """BatchNorm's momentum is so small that the running statistics do not settle within the planned steps.

    After n batches, a share of (1 - momentum)^n of the running statistics is still the value they began with: mean 0
    and variance 1.

    Why it hurts:
        Evaluation normalizes by a mixture of the first values and the data's, and is worse than training.

    Threshold:
        A warning where more than 30 % of the first values are left after the planned steps. NormFaults calls a
        training clean from `steps * momentum` = 3 on, where 5 % are left, and a fault below 0.5, where 60 % are left.
        30 % is the middle. Without a planned number of steps, the rule needs a momentum below 0.0005 (a note).

    Switch off:
        The statistics are computed again before every evaluation, or training goes on for longer than `steps`.

    Fails:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32, momentum=0.001), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model, steps=200)

    Passes:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32, momentum=0.05), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model, steps=200)
    """
    moving = [norm for norm in look.over_batch if norm.tracks and norm.layer.training and norm.momentum is not None]
    small = {norm.name: norm.momentum for norm in moving if norm.fresh and norm.momentum is not None}
    if not small:
        return
    least = min(small.values())
    if look.updates is None:
        if least < 0.0005:
            yield _found("note", [n for n, m in small.items() if m < 0.0005], least, float("nan"), look)
        return
    updates = look.updates
    late = [name for name, momentum in small.items() if (1 - momentum) ** updates > LEFT]
    if late:
        yield _found("warning", late, least, (1 - least) ** updates, look)


def _found(severity: str, names: list[str], momentum: float, left: float, look: Look) -> Found:
    planned = (
        " The number of steps is not known."
        if look.updates is None
        else f" After the {look.updates} planned batches {left:.0%} of them are left."
    )
    fix = 0.1 if look.updates is None else min(0.1, max(10 / look.updates, 0.001))
    return Found(
        severity,
        f"The running statistics of {layers_in_words(names)} keep their first values for long, since momentum is "
        f"{momentum:g}.{planned}",
        Evidence("momentum", momentum)
        if look.updates is None
        else Evidence("share of the first values that is left", left, limit=LEFT),
        f"for m in model.modules():\n    if isinstance(m, nn.modules.batchnorm._BatchNorm): m.momentum = {fix:.2g}",
        names,
        Cost(),
        "https://github.com/Rayhane-mamah/Tacotron-2/issues/19",
    )
